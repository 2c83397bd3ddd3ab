"""Which op falls back on which device and why, as the cells of a heat map; and fallbacks that come in storms."""

from ral_trace.analysis.base import (
    DEVICE,
    LINE,
    NAMED_DEVICE,
    SOME_FALLBACKS,
    TIME_NS,
    VALID,
    WANTED,
    Analysis,
    Column,
    Heat,
    Row,
    Rows,
)
from ral_trace.analysis.units import duration
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain


def fallback_heat(trace: Trace, *, device: str | None = None) -> Rows:
    """A row for each op, device and outcome, of the ops that fell back on any device.

    A map of op x device can be drawn of it, its cells divided by reason; devices that serve the op are on it, too.
    """
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, fell AS (SELECT DISTINCT name FROM event WHERE kind = 'fallback'),
        call AS (
            SELECT e.device, e.name, NULL AS reason, e.args->>'route' AS route, {TIME_NS} AS ns
            FROM event e WHERE e.kind = 'launch' AND e.name IN (FROM fell) AND e.args->>'route' NOT IN ('cpu', 'copy')
            UNION ALL
            SELECT e.device, e.name, e.args->>'reason', 'cpu', {TIME_NS} FROM event e WHERE e.kind = 'fallback'),
        cell AS (
            SELECT d.position, d.shown, d.label, c.name, c.route, c.reason, count(*) AS count,
                   sum(c.ns)::BIGINT AS total_ns
            FROM call c JOIN named_device d ON d.device = c.device GROUP BY ALL)
        SELECT name, shown AS device, route, reason, count, total_ns,
               100.0 * count / sum(count) OVER (PARTITION BY name, position) AS percent,
               CASE WHEN route = 'cpu' THEN 100.0 ELSE 0.0 END * count
                   / sum(count) OVER (PARTITION BY name, position) AS fell_percent
        FROM cell d WHERE {WANTED}
        ORDER BY sum(total_ns) FILTER (route = 'cpu') OVER (PARTITION BY name) DESC NULLS LAST, name, position,
                 count DESC, route, reason""",
        [device],
    )


STORM_FALLBACKS = 16
"""As many fallbacks in a row are a storm."""

STORM_GAP_NS = 1_000_000
"""In a storm each fallback begins within this time after the end of all before it."""


def fallback_storms(trace: Trace, *, device: str | None = None, limit: int | None = 50) -> Rows:
    """The storms, the longest first. A fallback of unknown duration counts from its begin."""
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {LINE}, f AS (
            SELECT d.position, d.shown AS device, e.id, e.name, e.stack, e.step, e.ts_ns,
                   e.ts_ns + coalesce({TIME_NS}, 0) AS end_ns, {TIME_NS} AS dur_ns
            FROM event e JOIN named_device d ON d.device = e.device
            WHERE e.kind = 'fallback' AND {VALID} AND {WANTED}),
        spaced AS (
            SELECT *, ts_ns - max(end_ns) OVER (PARTITION BY position ORDER BY ts_ns, end_ns, id
                                                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS gap_ns FROM f),
        numbered AS (
            SELECT *, count(*) FILTER (gap_ns IS NULL OR gap_ns > {STORM_GAP_NS}) OVER (
                PARTITION BY position ORDER BY ts_ns, end_ns, id) AS storm FROM spaced),
        by_op AS (
            SELECT position, device, storm, name, count(*) AS count, min(ts_ns) AS ts_ns, max(end_ns) AS end_ns,
                   sum(dur_ns)::BIGINT AS total_ns, mode(stack ORDER BY stack) AS stack, min(step) AS step
            FROM numbered GROUP BY ALL)
        SELECT device, min(ts_ns) AS ts_ns, max(end_ns) - min(ts_ns) AS dur_ns, sum(count)::BIGINT AS count,
               sum(count) * 1e9 / nullif(max(end_ns) - min(ts_ns), 0) AS per_second,
               arg_max(name, (count, name)) AS name, 100.0 * max(count) / sum(count) AS percent,
               arg_max(line, (count, name)) AS line, sum(total_ns)::BIGINT AS total_ns, min(step) AS step
        FROM by_op LEFT JOIN line_of s ON s.stack = by_op.stack
        GROUP BY position, device, storm HAVING sum(count) >= {STORM_FALLBACKS}
        ORDER BY max(end_ns) - min(ts_ns) DESC, position, min(ts_ns) LIMIT $2""",
        [device, limit],
    )


def storm_said(rows: Rows) -> str | None:
    """The longest storm. None without one."""
    if not rows:
        return None
    row = rows[0]
    op = plain(str(row["name"]))
    what = f"{op} again and again" if row["percent"] == 100 else f"{row['percent']:.0f} % of them {op}"
    return f"{row['count']:,} fallbacks within {duration(row['dur_ns'])} on {plain(row['device'])}: {what}."


def _mostly(row: Row) -> list[str]:
    return ["fell_percent"] if row["fell_percent"] >= 50 else []


FALLBACK_HEAT = Analysis(
    "fallback_heat",
    "Fallback map",
    "Every op that fell back on some device: who served its calls on each device, and why not the device itself.",
    (
        Column("name", "text", "op that the user called", "op"),
        DEVICE,
        Column("route", "text", "who served these calls: cpu is a fallback; none: not recorded", "served by"),
        Column("reason", "text", "of a fallback: why each link of the chain refused; none: not recorded"),
        Column("count", "count", "calls", "calls"),
        Column("total_ns", "ns", "time of the host in them; none: no duration is known"),
        Column("percent", "percent", "of the op's calls on the device", "of calls"),
        Column("fell_percent", "percent", "the same if they fell back, else 0: adds up over reasons", "fell back"),
    ),
    fallback_heat,
    chapter="fallbacks",
    shown="name device fell_percent count route reason total_ns percent",
    chart=Heat("name", "device", "fell_percent"),
    detail=True,
    needs=(SOME_FALLBACKS,),
    notable=_mostly,
)

FALLBACK_STORMS = Analysis(
    "fallback_storms",
    "Fallback storms",
    f"Where fallbacks come thick: at least {STORM_FALLBACKS} on a device, each within "
    f"{duration(STORM_GAP_NS)} after those before it.",
    (
        DEVICE,
        Column("ts_ns", "time", "begin of the first", "at"),
        Column("dur_ns", "ns", "from there to the end of the last", "duration"),
        Column("count", "count", "fallbacks"),
        Column("per_second", "number", "fallbacks a second; none: all at one moment"),
        Column("name", "text", "the most frequent op", "mostly"),
        Column("percent", "percent", "of the fallbacks that are of this op", "of this op"),
        Column("line", "text", "the line that called this op most; none: no stack was recorded"),
        Column("total_ns", "ns", "time in the fallbacks; none: no duration is known"),
        Column("step", "id", "training step of the first; none: outside of steps"),
    ),
    fallback_storms,
    chapter="fallbacks",
    shown="device ts_ns dur_ns count name percent per_second total_ns line step",
    needs=(SOME_FALLBACKS,),
    most=5,
    remark=storm_said,
)
