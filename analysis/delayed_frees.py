"""Memory that only a garbage collection freed: it hung in cycles of Python objects, long after its last use."""

import numpy as np

from ral_trace.analysis.base import DEVICE, LINE, NAMED_DEVICE, OP, SOME_ALLOCATIONS, WANTED, Analysis, Column, Rows
from ral_trace.analysis.block_category import BEFORE, Spans
from ral_trace.analysis.peak_holders import SITE_LINE
from ral_trace.analysis.units import human
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

COLLECTION = "e.kind = 'python' AND e.name = 'gc.collect'"
LEAST_BLOCKS, LEAST_BURSTS, QUICK, MOST_SHARE = 3, 2, 10, 0.8

BURSTS = f"""
    told AS (
        SELECT p.id FROM process p LEFT JOIN source s ON s.id = p.source WHERE coalesce(s.format, 'live') = 'live'
        UNION SELECT process FROM event e WHERE {COLLECTION}),
    change AS (
        SELECT a.id, a.device, a.op, l.line, coalesce(a.size_bytes, 0) AS size_bytes, a.alloc_ns, a.free_ns,
               unnest([a.alloc_ns, a.free_ns]) AS ts_ns, unnest([1, 0]) AS allocs
        FROM allocation a JOIN device d ON d.id = a.device LEFT JOIN line_of l ON l.stack = a.stack
        WHERE a.alloc_ns IS NOT NULL AND a.free_ns IS NOT NULL AND d.process NOT IN (FROM told)),
    run AS (
        SELECT *, sum(allocs) OVER (PARTITION BY device, op, line ORDER BY ts_ns, allocs DESC, id) AS number
        FROM change),
    burst AS (
        SELECT device, op, line, number, count(*) AS blocks, sum(size_bytes) AS bytes,
               count(*) >= {LEAST_BLOCKS} AND (max(free_ns) - min(free_ns)) * {QUICK} <= max(alloc_ns) - min(alloc_ns)
                   AS late,
               median(free_ns - alloc_ns) AS held_ns
        FROM run WHERE allocs = 0 GROUP BY ALL),
    in_bursts AS (
        SELECT device, op, line, 'burst' AS evidence, sum(blocks) FILTER (late) AS blocks,
               sum(bytes) FILTER (late) AS bytes,
               count(*) FILTER (late) AS collections, max(bytes) FILTER (late) AS most_bytes, sum(blocks) AS freed,
               median(held_ns) FILTER (late)::BIGINT AS held_ns
        FROM burst GROUP BY device, op, line
        HAVING collections >= {LEAST_BURSTS} AND sum(blocks) FILTER (late) >= {MOST_SHARE} * sum(blocks))"""
"""CTE: where collections are not recorded, call sites whose blocks are freed many at once, again and again: frees
without an alloc of the same site between them, which took a tenth of the time of their allocs at most.
"""

COLLECTED = """
    collected AS (
        SELECT a.device, a.op, l.line, coalesce(a.size_bytes, 0) AS size_bytes, a.free_ns - a.alloc_ns AS held_ns,
               g.collection
        FROM allocation a JOIN found_collected g ON g.id = a.id LEFT JOIN line_of l ON l.stack = a.stack),
    freed AS (
        SELECT a.device, a.op, l.line, count(*) AS blocks FROM allocation a LEFT JOIN line_of l ON l.stack = a.stack
        WHERE a.free_ns IS NOT NULL GROUP BY ALL),
    at_once AS (
        SELECT device, op, line, max(bytes) AS most_bytes
        FROM (SELECT device, op, line, collection, sum(size_bytes) AS bytes FROM collected GROUP BY ALL) GROUP BY ALL),
    in_collections AS (
        SELECT c.device, c.op, c.line, 'collection' AS evidence, count(*) AS blocks, sum(c.size_bytes) AS bytes,
               count(DISTINCT c.collection) AS collections, any_value(o.most_bytes) AS most_bytes,
               any_value(f.blocks) AS freed, median(c.held_ns)::BIGINT AS held_ns
        FROM collected c
        JOIN at_once o ON o.device = c.device AND o.op IS NOT DISTINCT FROM c.op AND o.line IS NOT DISTINCT FROM c.line
        JOIN freed f ON f.device = c.device AND f.op IS NOT DISTINCT FROM c.op AND f.line IS NOT DISTINCT FROM c.line
        GROUP BY c.device, c.op, c.line)"""
"""CTE: blocks whose free lies in a collection of the thread that freed them."""


def delayed_frees(trace: Trace, *, device: str | None = None, limit: int | None = 200) -> Rows:
    """Call sites whose memory waited for a garbage collection, those that made most wait at once first."""
    trace.connection.register("found_collected", _collected(trace))
    try:
        return trace.rows(
            f"""
            WITH {NAMED_DEVICE}, {LINE}, {BURSTS}, {COLLECTED}
            SELECT d.shown AS device, f.op, f.line, f.evidence, f.blocks::BIGINT AS blocks, f.bytes::BIGINT AS bytes,
                   f.collections, f.most_bytes::BIGINT AS most_bytes, f.held_ns,
                   100.0 * f.blocks::BIGINT / f.freed::BIGINT AS percent
            FROM (FROM in_collections UNION ALL FROM in_bursts) f JOIN named_device d ON d.device = f.device
            WHERE {WANTED} ORDER BY most_bytes DESC, d.position, f.op, f.line LIMIT $2""",
            [device, limit],
        )
    finally:
        trace.connection.unregister("found_collected")


def _collected(trace: Trace) -> dict[str, np.ndarray]:
    """The blocks that were freed in a collection, and which: the time of its end."""
    spans = Spans.of(trace, COLLECTION)
    if not len(spans.start_ns):
        return {"id": np.empty(0, np.int64), "collection": np.empty(0, np.int64)}
    blocks = trace.sql("""
        SELECT a.id, e.thread, a.free_ns FROM allocation a JOIN event e ON e.id = a.free_event
        WHERE e.thread IS NOT NULL AND a.free_ns IS NOT NULL""").fetchnumpy()
    ends = spans.end_around(np.asarray(blocks["thread"]), np.asarray(blocks["free_ns"]))
    inside = ends > BEFORE
    return {"id": np.asarray(blocks["id"])[inside], "collection": ends[inside]}


def waited(rows: Rows) -> str | None:
    """Who made most memory wait for a collection. None: nothing waited."""
    if not rows:
        return None
    row = rows[0]
    size, where = human(row["most_bytes"], "bytes"), plain(row["line"] or row["op"] or "an unknown place")
    if row["evidence"] == "collection":
        said = f"{size} from {where} on {plain(row['device'])} waited for a garbage collection at one time"
        return said + ": break the cycle of references that holds it."
    return (
        f"{size} from {where} on {plain(row['device'])} was freed at once, {row['collections']} times: delayed frees, "
        "as of cycles of references that a garbage collection breaks, or of a list that is dropped."
    )


DELAYED_FREES = Analysis(
    "delayed_frees",
    "Memory that waited for the garbage collector",
    "Blocks that were freed inside a garbage collection of Python: cycles of references held them, so that memory "
    "climbs and drops. No leak, but a higher peak. Where collections are not recorded, blocks of one call site that "
    "are freed many at once, again and again, are shown as a hint (burst).",
    (
        DEVICE,
        OP,
        SITE_LINE,
        Column("evidence", "text", "collection: freed inside one; burst: a hint, see above"),
        Column("blocks", "count", "blocks that were freed so"),
        Column("bytes", "bytes", "their size"),
        Column("collections", "count", "collections, or bursts, that freed them", "times"),
        Column("most_bytes", "bytes", "freed by one of them, at most: so much waited at one time", "at once"),
        Column("held_ns", "ns", "median time from their alloc to their free", "held"),
        Column("percent", "percent", "of all blocks of that site that were freed", "share"),
    ),
    delayed_frees,
    chapter="memory",
    shown="device op most_bytes collections line bytes blocks percent held_ns evidence",
    needs=(SOME_ALLOCATIONS,),
    remark=waited,
    most=5,
)
