"""How long blocks of memory live."""

from ral_trace.analysis.base import DEVICE, NAMED_DEVICE, OP, SOME_ALLOCATIONS, WANTED, Analysis, Column, Rows
from ral_trace.analysis.block_use import SLICES, find_uses
from ral_trace.tracer.reading import Trace

AT_ONCE_NS = 100_000
"""A block whose address is taken again within so long was reused at once."""


def lifetimes(trace: Trace, *, device: str | None = None, at_once_ns: int = AT_ONCE_NS) -> Rows:
    """How long blocks live, by the op that allocated them. A lifetime is known where begin and end were recorded.

    short_lived: gone before the step in which it was allocated ended; long_lived: there at the ends of two steps or
    more. Where a process states no steps, tenths of its recording stand for them.
    """
    find_uses(trace)
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE},
        block AS (
            SELECT a.*, r.rounds, least(u.free_round, r.rounds + 1) - u.begin_round AS ends_seen, u.free_round,
                   lead(a.alloc_ns) OVER (PARTITION BY a.device, a.address ORDER BY a.alloc_ns NULLS FIRST, a.id)
                       - a.free_ns AS free_for_ns
            FROM allocation a JOIN device d ON d.id = a.device JOIN block_use u ON u.allocation = a.id
            JOIN memory_round r ON r.process = d.process)
        SELECT d.shown AS device, a.op, count(*) AS blocks, sum(a.size_bytes) AS bytes,
               quantile_disc(a.free_ns - a.alloc_ns, 0.5) FILTER (a.free_ns >= a.alloc_ns) AS median_ns,
               quantile_disc(a.free_ns - a.alloc_ns, 0.99) FILTER (a.free_ns >= a.alloc_ns) AS p99_ns,
               if(any_value(a.rounds) = 0, NULL, count(*) FILTER (a.ends_seen = 0 AND a.free_ns IS NOT NULL))
                   AS short_lived,
               if(any_value(a.rounds) = 0, NULL, count(*) FILTER (a.ends_seen >= 2)) AS long_lived,
               count(*) FILTER (a.free_for_ns BETWEEN 0 AND $2) AS reused_at_once,
               count(*) FILTER (a.free_ns IS NULL) AS still_live,
               coalesce(sum(a.size_bytes) FILTER (a.free_ns IS NULL), 0) AS still_live_bytes,
               count(*) FILTER (a.before_trace) AS before_trace
        FROM block a JOIN named_device d ON d.device = a.device WHERE {WANTED}
        GROUP BY d.position, d.shown, a.op ORDER BY d.position, bytes DESC NULLS LAST, a.op""",
        [device, at_once_ns],
    )


LIFETIMES = Analysis(
    "lifetimes",
    "Lifetimes of blocks",
    "How long blocks of memory live, by the op that allocated them: many that are short-lived and not reused at once "
    f"keep the allocator busy, long-lived ones hold the memory. Without steps, {SLICES} equal parts of the recording "
    "stand for them.",
    (
        DEVICE,
        OP,
        Column("blocks", "count", "blocks"),
        Column("bytes", "bytes", "their size, all together"),
        Column(
            "median_ns", "ns", "median lifetime of the blocks whose begin and end were recorded; none: there are none"
        ),
        Column("p99_ns", "ns", "99th percentile of the same", "p99"),
        Column("short_lived", "count", "blocks that were freed within the step that allocated them"),
        Column("long_lived", "count", "blocks that were there at the ends of two steps or more"),
        Column(
            "reused_at_once",
            "count",
            f"blocks whose address was allocated again within {AT_ONCE_NS // 1000} us of their end",
        ),
        Column("still_live", "count", "blocks in use when the recording ended"),
        Column("still_live_bytes", "bytes", "their size", "live bytes"),
        Column("before_trace", "count", "blocks that were there before the recording began", "from before"),
    ),
    lifetimes,
    chapter="memory",
    detail=True,
    shown="op blocks bytes median_ns short_lived long_lived reused_at_once still_live still_live_bytes p99_ns "
    "before_trace",
    per_device=True,
    needs=(SOME_ALLOCATIONS,),
    most=5,
)
