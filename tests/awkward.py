"""A small trace of what viewers stumble over: overlaps, ids beyond 53 bits, shared pids, rows without an end."""

from pathlib import Path

from ral_trace.tracer.schema import FLAGS
from ral_trace.tracer.store import TraceBuilder

EPOCH_NS = 1_790_000_000_000_000_000
HUGE = 2**60 + 1
"""Beyond what a float64, and so JavaScript, can count."""
ODD_NAME = 'naïve "quoted" \\ <b>&amp;</b>\n\t\u2028 \U0001f600 ' + "x" * 5_000


def awkward(path: Path) -> Path:
    """Ranks with the same tids: two with pids of their own, a container with the pid of the first, none, a huge one."""
    with TraceBuilder(path) as builder:
        source = builder.add("source", format="live", producer="test", clock_zero="unix epoch", clock_offset_ns=0)
        pids = [(100, "host a"), (101, "host a"), (100, "container"), (None, "text only"), (HUGE, "huge")]
        for rank, (pid, host) in enumerate(pids):
            process = builder.add(
                "process", source=source, pid=pid, rank=rank, host=host, name=f"rank {rank}", started_ns=EPOCH_NS
            )
            threads = [builder.add("thread", process=process, tid=tid, name="python") for tid in (7, 8, HUGE)]
            device = builder.add("device", process=process, type="ral", index=rank, vendor="sim", name="Sim")
            streams = [builder.add("stream", device=device, number=n, pipeline="compute") for n in (0, 1)]
            _launches(builder, process, threads[0], device, streams)
            _overlaps(builder, process, threads, device, streams[1])
            _memory(builder, process, device)
            counter = builder.add("counter", process=process, device=device, series="queue depth", unit="launches")
            for n, value in enumerate([1.5, None, float("nan"), 3.25]):
                builder.add("counter_value", counter=counter, ts_ns=EPOCH_NS + 100 * n, value=value)
        builder.add("quality", source=source, what="events dropped", count=3)
        builder.add("stack", frames=[{"file": "a \U0001f600.py", "line": 3, "function": "<lambda>"}])
        return builder.finish()


def _launches(builder: TraceBuilder, process: int, thread: int, device: int, streams: list[int]) -> None:
    """An op with two launches; the first starts two kernels that overlap, the second falls back."""
    at, host = EPOCH_NS + 1_000, {"process": process, "thread": thread}
    placed = {"device": device, "stream": streams[0]}
    alone = {"process": process, **placed}
    rows = [
        {"kind": "op", "name": ODD_NAME, "ts_ns": at, "dur_ns": 1_000, **host, "category": "forward"},
        {"kind": "launch", "name": "aten::mm", "ts_ns": at + 10, "dur_ns": 100, **host, **placed, "correlation": HUGE},
        {"kind": "launch", "name": "aten::sort", "ts_ns": at + 200, "dur_ns": 700, **host, **placed, "correlation": 2},
        {"kind": "kernel", "name": "mm_1", "ts_ns": at + 50, "dur_ns": 400, **alone, "correlation": HUGE},
        {"kind": "kernel", "name": "mm_2", "ts_ns": at + 300, "dur_ns": 400, **alone, "correlation": HUGE},
        {"kind": "fallback", "name": "aten::sort", "ts_ns": at + 250, "dur_ns": 600, **host, **placed, "correlation": 2,
         "bytes": 4096, "args": '{"routed": "aten::sort.stable", "reason": "native: no entry"}'},
    ]  # fmt: skip
    for row in rows:
        builder.add("event", **{"flags": 0, **row})


def _overlaps(builder: TraceBuilder, process: int, threads: list[int], device: int, stream: int) -> None:
    """Overlapping, identical, touching, empty and endless slices; instants; rows with times that cannot be."""
    at = EPOCH_NS + 5_000
    starts = [0, 5, 5, 15, 15, 20, 20, 20, 27, 30, 30, 40, 60]
    durations = [10, 10, 10, 0, 5, 0, 0, 7, 0, 100, 100, 200, 1]
    places: list[dict[str, object]] = [{"stream": stream, "device": device, "kind": "kernel"}]
    places += [{"thread": thread, "kind": "runtime"} for thread in threads]
    for start, duration in zip(starts, durations, strict=True):
        row = {"name": f"span {start}+{duration}", "ts_ns": at + start, "dur_ns": duration, "process": process}
        for place in places:
            builder.add("event", **row, **place, flags=0)
    odd = {"kind": "wait", "name": "odd", "process": process, "thread": threads[1]}
    builder.add("event", **odd, ts_ns=at + 35, flags=FLAGS["UNFINISHED"])
    builder.add("event", **odd, ts_ns=at + 36, flags=0)
    builder.add("event", **odd, ts_ns=at + 3, dur_ns=5, flags=FLAGS["INVALID"])
    builder.add("event", kind="error", name="out of memory", ts_ns=at + 50, process=process, thread=threads[0], flags=0)
    builder.add("event", kind="annotation", name="", ts_ns=at, dur_ns=50, process=process, flags=0)


def _memory(builder: TraceBuilder, process: int, device: int) -> None:
    """Two blocks, one never freed, in a region that was there before."""
    at, placed = EPOCH_NS + 500, {"process": process, "device": device, "flags": 0}
    first = builder.add("event", kind="alloc", ts_ns=at, dur_ns=0, bytes=HUGE, **placed)
    second = builder.add("event", kind="alloc", ts_ns=at + 3, dur_ns=0, bytes=512, **placed)
    free = builder.add("event", kind="free", ts_ns=at + 9, dur_ns=0, bytes=HUGE, **placed)
    builder.connection.execute(
        """
        INSERT INTO memory_change
            (action, event, ts_ns, device, address, size_bytes, requested_bytes, uses, handle, before_trace)
        VALUES
            ('open', -1, $at, $device, 1, $huge + 4096, NULL, NULL, 5, true),
            ('alloc', $first, $at, $device, 1, $huge, $huge, NULL, NULL, false),
            ('alloc', $second, $at + 3, $device, 1 + $huge, 512, 500, NULL, NULL, false),
            ('free', $free, $at + 9, $device, 1, $huge, NULL, 4, NULL, false)""",
        {"at": at, "device": device, "huge": HUGE, "first": first, "second": second, "free": free},
    )
