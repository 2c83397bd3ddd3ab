"""`.pftrace`: a trace for the Perfetto UI (ui.perfetto.dev), written natively and compressed.

What becomes what:

- A process is a group, a thread a track in it with its real pid and tid. Ids that Perfetto cannot take (unknown, beyond 31 bits, or given twice)
  are shown in the names of plain tracks instead. A device is a group in its process, `ral:1 · sim · ...`, with one track a stream.
- Each valid row of SLICE_KINDS with a duration becomes exactly one slice: its start and duration are the database's, in nanoseconds; its category
  is the row's kind. Slices that overlap without nesting go to further tracks, `... (overlap 1)`, below the first.
- A row that never ended (flag UNFINISHED) becomes a slice without an end, which the UI draws to the end of the trace. Instants, errors, and rows
  whose duration is unknown become instants.
- Rows with the flag INVALID are left out. So are alloc, free, region and counter rows: counters show them.
- An arrow for each row of `flow` whose two ends are shown, and one from each op to the launches of which it is the parent. Perfetto draws arrows
  forward in time: one whose target began before its origin points the other way.
- Counters for each device: allocated bytes, reserved bytes (the views memory_curve and reserved_curve), CPU fallbacks running. Each row of
  counter_value, too; Perfetto knows no gaps, so where a value is NULL or not finite the one before it stays.
- A window takes rows whole, so that a slice which reaches into it may begin before it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import duckdb
from isal import isal_zlib

from ral_trace.tracer import _native
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.exporters.output import MAX_NS, UNFINISHED, VALID, Selection, Window, create_private, select
from ral_trace.tracer.trace import Trace

FORMAT = "Perfetto"
ENDINGS = (".pftrace",)

SLICE_KINDS = (
    "op", "launch", "kernel", "transfer", "sync", "fallback", "wait", "runtime", "annotation", "python", "instant", "error",
)  # fmt: skip
ANNOTATED_ARGS = ("routed", "route", "reason", "waited_for", "kernel", "vendor")
"""Keys of `event.args` that become debug annotations."""

# A track's key towards the encoder: what it shows, then the id in the table of that name.
PROCESS, THREAD, DEVICE, STREAM, ALLOCATED, RESERVED, FALLBACKS, COUNTER = (kind << 32 for kind in range(8))
NO_PARENT = _native.PERFETTO_NO_PARENT

COMPRESSION_LEVEL = 1
"""isal's: level 2 and 3 take longer and save next to nothing on these packets."""


def write(trace: Trace, out: Path, window: Window) -> None:
    """Writes the trace to `out`. Raises RalTraceError when a query fails, OSError when the disk does."""
    selection = select(trace, window)
    with create_private(out) as file:
        encoder = _native.PerfettoEncoder(compressed_into(file), unix_epoch=_counts_from_1970(trace))
        try:
            _describe_tracks(trace, encoder)
            _write_slices(trace, encoder, selection)
            _write_counters(trace, encoder, selection)
        except RuntimeError as error:
            raise RalTraceError(
                f"{trace.path}: cannot be exported ({error}); check it with: ral-trace query"
            ) from error
        encoder.finish()


def compressed_into(file: IO[bytes]) -> Callable[[bytes], object]:
    """A sink for the encoder: packs each chunk of packets into one compressed packet.

    Trace { packet (1) { compressed_packets (50): zlib(Trace { packet ... }) } }
    """

    def write_chunk(packets: bytes) -> None:
        packed = isal_zlib.compress(packets, COMPRESSION_LEVEL)
        inner = b"\x92\x03" + _varint(len(packed))
        file.write(b"\x0a" + _varint(len(inner) + len(packed)) + inner)
        file.write(packed)

    return write_chunk


def slices_sql(selection: Selection) -> str:
    """The rows that PerfettoEncoder.slices takes, in its order."""
    annotations = ", ".join(f"known[{n}] AS {key}" for n, key in enumerate(ANNOTATED_ARGS, 1))
    paths = ", ".join(f"'$.{key}'" for key in ANNOTATED_ARGS)
    return f"""
        SELECT id, track, start_ns, dur_ns, shape::BIGINT, name, kind, id AS event, category, bytes, step, correlation, {annotations}
        FROM (SELECT *, json_extract_string(args, [{paths}]) AS known FROM ({_shown_sql(selection)}))
        ORDER BY start_ns, span DESC, id DESC"""


def arrows_sql(selection: Selection) -> str:
    """The ends of arrows that PerfettoEncoder.slices takes, in the order of the slices."""
    return f"""
        WITH shown AS ({_shown_sql(selection)}),
        arrow AS (
            SELECT row_number() OVER () AS number, from_event, to_event FROM (
                SELECT from_event, to_event FROM flow
                UNION ALL
                SELECT launch.parent, launch.id FROM shown launch JOIN event op ON op.id = launch.parent
                WHERE launch.kind = 'launch' AND op.kind = 'op')
            WHERE from_event <> to_event),
        linked AS (
            SELECT number, origin.id AS from_id, origin.start_ns AS from_ns, origin.span AS from_span,
                   target.id AS to_id, target.start_ns AS to_ns, target.span AS to_span
            FROM arrow JOIN shown origin ON origin.id = from_event JOIN shown target ON target.id = to_event)
        SELECT id, number FROM (
            SELECT from_id AS id, number, from_ns AS start_ns, from_span AS span, to_id AS other FROM linked
            UNION ALL
            SELECT to_id, number, to_ns, to_span, from_id FROM linked)
        ORDER BY start_ns, span DESC, id DESC, other"""


def _shown_sql(selection: Selection) -> str:
    """Rows of `event` that are drawn. `span` orders rows that begin together: the one that encloses first."""
    kinds = ", ".join(f"'{kind}'" for kind in SLICE_KINDS)
    return f"""
        SELECT *, CASE shape WHEN {SHAPE_OPEN} THEN {MAX_NS} WHEN {SHAPE_SLICE} THEN dur_ns ELSE -1 END AS span
        FROM (
            SELECT id, ts_ns - ({_shift(selection)}) AS start_ns, dur_ns, coalesce(nullif(name, ''), kind::VARCHAR) AS name,
                   kind::VARCHAR AS kind, category, bytes, step, correlation, parent, args,
                   CASE WHEN kind IN ('instant', 'error') AND coalesce(dur_ns, 0) <= 0 THEN {SHAPE_POINT}
                        WHEN dur_ns >= 0 THEN {SHAPE_SLICE}
                        WHEN dur_ns IS NULL AND {UNFINISHED} THEN {SHAPE_OPEN}
                        ELSE {SHAPE_POINT} END AS shape,
                   CASE WHEN kind IN ('kernel', 'transfer') AND stream IS NOT NULL THEN {STREAM} + stream
                        WHEN thread IS NOT NULL THEN {THREAD} + thread
                        WHEN stream IS NOT NULL THEN {STREAM} + stream
                        WHEN device IS NOT NULL THEN {DEVICE} + device
                        ELSE {PROCESS} + coalesce(process, 0) END AS track
            FROM event WHERE {VALID} AND kind IN ({kinds}) AND {selection.events()})"""


SHAPE_SLICE, SHAPE_OPEN, SHAPE_POINT = 0, 1, 2
"""As PerfettoEncoder names what a row becomes."""


def _shift(selection: Selection) -> int:
    """Perfetto's times are unsigned: a trace whose clock begins below zero is moved up to it."""
    return min(0, selection.first_ns)


def _write_slices(trace: Trace, encoder: _native.PerfettoEncoder, selection: Selection) -> None:
    with _cursor(trace) as slices, _cursor(trace) as arrows:
        encoder.slices(slices.sql(slices_sql(selection)), arrows.sql(arrows_sql(selection)))


def _write_counters(trace: Trace, encoder: _native.PerfettoEncoder, selection: Selection) -> None:
    for number, unit, name in trace.sql("SELECT id, unit, series FROM counter").fetchall():
        encoder.add_counter(COUNTER + number, _counter_parent(trace, number), name or "counter", unit or "")
    for (device,) in trace.sql("SELECT id FROM device ORDER BY id").fetchall():
        encoder.add_counter(ALLOCATED + device, DEVICE + device, "allocated bytes", "bytes")
        encoder.add_counter(RESERVED + device, DEVICE + device, "reserved bytes", "bytes")
        encoder.add_counter(FALLBACKS + device, DEVICE + device, "CPU fallbacks running", "count")
    known = "SELECT id FROM device"
    of_devices = f"""
        SELECT {ALLOCATED} + device AS key, ts_ns, allocated_bytes AS value FROM memory_curve WHERE device IN ({known})
        UNION ALL
        SELECT {RESERVED} + device, ts_ns, reserved_bytes FROM reserved_curve WHERE device IN ({known})
        UNION ALL
        SELECT {FALLBACKS} + device, ts_ns, (sum(change) OVER (PARTITION BY device ORDER BY ts_ns))::BIGINT FROM (
            SELECT device, ts_ns, sum(change) AS change FROM (
                SELECT device, ts_ns, 1 AS change FROM event WHERE kind = 'fallback' AND dur_ns >= 0 AND {VALID}
                UNION ALL
                SELECT device, ts_ns + dur_ns, -1 FROM event WHERE kind = 'fallback' AND dur_ns >= 0 AND {VALID})
            WHERE device IN ({known}) GROUP BY ALL)"""
    of_the_source = f"""
        SELECT {COUNTER} + counter AS key, ts_ns, value FROM counter_value
        WHERE isfinite(value) AND counter IN (SELECT id FROM counter)"""
    for values in (of_devices, of_the_source):
        with _cursor(trace) as cursor:
            encoder.counters(cursor.sql(_values_in_window(values, selection)))


def _values_in_window(values: str, selection: Selection) -> str:
    """The values inside the window, led by the one that still holds when it begins."""
    begin = -MAX_NS if selection.from_ns is None else selection.from_ns
    end = MAX_NS if selection.to_ns is None else selection.to_ns
    return f"""
        SELECT key, greatest(ts_ns, {begin}) - ({_shift(selection)}) AS ts_ns, value
        FROM (SELECT *, lead(ts_ns) OVER (PARTITION BY key ORDER BY ts_ns) AS next_ns FROM ({values}))
        WHERE ts_ns < {end} AND (ts_ns >= {begin} OR next_ns IS NULL OR next_ns > {begin}) AND ts_ns >= {_shift(selection)}
        ORDER BY key, ts_ns"""


def _counter_parent(trace: Trace, number: int) -> int:
    [(process, device)] = trace.sql("SELECT process, device FROM counter WHERE id = ?", [number]).fetchall()
    if device is not None:
        return DEVICE + int(device)
    return NO_PARENT if process is None else PROCESS + int(process)


def _describe_tracks(trace: Trace, encoder: _native.PerfettoEncoder) -> None:
    """Describes all processes, threads, devices and streams, parents first."""
    pids = _describe_processes(trace, encoder)
    # What Perfetto takes for one thread must be one: pid and tid together are its identity.
    threads = trace.rows("SELECT *, count(*) OVER (PARTITION BY process, tid) AS same FROM thread ORDER BY id")
    for thread in threads:
        key, process, tid, name = THREAD + thread["id"], thread["process"], thread["tid"], thread["name"] or "thread"
        if process in pids and thread["same"] == 1 and _fits(tid):
            encoder.add_thread(key, pids[process], tid, name)
        else:
            encoder.add_track(key, PROCESS + process, name if tid is None else f"{name} {tid}", 0)
    for device in trace.rows("SELECT * FROM device ORDER BY id"):
        label = f"{device['type']}:{device['index']}"
        name = " · ".join(part for part in (label, device["vendor"], device["name"]) if part)
        encoder.add_track(DEVICE + device["id"], PROCESS + device["process"], name, 1 + (device["index"] or 0))
    for rank, stream in enumerate(trace.rows("SELECT * FROM stream ORDER BY device, number")):
        name = " · ".join(part for part in (f"stream {stream['number']}", stream["pipeline"]) if part)
        encoder.add_track(STREAM + stream["id"], DEVICE + stream["device"], name, rank)


def _describe_processes(trace: Trace, encoder: _native.PerfettoEncoder) -> dict[int, int]:
    """Describes the processes. Returns the pids, by process, of those that Perfetto can tell apart by their pid."""
    pids = {}
    for process in trace.rows("SELECT *, count(*) OVER (PARTITION BY pid) AS same FROM process ORDER BY id"):
        key, pid, name = PROCESS + process["id"], process["pid"], process["name"] or "process"
        labels = [f"{what} {process[what]}" for what in ("rank", "host") if process[what] is not None]
        if process["same"] == 1 and _fits(pid):
            pids[process["id"]] = pid
            encoder.add_process(key, pid, name, process["command_line"] or "", labels)
        else:
            facts = [name, *([] if pid is None else [str(pid)]), *labels]
            encoder.add_track(key, NO_PARENT, " · ".join(facts), process["id"])
    return pids


def _fits(number: Any) -> bool:
    """Whether Perfetto can take a pid or tid: 0 is the idle process there."""
    return number is not None and 0 < number < 2**31


def _counts_from_1970(trace: Trace) -> bool:
    [(others,)] = trace.sql("SELECT count(*) FROM source WHERE clock_zero IS DISTINCT FROM 'unix epoch'").fetchall()
    return bool(others == 0)


def _cursor(trace: Trace) -> duckdb.DuckDBPyConnection:
    """A second connection to the same trace, because one has only one open result at a time."""
    cursor = trace.connection.cursor()
    cursor.execute("USE trace")
    return cursor


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
