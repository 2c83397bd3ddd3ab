"""What timeline viewers draw of a trace, and where: the same for every format that they open.

- Each valid row of SLICE_KINDS with a duration is exactly one slice. A row that never ended (flag UNFINISHED) is a
  slice without an end. Instants, errors, and rows whose duration is unknown are points. Rows with the flag INVALID
  are left out; so are alloc, free, region and counter rows, which counters show.
- Host rows are on their thread's track, device rows on their stream's.
- An arrow for each row of `flow` whose two ends are drawn, and one from each op to the launches of which it is the
  parent.
- Counters for each device: allocated bytes, reserved bytes (the views memory_curve and reserved_curve) and CPU
  fallbacks running; and each row of `counter_value` that is a finite number, because viewers know no gaps."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb

from ral_trace.tracer.exporters.output import MAX_NS, UNFINISHED, VALID, Selection
from ral_trace.tracer.reading import Trace

SLICE_KINDS = (
    "op", "launch", "kernel", "transfer", "sync", "fallback",
    "wait", "runtime", "annotation", "python", "instant", "error",
)  # fmt: skip
ANNOTATED_ARGS = ("routed", "route", "reason", "waited_for", "kernel", "vendor")
"""Keys of `event.args` that are shown with a slice."""
ANNOTATIONS = ("event", "category", "bytes", "step", "correlation", *ANNOTATED_ARGS)
"""Columns of `slices_sql` that are shown with a slice; `event` is event.id."""

SHAPE_SLICE, SHAPE_OPEN, SHAPE_POINT = 0, 1, 2
"""What a row becomes; numbered as in native/perfetto_encoder.h."""

# A track's key: what it shows, then the id in the table of that name.
PROCESS, THREAD, DEVICE, STREAM, ALLOCATED, RESERVED, FALLBACKS, COUNTER = (kind << 32 for kind in range(8))


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
    for row in trace.rows("SELECT *, count(*) OVER (PARTITION BY process, tid) AS same FROM thread ORDER BY id"):
        key, process, tid = THREAD + row["id"], PROCESS + row["process"], row["tid"]
        name = row["name"] or "thread"
        pid = pids.get(process)
        if pid is not None and row["same"] == 1 and _fits(tid):
            found.append(Track(key, process, name, pid=pid, tid=tid))
        else:
            found.append(Track(key, process, name if tid is None else f"{name} {tid}"))
    for row in trace.rows("SELECT * FROM device ORDER BY id"):
        name = _joined(f"{row['type']}:{row['index']}", row["vendor"], row["name"])
        found.append(Track(DEVICE + row["id"], PROCESS + row["process"], name, rank=1 + (row["index"] or 0)))
    for rank, row in enumerate(trace.rows("SELECT * FROM stream ORDER BY device, number, id")):
        name = _joined(f"stream {row['number']}", row["pipeline"])
        found.append(Track(STREAM + row["id"], DEVICE + row["device"], name, rank=rank))
    return found


def _processes(trace: Trace) -> list[Track]:
    found = []
    for row in trace.rows("SELECT *, count(*) OVER (PARTITION BY pid) AS same FROM process ORDER BY id"):
        pid, name = row["pid"], row["name"] or "process"
        labels = tuple(f"{what} {row[what]}" for what in ("rank", "host") if row[what] is not None)
        unique = row["same"] == 1 and _fits(pid)
        found.append(
            Track(
                PROCESS + row["id"],
                None,
                name if unique else _joined(name, pid, *labels),
                rank=row["id"],
                pid=pid if unique else None,
                command_line=row["command_line"] or "",
                labels=labels,
            )
        )
    return found


def _fits(number: Any) -> bool:
    """Whether viewers can take a pid or tid: 31 bits, and 0 is the idle process there."""
    return number is not None and 0 < number < 2**31


def _joined(*parts: Any) -> str:
    return " · ".join(str(part) for part in parts if part is not None and part != "")


def counter_tracks(trace: Trace) -> list[CounterTrack]:
    """The counters of the trace's devices and of its sources."""
    found = []
    for (device,) in trace.sql("SELECT id FROM device ORDER BY id").fetchall():
        parent = DEVICE + device
        found.append(CounterTrack(ALLOCATED + device, parent, "allocated bytes", "bytes"))
        found.append(CounterTrack(RESERVED + device, parent, "reserved bytes", "bytes"))
        found.append(CounterTrack(FALLBACKS + device, parent, "CPU fallbacks running", "count"))
    for row in trace.rows("SELECT * FROM counter ORDER BY id"):
        above = [(PROCESS, row["process"])] if row["device"] is None else [(DEVICE, row["device"])]
        parents = [kind + number for kind, number in above if number is not None]
        name, unit = row["series"] or "counter", row["unit"] or ""
        found.append(CounterTrack(COUNTER + row["id"], parents[0] if parents else None, name, unit))
    return found


def slices_sql(selection: Selection) -> str:
    """Rows: id, track, start_ns, dur_ns, shape, name, kind, then ANNOTATIONS; by start, what encloses first."""
    known = ", ".join(f"known[{n}] AS {key}" for n, key in enumerate(ANNOTATED_ARGS, 1))
    paths = ", ".join(f"'$.{key}'" for key in ANNOTATED_ARGS)
    return f"""
        SELECT id, track, start_ns, dur_ns, shape::BIGINT AS shape, name, kind,
               id AS event, category, bytes, step, correlation, {known}
        FROM (SELECT *, json_extract_string(args, [{paths}]) AS known FROM ({_shown_sql(selection)}))
        ORDER BY start_ns, span DESC, id DESC"""


def arrows_sql(selection: Selection) -> str:
    """Rows: an event's id, an arrow's number; two rows an arrow, in the order of the slices."""
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
        ORDER BY start_ns, span DESC, id DESC, other, number"""


def _shown_sql(selection: Selection) -> str:
    """Rows of `event` that are drawn. `span` orders rows that begin together: the one that encloses first.

    Of two rows with the same times the later written encloses the other, because a live row is written when it ends.
    """
    kinds = ", ".join(f"'{kind}'" for kind in SLICE_KINDS)
    return f"""
        SELECT *, CASE shape WHEN {SHAPE_OPEN} THEN {MAX_NS} WHEN {SHAPE_SLICE} THEN dur_ns ELSE -1 END AS span
        FROM (
            SELECT id, ts_ns - ({shift_ns(selection)}) AS start_ns, dur_ns,
                   coalesce(nullif(name, ''), kind::VARCHAR) AS name, kind::VARCHAR AS kind,
                   category, bytes, step, correlation, parent, args,
                   CASE WHEN kind IN ('instant', 'error') AND coalesce(dur_ns, 0) <= 0 THEN {SHAPE_POINT}
                        WHEN dur_ns >= 0 THEN {SHAPE_SLICE}
                        WHEN dur_ns IS NULL AND {UNFINISHED} THEN {SHAPE_OPEN}
                        ELSE {SHAPE_POINT} END AS shape,
                   CASE WHEN kind IN ('kernel', 'transfer') AND stream IS NOT NULL THEN {STREAM} + stream
                        WHEN thread IS NOT NULL THEN {THREAD} + thread
                        WHEN stream IS NOT NULL THEN {STREAM} + stream
                        WHEN device IS NOT NULL THEN {DEVICE} + device
                        ELSE {PROCESS} + coalesce(process, 0)::BIGINT END AS track
            FROM event WHERE {VALID} AND kind IN ({kinds}) AND {selection.events()})"""


def device_values_sql(selection: Selection) -> str:
    """Rows: a counter track's key, ts_ns, value BIGINT; of the counters that follow from the trace."""
    fallbacks = f"event WHERE kind = 'fallback' AND dur_ns >= 0 AND {VALID}"
    return _values_in_window(selection, f"""
        SELECT {ALLOCATED} + device AS key, ts_ns, allocated_bytes AS value FROM memory_curve
        UNION ALL
        SELECT {RESERVED} + device, ts_ns, reserved_bytes FROM reserved_curve
        UNION ALL
        SELECT {FALLBACKS} + device, ts_ns, (sum(change) OVER (PARTITION BY device ORDER BY ts_ns))::BIGINT FROM (
            SELECT device, ts_ns, sum(change) AS change FROM (
                SELECT device, ts_ns, 1 AS change FROM {fallbacks}
                UNION ALL
                SELECT device, ts_ns + dur_ns, -1 FROM {fallbacks})
            GROUP BY ALL)""")  # fmt: skip


def source_values_sql(selection: Selection) -> str:
    """Rows: a counter track's key, ts_ns, value DOUBLE; of the trace's own counters."""
    return _values_in_window(selection, f"""
        SELECT {COUNTER} + counter AS key, ts_ns, value FROM counter_value WHERE isfinite(value)""")  # fmt: skip


def _values_in_window(selection: Selection, values: str) -> str:
    """The values inside the window, led by the one that still holds when it begins."""
    begin = -MAX_NS if selection.from_ns is None else selection.from_ns
    end = MAX_NS if selection.to_ns is None else selection.to_ns
    shift = shift_ns(selection)
    return f"""
        SELECT key, greatest(ts_ns, {begin}) - ({shift}) AS ts_ns, value
        FROM (SELECT *, lead(ts_ns) OVER (PARTITION BY key ORDER BY ts_ns) AS next_ns
              FROM ({values}) WHERE key IS NOT NULL)
        WHERE ts_ns < {end} AND (ts_ns >= {begin} OR next_ns IS NULL OR next_ns > {begin}) AND ts_ns >= {shift}
        ORDER BY key, ts_ns"""


def shift_ns(selection: Selection) -> int:
    """Viewers' times are unsigned: a trace whose clock begins below zero is moved up to it."""
    return min(0, selection.first_ns)


@contextmanager
def cursor(trace: Trace) -> Iterator[duckdb.DuckDBPyConnection]:
    """A further connection to the same trace, because one has only one open result at a time."""
    with trace.connection.cursor() as connection:
        connection.execute("USE trace")
        yield connection
