"""What each device did when, in a size that fits on a screen."""

from ral_trace.analysis.base import DEVICE, NAMED_DEVICE, TIME_NS, VALID, WANTED, Analysis, Column, Drawn, Rows
from ral_trace.tracer.reading import Trace

LANES = {"kernel": "kernels", "transfer": "copies", "fallback": "fallbacks", "sync": "syncs", "alloc": "allocs"}
"""event.kind, and the lane of the timeline that shows it, from the top."""

KINDS = ", ".join(f"'{kind}'" for kind in LANES)

STRETCH = f"""
    span AS (
        SELECT min(e.ts_ns) AS from_ns, max(e.ts_ns + coalesce(e.dur_ns, 0)) AS to_ns FROM event e WHERE {VALID}),
    width AS (SELECT from_ns, greatest((to_ns - from_ns + $3 - 1) // $3, 1) AS ns FROM span),
    lane_event AS (
        SELECT e.id, e.device, e.kind, e.name, e.ts_ns, {TIME_NS} AS dur_ns,
               count(*) OVER (PARTITION BY e.device, e.kind) AS events
        FROM event e WHERE e.device IS NOT NULL AND e.kind IN ({KINDS}) AND {VALID}),
    ordered AS (
        SELECT device, kind, ts_ns, ts_ns + dur_ns AS end_ns, max(ts_ns + dur_ns) OVER (
                   PARTITION BY device, kind ORDER BY ts_ns, dur_ns, id
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS covered_ns
        FROM lane_event WHERE events > $2 AND dur_ns > 0),
    -- Of each row the part that no row before it covers: cut as they are, many long rows would make rows x stretches.
    part AS (
        SELECT device, kind, greatest(ts_ns, coalesce(covered_ns, ts_ns)) - from_ns AS start, end_ns - from_ns AS stop
        FROM ordered, span WHERE covered_ns IS NULL OR end_ns > covered_ns),
    cut AS (
        SELECT p.*, w.ns, unnest(range(p.start // w.ns, (p.stop - 1) // w.ns + 1)) AS number FROM part p, width w),
    busy AS (
        SELECT device, kind, number, sum(least(stop, (number + 1) * ns) - greatest(start, number * ns)) AS ns
        FROM cut GROUP BY device, kind, number),
    named AS (
        SELECT e.device, e.kind, (e.ts_ns - w.from_ns) // w.ns AS number, e.name, count(*) AS events,
               coalesce(sum(e.dur_ns), 0) AS ns
        FROM lane_event e, width w WHERE e.events > $2 GROUP BY ALL),
    began AS (
        SELECT device, kind, number, sum(events) AS events, arg_max(name, (ns, events, name)) AS name
        FROM named GROUP BY device, kind, number),
    stretch AS (
        SELECT device, kind, number, name, coalesce(began.events, 0) AS events, coalesce(busy.ns, 0) AS ns
        FROM busy FULL JOIN began USING (device, kind, number))"""
"""CTEs: `lane_event`, and `stretch`: what a lane of more than $2 events did in each of $3 equal parts of the trace."""


def timeline(trace: Trace, *, device: str | None = None, events: int = 400, stretches: int = 800) -> Rows:
    """The lanes of each device over time.

    A row is an event where a lane has at most `events`, else one of `stretches` equal stretches of the trace.
    """
    lanes = " ".join(f"WHEN '{kind}' THEN '{lane}'" for kind, lane in LANES.items())
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {STRETCH}, drawn AS (
            SELECT device, kind, ts_ns, dur_ns, name, 1 AS events, NULL::DOUBLE AS busy_percent
            FROM lane_event WHERE events <= $2
            UNION ALL
            SELECT device, kind, from_ns + number * w.ns, w.ns, name, events, 100.0 * s.ns / w.ns
            FROM stretch s, width w)
        SELECT d.shown AS device, d.vendor, CASE e.kind {lanes} END AS lane,
               e.ts_ns, e.dur_ns, e.name, e.events::BIGINT AS count, e.busy_percent
        FROM drawn e JOIN named_device d ON d.device = e.device WHERE {WANTED}
        ORDER BY d.position, list_position([{KINDS}], e.kind::VARCHAR), e.ts_ns, e.dur_ns, e.name""",
        [device, events, stretches],
    )


TIMELINE = Analysis(
    "timeline",
    "Device timeline",
    "What each device did when. Where a lane has few events a row is one of them; else a row is a stretch of time and "
    "says how busy the lane was in it.",
    (
        DEVICE,
        Column("vendor", "text", "who makes it"),
        Column("lane", "text", ", ".join(LANES.values())),
        Column("ts_ns", "time", "start of the event or stretch"),
        Column("dur_ns", "ns", "its length; none: unknown", "duration"),
        Column("name", "text", "the event's name; of a stretch the name with most time among what began in it"),
        Column("count", "count", "events that began in it"),
        Column(
            "busy_percent", "percent", "what the lane's events cover of a stretch; none: the row is an event", "busy"
        ),
    ),
    timeline,
    chapter="devices",
    chart=Drawn("timeline"),
)
