"""What timeline viewers draw of a trace, and where: the same for every format that they open.

- Each valid row of SLICE_KINDS with a duration is exactly one slice. A row that never ended (flag UNFINISHED) is a
  slice without an end. Instants, errors, and rows whose duration is unknown are points. Rows with the flag INVALID
  are left out; so are alloc, free, region and counter rows, which counters show (`drawn_counters.py`).
- Host rows are on their thread's track, device rows on their stream's; but what only waits on a stream, and ranges
  that a tool projects on it, have tracks of their own beside it, so that they neither hide its work nor look like it.
- A fallback, a slice of its thread, is besides marked on its device's track `fallbacks`: a point of the category MARK,
  which is no row of the trace. Whoever compares counts leaves that category out.
- An arrow for each row of `flow` whose two ends are drawn, and one from each op to the launches of which it is the
  parent.
- Of the arguments those that matter in a timeline (ANNOTATIONS); `line` is the innermost frame of the row's stack."""

from ral_trace.tracer.exporters.drawn_tracks import (
    DEVICE,
    MARKS,
    PROCESS,
    STREAM,
    STREAM_RANGES,
    STREAM_WAITS,
    THREAD,
)
from ral_trace.tracer.exporters.output import MAX_NS, UNFINISHED, VALID, Selection
from ral_trace.tracer.forms import ANNOTATED_ARGS, ANNOTATED_COLUMNS, ANNOTATED_PLACES, MARK

SLICE_KINDS = (
    "op", "launch", "kernel", "transfer", "sync", "fallback",
    "wait", "runtime", "annotation", "python", "instant", "error",
)  # fmt: skip
ANNOTATIONS = ("event", "fallback", *ANNOTATED_COLUMNS, "line", *ANNOTATED_ARGS, *ANNOTATED_PLACES)
"""Columns of `slices_sql` that are shown with a slice; `event` is event.id, `fallback` that of a mark's fallback."""

SHAPE_SLICE, SHAPE_OPEN, SHAPE_POINT = 0, 1, 2
"""What a row becomes; numbered as in native/perfetto_encoder.h."""


def slices_sql(selection: Selection) -> str:
    """Rows: id, track, start_ns, dur_ns, shape, name, kind, then ANNOTATIONS; by start, what encloses first."""
    known = ", ".join(f"known[{n}] AS {key}" for n, key in enumerate(ANNOTATED_ARGS, 1))
    paths = ", ".join(f"'$.{key}'" for key in ANNOTATED_ARGS)
    shown = shown_sql(selection)
    return f"""
        SELECT id, track, start_ns, dur_ns, shape::BIGINT AS shape, name, kind,
               event, fallback, category, bytes, step, correlation, line, {known}, on_device, on_stream
        FROM (SELECT *, json_extract_string(args, [{paths}]) AS known FROM (
            SELECT *, id AS event, NULL::BIGINT AS fallback FROM ({shown})
            UNION ALL
            SELECT * REPLACE (-1 AS id, {MARKS} + device AS track, NULL AS dur_ns, {SHAPE_POINT} AS shape,
                              '{MARK}' AS kind, NULL AS category, NULL AS step, NULL AS correlation, -1 AS span,
                              NULL AS on_device, NULL AS on_stream),
                   NULL, id FROM ({shown}) WHERE kind = 'fallback' AND device IS NOT NULL))
        LEFT JOIN ({_LINES}) USING (stack)
        ORDER BY start_ns, span DESC, id DESC"""


_LINES = """
    SELECT id AS stack, any_value(nullif(concat_ws(':', frames[1].file, frames[1].line), '')) AS line
    FROM stack WHERE id IS NOT NULL GROUP BY id"""


def arrows_sql(selection: Selection) -> str:
    """Rows: an event's id, an arrow's number; two rows an arrow, in the order of the slices."""
    return f"""
        WITH shown AS (SELECT id, kind, parent, start_ns, span FROM ({shown_sql(selection)})),
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


def shown_sql(selection: Selection) -> str:
    """Rows of `event` that are drawn. `span` orders rows that begin together: the one that encloses first.

    Of two rows with the same times the later written encloses the other, because a live row is written when it ends.
    """
    kinds = ", ".join(f"'{kind}'" for kind in SLICE_KINDS)
    return f"""
        SELECT *, CASE shape WHEN {SHAPE_OPEN} THEN {MAX_NS} WHEN {SHAPE_SLICE} THEN dur_ns ELSE -1 END AS span
        FROM (
            SELECT id, {selection.moved("ts_ns")} AS start_ns, dur_ns,
                   coalesce(nullif(name, ''), kind::VARCHAR) AS name, kind::VARCHAR AS kind,
                   category, bytes, step, correlation, parent, process, thread, device, stream, stack, args,
                   CASE WHEN thread IS NOT NULL AND stream IS NULL THEN device::BIGINT END AS on_device,
                   CASE WHEN thread IS NOT NULL THEN stream::BIGINT END AS on_stream,
                   CASE WHEN kind IN ('instant', 'error') AND coalesce(dur_ns, 0) <= 0 THEN {SHAPE_POINT}
                        WHEN dur_ns >= 0 THEN {SHAPE_SLICE}
                        WHEN dur_ns IS NULL AND {UNFINISHED} THEN {SHAPE_OPEN}
                        ELSE {SHAPE_POINT} END AS shape,
                   CASE WHEN kind IN ('kernel', 'transfer') AND stream IS NOT NULL THEN {STREAM} + stream
                        WHEN thread IS NOT NULL THEN {THREAD} + thread
                        WHEN stream IS NOT NULL AND kind = 'wait' THEN {STREAM_WAITS} + stream
                        WHEN stream IS NOT NULL AND kind = 'annotation' THEN {STREAM_RANGES} + stream
                        WHEN stream IS NOT NULL THEN {STREAM} + stream
                        WHEN device IS NOT NULL THEN {DEVICE} + device
                        ELSE {PROCESS} + coalesce(process, 0)::BIGINT END AS track
            FROM event WHERE ts_ns IS NOT NULL AND {VALID} AND kind IN ({kinds}) AND {selection.events()})"""
