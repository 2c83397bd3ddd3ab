"""Memory that tensors still hold long after the last kernel or copy that used it."""

from ral_trace.analysis.base import DEVICE, LINE, NAMED_DEVICE, OP, WANTED, Analysis, Column, Need, Rows
from ral_trace.analysis.block_use import LIFE, find_peaks, find_uses
from ral_trace.analysis.memory import CATEGORY
from ral_trace.analysis.peak_holders import SITE_LINE
from ral_trace.tracer.reading import Trace

LONG_STEPS, LONG_SHARE = 2, 20
"""Long is so many median steps of the process; without steps, one of so many parts of its recording."""

SOME_USES = Need(
    "EXISTS (FROM allocation WHERE last_use_ns IS NOT NULL) OR EXISTS (FROM access)",
    "when blocks were last used was not recorded",
)


def held_unused(trace: Trace, *, device: str | None = None, limit: int | None = 200) -> Rows:
    """Call sites whose blocks were held long after their last use, those that filled the peak first.

    The last use is known of blocks that were freed, and with --with-access of all.
    """
    find_uses(trace)
    find_peaks(trace)
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {LINE}, {LIFE},
        accessed AS (
            SELECT x.allocation, max(e.ts_ns + coalesce(e.dur_ns, 0)) AS ts_ns
            FROM access x JOIN event e ON e.id = x.event GROUP BY x.allocation),
        long AS (
            SELECT p.process, coalesce(
                (SELECT median(s.dur_ns) FROM steps s WHERE s.process = p.process) * {LONG_STEPS},
                (p.to_ns - p.from_ns) // {LONG_SHARE})::BIGINT AS ns, p.to_ns
            FROM (SELECT process, min(ts_ns) AS from_ns, max(ts_ns + coalesce(dur_ns, 0)) AS to_ns FROM event
                  WHERE process IN (SELECT process FROM device) GROUP BY process) p),
        block AS (
            -- A use is of this block's life, whatever the source says of it.
            SELECT a.*, if(coalesce(a.last_use_ns, x.ts_ns) IS NULL, NULL,
                           greatest(a.last_use_ns, x.ts_ns, a.begin_ns)) AS used_ns,
                   coalesce(a.free_ns, long.to_ns) AS until_ns, long.ns AS long_ns
            FROM life a LEFT JOIN accessed x ON x.allocation = a.id
            JOIN device d ON d.id = a.device JOIN long ON long.process = d.process)
        SELECT d.shown AS device, a.op, l.line, u.category, count(*) AS blocks, sum(a.size_bytes) AS bytes,
               coalesce(sum(a.size_bytes) FILTER (a.used_ns < peak.at_ns AND a.begin_ns <= peak.at_ns
                   AND (a.free_ns IS NULL OR a.free_ns > peak.at_ns)), 0) AS at_peak_bytes,
               median(a.until_ns - a.used_ns)::BIGINT AS idle_ns, median(a.used_ns - a.begin_ns)::BIGINT AS used_ns,
               count(*) FILTER (a.free_ns IS NULL) AS still_live
        FROM block a JOIN named_device d ON d.device = a.device JOIN device_peak peak ON peak.device = a.device
        JOIN block_use u ON u.allocation = a.id LEFT JOIN line_of l ON l.stack = a.stack
        WHERE a.until_ns - a.used_ns > a.long_ns AND {WANTED}
        GROUP BY d.position, d.shown, a.op, l.line, u.category
        ORDER BY at_peak_bytes DESC, bytes DESC, d.position, a.op, l.line, u.category LIMIT $2""",
        [device, limit],
    )


HELD_UNUSED = Analysis(
    "held_unused",
    "Held long after the last use",
    "Blocks that a tensor still held when nothing had used them for two steps (without steps: a twentieth of the "
    "recording). What of it was there at the peak could have been freed before. Of blocks that were never freed it is "
    "known with --with-access only. Sums are over all blocks of a call site, not at one time.",
    (
        DEVICE,
        OP,
        SITE_LINE,
        CATEGORY,
        Column("blocks", "count", "blocks"),
        Column("bytes", "bytes", "their size"),
        Column("at_peak_bytes", "bytes", "of them, unused from the device's peak on but still held then", "at peak"),
        Column("idle_ns", "ns", "median time from the last use to the free, or to the recording's end", "idle"),
        Column("used_ns", "ns", "median time from the alloc to the last use", "in use"),
        Column("still_live", "count", "of them, blocks in use when the recording ended"),
    ),
    held_unused,
    chapter="memory",
    detail=True,
    shown="device op at_peak_bytes bytes blocks idle_ns line category used_ns still_live",
    needs=(SOME_USES,),
    most=5,
)
