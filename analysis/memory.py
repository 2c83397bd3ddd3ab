"""Device memory: the curve, its peak and who held it, how long blocks live, and what grows from step to step."""

from ral_trace.analysis.base import (
    DEVICE,
    NAMED_DEVICE,
    OP,
    SOME_ALLOCATIONS,
    SOME_STEPS,
    WANTED,
    Analysis,
    Column,
    Lines,
    Row,
    Rows,
)
from ral_trace.analysis.units import human
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

BEFORE = -(2**63) + 1
"""When a block was allocated that was there before the recording began."""

PEAK = """peak AS (
    SELECT device, max(allocated_bytes) AS bytes, arg_max(ts_ns, (allocated_bytes, -ts_ns::HUGEINT)) AS at_ns,
           arg_max(allocated_bytes, ts_ns) AS end_bytes
    FROM memory_curve GROUP BY device),
held AS (
    SELECT a.*, peak.bytes AS peak_bytes FROM allocation a JOIN peak ON peak.device = a.device
    WHERE (a.alloc_ns IS NULL OR a.alloc_ns <= peak.at_ns) AND (a.free_ns IS NULL OR a.free_ns > peak.at_ns))"""
"""CTEs: the first moment of each device's highest memory, and the blocks that lived then."""


def memory_curve(trace: Trace, *, device: str | None = None, points: int = 2000) -> Rows:
    """Allocated bytes over time, at most `points` rows (but 4) a device. A row's value holds until the next row's time.

    A longer curve is cut into stretches of time, and of each the first, last, lowest and highest row are kept: so
    neither the peak nor the level between two changes is ever lost.
    """
    stretches = max(points // 4, 1)
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, curve AS (
            SELECT d.position, d.shown, c.ts_ns::HUGEINT AS ts_ns, c.allocated_bytes,
                   count(*) OVER of_device AS changes,
                   min(c.ts_ns::HUGEINT) OVER of_device AS first_ns, max(c.ts_ns::HUGEINT) OVER of_device AS last_ns
            FROM memory_curve c JOIN named_device d ON d.device = c.device WHERE c.ts_ns IS NOT NULL AND {WANTED}
            WINDOW of_device AS (PARTITION BY c.device)),
        stretch AS (
            SELECT position, shown, (ts_ns, allocated_bytes) AS point, (allocated_bytes, ts_ns) AS level,
                   CASE WHEN changes <= $2::BIGINT THEN ts_ns
                        ELSE (ts_ns - first_ns) * {stretches} // (last_ns - first_ns + 1) END AS number
            FROM curve),
        kept AS (
            SELECT position, shown,
                   unnest([min(point), max(point), arg_min(point, level), arg_max(point, level)]) AS point
            FROM stretch GROUP BY position, shown, number),
        thinned AS (SELECT DISTINCT position, shown, point[1] AS ts_ns, point[2] AS allocated_bytes FROM kept)
        SELECT shown AS device, ts_ns, allocated_bytes FROM thinned ORDER BY position, ts_ns""",
        [device, points],
    )


MEMORY_CURVE = Analysis(
    "memory_curve",
    "Memory over time",
    "Allocated bytes of each device after each change; a value holds until the next row. Long curves are thinned so "
    "that no peak is lost.",
    (DEVICE, Column("ts_ns", "time", "when"), Column("allocated_bytes", "bytes", "in blocks that are in use")),
    memory_curve,
    chapter="memory",
    chart=Lines(("device",), "ts_ns", "allocated_bytes"),
    needs=(SOME_ALLOCATIONS,),
)


def memory_peak(trace: Trace, *, device: str | None = None) -> Rows:
    """A row a device: its highest memory, when that was first reached, and what was reserved then."""
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {PEAK},
        live AS (SELECT device, count(*) AS blocks FROM held GROUP BY device),
        reserved AS (
            SELECT r.device, arg_max(r.reserved_bytes, r.ts_ns) AS bytes
            FROM reserved_curve r JOIN peak ON peak.device = r.device AND r.ts_ns <= peak.at_ns GROUP BY r.device)
        SELECT d.shown AS device, peak.bytes AS peak_bytes, peak.at_ns, live.blocks AS live_blocks,
               reserved.bytes AS reserved_bytes, peak.end_bytes, d.memory_bytes
        FROM named_device d
        LEFT JOIN peak ON peak.device = d.device
        LEFT JOIN live ON live.device = d.device
        LEFT JOIN reserved ON reserved.device = d.device
        WHERE {WANTED} ORDER BY d.position""",
        [device],
    )


MEMORY_PEAK = Analysis(
    "memory_peak",
    "Peak memory",
    "The highest memory of each device. None: no allocation was recorded.",
    (
        DEVICE,
        Column("peak_bytes", "bytes", "most memory in use at one time"),
        Column("at_ns", "time", "when that was first reached", "at"),
        Column("live_blocks", "count", "blocks in use then", "blocks then"),
        Column("reserved_bytes", "bytes", "taken from the driver then; none: no region was recorded", "reserved then"),
        Column("end_bytes", "bytes", "in use when the recording ended", "at end"),
        Column("memory_bytes", "bytes", "the device's capacity", "capacity"),
    ),
    memory_peak,
    chapter="memory",
    shown="device peak_bytes memory_bytes at_ns live_blocks reserved_bytes end_bytes",
    needs=(SOME_ALLOCATIONS,),
)


def peak_holders(trace: Trace, *, device: str | None = None) -> Rows:
    """Who held the memory at each device's peak, by the op that allocated it; adds up to the peak."""
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {PEAK}
        SELECT d.shown AS device, held.op, count(*) AS blocks, sum(held.size_bytes) AS bytes,
               100.0 * sum(held.size_bytes) / nullif(any_value(held.peak_bytes), 0) AS percent,
               count(*) FILTER (held.before_trace) AS before_trace
        FROM held JOIN named_device d ON d.device = held.device WHERE {WANTED}
        GROUP BY d.position, d.shown, held.op ORDER BY d.position, bytes DESC, held.op""",
        [device],
    )


PEAK_HOLDERS = Analysis(
    "peak_holders",
    "Held at the peak",
    "Who held each device's memory at its peak, by the op that allocated it. Adds up to the peak.",
    (
        DEVICE,
        OP,
        Column("blocks", "count", "blocks in use at the peak"),
        Column("bytes", "bytes", "their size"),
        Column("percent", "percent", "of the peak", "share"),
        Column("before_trace", "count", "blocks that were there before the recording began"),
    ),
    peak_holders,
    chapter="memory",
    shown="op bytes percent blocks before_trace",
    per_device=True,
    needs=(SOME_ALLOCATIONS,),
    most=5,
)


def lifetimes(trace: Trace, *, device: str | None = None) -> Rows:
    """How long blocks live, by the op that allocated them. A lifetime is known where begin and end were recorded."""
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}
        SELECT d.shown AS device, a.op, count(*) AS blocks, sum(a.size_bytes) AS bytes,
               quantile_disc(a.free_ns - a.alloc_ns, 0.5) FILTER (a.free_ns >= a.alloc_ns) AS median_ns,
               quantile_disc(a.free_ns - a.alloc_ns, 0.99) FILTER (a.free_ns >= a.alloc_ns) AS p99_ns,
               count(*) FILTER (a.free_ns IS NULL) AS still_live,
               coalesce(sum(a.size_bytes) FILTER (a.free_ns IS NULL), 0) AS still_live_bytes,
               count(*) FILTER (a.before_trace) AS before_trace
        FROM allocation a JOIN named_device d ON d.device = a.device WHERE {WANTED}
        GROUP BY d.position, d.shown, a.op ORDER BY d.position, bytes DESC NULLS LAST, a.op""",
        [device],
    )


LIFETIMES = Analysis(
    "lifetimes",
    "Lifetimes of blocks",
    "How long blocks of memory live, by the op that allocated them.",
    (
        DEVICE,
        OP,
        Column("blocks", "count", "blocks"),
        Column("bytes", "bytes", "their size, all together"),
        Column(
            "median_ns", "ns", "median lifetime of the blocks whose begin and end were recorded; none: there are none"
        ),
        Column("p99_ns", "ns", "99th percentile of the same", "p99"),
        Column("still_live", "count", "blocks in use when the recording ended"),
        Column("still_live_bytes", "bytes", "their size", "live bytes"),
        Column("before_trace", "count", "blocks that were there before the recording began"),
    ),
    lifetimes,
    chapter="memory",
    shown="op blocks bytes median_ns p99_ns still_live still_live_bytes before_trace",
    per_device=True,
    needs=(SOME_ALLOCATIONS,),
    most=5,
)


def growth(trace: Trace, *, device: str | None = None) -> Rows:
    """What holds more memory at the last step's end than at the first's, by op, the most grown first.

    A leak grows in nearly every step (steps_grown is close to steps - 1); a cache grows in a few and stays.
    """
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, step_end AS (
            SELECT process, end_ns, row_number() OVER (PARTITION BY process ORDER BY end_ns) AS number,
                   count(*) OVER (PARTITION BY process) AS steps
            FROM (SELECT process, max(ts_ns + dur_ns) AS end_ns FROM event
                  WHERE kind = 'annotation' AND category = 'step' AND step IS NOT NULL AND dur_ns IS NOT NULL
                  GROUP BY process, step)),
        change AS (
            SELECT device, op, coalesce(alloc_ns, {BEFORE}) AS ts_ns, size_bytes AS delta, 1 AS blocks FROM allocation
            UNION ALL
            SELECT device, op, free_ns, -size_bytes, -1 FROM allocation WHERE free_ns IS NOT NULL),
        on_device AS (
            SELECT d.process, d.position, d.shown, c.* FROM change c JOIN named_device d ON d.device = c.device
            WHERE {WANTED}),
        in_step AS (
            SELECT c.position, c.shown, c.op, s.steps, s.number, s.number > 1 AS later,
                   sum(c.delta) AS delta, sum(c.blocks) AS blocks
            FROM on_device c ASOF JOIN step_end s ON s.process = c.process AND c.ts_ns <= s.end_ns GROUP BY ALL)
        SELECT shown AS device, op, steps,
               coalesce(sum(delta) FILTER (number = 1), 0) AS first_bytes,
               sum(delta) AS last_bytes,
               sum(delta) FILTER (later) AS grown_bytes,
               sum(blocks) FILTER (later) AS grown_blocks,
               count(*) FILTER (later AND delta > 0) AS steps_grown,
               count(*) FILTER (later AND delta < 0) AS steps_shrunk,
               (sum(delta) FILTER (later) // (steps - 1))::BIGINT AS bytes_per_step
        FROM in_step WHERE steps > 1 GROUP BY position, shown, op, steps HAVING grown_bytes > 0
        ORDER BY grown_bytes DESC, position, op""",
        [device],
    )


LEAK_STEPS, LEAK_SHARE = 5, 0.8
"""Memory that grew in this share of at least so many steps is called a leak."""


def leaks(row: Row) -> bool:
    """Whether a row of `growth` looks like a leak: it grew in nearly every step."""
    return bool(row["steps"] >= LEAK_STEPS and row["steps_grown"] >= LEAK_SHARE * (row["steps"] - 1))


def leak_said(rows: Rows) -> str | None:
    """The largest leak, with its evidence. None where nothing grows in nearly every step."""
    row = next((row for row in rows if leaks(row)), None)
    if row is None:
        return None
    op = "memory of unknown origin" if row["op"] is None else f"memory from {plain(row['op'])}"
    evidence = f"grew in {row['steps_grown']:,} of {row['steps'] - 1:,} steps"
    a_step = human(row["bytes_per_step"], "bytes")
    return f"Looks like a leak: {op} on {plain(row['device'])} {evidence}, by {a_step} a step."


GROWTH = Analysis(
    "growth",
    "Growth across steps",
    "What holds more memory at the last step's end than at the first's. A leak grows in nearly every step; a cache "
    "grows in a few and stays.",
    (
        DEVICE,
        OP,
        Column("steps", "count", "steps of the process that ended within the recording"),
        Column("first_bytes", "bytes", "in use at the first step's end", "first step"),
        Column("last_bytes", "bytes", "in use at the last step's end", "last step"),
        Column("grown_bytes", "bytes", "the difference", "grown"),
        Column("grown_blocks", "count", "the same in blocks"),
        Column("steps_grown", "count", "steps, but for the first, that ended with more than the one before", "grew in"),
        Column("steps_shrunk", "count", "steps that ended with less", "shrank in"),
        Column("bytes_per_step", "bytes", "grown_bytes a step, rounded down", "per step"),
    ),
    growth,
    chapter="memory",
    shown="device op bytes_per_step steps_grown steps grown_bytes grown_blocks last_bytes first_bytes steps_shrunk",
    needs=(SOME_ALLOCATIONS, SOME_STEPS),
    remark=leak_said,
    notable=lambda row: ["steps_grown"] if leaks(row) else [],
)
