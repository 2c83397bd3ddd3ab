"""What the questions on memory ask of every block, found once for each open trace: its category, the steps that it saw,
and the moment of each device's peak.
"""

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import VALID
from ral_trace.analysis.block_category import BLOCKS, CATEGORIES, NEVER, Blocks, categories
from ral_trace.analysis.intervals import Integers, groups
from ral_trace.tracer.reading import Trace

SLICES = 10
"""Where a process states no steps, its recording is cut into so many parts of equal length instead."""

STEP_ENDS = f"""
SELECT process, max(end_ns) AS end_ns FROM (
    SELECT e.process, e.step, e.ts_ns + e.dur_ns AS end_ns, e.category = 'step' AS stated FROM event e
    WHERE e.kind = 'annotation' AND e.dur_ns >= 0 AND {VALID}
      AND ((e.category = 'step' AND e.step IS NOT NULL) OR (e.stream IS NULL AND e.name LIKE 'Optimizer.step#%'))
    QUALIFY stated = bool_or(stated) OVER (PARTITION BY e.process))
GROUP BY process, CASE WHEN stated THEN step ELSE end_ns END ORDER BY ALL"""
"""The ends of each process' steps: the stated ones, where there are none those of the optimiser."""

LIFE = """life AS (
    SELECT a.*, coalesce(a.alloc_ns, least(p.started_ns, a.free_ns)) AS begin_ns
    FROM allocation a JOIN device d ON d.id = a.device JOIN process p ON p.id = d.process)"""
"""CTE: allocations with the moment from which the memory curve counts them (`begin_ns`; NULL: it does not)."""

HELD = f"""{LIFE},
held AS (
    SELECT a.*, peak.bytes AS peak_bytes, peak.at_ns FROM life a JOIN device_peak peak ON peak.device = a.device
    WHERE a.begin_ns <= peak.at_ns AND (a.free_ns IS NULL OR a.free_ns > peak.at_ns))"""
"""CTEs: the blocks that lived at their device's peak. Wants `find_peaks`."""


def find_curve(trace: Trace) -> None:
    """Makes the temporary table `device_curve`: the view memory_curve, but for what has no time."""
    if not _is_made(trace, "device_curve"):
        trace.connection.execute(
            "CREATE TEMP TABLE device_curve AS SELECT device, ts_ns, allocated_bytes FROM memory_curve "
            "WHERE ts_ns IS NOT NULL"
        )


def find_peaks(trace: Trace) -> None:
    """Makes the temporary table `device_peak`: the first moment of each device's highest memory (device, bytes, at_ns),
    and what it held at the end (end_bytes).
    """
    find_curve(trace)
    if not _is_made(trace, "device_peak"):
        trace.connection.execute("""
            CREATE TEMP TABLE device_peak AS
            SELECT device, max(allocated_bytes) AS bytes, arg_max(ts_ns, (allocated_bytes, -ts_ns::HUGEINT)) AS at_ns,
                   arg_max(allocated_bytes, ts_ns) AS end_bytes
            FROM device_curve GROUP BY device""")


def find_levels(trace: Trace) -> None:
    """Makes the temporary table `category_level` (device, category, ts_ns, bytes): what the blocks of a category take
    after each of their changes.
    """
    find_uses(trace)
    if not _is_made(trace, "category_level"):
        trace.connection.execute(f"""
            CREATE TEMP TABLE category_level AS
            WITH {LIFE},
            block AS (
                SELECT a.device, u.category, a.begin_ns, a.free_ns, a.size_bytes
                FROM life a JOIN block_use u ON u.allocation = a.id WHERE a.begin_ns IS NOT NULL),
            moment AS (
                SELECT device, category, ts_ns, sum(delta) AS delta FROM (
                    SELECT device, category, begin_ns AS ts_ns, size_bytes AS delta FROM block
                    UNION ALL
                    SELECT device, category, free_ns, -size_bytes FROM block WHERE free_ns IS NOT NULL)
                GROUP BY ALL)
            SELECT device, category, ts_ns,
                   (sum(delta) OVER (PARTITION BY device, category ORDER BY ts_ns))::BIGINT AS bytes
            FROM moment""")


def find_uses(trace: Trace) -> None:
    """Makes the temporary tables `block_use` and `memory_round`.

    A round is a step, or one of SLICES parts of the recording where there are none: `memory_round` (process, rounds:
    how many, stated: whether they are steps). `block_use` (allocation, category, begin_round, free_round): rounds count
    from 1; rounds + 1 is after the last one's end, or never. A block is there at the ends of the rounds from
    begin_round to free_round - 1.
    """
    if _is_made(trace, "block_use"):
        return
    blocks = trace.sql(BLOCKS).fetchnumpy()
    step_ends = _step_ends(trace)
    category = categories(trace, blocks, step_ends)
    alloc_ns, free_ns = (np.asarray(blocks[name], np.int64) for name in ("alloc_ns", "free_ns"))
    begin_round, free_round = np.zeros(len(alloc_ns), np.int32), np.zeros(len(alloc_ns), np.int32)
    rounds = []
    for process, rows in groups(np.asarray(blocks["process"])):
        ends = step_ends[process] if process in step_ends else _slice_ends(blocks, rows)
        begin_round[rows] = np.searchsorted(ends, alloc_ns[rows], side="left") + 1
        free_round[rows] = np.searchsorted(ends, free_ns[rows], side="left") + 1
        rounds.append((process, len(ends), process in step_ends))
    _keep(trace, blocks["id"], category, begin_round, free_round)
    trace.connection.execute("CREATE TEMP TABLE memory_round (process INTEGER, rounds INTEGER, stated BOOLEAN)")
    if rounds:
        trace.connection.executemany("INSERT INTO memory_round VALUES (?, ?, ?)", rounds)


def _is_made(trace: Trace, table: str) -> bool:
    [(made,)] = trace.sql(
        "SELECT count(*) FROM duckdb_tables() WHERE temporary AND table_name = $1", [table]
    ).fetchall()
    return bool(made)


def _step_ends(trace: Trace) -> dict[int, Integers]:
    found = trace.sql(STEP_ENDS).fetchnumpy()
    ends = np.asarray(found["end_ns"], np.int64)
    return {process: ends[rows] for process, rows in groups(np.asarray(found["process"]))}


def _slice_ends(blocks: Blocks, rows: slice) -> Integers:
    """The ends of SLICES equal parts of the time from the first change of a process' memory to its last."""
    alloc_ns, free_ns = np.asarray(blocks["alloc_ns"], np.int64)[rows], np.asarray(blocks["free_ns"], np.int64)[rows]
    times = np.concatenate([alloc_ns[alloc_ns > -NEVER], free_ns[free_ns < NEVER]])
    if not len(times) or times.min() == times.max():
        return np.empty(0, np.int64)
    first, last = int(times.min()), int(times.max())
    return np.array([first + (last - first) * (number + 1) // SLICES for number in range(SLICES)])


def _keep(
    trace: Trace,
    ids: npt.NDArray[np.generic],
    category: npt.NDArray[np.int64],
    begin_round: npt.NDArray[np.int32],
    free_round: npt.NDArray[np.int32],
) -> None:
    names = ", ".join(f"'{name}'" for name in CATEGORIES)
    columns = {"allocation": ids, "code": category.astype(np.int8), "begin": begin_round, "free": free_round}
    trace.connection.register("uses_found", columns)
    try:
        trace.connection.execute(f"""
            CREATE TEMP TABLE block_use AS
            SELECT allocation, [{names}][code + 1]::ENUM({names}) AS category, begin AS begin_round, free AS free_round
            FROM uses_found""")
    finally:
        trace.connection.unregister("uses_found")
