"""Traces with known content, built through the same store as real ones."""

from pathlib import Path

import numpy as np

from ral_trace.tracer.store import TraceBuilder

EPOCH_NS = 1_790_000_000_000_000_000
OPS = ["aten::mm", "aten::add.Tensor", "aten::gelu", "aten::native_layer_norm", "aten::embedding", "aten::cumsum"]


def training(path: Path, launches: int = 1_000, steps: int = 10, seed: int = 0) -> Path:
    """One process, one thread, ral:0 (host) and ral:1 (sim): `launches` ops, each with its launch and kernel, one in
    six a fallback with two copies;
    blocks that live for a few launches, one block a step that is never freed, a sync a step.

    Event counts: op = launch = launches + 2 * fallbacks; deterministic for a seed.
    """
    generator = np.random.default_rng(seed)
    with TraceBuilder(path) as builder:
        source = builder.add(
            "source",
            program="train.py",
            format="live",
            producer="synthetic",
            clock_zero="unix epoch",
            clock_offset_ns=0,
        )
        process = builder.add(
            "process",
            source=source,
            pid=4242,
            host="box",
            name="train.py",
            command_line="python train.py",
            started_ns=EPOCH_NS,
            ended_how="exited",
        )
        thread = builder.add("thread", process=process, tid=4242, name="python")
        devices = [
            builder.add(
                "device", process=process, type="ral", index=0, vendor="host", name="Host CPU", memory_bytes=1 << 30
            ),
            builder.add(
                "device",
                process=process,
                type="ral",
                index=1,
                vendor="sim",
                name="Sim accelerator",
                memory_bytes=1 << 28,
            ),
        ]
        streams = [builder.add("stream", device=device, number=0, pipeline="compute", priority=0) for device in devices]
        builder.connection.register("launched", _launched(launches, steps, generator))
        _insert_events(builder, process, thread, devices, streams)
        written = builder.connection.execute("SELECT count(*) FROM event").fetchone()
        assert written is not None
        builder.add("ledger", process=process, written=written[0] + 7, received=written[0], dropped=7, lost=0, shed=0)
        builder.add("quality", source=source, process=process, what="events dropped: the ring was full", count=7)
        builder.info(command_line="ral-trace -- python train.py", clock="tsc")
        return builder.finish()


def _launched(launches: int, steps: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """One row a launch: number, step, start, kernel duration, op, device, block size."""
    number = np.arange(launches)
    duration = generator.integers(2_000, 40_000, launches)
    start = EPOCH_NS + 1_000_000 + np.cumsum(duration + 12_000) - duration
    return {
        "n": number,
        "step": number * steps // launches,
        "ts": start,
        "dur": duration,
        "op": number % len(OPS),
        "dev": (number * steps // max(launches // 2, 1)) % 2,
        "size": generator.integers(1, 64, launches) * 4096,
    }


def _insert_events(builder: TraceBuilder, process: int, thread: int, devices: list[int], streams: list[int]) -> None:
    names = "[" + ", ".join(f"'{name}'" for name in OPS) + "]"
    device, stream = f"{devices}[dev + 1]", f"{streams}[dev + 1]"
    host = f"{process} AS process, {thread} AS thread"
    fallback = f"(op = {len(OPS) - 1} AND dev = 1)"
    # Every launch n takes ids 16 n ...: id order is the order of writing, inner rows first.
    columns = [
        "id",
        "kind",
        "category",
        "name",
        "ts_ns",
        "dur_ns",
        "process",
        "thread",
        "device",
        "stream",
        "correlation",
        "bytes",
        "args",
        "flags",
    ]
    blank = "NULL::INTEGER"
    for rows in [
        f"""SELECT n * 16 + 1, 'alloc', NULL, {names}[op + 1], ts - 3000, 0, {host}, {device}, {blank}, NULL, size, NULL, 0 FROM launched""",
        f"""SELECT n * 16 + 2, 'free', NULL, NULL, ts - 2500, 0, {host}, {device}, {blank}, NULL, size, NULL, 0 FROM launched WHERE n >= 8 AND n % 100 != 50""",
        f"""SELECT n * 16 + 3, 'kernel', NULL, {names}[op + 1], ts, dur, {process}, NULL, {device}, {stream}, n * 4 + 1, NULL, '{{"kernel": "k"}}', 0
            FROM launched WHERE NOT {fallback}""",
        f"""SELECT n * 16 + 4, 'transfer', 'device_to_host', {names}[op + 1], ts + 100, 500, {process}, NULL, {device}, {stream}, n * 4 + 2, size, NULL, 0
            FROM launched WHERE {fallback}""",
        f"""SELECT n * 16 + 5, 'launch', NULL, {names}[op + 1], ts + 50, 600, {host}, {device}, {stream}, n * 4 + 2, NULL, NULL, 0 FROM launched WHERE {fallback}""",
        f"""SELECT n * 16 + 6, 'transfer', 'host_to_device', {names}[op + 1], ts + dur - 700, 500, {process}, NULL, {device}, {stream}, n * 4 + 3, size, NULL, 0
            FROM launched WHERE {fallback}""",
        f"""SELECT n * 16 + 7, 'launch', NULL, {names}[op + 1], ts + dur - 800, 700, {host}, {device}, {stream}, n * 4 + 3, NULL, NULL, 0
            FROM launched WHERE {fallback}""",
        f"""SELECT n * 16 + 8, 'fallback', NULL, {names}[op + 1], ts, dur, {host}, {device}, {stream}, n * 4 + 1, size * 2,
            '{{"routed": "aten::cumsum.out", "reason": "native: no entry"}}', 0 FROM launched WHERE {fallback}""",
        f"""SELECT n * 16 + 9, 'launch', NULL, {names}[op + 1], ts - 2000, dur + 3000, {host}, {device}, {stream}, n * 4 + 1, NULL,
            json_object('routed', {names}[op + 1], 'route', CASE WHEN {fallback} THEN 'cpu' ELSE 'native' END), 0 FROM launched""",
        f"""SELECT n * 16 + 10, 'op', 'forward', {names}[op + 1], ts - 4000, dur + 6000, {host}, NULL, NULL, NULL, NULL, NULL, 0 FROM launched""",
        f"""SELECT max(n) * 16 + 11, 'sync', NULL, 'aten::_local_scalar_dense', max(ts + dur) + 3000, 1500, {host}, any_value({device}), any_value({stream}),
            NULL, NULL, '{{"waited_for": "aten::mm"}}', 0 FROM launched GROUP BY step""",
        f"""SELECT max(n) * 16 + 12, 'annotation', NULL, 'step#' || step, min(ts) - 5000, max(ts + dur) - min(ts) + 10000, {host}, NULL, NULL,
            NULL, NULL, NULL, 0 FROM launched GROUP BY step""",
    ]:
        builder.insert("event", columns, rows)
    builder.connection.execute(f"""
        INSERT INTO memory_change (action, event, ts_ns, device, address, size_bytes, requested_bytes, uses, handle, before_trace)
        SELECT 'alloc', n * 16 + 1, ts - 3000, {device}, 1048576 + n * 1048576, size, size - 100, NULL, NULL, false FROM launched
        UNION ALL
        SELECT 'free', n * 16 + 2, ts - 2500, {device_of_freed(devices)}, 1048576 + (n - 8) * 1048576, l.freed_size, NULL, 3, NULL, false
        FROM (SELECT *, lag(dev, 8) OVER (ORDER BY n) AS freed_dev, lag(size, 8) OVER (ORDER BY n) AS freed_size FROM launched) l
        WHERE n >= 8 AND n % 100 != 50""")
    for device_id in devices:
        builder.connection.execute(
            "INSERT INTO memory_change (action, event, ts_ns, device, address, size_bytes, requested_bytes, uses, handle, before_trace) SELECT 'open', -1, ?, ?, 1048576, 1048576 * (count(*) + 1), NULL, NULL, 1, true FROM launched",
            [EPOCH_NS, device_id],
        )


def device_of_freed(devices: list[int]) -> str:
    return f"{devices}[freed_dev + 1]"
