"""Device memory over time, as a whole and by what it is for, and its peak."""

from ral_trace.analysis.base import DEVICE, NAMED_DEVICE, SOME_ALLOCATIONS, WANTED, Analysis, Column, Lines, Rows
from ral_trace.analysis.block_category import CATEGORIES
from ral_trace.analysis.block_use import HELD, find_curve, find_levels, find_peaks
from ral_trace.tracer.reading import Trace

CATEGORY = Column("category", "text", f"what the blocks are for, told from their use: {', '.join(CATEGORIES)}")

THINNED = f"""
    curve AS (
        SELECT c.device, c.ts_ns::HUGEINT AS ts_ns, c.allocated_bytes, count(*) OVER of_device AS changes,
               min(c.ts_ns::HUGEINT) OVER of_device AS first_ns, max(c.ts_ns::HUGEINT) OVER of_device AS last_ns
        FROM device_curve c JOIN named_device d ON d.device = c.device WHERE {WANTED}
        WINDOW of_device AS (PARTITION BY c.device)),
    stretch AS (
        SELECT device, (ts_ns, allocated_bytes) AS point, (allocated_bytes, ts_ns) AS level,
               CASE WHEN changes <= $2::BIGINT THEN ts_ns
                    ELSE (ts_ns - first_ns) * greatest($2::BIGINT // 4, 1) // (last_ns - first_ns + 1) END AS number
        FROM curve),
    kept AS (
        SELECT device, unnest([min(point), max(point), arg_min(point, level), arg_max(point, level)]) AS point
        FROM stretch GROUP BY device, number),
    thinned AS (SELECT DISTINCT device, point[1]::BIGINT AS ts_ns, point[2] AS allocated_bytes FROM kept)"""
"""CTE `thinned`: the rows of a curve of at most $2 changes; of a longer one, cut into $2 / 4 stretches of time, the
first, last, lowest and highest row of each.
"""


def memory_curve(trace: Trace, *, device: str | None = None, points: int = 2000) -> Rows:
    """Allocated bytes over time, at most `points` rows (but 4) a device. A row's value holds until the next row's time.

    A longer curve is cut into stretches of time, and of each the first, last, lowest and highest row are kept: so
    neither the peak nor the level between two changes is ever lost.
    """
    find_curve(trace)
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {THINNED}
        SELECT d.shown AS device, t.ts_ns, t.allocated_bytes FROM thinned t JOIN named_device d ON d.device = t.device
        ORDER BY d.position, t.ts_ns""",
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


def memory_by_category(trace: Trace, *, device: str | None = None, points: int = 400) -> Rows:
    """Allocated bytes over time by what they are for: at each of at most `points` moments (but 4) of a device's curve a
    row for each category that holds anything then. The rows of a moment add up to the curve's value.
    """
    find_curve(trace)
    find_levels(trace)
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {THINNED},
        shown_at AS (
            SELECT t.device, t.ts_ns, c.category
            FROM thinned t JOIN (SELECT DISTINCT device, category FROM category_level) c ON c.device = t.device)
        SELECT d.shown AS device, s.ts_ns, s.category, l.bytes
        FROM shown_at s ASOF JOIN category_level l
          ON l.device = s.device AND l.category = s.category AND l.ts_ns <= s.ts_ns
        JOIN named_device d ON d.device = s.device WHERE l.bytes <> 0
        ORDER BY d.position, s.ts_ns, list_position({list(CATEGORIES)}, s.category)""",
        [device, points],
    )


MEMORY_BY_CATEGORY = Analysis(
    "memory_by_category",
    "Memory over time by category",
    "Allocated bytes of each device by what they are for, told from how the blocks are used; "
    "they add up to the memory curve. Long curves are thinned so that no peak is lost.",
    (
        DEVICE,
        Column("ts_ns", "time", "when"),
        CATEGORY,
        Column("bytes", "bytes", "in blocks of the category that are in use, until the device's next row"),
    ),
    memory_by_category,
    chapter="memory",
    chart=Lines(("device", "category"), "ts_ns", "bytes"),
    needs=(SOME_ALLOCATIONS,),
)


def memory_categories(trace: Trace, *, device: str | None = None) -> Rows:
    """A row a device and category: how much was allocated, the most at one time, and how much at the device's peak."""
    find_levels(trace)
    find_peaks(trace)
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {HELD},
        most AS (SELECT device, category, max(bytes) AS bytes FROM category_level GROUP BY ALL),
        at_peak AS (
            SELECT h.device, u.category, count(*) AS blocks, sum(h.size_bytes) AS bytes, any_value(h.peak_bytes) AS peak
            FROM held h JOIN block_use u ON u.allocation = h.id GROUP BY ALL),
        found AS (
            SELECT a.device, u.category, count(*) AS blocks, sum(a.size_bytes) AS bytes
            FROM allocation a JOIN block_use u ON u.allocation = a.id GROUP BY ALL)
        SELECT d.shown AS device, f.category, coalesce(p.bytes, 0) AS at_peak_bytes,
               100.0 * coalesce(p.bytes, 0) / nullif(any_value(p.peak) OVER (PARTITION BY f.device), 0) AS percent,
               coalesce(p.blocks, 0) AS at_peak_blocks, m.bytes AS most_bytes, f.blocks, f.bytes
        FROM found f JOIN named_device d ON d.device = f.device
        LEFT JOIN at_peak p ON p.device = f.device AND p.category = f.category
        LEFT JOIN most m ON m.device = f.device AND m.category = f.category
        WHERE {WANTED} ORDER BY d.position, at_peak_bytes DESC, f.category""",
        [device],
    )


MEMORY_CATEGORIES = Analysis(
    "memory_categories",
    "Memory by category",
    "What each device's memory is for, told from how the blocks are used: when they were allocated and freed against "
    "the passes and steps of training. Unknown where the evidence lacks; adds up to the peak.",
    (
        DEVICE,
        CATEGORY,
        Column("at_peak_bytes", "bytes", "in use at the device's peak", "at peak"),
        Column("percent", "percent", "of the peak", "share"),
        Column("at_peak_blocks", "count", "the same in blocks", "blocks then"),
        Column("most_bytes", "bytes", "the category's own highest, which may be at another time", "most"),
        Column("blocks", "count", "blocks that were allocated, or there before"),
        Column("bytes", "bytes", "their size, all together"),
    ),
    memory_categories,
    chapter="memory",
    shown="category at_peak_bytes percent at_peak_blocks most_bytes blocks bytes",
    per_device=True,
    needs=(SOME_ALLOCATIONS,),
)


def memory_peak(trace: Trace, *, device: str | None = None) -> Rows:
    """A row a device: its highest memory, when that was first reached, and what was reserved then."""
    find_peaks(trace)
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {HELD},
        live AS (SELECT device, count(*) AS blocks FROM held GROUP BY device),
        reserved AS (
            SELECT r.device, arg_max(r.reserved_bytes, r.ts_ns) AS bytes
            FROM reserved_curve r JOIN device_peak p ON p.device = r.device AND r.ts_ns <= p.at_ns GROUP BY r.device)
        SELECT d.shown AS device, p.bytes AS peak_bytes, p.at_ns, live.blocks AS live_blocks,
               reserved.bytes AS reserved_bytes, p.end_bytes, d.memory_bytes
        FROM named_device d
        LEFT JOIN device_peak p ON p.device = d.device
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
