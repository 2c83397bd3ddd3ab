"""From a scanned file's rows to rows of `event`, many at once: parents by nesting, steps, and which host call launched
what, so that nothing of it has to be added to the stored rows later.
"""

from dataclasses import dataclass

import duckdb
import numpy as np

from ral_trace.tracer import _native
from ral_trace.tracer.derive import MAY_STATE_STEPS, STEP_SOURCES, optimizer_steps
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.schema import FLAGS

ROWS_AT_ONCE = 1_000_000
UNNESTED = FLAGS["INVALID"] | FLAGS["SUSPENDED"]
COLUMNS = (
    """kind, category, name, ts_ns, dur_ns, process, thread, device, stream, correlation, bytes, stack, args, flags"""
)
"""Of `event`, as `mapped` has them.

`mapped` numbers its rows too (n). `nest_order` says which of rows that begin and end together encloses the
others: the least. A host call that may have launched something has the kind 'call' or 'sync_call', and becomes launch,
sync or runtime.
"""


@dataclass(frozen=True)
class Landed:
    """Where rows went: row `n` of `mapped` is event `first + n`."""

    first: int
    steps: int
    """How many intervals state steps."""


def land(rows: Rows, count: int, *, tolerance_ns: int = 0) -> Landed:
    """Inserts the table `mapped`, whose numbers are below `count`, into `event`.

    `tolerance_ns` lets a child end that much after its parent, where the source rounds its times. Leaves the temporary
    table `placed` (n, parent, step; parents are numbers too), and notes that these processes need no deriving of
    parents and steps.
    """
    connection = rows.builder.connection
    first = rows.builder.new_ids("event", count)
    _find_launches(connection)
    steps = _find_steps(connection)
    _place(connection, steps, tolerance_ns)
    rows.builder.insert("event", ("id", *COLUMNS.split(", "), "parent", "step"), _final(first, steps > 0))
    rows.builder.placed_processes.update(
        process for (process,) in connection.execute("SELECT DISTINCT process FROM mapped").fetchall()
    )
    return Landed(first, steps)


def _find_launches(connection: duckdb.DuckDBPyConnection) -> None:
    """Of the calls with the correlation of something on a device, the first is its launch: there is one."""
    connection.execute("""
        CREATE OR REPLACE TEMP TABLE launch_of AS
        SELECT process, correlation, arg_min(n, ts_ns) AS n FROM mapped c
        WHERE kind IN ('call', 'sync_call') AND correlation IS NOT NULL AND EXISTS (
            FROM mapped d WHERE d.process = c.process AND d.correlation = c.correlation AND d.thread IS NULL
                 AND d.kind IN ('kernel', 'transfer'))
        GROUP BY ALL""")


def _find_steps(connection: duckdb.DuckDBPyConnection) -> int:
    """Fills `step_interval` from annotations that state steps, else from the ends of the optimiser's steps; how many.

    By the rules of `derive.mark_steps`, which keeps to what is chosen here: the annotations of category `step`.
    """
    connection.execute(f"""
        CREATE OR REPLACE TEMP TABLE named_annotation AS
        SELECT n, process, name, ts_ns, ts_ns + dur_ns AS end_ns FROM mapped WHERE {MAY_STATE_STEPS}""")
    connection.execute("""
        CREATE OR REPLACE TEMP TABLE step_interval (process INTEGER, step BIGINT, ts_ns BIGINT, end_ns BIGINT)""")
    for _, pattern in STEP_SOURCES:
        stating = "(FROM named_annotation WHERE regexp_matches(name, $1))"
        if connection.execute(f"FROM {stating} LIMIT 1", [pattern]).fetchall():
            connection.execute(
                f"""INSERT INTO step_interval
                    SELECT process, try_cast(regexp_extract(name, $1, 1) AS BIGINT) AS step, ts_ns, end_ns
                    FROM {stating} WHERE step IS NOT NULL AND end_ns IS NOT NULL""",
                [pattern],
            )
            connection.execute(f"UPDATE mapped SET category = 'step' WHERE n IN (SELECT n FROM {stating})", [pattern])
            break
    else:
        connection.execute(f"INSERT INTO step_interval {optimizer_steps('mapped')}")
    [(found,)] = connection.execute("SELECT count(*) FROM step_interval").fetchall()
    return int(found)


def _place(connection: duckdb.DuckDBPyConnection, steps: int, tolerance_ns: int) -> None:
    """Fills `placed` for the rows of threads."""
    # Points (arrow ends) come after the rows that begin where they are: so they belong to them.
    host = connection.sql(f"""
        SELECT n, process, thread, ts_ns, ts_ns + coalesce(dur_ns, 0) AS end_ns FROM (
            SELECT n, nest_order, process, thread, ts_ns, dur_ns FROM mapped
            WHERE thread IS NOT NULL AND (flags & {UNNESTED}) = 0
            UNION ALL SELECT n, n, process, thread, ts_ns, 0 FROM arrow_end WHERE thread IS NOT NULL)
        ORDER BY thread, ts_ns, dur_ns DESC NULLS LAST, nest_order""").fetchnumpy()
    parent = _native.nest(host["thread"], host["ts_ns"], host["end_ns"], host["n"], tolerance_ns)
    columns = {"n": host["n"], "parent": parent}
    if steps:
        del host["end_ns"], host["thread"]
        columns["step"] = _steps(connection, host["process"], host["ts_ns"])
    del host
    connection.register("placed_columns", columns)
    step = "nullif(step, -1)" if steps else "NULL::BIGINT"
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE placed AS SELECT n, nullif(parent, -1) AS parent, {step} AS step "
        "FROM placed_columns"
    )
    connection.unregister("placed_columns")


def _steps(connection: duckdb.DuckDBPyConnection, process: np.ndarray, ts_ns: np.ndarray) -> np.ndarray:
    """The step in which each row began; -1: in none."""
    found = np.full(len(ts_ns), -1, np.int64)
    intervals = connection.sql("FROM step_interval ORDER BY process, ts_ns").fetchnumpy()
    for one in np.unique(intervals["process"]):
        here = intervals["process"] == one
        starts, ends, numbers = (np.asarray(intervals[name][here]) for name in ("ts_ns", "end_ns", "step"))
        for first in range(0, len(ts_ns), ROWS_AT_ONCE):
            some = slice(first, first + ROWS_AT_ONCE)
            at = np.searchsorted(starts, ts_ns[some], side="right") - 1
            inside = (at >= 0) & (ts_ns[some] < ends[at]) & (process[some] == one)
            found[some][inside] = numbers[at[inside]]
    return found


def _final(first: int, steps: bool) -> str:
    kind = """CASE m.kind WHEN 'call' THEN if(l.n IS NOT NULL, 'launch', 'runtime')
        WHEN 'sync_call' THEN if(l.n IS NOT NULL, 'launch', 'sync') ELSE m.kind END"""
    # A row on a device belongs to the step in which it was launched.
    step = "CASE WHEN m.thread IS NULL THEN s.step ELSE p.step END" if steps else "NULL::BIGINT"
    join = (
        """LEFT JOIN (SELECT launch_of.process, launch_of.correlation, placed.step FROM launch_of
                         JOIN placed USING (n)) s
              ON m.thread IS NULL AND s.process = m.process AND s.correlation = m.correlation"""
        if steps
        else ""
    )
    columns = ", ".join(kind if column == "kind" else f"m.{column}" for column in COLUMNS.split(", "))
    return f"""
        SELECT {first} + m.n, {columns}, {first} + p.parent, {step}
        FROM mapped m LEFT JOIN placed p ON p.n = m.n LEFT JOIN launch_of l ON l.n = m.n {join}"""
