"""What follows from a trace's rows, by the same rules for every source: parents, steps, flows, lives of blocks and
regions.

Each function takes a connection whose current database has the tables of `schema`, filled with raw rows, and
`memory_change` (below).
"""

from collections.abc import Collection

import duckdb

from ral_trace.tracer import _native
from ral_trace.tracer.schema import FLAGS

INVALID, UNFINISHED, SUSPENDED = FLAGS["INVALID"], FLAGS["UNFINISHED"], FLAGS["SUSPENDED"]

MEMORY_CHANGE_COLUMNS = {
    "action": "VARCHAR",  # alloc, free, open (a region), close
    "event": "BIGINT",
    "ts_ns": "BIGINT",
    "device": "INTEGER",
    "address": "UBIGINT",
    "size_bytes": "BIGINT",
    "requested_bytes": "BIGINT",  # alloc
    "uses": "BIGINT",  # free
    "handle": "BIGINT",  # open, close
    "before_trace": "BOOLEAN",
    # open, close: where a range of addresses is striped over memory domains, this region's domain, how many there are,
    # and the length of a stripe; size_bytes is then the region's share, address the range's. NULL: not striped
    "domain": "INTEGER",
    "domains": "INTEGER",
    "stripe_bytes": "BIGINT",
    "stack": "INTEGER",  # alloc: where no event holds it, because the block is from before the recording
    "last_use_ns": "BIGINT",  # free: when the last kernel or copy that touched the block was launched
}
MEMORY_CHANGE = f"""
CREATE TEMP TABLE memory_change ({", ".join(f"{column} {kind}" for column, kind in MEMORY_CHANGE_COLUMNS.items())})
"""
"""Staging only: every change of a device's memory, in the order of `event`.

It becomes `region`, `allocation` and `allocation_piece`.
"""


ACCESS_SEEN = """
CREATE TEMP TABLE access_seen (event BIGINT, ts_ns BIGINT, device INTEGER, address UBIGINT, mode VARCHAR)
"""
"""Staging only: an op's use of the block at an address. It becomes `access`."""

NEVER_ENDED = "events whose end was never seen: kept, but out of all sums"
NEVER_RAN = (
    "launches without a kernel, copy or fallback: it had not run when the recording ended, or there is no record of it"
)
COMPLETE = "(SELECT process FROM complete_process)"

DATA_LOADER = "enumerate(DataLoader)#%"
"""What torch.utils.data.DataLoader itself annotates: the time in which its next batch was waited for, or made."""


def derive(
    connection: duckdb.DuckDBPyConnection, complete: Collection[int] = (), step_sources: Collection[str] = ()
) -> None:
    """Fills in all that is derived. Steps come before flows because device rows take the step of their launch.

    The rows of the processes `complete` have their parents, steps and flows of launches; `step_sources` said the steps.
    """
    connection.execute(
        "CREATE OR REPLACE TEMP TABLE complete_process AS SELECT unnest(?::INTEGER[]) AS process", [[*complete]]
    )
    stated = None
    [(incomplete,)] = connection.execute(f"SELECT count(*) FROM process WHERE id NOT IN {COMPLETE}").fetchall()
    if incomplete:
        nest_parents(connection)
        mark_data_waits(connection)
        stated = mark_steps(connection)
        link_launches(connection)
    note_step_source(connection, {*step_sources, stated})
    if connection.execute("FROM memory_change LIMIT 1").fetchone():
        pair_regions(connection)
        pair_allocations(connection)
        find_pieces(connection)
        find_accesses(connection)
    warn_of_odd_rows(connection)
    if incomplete:
        warn_of_lost_launches(connection)


def nest_parents(connection: duckdb.DuckDBPyConnection) -> None:
    """Gives host rows without a stated parent the innermost row of their thread that encloses them.

    Of two rows with the same times the later written is the outer one, because a live row is written when it ends.
    Rows with invalid times take no part: they would adopt half the trace. Nor do annotations that were suspended in
    between (asyncio, generators): what ran on their thread meanwhile is not theirs.
    """
    rows = connection.sql(f"""
        SELECT thread, ts_ns, ts_ns + coalesce(dur_ns, 0) AS end_ns, id FROM event
        WHERE thread IS NOT NULL AND (flags & {INVALID | SUSPENDED}) = 0 AND process NOT IN {COMPLETE}
        ORDER BY thread, ts_ns, dur_ns DESC NULLS LAST, id DESC""").fetchnumpy()
    parent = _native.nest(rows["thread"], rows["ts_ns"], rows["end_ns"], rows["id"])
    nested = parent >= 0
    if nested.any():
        connection.register("nested", {"id": rows["id"][nested], "parent": parent[nested]})
        connection.execute(
            "UPDATE event SET parent = nested.parent FROM nested WHERE event.id = nested.id AND event.parent IS NULL"
        )
        connection.unregister("nested")


def mark_data_waits(connection: duckdb.DuckDBPyConnection) -> None:
    """Gives the DataLoader's own annotations the category `dataloader`."""
    connection.execute(
        f"""UPDATE event SET category = 'dataloader'
            WHERE kind = 'annotation' AND category IS NULL AND name LIKE ? AND process NOT IN {COMPLETE}""",
        [DATA_LOADER],
    )


STEP_SOURCES = [
    ("step()", r"^step#(\d+)$"),
    ("ProfilerStep", r"^ProfilerStep#(\d+)$"),
]
"""Where the numbers of steps come from, best first: the name that trace_info.steps_from gives, and the annotation
that states a step.
"""


MAY_STATE_STEPS = "kind = 'annotation' AND stream IS NULL"
"""A device's image of an annotation states nothing."""

STATED_STEPS = """
SELECT process, step, ts_ns, ts_ns + dur_ns AS end_ns FROM event WHERE category = 'step' AND kind = 'annotation'"""


OPTIMIZER_STEPS = f"""
SELECT process, row_number() OVER of_process - 1 AS step,
       coalesce(lag(end_ns) OVER of_process, -9223372036854775808) AS ts_ns, end_ns
FROM (SELECT process, ts_ns + dur_ns AS end_ns FROM event
      WHERE {MAY_STATE_STEPS} AND name LIKE 'Optimizer.step#%' AND dur_ns IS NOT NULL)
WINDOW of_process AS (PARTITION BY process ORDER BY end_ns)"""
"""Steps without a stated begin: from the end of the optimiser's step before to the end of its own."""


def mark_steps(connection: duckdb.DuckDBPyConnection) -> str | None:
    """Sets `event.step` from annotations that state steps, else from the ends of `Optimizer.step#...`.

    Returns the source of what is stated.
    """
    stated = next((source for source, pattern in STEP_SOURCES if _number_steps(connection, pattern)), None)
    _spread_steps(connection, STATED_STEPS if stated else OPTIMIZER_STEPS)
    return stated


def note_step_source(connection: duckdb.DuckDBPyConnection, stated: Collection[str | None]) -> None:
    """Writes to trace_info.steps_from what said the steps."""
    found = connection.execute("SELECT 1 FROM event WHERE step IS NOT NULL LIMIT 1").fetchone()
    named = next((name for name, _ in STEP_SOURCES if name in stated), "Optimizer.step")
    connection.execute("INSERT INTO trace_info VALUES ('steps_from', ?)", [named if found else "none"])


def _number_steps(connection: duckdb.DuckDBPyConnection, pattern: str) -> bool:
    """Whether there are annotations of a source of steps. They get their numbers."""
    row = connection.execute(
        f"""UPDATE event SET category = 'step', step = try_cast(regexp_extract(name, $1, 1) AS BIGINT)
            WHERE {MAY_STATE_STEPS} AND regexp_matches(name, $1) AND process NOT IN {COMPLETE}""",
        [pattern],
    ).fetchone()
    return row is not None and row[0] > 0


def _spread_steps(connection: duckdb.DuckDBPyConnection, intervals: str) -> None:
    """Gives each row the step during which it began; a device row has the step of its launch, which began earlier.

    Of several launches of one correlation the first one counts, of steps that begin at once the later.
    """
    connection.execute(f"""
        UPDATE event SET step = inside.step FROM (
            SELECT e.id, s.step FROM event e ASOF JOIN (
                FROM ({intervals}) QUALIFY row_number() OVER (PARTITION BY process, ts_ns ORDER BY step DESC) = 1) s
              ON e.process = s.process AND e.ts_ns >= s.ts_ns
            WHERE e.ts_ns < s.end_ns AND e.step IS NULL AND e.process NOT IN {COMPLETE}) inside
        WHERE event.id = inside.id""")
    connection.execute(f"""
        UPDATE event SET step = launch.step FROM (
            SELECT process, correlation, arg_min_null(step, (ts_ns, id)) AS step FROM event
            WHERE kind = 'launch' AND correlation IS NOT NULL GROUP BY process, correlation) launch
        WHERE event.thread IS NULL AND event.process NOT IN {COMPLETE}
          AND launch.process = event.process AND launch.correlation = event.correlation""")


def link_launches(connection: duckdb.DuckDBPyConnection) -> None:
    """Makes the flows from launches to what they started, gives launches that do not say it the device of that, and
    hangs a fallback's copies and syncs under that fallback.

    By nesting alone they would hang under the launch, or the op, between them and the fallback.
    """
    connection.execute(f"""
        INSERT INTO flow
        SELECT 'launch', l.id, d.id FROM event l JOIN event d ON d.process = l.process AND d.correlation = l.correlation
        WHERE l.kind = 'launch' AND d.kind IN ('kernel', 'transfer', 'fallback') AND l.process NOT IN {COMPLETE}""")
    connection.execute("""
        UPDATE event SET device = started.device FROM (
            SELECT from_event, any_value(d.device) AS device FROM flow JOIN event d ON d.id = flow.to_event
            WHERE flow.kind = 'launch' GROUP BY from_event HAVING count(DISTINCT d.device) = 1) started
        WHERE event.id = started.from_event AND event.kind = 'launch' AND event.device IS NULL""")
    if not connection.execute("FROM event WHERE kind = 'fallback' LIMIT 1").fetchone():
        return
    connection.execute("""
        CREATE TEMP TABLE beneath AS
        WITH RECURSIVE inside AS (
            SELECT id, id AS fallback FROM event WHERE kind = 'fallback'
            UNION ALL
            SELECT e.id, inside.fallback FROM event e JOIN inside ON e.parent = inside.id WHERE e.kind <> 'fallback')
        SELECT inside.*, e.kind, e.process, e.correlation FROM inside JOIN event e USING (id)
        WHERE e.kind IN ('launch', 'sync')""")
    connection.execute("""
        UPDATE event SET parent = beneath.fallback FROM beneath
        WHERE beneath.id = event.id AND beneath.kind = 'sync' AND event.kind = 'sync'""")
    connection.execute("""
        UPDATE event SET parent = beneath.fallback FROM beneath
        WHERE event.kind = 'transfer' AND event.parent IS NULL AND beneath.kind = 'launch'
          AND beneath.process = event.process AND beneath.correlation = event.correlation""")
    connection.execute("DROP TABLE beneath")


REGION_COLUMNS = "id, device, handle, address, size_bytes, opened_ns, closed_ns"

BYTES_BEFORE = """
CREATE OR REPLACE TEMP MACRO bytes_before(x, domain, domains, stripe) AS
    CASE WHEN domains IS NULL THEN x
         ELSE x // (stripe * domains) * stripe
              + least(greatest(x % (stripe * domains) - domain * stripe, 0), stripe) END
"""
"""How many of a range's first x bytes lie in a memory domain: `Striping::before` in backend/native/core/regions.h."""


def pair_regions(connection: duckdb.DuckDBPyConnection) -> None:
    """Turns opens and closes into rows of `region`, and keeps how each is striped in `region_share` for the pieces."""
    connection.execute("""
        CREATE TEMP TABLE region_share AS
        SELECT row_number() OVER (ORDER BY event, ts_ns, device, address, handle) - 1 AS id,
               device, handle, address, size_bytes,
               CASE WHEN before_trace THEN NULL ELSE ts_ns END AS opened_ns,
               CASE WHEN next_action = 'close' THEN next_ts_ns END AS closed_ns, domain, domains, stripe_bytes
        FROM (SELECT *, lead(action) OVER same AS next_action, lead(ts_ns) OVER same AS next_ts_ns FROM memory_change
              WHERE action IN ('open', 'close')
              WINDOW same AS (PARTITION BY device, handle, address ORDER BY ts_ns, event))
        WHERE action = 'open'""")
    connection.execute(f"INSERT INTO region SELECT {REGION_COLUMNS} FROM region_share")


def find_pieces(connection: duckdb.DuckDBPyConnection) -> None:
    """Says where each block lies: a piece in each region of the range of addresses that holds it."""
    connection.execute(BYTES_BEFORE)
    connection.execute("""
        INSERT INTO allocation_piece
        SELECT allocation, region, try_cast(first AS BIGINT), try_cast(beyond - first AS BIGINT)
        FROM (SELECT a.id AS allocation, r.id AS region, (a.address - r.address)::HUGEINT AS begin,
                     bytes_before(begin, domain, domains, stripe_bytes::HUGEINT) AS first,
                     bytes_before(begin + a.size_bytes, domain, domains, stripe_bytes::HUGEINT) AS beyond
              FROM allocation a
              JOIN region_share r ON r.device = a.device AND a.address >= r.address
                   AND a.address < r.address + r.size_bytes::HUGEINT * coalesce(r.domains, 1)
              WHERE (r.opened_ns IS NULL OR a.alloc_ns >= r.opened_ns)
                AND (r.closed_ns IS NULL OR coalesce(a.alloc_ns, r.closed_ns - 1) < r.closed_ns))
        WHERE beyond > first""")
    connection.execute("DROP TABLE region_share; DROP MACRO bytes_before")


def pair_allocations(connection: duckdb.DuckDBPyConnection) -> None:
    """Turns allocs and frees into rows of `allocation`, and says in `quality` what does not pair up.

    A free without an alloc is a block from before the recording; an alloc at an address that is still taken ends the
    older block there. A block that was allocated while the device listed what it already had is listed twice: once
    is enough.
    """
    connection.execute("""
        DELETE FROM memory_change WHERE before_trace AND action = 'alloc' AND event IN (
            SELECT event FROM (
                SELECT event, before_trace,
                       lag(action) OVER (PARTITION BY device, address ORDER BY ts_ns, event) AS earlier
                FROM memory_change WHERE action IN ('alloc', 'free'))
            WHERE before_trace AND earlier = 'alloc')""")
    connection.execute("""
        CREATE TEMP TABLE paired AS
        SELECT *, lag(action) OVER same AS before, lead(action) OVER same AS after, lead(event) OVER same AS next_event,
               lead(ts_ns) OVER same AS next_ns, lead(uses) OVER same AS next_uses,
               lead(last_use_ns) OVER same AS next_last_use_ns
        FROM memory_change WHERE action IN ('alloc', 'free')
        WINDOW same AS (PARTITION BY device, address ORDER BY ts_ns, event)""")
    connection.execute("""
        INSERT INTO allocation (id, device, address, size_bytes, requested_bytes, alloc_ns, free_ns, alloc_event,
        free_event, stack, op, last_use_ns, uses, before_trace)
        SELECT row_number() OVER (ORDER BY p.ts_ns, p.event) - 1, p.device, address, size_bytes, requested_bytes,
               CASE WHEN action = 'alloc' AND NOT before_trace THEN p.ts_ns END,
               CASE WHEN action = 'free' THEN p.ts_ns ELSE next_ns END,
               CASE WHEN action = 'alloc' AND NOT before_trace THEN p.event END,
               CASE WHEN action = 'free' THEN p.event WHEN after = 'free' THEN next_event END,
               coalesce(e.stack, p.stack), e.name,
               CASE WHEN action = 'free' THEN p.last_use_ns WHEN after = 'free' THEN next_last_use_ns END,
               CASE WHEN action = 'free' THEN p.uses WHEN after = 'free' THEN next_uses END,
               action = 'free' OR before_trace
        FROM paired p LEFT JOIN event e ON e.id = p.event AND p.action = 'alloc'
        WHERE action = 'alloc' OR (action = 'free' AND before IS NULL)""")
    for condition, what in [
        ("action = 'free' AND before = 'free'", "frees of a block that was already free: left out"),
        (
            "action = 'alloc' AND after = 'alloc'",
            "blocks that were never freed before their address was used again: ended there",
        ),
    ]:
        connection.execute(f"""
            INSERT INTO quality (process, what, count, example)
            SELECT d.process, '{what}', count(*), 'address ' || min(p.address)
            FROM paired p JOIN device d ON d.id = p.device
            WHERE {condition} GROUP BY d.process""")
    connection.execute("DROP TABLE paired")


def find_accesses(connection: duckdb.DuckDBPyConnection) -> None:
    """Names the allocation that was at an address when an op used it."""
    connection.execute("""
        INSERT INTO access
        SELECT s.event, a.id, s.mode FROM access_seen s ASOF JOIN (
            SELECT id, device, address, coalesce(alloc_ns, -9223372036854775808) AS alloc_ns, free_ns FROM allocation) a
          ON s.device = a.device AND s.address = a.address AND s.ts_ns >= a.alloc_ns
        WHERE a.free_ns IS NULL OR s.ts_ns < a.free_ns""")


def warn_of_odd_rows(connection: duckdb.DuckDBPyConnection) -> None:
    """Says in `quality` how many rows are kept out of sums, and which one is an example."""
    [(flags,)] = connection.execute("SELECT coalesce(bit_or(flags), 0) FROM event").fetchall()
    for flag, what in [
        (INVALID, "events with times that cannot be: kept, but out of all sums"),
        (UNFINISHED, NEVER_ENDED),
    ]:
        if flags & flag:
            connection.execute(f"""
                INSERT INTO quality (source, process, what, count, example)
                SELECT p.source, e.process, '{what}', count(*), min(e.name)
                FROM event e JOIN process p ON p.id = e.process WHERE (e.flags & {flag}) <> 0 GROUP BY ALL""")


def warn_of_lost_launches(connection: duckdb.DuckDBPyConnection) -> None:
    """Says in `quality` which launches started nothing."""
    connection.execute(
        f"""
        INSERT INTO quality (source, process, what, count, example)
        SELECT p.source, l.process, $1, count(*), min(l.name)
        FROM event l JOIN process p ON p.id = l.process
        WHERE l.kind = 'launch' AND l.id NOT IN (SELECT from_event FROM flow WHERE kind = 'launch')
          AND l.process NOT IN {COMPLETE}
        GROUP BY ALL""",
        [NEVER_RAN],
    )
