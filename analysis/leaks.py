"""Memory that grows from step to step: which call sites, and whether it looks like a leak."""

from ral_trace.analysis.base import (
    DEVICE,
    LINE,
    NAMED_DEVICE,
    OP,
    SOME_ALLOCATIONS,
    WANTED,
    Analysis,
    Column,
    Row,
    Rows,
)
from ral_trace.analysis.block_use import SLICES, find_uses
from ral_trace.analysis.memory import CATEGORY
from ral_trace.analysis.peak_holders import SITE_LINE
from ral_trace.analysis.units import human
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

STEP, SLICE = "step", "part"
"""What growth is counted in: the process' steps, or SLICES equal parts of its recording."""

LEAST_STEPS, LEAST_SHARE = 5, 0.8
"""A leak left something behind in this share of at least so many steps."""
SURE_STEPS, SURE_SHARE, SURE_FIT = 10, 0.9, 95.0
"""It is a sure one if it did so in this share of so many, and grew along a line that explains so many percent."""

GROWTH = f"""
    block AS (
        SELECT a.id, a.device, a.op, l.line, coalesce(a.size_bytes, 0) AS size_bytes, u.category, u.begin_round,
               u.free_round, r.rounds, r.stated
        FROM allocation a JOIN named_device d ON d.device = a.device JOIN block_use u ON u.allocation = a.id
        JOIN memory_round r ON r.process = d.process LEFT JOIN line_of l ON l.stack = a.stack
        WHERE u.begin_round <= r.rounds AND r.rounds > 1 AND {WANTED}),
    change AS (
        SELECT device, op, line, rounds, begin_round AS round, size_bytes AS delta FROM block
        UNION ALL
        SELECT device, op, line, rounds, free_round, -size_bytes FROM block WHERE free_round <= rounds),
    in_round AS (SELECT device, op, line, rounds, round, sum(delta) AS delta FROM change GROUP BY ALL),
    level AS (
        SELECT *, sum(delta) OVER site AS bytes, lead(round, 1, rounds + 1) OVER site AS until FROM in_round
        WINDOW site AS (PARTITION BY device, op, line ORDER BY round)),
    grown AS (
        SELECT device, op, line, any_value(rounds) AS rounds,
               coalesce(sum(delta) FILTER (round = 1), 0) AS first_bytes, sum(delta) AS last_bytes,
               count(*) FILTER (round > 1 AND delta < 0) AS steps_shrunk,
               sum(bytes::DOUBLE * (until - round)) AS y, sum(bytes::DOUBLE * bytes * (until - round)) AS yy,
               sum(bytes::DOUBLE * (until - round) * (round + until - 1) / 2) AS xy
        FROM level GROUP BY device, op, line),
    left_over AS (
        SELECT device, op, line, any_value(stated) AS stated, count(*) AS blocks,
               count(*) FILTER (begin_round > 1) AS grown_blocks,
               count(DISTINCT begin_round) FILTER (begin_round > 1) AS steps_grown,
               count(DISTINCT size_bytes) = 1 AS of_one_size,
               mode(category ORDER BY category) AS category
        FROM block WHERE free_round > rounds GROUP BY device, op, line)"""
"""CTEs: of each call site the level over the rounds, and what its blocks left behind. y, yy, xy: the sums over all
rounds of the level, of its square, and of its product with the round's number, for the line through them.
"""


def leaks(trace: Trace, *, device: str | None = None, limit: int | None = 200) -> Rows:
    """The call sites that hold more at the last step's end than at the first's, the likeliest leaks first."""
    find_uses(trace)
    rows = trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {LINE}, {GROWTH}
        SELECT d.shown AS device, g.op, g.line, o.category, if(o.stated, '{STEP}', '{SLICE}') AS counted_in,
               g.rounds AS steps, o.steps_grown, g.steps_shrunk, g.first_bytes::BIGINT AS first_bytes,
               g.last_bytes::BIGINT AS last_bytes, (g.last_bytes - g.first_bytes)::BIGINT AS grown_bytes,
               o.grown_blocks, o.blocks AS live_blocks,
               ((g.last_bytes - g.first_bytes) // (g.rounds - 1))::BIGINT AS bytes_per_step,
               100 * least(1.0, pow(g.rounds * xy - x * y, 2)
                   / nullif((g.rounds * xx - x * x) * (g.rounds * yy - y * y), 0)) AS fit_percent,
               o.of_one_size
        FROM (SELECT *, rounds::DOUBLE * (rounds + 1) / 2 AS x,
                     rounds::DOUBLE * (rounds + 1) * (2 * rounds + 1) / 6 AS xx FROM grown) g
        JOIN left_over o ON o.device = g.device AND o.op IS NOT DISTINCT FROM g.op
             AND o.line IS NOT DISTINCT FROM g.line
        JOIN named_device d ON d.device = g.device
        WHERE g.last_bytes > g.first_bytes
        ORDER BY grown_bytes DESC, d.position, g.op, g.line""",
        [device],
    )
    found = [_judged(row) for row in rows]
    found.sort(key=lambda row: (CONFIDENCE.index(row["confidence"]), -row["grown_bytes"]))
    return Rows(found if limit is None else found[:limit])


CONFIDENCE = ["high", "medium", "low", None]


def _judged(row: Row) -> Row:
    """The row with its confidence after its line, without what only that needed."""
    confidence = confidence_of(row)
    judged = {name: value for name, value in row.items() if name != "of_one_size"}
    return {
        **{name: judged.pop(name) for name in ("device", "op", "line", "category")},
        "confidence": confidence,
        **judged,
    }


def confidence_of(row: Row) -> str | None:
    """How sure it is that the memory of a site leaks; None: it does not look like it (a cache, parameters).

    high: blocks of at least 90 % of 10 or more steps are still there after the last one, and the memory grew along a
    straight line (95 % explained). medium: blocks of at least 80 % of 5 or more steps. Without steps there is less to
    go by: medium at most, and only where all blocks are of one size and the line holds; else low.
    """
    share = row["steps_grown"] / (row["steps"] - 1)
    if row["category"] == "parameter" or row["steps"] < LEAST_STEPS or share < LEAST_SHARE:
        return None
    straight = row["fit_percent"] is not None and row["fit_percent"] >= SURE_FIT
    if row["counted_in"] == SLICE:
        return "medium" if row["of_one_size"] and straight and share >= SURE_SHARE else "low"
    return "high" if row["steps"] >= SURE_STEPS and share >= SURE_SHARE and straight else "medium"


def leak_said(rows: Rows) -> str | None:
    """The likeliest leak, with its evidence. None where there is at best a guess."""
    row = next((row for row in rows if row["confidence"] in ("high", "medium")), None)
    if row is None:
        return None
    op = "memory of unknown origin" if row["op"] is None else f"memory from {plain(row['op'])}"
    where = "" if row["line"] is None else f" ({plain(row['line'])})"
    counted = "steps" if row["counted_in"] == STEP else "parts of the recording"
    evidence = f"grew in {row['steps_grown']:,} of {row['steps'] - 1:,} {counted}"
    a_step = f"by {human(row['bytes_per_step'], 'bytes')} a {row['counted_in']}"
    return f"Looks like a leak: {op}{where} on {plain(row['device'])} {evidence}, {a_step}."


LEAKS = Analysis(
    "leaks",
    "Growth and leaks",
    "What holds more memory at the last step's end than at the first's, by call site. A leak leaves something behind "
    "in nearly every step; a cache grows in a few and stays; what a garbage collection frees at last was no leak. "
    f"Without steps, {SLICES} equal parts of the recording are compared.",
    (
        DEVICE,
        OP,
        SITE_LINE,
        CATEGORY,
        Column("confidence", "text", "that it is a leak: high, medium, low; none: it does not look like one", "leak"),
        Column("counted_in", "text", "step, or part: of the recording, where its process states no steps"),
        Column("steps", "count", "steps (or parts) of the process that ended within the recording"),
        Column(
            "steps_grown",
            "count",
            "steps, but for the first, of whose blocks some were there after the last",
            "grew in",
        ),
        Column("steps_shrunk", "count", "steps that ended with less than the one before", "shrank in"),
        Column("first_bytes", "bytes", "in use at the first step's end", "first step"),
        Column("last_bytes", "bytes", "in use at the last step's end", "last step"),
        Column("grown_bytes", "bytes", "the difference", "grown"),
        Column("grown_blocks", "count", "blocks of later steps than the first that were there after the last"),
        Column("live_blocks", "count", "all blocks that were there after the last"),
        Column("bytes_per_step", "bytes", "grown_bytes a step, rounded down", "per step"),
        Column(
            "fit_percent",
            "percent",
            "how much of the growth a straight line over the steps explains (R squared)",
            "fit",
        ),
    ),
    leaks,
    chapter="memory",
    shown="device op bytes_per_step confidence steps_grown steps grown_bytes line grown_blocks last_bytes first_bytes "
    "category steps_shrunk fit_percent",
    needs=(SOME_ALLOCATIONS,),
    remark=leak_said,
    notable=lambda row: ["confidence", "steps_grown"] if row["confidence"] in ("high", "medium") else [],
)
