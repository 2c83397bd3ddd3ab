"""The rows of a timeline: which tracks viewers show of a trace, what they are called, and what lies above what."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ral_trace.tracer.reading import Trace

# A track's key: what it shows, then the id in the table of that name.
(PROCESS, THREAD, DEVICE, STREAM, ALLOCATED, RESERVED, FALLBACKS, COUNTER, STREAM_RANGES, STREAM_WAITS, MARKS,
 QUEUE_DEPTH, *_BANDWIDTHS) = (kind << 32 for kind in range(16))  # fmt: skip
LINKS = ("host_to_device", "device_to_host", "device_to_device", "within_device")
BANDWIDTH = dict(zip(LINKS, _BANDWIDTHS, strict=True))
"""By `event.category` of a transfer; the id is the device's."""


@dataclass(frozen=True)
class Track:
    """A row of the timeline. `parent` is the key of the track above it; None: at the top.

    A process has a pid where viewers can tell it apart by that; likewise a thread has a tid (with its process's pid).
    Others have neither, and say in their names what they are. `rank` orders the children of one parent.
    """

    key: int
    parent: int | None
    name: str
    rank: int = 0
    pid: int | None = None
    tid: int | None = None
    command_line: str = ""
    labels: tuple[str, ...] = ()

    @property
    def is_group(self) -> bool:
        """Whether it is a process or a device, which have others below them."""
        return self.key < THREAD or DEVICE <= self.key < STREAM


@dataclass(frozen=True)
class CounterTrack:
    """A row of numbers; `parent` is the key of its device or process, None: at the top."""

    key: int
    parent: int | None
    name: str
    unit: str


def tracks(trace: Trace) -> list[Track]:
    """All processes, threads, devices and streams, parents first."""
    found = _processes(trace)
    pids = {track.key: track.pid for track in found}
    # What a viewer takes for one thread must be one: pid and tid together are its identity.
    rows = trace.rows("""
        SELECT *, count(*) OVER (PARTITION BY process, tid) AS same FROM thread WHERE id IS NOT NULL ORDER BY id""")
    for rank, row in enumerate(rows):
        key, process, tid = THREAD + row["id"], _under(PROCESS, row["process"]), row["tid"]
        name = row["name"] or "thread"
        pid = None if process is None else pids.get(process)
        if pid is not None and row["same"] == 1 and _fits(tid):
            found.append(Track(key, process, name, rank, pid=pid, tid=tid))
        else:
            found.append(Track(key, process, name if tid is None else f"{name} {tid}", rank))
    return [*found, *_devices(trace, first_rank=len(rows)), *_streams(trace)]


def _processes(trace: Trace) -> list[Track]:
    found = []
    rows = trace.rows("""
        SELECT *, count(*) OVER (PARTITION BY pid) AS same FROM process WHERE id IS NOT NULL
        ORDER BY rank NULLS LAST, id""")
    for rank, row in enumerate(rows):
        pid, name = row["pid"], row["name"] or "process"
        labels = tuple(f"{what} {row[what]}" for what in ("rank", "host") if row[what] is not None)
        unique = row["same"] == 1 and _fits(pid)
        found.append(
            Track(
                PROCESS + row["id"],
                None,
                name if unique else _joined(name, pid, *labels),
                rank=rank,
                pid=pid if unique else None,
                command_line=row["command_line"] or "",
                labels=labels,
            )
        )
    return found


def _devices(trace: Trace, first_rank: int) -> Iterator[Track]:
    fallen = set(_column(trace, "SELECT DISTINCT device FROM event WHERE kind = 'fallback' AND device IS NOT NULL"))
    rows = trace.rows('SELECT * FROM device WHERE id IS NOT NULL ORDER BY type, "index", id')
    for rank, row in enumerate(rows, first_rank):
        key = DEVICE + row["id"]
        name = _joined(f"{row['type']}:{row['index']}", row["vendor"], row["name"])
        yield Track(key, _under(PROCESS, row["process"]), name, rank)
        if row["id"] in fallen:
            yield Track(MARKS + row["id"], key, "fallbacks")


def _streams(trace: Trace) -> Iterator[Track]:
    """A stream, above it the ranges that tools project on it, below it what only waits: neither is its work."""
    beside = "SELECT DISTINCT stream FROM event WHERE thread IS NULL AND stream IS NOT NULL AND kind"
    ranges = set(_column(trace, f"{beside} = 'annotation'"))
    waits = set(_column(trace, f"{beside} = 'wait'"))
    for rank, row in enumerate(_stream_rows(trace)):
        number, parent, name = row["id"], _under(DEVICE, row["device"]), stream_name(row)
        if number in ranges:
            yield Track(STREAM_RANGES + number, parent, f"{name} · annotations", 3 * rank + 1)
        yield Track(STREAM + number, parent, name, 3 * rank + 2)
        if number in waits:
            yield Track(STREAM_WAITS + number, parent, f"{name} · waits", 3 * rank + 3)


def counter_tracks(trace: Trace) -> list[CounterTrack]:
    """The counters of the trace's devices and of its sources."""
    found = []
    streams = _stream_rows(trace)
    for device in _column(trace, "SELECT id FROM device WHERE id IS NOT NULL ORDER BY id"):
        parent = DEVICE + device
        found.append(CounterTrack(ALLOCATED + device, parent, "allocated bytes", "bytes"))
        found.append(CounterTrack(RESERVED + device, parent, "reserved bytes", "bytes"))
        found.append(CounterTrack(FALLBACKS + device, parent, "CPU fallbacks running", "count"))
        found += [
            CounterTrack(QUEUE_DEPTH + row["id"], parent, f"queue depth of {stream_name(row)}", "count")
            for row in streams
            if row["device"] == device
        ]
        for link, key in BANDWIDTH.items():
            found.append(CounterTrack(key + device, parent, f"{link} bandwidth", "bytes/s"))
    for row in trace.rows("SELECT * FROM counter WHERE id IS NOT NULL ORDER BY id"):
        above = _under(PROCESS, row["process"]) if row["device"] is None else _under(DEVICE, row["device"])
        found.append(CounterTrack(COUNTER + row["id"], above, row["series"] or "counter", row["unit"] or ""))
    return found


def stream_name(row: dict[str, Any]) -> str:
    """How a row of `stream` is called: stream 7 · compute."""
    return _joined("stream" if row["number"] is None else f"stream {row['number']}", row["pipeline"])


def _stream_rows(trace: Trace) -> list[dict[str, Any]]:
    return trace.rows("SELECT * FROM stream WHERE id IS NOT NULL ORDER BY device, number, id")


def _under(kind: int, number: int | None) -> int | None:
    """The key of the track above; None where a trace from somebody else does not say."""
    return None if number is None else kind + number


def _column(trace: Trace, query: str) -> Sequence[int]:
    return [number for (number,) in trace.sql(query).fetchall()]


def _fits(number: Any) -> bool:
    """Whether viewers can take a pid or tid: 31 bits, and 0 is the idle process there."""
    return number is not None and 0 < number < 2**31


def _joined(*parts: Any) -> str:
    return " · ".join(str(part) for part in parts if part is not None and part != "")
