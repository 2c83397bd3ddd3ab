"""From a scanned file to rows of the trace, for every importer of Chrome's format: they say what their events are
(`Dialect`), and the rest is the same.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ral_trace.tracer.importers import phases
from ral_trace.tracer.importers.calls import waits
from ral_trace.tracer.importers.kineto_devices import add_devices, add_memory
from ral_trace.tracer.importers.landing import Landed, land
from ral_trace.tracer.importers.places import Places, Role, add_places
from ral_trace.tracer.importers.rows import BYTES_BEYOND, Rows
from ral_trace.tracer.importers.stacks import add_call_stacks
from ral_trace.tracer.importers.trace_events import Field, Group, Scan, outside_transaction
from ral_trace.tracer.schema import FLAGS

INVALID, UNFINISHED, BACKWARD = FLAGS["INVALID"], FLAGS["UNFINISHED"], FLAGS["BACKWARD"]
RECORDER = "PyTorch Profiler"
"""What the span of category Trace is called that covers the recording."""
DEPTHS = 1 << 40
"""More than a file has events: a depth times this, plus or minus a row's number, orders by depth first."""
MOST_BYTES = 2**61
UNIX_EPOCH_NS = 946_684_800_000_000_000
"""Times from here on (the year 2000) count from 1970."""

INTEGERS = (
    "correlation", "external", "device", "stream", "bytes", "allocated", "reserved", "device_type", "python_id",
    "python_parent", "forward_thread",
)  # fmt: skip
"""Columns that the rows are made from; a dialect may have some of them in its fields, the rest is NULL."""


@dataclass(frozen=True)
class Dialect:
    """What one producer's events mean."""

    role_of: Callable[[Group], Role | None]
    fields: Collection[Field] = ()
    one_process: bool = False
    """The file is of one process, whatever pids it has for devices and spans."""
    arrow_kinds: Mapping[str, str] = field(default_factory=dict)
    """Arrows by category: their kinds, where it is not the category."""
    rounding_ns: int = 0
    """What starts and durations are rounded to: so much a child may end after its parent."""
    inner_first: bool = False
    """Of slices with the same times the inner one was written first."""


@dataclass(frozen=True)
class Window:
    """When the profiler was on; None: the file does not say."""

    start_ns: int | None = None
    end_ns: int | None = None


@dataclass(frozen=True)
class Imported:
    """What there is to finish: see `Places` and `Landed`."""

    places: Places
    landed: Landed


def import_events(
    rows: Rows, scan: Scan, dialect: Dialect, *, window: Window = Window(), facts: Mapping[str, Any] | None = None
) -> Imported:
    """Adds all that the file has; `facts` are columns of the main process. Leaves `mapped` and `placed`."""
    connection = rows.builder.connection
    connection.execute(phases.AMEND + ";" + phases.ARROW_END)
    phases.count_ignored(rows, ((group.ph, group.rows) for group in scan.groups))
    _add_missing_columns(rows, dialect)
    with rows.places_together():
        places = add_places(rows, scan, dialect.role_of, one_process=dialect.one_process, main_facts=dict(facts or {}))
        add_devices(rows, scan, places)
    has = {group.ph for group in scan.groups if not group.skipped}
    if has & set("BE"):
        phases.pair_slices(rows)
    if has & set("beSF"):
        phases.pair_async(rows)
    if places.has(Role.PYTHON):
        _end_overruns(rows, window)
    mapped = _mapped(dialect, add_call_stacks(rows))
    with outside_transaction(connection):
        connection.execute(mapped)
    _count_odd(rows)
    _flag_leftovers(rows, window)
    if has & set("stf"):
        phases.find_arrow_ends(rows)
    landed = land(rows, scan.rows, tolerance_ns=1000 if scan.whole_microseconds else dialect.rounding_ns)
    if has & set("stf"):
        phases.add_arrows(rows, landed.first, dict(dialect.arrow_kinds))
    if "C" in has:
        phases.add_counters(rows)
    if any(name == "address" for _, name, _ in dialect.fields) and places.has(Role.INSTANT):
        add_memory(rows, landed.first)
    return Imported(places, landed)


def clock_zero(rows: Rows) -> str:
    """What ts_ns 0 means."""
    [(first,)] = rows.builder.connection.execute("SELECT min(ts_ns) FROM mapped").fetchall()
    return "unix epoch" if first is not None and first >= UNIX_EPOCH_NS else "file"


def forget(rows: Rows) -> None:
    """Removes what the import left."""
    tables = [
        "mapped",
        "amend",
        "arrow_end",
        "place",
        "spot",
        "placed",
        "launch_of",
        "step_interval",
        "call_stack_id",
        "early",
        "counted",
        "series_number",
        "bound",
        "named_annotation",
        "mapped_place",
    ]
    connection = rows.builder.connection
    connection.execute(";".join(f"DROP TABLE IF EXISTS {table}" for table in tables))


def _add_missing_columns(rows: Rows, dialect: Dialect) -> None:
    """Gives `raw_row` the columns that the dialect has not."""
    have = {column for _, column, _ in dialect.fields}
    missing = [f"NULL::BIGINT AS {column}" for column in INTEGERS if column not in have]
    missing += [f"NULL::{kind} AS {column}" for column, kind in (("address", "UBIGINT"), ("call_stack", "VARCHAR"))
                if column not in have]  # fmt: skip
    rows.builder.connection.execute(
        f"CREATE OR REPLACE TEMP VIEW full_row AS SELECT {', '.join(['*', *missing])} FROM raw_event"
    )


def _end_overruns(rows: Rows, window: Window) -> None:
    """Python calls whose return was not seen: the profiler ends them when it stops, and so do all that follow them.

    They are flagged, and end where the next call of the same caller begins, where the file says who called.
    """
    connection = rows.builder.connection
    connection.execute(
        f"""
        INSERT INTO amend
        WITH call AS (SELECT n, track, ts_ns, ts_ns + dur_ns AS end_ns, python_id, python_parent
                      FROM full_row JOIN place USING (grp)
                      WHERE role = 'PYTHON' AND ph = 'X' AND dur_ns >= 0 AND ts_ns IS NOT NULL),
        last AS (SELECT max(end_ns) AS end_ns FROM call),
        stop AS (SELECT CASE WHEN $1 IS NOT NULL THEN $1
                             WHEN (SELECT count(*) FROM call, last WHERE call.end_ns = last.end_ns) > 1
                             THEN (SELECT end_ns FROM last) END AS end_ns),
        ordered AS (SELECT *, CASE WHEN python_id IS NOT NULL THEN lead(ts_ns) OVER (
                                   PARTITION BY track, python_parent ORDER BY ts_ns, n) END AS next_ns FROM call)
        SELECT n, least(o.end_ns, coalesce(next_ns, o.end_ns)) - ts_ns, {UNFINISHED}, NULL
        FROM ordered o, stop WHERE o.end_ns >= stop.end_ns""",
        [window.end_ns],
    )


ODD_BYTES = (
    f"(r.bytes <= -{MOST_BYTES} OR r.bytes >= {MOST_BYTES} OR r.bytes < 0 AND r.name IS DISTINCT FROM '[memory]')"
)
"""A size that cannot be; what is freed is negative."""

COPY_DIRECTION = """CASE
    WHEN regexp_matches(r.name, 'HtoD|H2D|HostToDevice|M2D|Host *-> *Device') THEN 'host_to_device'
    WHEN regexp_matches(r.name, 'DtoH|D2H|DeviceToHost|D2M|Device *-> *Host') THEN 'device_to_host'
    WHEN regexp_matches(r.name, 'PtoP|P2P|PeerToPeer') THEN 'device_to_device'
    WHEN regexp_matches(r.name, 'DtoD|D2D|DeviceToDevice|Device *-> *Device') THEN 'within_device'
    WHEN regexp_matches(r.name, '[Mm]emset') THEN 'memset' END"""


def _mapped(dialect: Dialect, stacks: bool) -> str:
    """The table `mapped`: rows of `event` to be, see `landing.MAPPED`."""
    kind = f"""CASE WHEN p.plain THEN p.kind ELSE CASE p.role
        WHEN 'INSTANT' THEN CASE WHEN r.name = '[memory]' AND r.bytes IS NOT NULL AND r.device_type IS NOT NULL
                                 THEN if(r.bytes < 0, 'free', 'alloc') ELSE 'instant' END
        WHEN 'OLD_OP' THEN if(regexp_full_match(r.name, 'ProfilerStep#\\d+'), 'annotation', 'op')
        WHEN 'CALL_OR_KERNEL' THEN if(s.works, if(regexp_matches(r.name, 'DMA|[Mm]em(cpy|set)'), 'transfer', 'kernel'),
                                      p.kind)
        WHEN 'OTHER' THEN if(s.works, 'kernel', p.kind)
        WHEN 'CALL' THEN if({waits("r.name")}, 'sync_call', p.kind)
        ELSE p.kind END END"""
    category = f"""CASE WHEN p.plain THEN p.category WHEN r.forward_thread IS NULL AND p.role = 'OP' THEN p.category
        ELSE CASE p.role
        WHEN 'OP' THEN if(r.forward_thread > 0, 'backward', 'forward')
        WHEN 'OLD_OP' THEN if(starts_with(r.name, 'ProfilerStep#'), NULL, 'forward')
        WHEN 'COPY' THEN {COPY_DIRECTION} WHEN 'CALL_OR_KERNEL' THEN {COPY_DIRECTION}
        WHEN 'OTHER' THEN r.cat WHEN 'INSTANT' THEN if(r.name = '[memory]', NULL, r.cat)
        ELSE p.category END END"""
    flags = f"""if(r.dur_ns < 0, {INVALID}, 0) | coalesce(a.flags, 0)
        | if(r.dur_ns IS NULL AND a.n IS NULL AND r.ph = 'X', {UNFINISHED}, 0)
        | if(r.forward_thread > 0 AND p.role = 'OP', {BACKWARD}, 0)"""
    sign = "-" if dialect.inner_first else ""
    stack, join = ("c.id", "LEFT JOIN call_stack_id c ON c.text = r.call_stack") if stacks else ("NULL::INTEGER", "")
    at = " AND ".join(f"s.{column} IS NOT DISTINCT FROM r.{column}" for column in ("device", "stream", "device_type"))
    return f"""
        CREATE OR REPLACE TEMP TABLE mapped AS
        SELECT r.n, p.depth * {DEPTHS} + {sign}r.n AS nest_order, {kind} AS kind, {category} AS category, r.name,
               r.ts_ns,
               CASE WHEN p.role = 'INSTANT' THEN 0 WHEN a.n IS NOT NULL THEN a.dur_ns
                    WHEN r.dur_ns >= 0 THEN r.dur_ns END AS dur_ns,
               p.process, CASE WHEN s.works THEN NULL ELSE p.thread END AS thread,
               s.device_id AS device, s.stream_id AS stream,
               CASE WHEN r.correlation > 0 THEN r.correlation END AS correlation,
               CASE WHEN NOT {ODD_BYTES} THEN abs(r.bytes) END AS bytes, {stack} AS stack,
               coalesce(r.args, a.args) AS args, r.external,
               ({flags})::UTINYINT AS flags
        FROM full_row r JOIN place p USING (grp)
        LEFT JOIN amend a ON a.n = r.n
        LEFT JOIN spot s ON s.grp = r.grp AND {at} {join}
        WHERE r.ts_ns IS NOT NULL AND r.ph NOT IN ('E', 'e', 'F', 'C', 's', 't', 'f', 'M')
          AND (p.role <> 'SPAN' OR NOT starts_with(r.name, '{RECORDER}'))"""


def _count_odd(rows: Rows) -> None:
    """Says which rows have times or sizes that cannot be."""
    found = rows.builder.connection.execute(
        """SELECT ts_ns IS NULL, count(*), min_by(coalesce(name, '') || coalesce(': ' || dur_ns || ' ns', ''), n)
           FROM raw_event JOIN place USING (grp) WHERE ts_ns IS NULL AND ph <> 'M' OR ts_ns IS NOT NULL AND dur_ns < 0
           GROUP BY 1 ORDER BY 1"""
    ).fetchall()
    for timeless, count, example in found:
        what = "events with a negative duration: kept without it, and out of all sums"
        rows.bad("events without a time: left out" if timeless else what, example, count=count)
    [(count, example)] = rows.builder.connection.execute(
        f"SELECT count(*), min_by(name, n) FROM full_row r WHERE ts_ns IS NOT NULL AND {ODD_BYTES}"
    ).fetchall()
    if count:
        rows.bad(BYTES_BEYOND, example, count=count)


def _flag_leftovers(rows: Rows, window: Window) -> None:
    """Rows on devices that ended before the recording began, and that nothing in it launched, are out of all sums.

    Without a stated begin, the recording began with its first row on a thread.
    """
    connection = rows.builder.connection
    start = window.start_ns
    if start is None:
        [(start,)] = connection.execute("SELECT min(ts_ns) FROM mapped WHERE thread IS NOT NULL").fetchall()
    if start is None:
        return
    found = connection.execute(
        """CREATE OR REPLACE TEMP TABLE early AS SELECT n, process, correlation, name FROM mapped
           WHERE thread IS NULL AND device IS NOT NULL AND correlation IS NOT NULL
             AND ts_ns + coalesce(dur_ns, 0) <= $1""",
        [start],
    ).fetchone()
    if found == (0,):
        return
    left = connection.execute("""
        SELECT n, name FROM early WHERE NOT EXISTS (
            FROM mapped m WHERE m.process = early.process AND m.correlation = early.correlation
                 AND m.thread IS NOT NULL)
        ORDER BY n""").fetchall()
    if left:
        what = "rows on devices from before the recording, without a launch: kept, but out of all sums"
        rows.bad(what, left[0][1], count=len(left))
        connection.execute(
            f"UPDATE mapped SET flags = flags | {INVALID} WHERE n IN (SELECT unnest(?::BIGINT[]))",
            [[n for n, *_ in left]],
        )
