"""Who held each device's memory at its peak."""

from ral_trace.analysis.base import DEVICE, LINE, NAMED_DEVICE, OP, SOME_ALLOCATIONS, WANTED, Analysis, Column, Rows
from ral_trace.analysis.block_use import HELD, find_peaks, find_uses
from ral_trace.analysis.memory import CATEGORY
from ral_trace.tracer.reading import Trace

SITE_LINE = Column("line", "text", "line of the program that allocated; none: its stack was not recorded")


def peak_holders(trace: Trace, *, device: str | None = None) -> Rows:
    """Who held the memory at each device's peak: by op, line and category; adds up to the peak."""
    find_peaks(trace)
    find_uses(trace)
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {LINE}, {HELD}
        SELECT d.shown AS device, held.op, l.line, u.category, count(*) AS blocks, sum(held.size_bytes) AS bytes,
               100.0 * sum(held.size_bytes) / nullif(any_value(held.peak_bytes), 0) AS percent,
               count(*) FILTER (held.before_trace) AS before_trace
        FROM held JOIN named_device d ON d.device = held.device JOIN block_use u ON u.allocation = held.id
        LEFT JOIN line_of l ON l.stack = held.stack
        WHERE {WANTED} GROUP BY d.position, d.shown, held.op, l.line, u.category
        ORDER BY d.position, bytes DESC NULLS LAST, held.op, l.line, u.category""",
        [device],
    )


PEAK_HOLDERS = Analysis(
    "peak_holders",
    "Held at the peak",
    "Who held each device's memory at its peak: the op that allocated it, its line, and what it is for. Adds up to the "
    "peak.",
    (
        DEVICE,
        OP,
        SITE_LINE,
        CATEGORY,
        Column("blocks", "count", "blocks in use at the peak"),
        Column("bytes", "bytes", "their size"),
        Column("percent", "percent", "of the peak", "share"),
        Column("before_trace", "count", "blocks that were there before the recording began", "from before"),
    ),
    peak_holders,
    chapter="memory",
    shown="op bytes percent category line blocks before_trace",
    per_device=True,
    needs=(SOME_ALLOCATIONS,),
    most=8,
)
