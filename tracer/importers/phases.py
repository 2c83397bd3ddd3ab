"""What the phases of Chrome's trace format mean: slices of two events, counters, arrows.

Each function reads `raw_event` (see `trace_events.stage`) and `place` (grp, process, thread), which says where the
events of a group happened. The phases are defined in
https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from collections.abc import Iterable

import duckdb

from ral_trace.tracer import _native
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.schema import FLAGS

ARROW_END = """CREATE OR REPLACE TEMP TABLE arrow_end
    (n BIGINT, process INTEGER, thread INTEGER, ts_ns BIGINT, to_next BOOLEAN, begins BIGINT)"""
"""Ends of arrows; `begins` is the event at the other end, NULL where the arrow only begins."""
TABLES = ("arrow_end", "bound", "counted", "series_number")
"""Temporary tables that are made here."""

Amended = tuple[int, int | None, int, str | None]
"""What a row gets besides what its own event says: its number, duration, flags and args."""

IGNORED = {
    "N": "object events", "O": "object events", "D": "object events", "P": "samples", "v": "memory dumps",
    "V": "memory dumps", "R": "marks", "c": "clock syncs", "(": "contexts", ")": "contexts",
}  # fmt: skip


def count_ignored(rows: Rows, phases: Iterable[tuple[str, int]]) -> None:
    """Says in `quality` what is in the file and not read; `phases` are (phase, how many events)."""
    known = {*"XBEbneSTpFiICMstf"}
    for phase, count in phases:
        if phase not in known:
            what = IGNORED.get(phase, "events of an unknown phase")
            rows.bad(f"{what}: not read", f"phase {phase}", count=count)


def pair_slices(rows: Rows) -> list[Amended]:
    """B with the E that ends it, per thread, in the order of time and, within one moment, of the file."""
    connection = rows.builder.connection
    found = connection.execute("""
        SELECT n, track, ph, ts_ns, CASE WHEN ph = 'E' THEN args END FROM raw_event
        WHERE ph IN ('B', 'E') AND ts_ns IS NOT NULL ORDER BY track, ts_ns, n""")
    return _pair(rows, found, begins="B", ends="E", flags=0)


def pair_async(rows: Rows) -> list[Amended]:
    """Asynchronous slices, by category and id: others run on their thread meanwhile, so they enclose nothing."""
    connection = rows.builder.connection
    found = connection.execute("""
        SELECT n, concat_ws(chr(0), coalesce(cat, ''), coalesce(id, ''), if(ph IN ('S', 'F'), name, '')) AS key, ph,
               ts_ns, CASE WHEN ph IN ('e', 'F') THEN args END FROM raw_event
        WHERE ph IN ('b', 'e', 'S', 'F') AND ts_ns IS NOT NULL ORDER BY key, ts_ns, n""")
    return _pair(rows, found, begins="bS", ends="eF", flags=FLAGS["SUSPENDED"])


def _pair(rows: Rows, found: duckdb.DuckDBPyConnection, *, begins: str, ends: str, flags: int) -> list[Amended]:
    """What the rows that begin get. Those of one key follow each other."""
    amended: list[Amended] = []
    unfinished = flags | FLAGS["UNFINISHED"]
    open_rows: list[tuple[int, int]] = []
    current, strays = None, 0
    while batch := found.fetchmany(50_000):
        for number, key, phase, ts_ns, args in batch:
            if key != current:
                amended += [(begun, None, unfinished, None) for begun, _ in open_rows]
                open_rows, current = [], key
            if phase in begins:
                open_rows.append((number, ts_ns))
            elif open_rows:
                begun, start = open_rows.pop()
                amended.append((begun, ts_ns - start, flags, args))
            else:
                strays += 1
    amended += [(begun, None, unfinished, None) for begun, _ in open_rows]
    if strays:
        rows.bad(f"ends ({' or '.join(ends)}) of slices that never began: left out", count=strays)
    return amended


def add_counters(rows: Rows) -> None:
    """A series for each member of a counter's args, and each id: `name.member`, `name.member [id]`.

    Values may be text; null is a gap; what is no number is counted, and a gap too.
    """
    connection = rows.builder.connection
    _explode_counters(connection)
    numbers = {}
    for process, series in connection.execute("SELECT DISTINCT process, series FROM counted ORDER BY ALL").fetchall():
        numbers[process, series] = rows.counter(series, None, process=process)
    if numbers:
        connection.execute(
            """CREATE OR REPLACE TEMP TABLE series_number AS
               SELECT unnest(?::INTEGER[]) AS process, unnest(?::VARCHAR[]) AS series,
                      unnest(?::INTEGER[]) AS counter""",
            [[process for process, _ in numbers], [series for _, series in numbers], list(numbers.values())],
        )
        rows.builder.insert(
            "counter_value",
            ("counter", "ts_ns", "value"),
            """SELECT counter, ts_ns, if(isfinite(value), value, NULL) FROM counted
               JOIN series_number USING (process, series) ORDER BY n""",
        )
        [(odd,)] = connection.execute(
            "SELECT count(*) FROM counted WHERE text IS NOT NULL AND (value IS NULL OR NOT isfinite(value))"
        ).fetchall()
        if odd:
            rows.bad("values of counters that are no numbers: gaps", count=odd)
    [(empty,)] = connection.execute(
        "SELECT count(*) FROM raw_event WHERE ph = 'C' AND (args IS NULL OR ts_ns IS NULL)"
    ).fetchall()
    if empty:
        rows.bad("counter events without a value or a time: left out", count=empty)


def _explode_counters(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("""
        CREATE OR REPLACE TEMP TABLE counted AS
        SELECT process, coalesce(name, '') || '.' || key || coalesce(' [' || id || ']', '') AS series, ts_ns, n,
               args->>('/' || replace(replace(key, '~', '~0'), '/', '~1')) AS text, try_cast(text AS DOUBLE) AS value
        FROM (SELECT process, name, id, ts_ns, n, args, unnest(json_keys(args)) AS key
              FROM raw_event JOIN place USING (grp)
              WHERE ph = 'C' AND ts_ns IS NOT NULL AND args IS NOT NULL AND json_type(args) = 'OBJECT')""")


def find_arrow_ends(rows: Rows) -> None:
    """Fills `arrow_end`: each t or f with the s or t before it in time that has its category, name and id.

    An id that is used again begins a new arrow.
    """
    connection = rows.builder.connection
    connection.execute(ARROW_END)
    connection.execute("""
        INSERT INTO arrow_end
        SELECT n, process, thread, ts_ns, ph = 'f' AND coalesce(bp, '') <> 'e',
               CASE WHEN ph IN ('t', 'f') AND earlier IN ('s', 't') THEN earlier_n END
        FROM (SELECT *, lag(ph) OVER same AS earlier, lag(n) OVER same AS earlier_n
              FROM (SELECT n, grp, ph, ts_ns, bp, cat, name, id FROM raw_event
                    WHERE ph IN ('s', 't', 'f') AND ts_ns IS NOT NULL)
              WINDOW same AS (PARTITION BY cat, name, id ORDER BY ts_ns, n))
        JOIN place USING (grp)""")
    [(lost,)] = connection.execute("""
        SELECT count(*) FROM arrow_end a JOIN raw_event r USING (n) WHERE r.ph IN ('t', 'f') AND a.begins IS NULL
        """).fetchall()
    if lost:
        rows.bad("ends of arrows that never began: left out", count=lost)


def add_arrows(rows: Rows, events: _native.TraceEvents, first: int, kinds: dict[str, str]) -> None:
    """Joins the slices that the ends of arrows lie in. `kinds` renames categories."""
    connection = rows.builder.connection
    connection.register("placed_end", dict(zip(("n", "parent", "next"), events.arrow_ends(), strict=True)))
    connection.execute("""
        CREATE OR REPLACE TEMP TABLE bound AS
        SELECT a.n, a.begins, nullif(if(a.to_next, p.next, p.parent), -1) AS slice
        FROM arrow_end a LEFT JOIN placed_end p USING (n)""")
    connection.unregister("placed_end")
    kind = "CASE r.cat " + "".join(f"WHEN '{cat}' THEN '{name}' " for cat, name in kinds.items()) + "ELSE r.cat END"
    kind = kind if kinds else "r.cat"
    rows.builder.insert(
        "flow",
        ("kind", "from_event", "to_event"),
        f"""SELECT coalesce({kind}, r.name, 'flow'), {first} + b.slice, {first} + e.slice
            FROM bound e JOIN bound b ON b.n = e.begins JOIN raw_event r ON r.n = e.n
            WHERE b.slice IS NOT NULL AND e.slice IS NOT NULL ORDER BY e.n""",
    )
    [(unbound,)] = connection.execute(
        "SELECT count(*) FROM bound e JOIN bound b ON b.n = e.begins WHERE b.slice IS NULL OR e.slice IS NULL"
    ).fetchall()
    if unbound:
        rows.bad("arrows with an end in no slice: left out", count=unbound)
