"""What each device did when, in a size that fits on a screen: the events themselves, or how busy each stretch of time was."""

from ral_trace.analysis.base import DEVICE, NAMED_DEVICE, TIME_NS, VALID, WANTED, Analysis, Column, Rows
from ral_trace.tracer.trace import Trace

LANES = {"kernel": "kernels", "transfer": "copies", "fallback": "fallbacks", "sync": "syncs", "alloc": "allocs"}
"""event.kind: the lane of the timeline that shows it."""

BINNED = f"""
    span AS (
        SELECT min(e.ts_ns) AS from_ns, greatest(max(e.ts_ns + coalesce(e.dur_ns, 0)) - min(e.ts_ns), 1) AS ns FROM event e WHERE {VALID}),
    lane_event AS (
        SELECT e.id, e.device, e.kind, e.name, e.ts_ns, {TIME_NS} AS dur_ns, count(*) OVER (PARTITION BY e.device, e.kind) AS events
        FROM event e WHERE e.device IS NOT NULL AND e.kind IN ({", ".join(f"'{kind}'" for kind in LANES)}) AND {VALID}),
    -- Rows that overlap are merged before they are cut into stretches: many long rows would else make rows times stretches.
    marked AS (
        SELECT device, kind, ts_ns, ts_ns + dur_ns AS end_ns,
               max(ts_ns + dur_ns) OVER (
                   PARTITION BY device, kind ORDER BY ts_ns, dur_ns, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until_ns
        FROM lane_event WHERE events > $2 AND dur_ns > 0),
    numbered AS (
        SELECT *, count(*) FILTER (until_ns IS NULL OR ts_ns > until_ns) OVER (
            PARTITION BY device, kind ORDER BY ts_ns, end_ns ROWS UNBOUNDED PRECEDING) AS island FROM marked),
    island AS (
        SELECT device, kind, min(ts_ns) - from_ns AS start, max(end_ns) - from_ns AS stop
        FROM numbered, span GROUP BY device, kind, island, from_ns),
    width AS (SELECT from_ns, (ns + $3 - 1) // $3 AS ns FROM span),
    cut AS (
        SELECT i.device, i.kind, i.start, i.stop, w.ns, unnest(range(i.start // w.ns, (i.stop - 1) // w.ns + 1)) AS bin FROM island i, width w),
    busy AS (
        SELECT device, kind, bin, sum(least(stop, (bin + 1) * ns) - greatest(start, bin * ns)) AS ns FROM cut GROUP BY device, kind, bin),
    named AS (
        SELECT e.device, e.kind, (e.ts_ns - w.from_ns) // w.ns AS bin, e.name, count(*) AS events, coalesce(sum(e.dur_ns), 0) AS ns
        FROM lane_event e, width w WHERE e.events > $2 GROUP BY ALL),
    began AS (SELECT device, kind, bin, sum(events) AS events, arg_max(name, (ns, events, name)) AS name FROM named GROUP BY device, kind, bin),
    stretch AS (
        SELECT coalesce(b.device, c.device) AS device, coalesce(b.kind, c.kind) AS kind, coalesce(b.bin, c.bin) AS bin, c.name,
               coalesce(c.events, 0) AS events, coalesce(b.ns, 0) AS ns
        FROM busy b FULL JOIN began c ON c.device = b.device AND c.kind = b.kind AND c.bin = b.bin)"""
"""CTEs: `stretch`, what a lane with more than $2 events did in each of $3 equal stretches of the trace; `lane_event`, the events."""


def timeline(trace: Trace, *, device: str | None = None, events: int = 400, stretches: int = 800) -> Rows:
    """The lanes of each device over time: a row an event where a lane has at most `events`, else a row for each of `stretches` equal stretches."""
    lanes = " ".join(f"WHEN '{kind}' THEN '{lane}'" for kind, lane in LANES.items())
    places = " ".join(f"WHEN '{kind}' THEN {place}" for place, kind in enumerate(LANES))
    rows = trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {BINNED}, drawn AS (
            SELECT device, kind, ts_ns, dur_ns, name, 1 AS events, NULL::DOUBLE AS busy_percent FROM lane_event WHERE events <= $2
            UNION ALL
            SELECT s.device, s.kind, w.from_ns + s.bin * w.ns, w.ns, s.name, s.events, 100.0 * s.ns / w.ns FROM stretch s, width w)
        SELECT d.shown AS device, d.vendor, CASE w.kind {lanes} END AS lane, w.ts_ns, w.dur_ns, w.name, w.events::BIGINT AS count, w.busy_percent
        FROM drawn w JOIN named_device d ON d.device = w.device WHERE {WANTED}
        ORDER BY d.position, CASE w.kind {places} END, w.ts_ns, w.dur_ns, w.name""",
        [device, events, stretches],
    )
    return rows


TIMELINE = Analysis(
    "timeline",
    "Device timeline",
    "What each device did when. A lane with few events has a row an event; else a row is a stretch of time and says how busy the lane was.",
    (
        DEVICE,
        Column("vendor", "text", "who makes it"),
        Column("lane", "text", ", ".join(LANES.values())),
        Column("ts_ns", "time", "start of the event or stretch"),
        Column("dur_ns", "ns", "its length; none: unknown"),
        Column("name", "text", "the event's name; of a stretch the name with most time among what began in it"),
        Column("count", "count", "events that began in it"),
        Column("busy_percent", "percent", "of a stretch: the part of it that the union of the lane's events covers; none: the row is an event"),
    ),
    timeline,
)
