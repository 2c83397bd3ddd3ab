"""From drained records to the rows of a trace. SQL over the columns that the native reader hands over."""

from dataclasses import dataclass

import duckdb

from ral_trace.tracer import _native
from ral_trace.tracer.schema import DEVICE_KINDS, FLAGS
from ral_trace.tracer.store import TraceBuilder

RECORDS = """
CREATE TABLE record (process INTEGER, tid UINTEGER, kind UTINYINT, ts_ns BIGINT, dur_ns BIGINT, correlation BIGINT,
bytes BIGINT,
                     arg0 UBIGINT, arg1 UBIGINT, name UINTEGER, stack UINTEGER, device TINYINT, stream UTINYINT, flags UTINYINT)
"""
"""The columns of tracer/native/columns.h, in their order; tracer/native/record.h says what arg0 and arg1 are for
each kind. rowid is event.id.
"""

NAMES = """
CREATE TABLE record_name (process INTEGER, id UINTEGER, text VARCHAR);
CREATE TABLE record_node (process INTEGER, id UINTEGER, caller UINTEGER, frame UINTEGER)
"""
"""Texts by id, and the lines of Python stacks: each under the line that called it."""

KNOWN = f"""
CREATE VIEW known AS
SELECT rowid AS id, record.* EXCLUDE (kind), enum_range(NULL::event_kind)[kind + 1]::event_kind AS kind,
       (flags & {FLAGS["BEFORE_TRACE"]}) <> 0 AS before_trace
FROM record WHERE kind < {len(_native.KINDS)}
"""
"""The records that are events, with their kind by name. rowid, and so event.id, is the order of arrival."""

FACTS = f"""
CREATE VIEW fact AS
SELECT r.process, r.device, r.stream, r.kind, any_value(n.text) AS text, any_value(r.bytes) AS number
FROM record r LEFT JOIN record_name n ON n.process = r.process AND n.id = r.name
WHERE r.kind IN ({_native.KIND_DEVICE}, {_native.KIND_STREAM}) GROUP BY ALL
"""
"""What devices and streams say of themselves when a recording begins."""

STRIPED = "r.kind = 'region' AND r.correlation <> 0"
DOMAINS = f"(r.correlation >> {_native.STRIPE_BITS})"
STRIPE_BYTES = f"(r.correlation & {(1 << _native.STRIPE_BITS) - 1})"
"""A region that is striped over memory domains says so in its correlation; see tracer/native/record.h."""

READ, WRITE = 1, 2
"""Bits of AccessMode in native/record.h."""

NO_DEVICE = -1
NO_OTHER_DEVICE = 2**64 - 1
"""arg0 of a transfer without a second device: -1 as an unsigned number."""

MEMORY_KINDS = ("alloc", "free", "region")
"""Of no stream."""


@dataclass(frozen=True)
class ProcessNames:
    """What the tables in a process's shared memory say: names by id, threads by tid."""

    process: int
    names: list[tuple[int, str]]
    stacks: list[tuple[int, int, int]]
    """(id, caller, frame) of every node."""
    threads: list[tuple[int, str]]


def prepare(connection: duckdb.DuckDBPyConnection) -> None:
    """Makes the staging tables that `append` fills."""
    connection.execute(RECORDS)
    connection.execute(NAMES)
    connection.execute(KNOWN)
    connection.execute(FACTS)


def append(connection: duckdb.DuckDBPyConnection, batch: _native.Batch) -> None:
    """Moves a batch of records into the staging table."""
    connection.register("batch", batch)
    connection.execute("INSERT INTO record SELECT * FROM batch")
    connection.unregister("batch")
    batch.clear()


def transform(builder: TraceBuilder, processes: list[ProcessNames]) -> None:
    """Turns all staged records into rows of the trace: threads, devices, streams, events, changes of memory."""
    connection = builder.connection
    for process in processes:
        if process.names:
            ids, texts = zip(*process.names, strict=True)
            connection.execute(
                "INSERT INTO record_name SELECT ?, unnest(?::UINTEGER[]), unnest(?::VARCHAR[])",
                [process.process, list(ids), list(texts)],
            )
        if process.stacks:
            ids, callers, frames = zip(*process.stacks, strict=True)
            connection.execute(
                "INSERT INTO record_node SELECT ?, unnest(?::UINTEGER[]), unnest(?::UINTEGER[]), unnest(?::UINTEGER[])",
                [process.process, list(ids), list(callers), list(frames)],
            )
    _threads(builder, processes)
    _devices(connection)
    _stacks(connection)
    _events(connection)
    _memory(connection)
    _accesses(connection)
    _link_autograd(connection)
    connection.execute(
        "DROP VIEW known; DROP VIEW fact; DROP TABLE stack_row; DROP TABLE record; DROP TABLE record_name"
    )
    connection.execute("DROP TABLE record_node")


def _threads(builder: TraceBuilder, processes: list[ProcessNames]) -> None:
    names = {(process.process, tid): name for process in processes for tid, name in process.threads}
    used = builder.connection.execute("SELECT DISTINCT process, tid FROM record ORDER BY ALL").fetchall()
    builder.add_rows(
        "thread", [{"process": process, "tid": tid, "name": names.get((process, tid))} for process, tid in used]
    )


def _devices(connection: duckdb.DuckDBPyConnection) -> None:
    """A device that never described itself still gets its row, because its events have one. The host's own memory is
    the device `cpu`, without streams.
    """
    connection.execute(f"""
        INSERT INTO device
        SELECT row_number() OVER (ORDER BY used.process, used.device) - 1, used.process,
               if(used.device = {_native.HOST_MEMORY}, 'cpu', coalesce(try_cast(fact.text AS JSON)->>'type', 'ral')),
               if(used.device = {_native.HOST_MEMORY}, 0, used.device),
               try_cast(fact.text AS JSON)->>'vendor', try_cast(fact.text AS JSON)->>'name', fact.number
        FROM (SELECT DISTINCT process, device FROM record WHERE device <> {NO_DEVICE}) used
        LEFT JOIN fact ON fact.process = used.process AND fact.device = used.device
             AND fact.kind = {_native.KIND_DEVICE}""")
    connection.execute(f"""
        CREATE TEMP TABLE device_row AS
        SELECT d.id, d.process, if(d.type = 'cpu', {_native.HOST_MEMORY}, d."index") AS code,
               d.type || ':' || d."index" AS label FROM device d""")
    without = [_native.KIND_DEVICE, *(_native.KINDS.index(kind) for kind in MEMORY_KINDS)]
    connection.execute(f"""
        CREATE TEMP TABLE stream_row AS
        SELECT row_number() OVER (ORDER BY d.id, used.stream) - 1 AS id, d.id AS device, used.stream AS code,
               fact.text AS pipeline, fact.number AS priority
        FROM (SELECT DISTINCT process, device, stream FROM record
              WHERE device >= 0 AND kind NOT IN ({", ".join(map(str, without))})) used
        JOIN device_row d ON d.process = used.process AND d.code = used.device
        LEFT JOIN fact ON fact.process = used.process AND fact.device = used.device AND fact.stream = used.stream
             AND fact.kind = {_native.KIND_STREAM}""")
    number = 2**_native.STREAM_BITS - 1
    connection.execute(f"INSERT INTO stream SELECT id, device, code & {number}, pipeline, priority FROM stream_row")


def _stacks(connection: duckdb.DuckDBPyConnection) -> None:
    """The stacks that events have, each from its innermost line outwards."""
    connection.execute("""
        CREATE TEMP TABLE stack_row AS
        SELECT row_number() OVER (ORDER BY process, stack) - 1 AS id, process, stack AS node
        FROM (SELECT DISTINCT process, stack FROM record WHERE stack <> 0)""")
    connection.execute("""
        INSERT INTO stack
        WITH RECURSIVE walk AS (
            SELECT id, process, node, 0 AS depth FROM stack_row
            UNION ALL
            SELECT w.id, w.process, n.caller, w.depth + 1 FROM walk w
            JOIN record_node n ON n.process = w.process AND n.id = w.node WHERE n.caller <> 0),
        line AS (
            SELECT w.id, w.depth, string_split(t.text, chr(9)) AS part FROM walk w
            JOIN record_node n ON n.process = w.process AND n.id = w.node
            LEFT JOIN record_name t ON t.process = n.process AND t.id = n.frame)
        SELECT id, list({'file': array_to_string(part[3:], chr(9)), 'line': try_cast(part[1] AS INTEGER),
                         'function': part[2]} ORDER BY depth) FROM line GROUP BY id""")


def _events(connection: duckdb.DuckDBPyConnection) -> None:
    """What was there before the recording is no event of it; it becomes a row of `allocation` or `region` only."""
    directions = "[" + ", ".join(f"'{direction}'" for direction in _native.DIRECTIONS) + "]"
    sorts = "[" + ", ".join(f"nullif('{sort}', '')" for sort in _native.ANNOTATION_SORTS) + "]"
    on_device = ", ".join(f"'{kind}'" for kind in DEVICE_KINDS)
    connection.execute(f"""
        INSERT INTO event (id, kind, category, name, ts_ns, dur_ns, process, thread, device, stream, correlation, bytes,
                           stack, args, flags)
        SELECT r.id, r.kind,
               CASE r.kind WHEN 'op' THEN if((r.flags & {FLAGS["BACKWARD"]}) = 0, 'forward', 'backward')
                           WHEN 'transfer' THEN {directions}[try_cast(r.arg1 AS BIGINT) + 1]
                           WHEN 'annotation' THEN {sorts}[try_cast(r.arg0 AS BIGINT) + 1] END,
               n.text, r.ts_ns, r.dur_ns, r.process, if(r.kind IN ({on_device}), NULL, t.id), d.id, s.id,
               if(r.kind IN ('region', 'op'), NULL, nullif(r.correlation, 0)), nullif(r.bytes, -1), k.id,
               CASE WHEN r.kind = 'launch' THEN json_object('routed', n0.text, 'route', n1.text)
                    WHEN r.kind = 'kernel' THEN json_object('kernel', n0.text, 'vendor', n1.text)
                    WHEN r.kind = 'fallback' THEN json_object('routed', n0.text, 'reason', n1.text)
                    WHEN r.kind = 'op' AND n1.text IS NOT NULL THEN try_cast(n1.text AS JSON)
                    WHEN r.kind = 'annotation' AND n1.text IS NOT NULL THEN json_object('class', n1.text)
                    WHEN r.kind = 'python' THEN json_object('generation', r.arg0, 'collected', r.arg1)
                    WHEN r.kind = 'region' AND r.correlation <> 0
                         THEN json_object('domain', r.stream, 'domains', {DOMAINS}, 'stripe_bytes', {STRIPE_BYTES})
                    WHEN r.kind = 'sync' AND n0.text IS NOT NULL THEN json_object('waited_for', n0.text)
                    WHEN r.kind = 'transfer' AND r.arg0 <> {NO_OTHER_DEVICE}
                         THEN json_object('other_device', other.label) END,
               r.flags
        FROM known r
        LEFT JOIN record_name n ON n.process = r.process AND n.id = r.name
        LEFT JOIN record_name n0 ON n0.process = r.process AND n0.id = r.arg0
             AND r.kind IN ('launch', 'kernel', 'fallback', 'sync')
        LEFT JOIN record_name n1 ON n1.process = r.process AND n1.id = r.arg1
             AND r.kind IN ('launch', 'kernel', 'fallback', 'op', 'annotation')
        LEFT JOIN thread t ON t.process = r.process AND t.tid = r.tid
        LEFT JOIN device_row d ON d.process = r.process AND d.code = r.device
        LEFT JOIN device_row other ON other.process = r.process AND other.code = r.arg0 AND r.kind = 'transfer'
        LEFT JOIN stream_row s ON s.device = d.id AND s.code = r.stream AND r.kind NOT IN ('alloc', 'free', 'region')
        LEFT JOIN stack_row k ON k.process = r.process AND k.node = r.stack
        WHERE NOT (r.before_trace AND r.kind IN ('alloc', 'region'))""")
    # A fallback has its line from the launch around it.
    connection.execute("""
        UPDATE event SET stack = launch.stack FROM event launch
        WHERE event.kind = 'fallback' AND event.stack IS NULL AND launch.kind = 'launch' AND launch.stack IS NOT NULL
          AND launch.process = event.process AND launch.correlation = event.correlation""")


def _memory(connection: duckdb.DuckDBPyConnection) -> None:
    """A host's block that is freed without having been allocated here is no block of this recording: its size is
    unknown.
    """
    connection.execute(f"""
        INSERT INTO memory_change
        SELECT CASE WHEN r.kind <> 'region' THEN r.kind::VARCHAR
                    WHEN (r.flags & {FLAGS["CLOSED"]}) = 0 THEN 'open' ELSE 'close' END,
               r.id, r.ts_ns, d.id, r.arg0, nullif(r.bytes, -1), if(r.kind = 'alloc', r.arg1, NULL),
               if(r.kind = 'free' AND r.device >= 0, r.arg1, NULL), if(r.kind = 'region', r.arg1, NULL), r.before_trace,
               CASE WHEN {STRIPED} THEN r.stream END, CASE WHEN {STRIPED} THEN {DOMAINS} END,
               CASE WHEN {STRIPED} THEN {STRIPE_BYTES} END
        FROM known r JOIN device_row d ON d.process = r.process AND d.code = r.device
        WHERE r.kind IN ('alloc', 'free', 'region')
        QUALIFY r.kind <> 'free' OR r.device <> {_native.HOST_MEMORY} OR count(*) FILTER (r.kind = 'alloc')
                OVER (PARTITION BY r.process, r.device, r.arg0 ORDER BY r.ts_ns, r.id) > 0""")


def _accesses(connection: duckdb.DuckDBPyConnection) -> None:
    """Which blocks an op used: `derive` finds the allocation that was at the address then."""
    connection.execute(f"""
        INSERT INTO access_seen
        SELECT op.id, a.ts_ns, d.id, a.arg0,
               CASE a.arg1 WHEN {READ} THEN 'read' WHEN {WRITE} THEN 'write' ELSE 'read_write' END
        FROM record a JOIN known op ON op.process = a.process AND op.correlation = a.correlation AND op.kind = 'op'
        JOIN device_row d ON d.process = a.process AND d.code = a.device
        WHERE a.kind = {_native.KIND_ACCESS}""")


def _link_autograd(connection: duckdb.DuckDBPyConnection) -> None:
    """From a forward op to the nodes of the backward pass that it caused.

    Both carry autograd's sequence number and the forward thread (autograd_key() in native/record.h). The number is
    the next node's: every op that began before that node was made has it, and the last of them made it.
    """
    connection.execute(f"""
        INSERT INTO flow
        WITH op AS (SELECT id, process, ts_ns, arg0, (flags & {FLAGS["BACKWARD"]}) <> 0 AS backward FROM known
                    WHERE kind = 'op' AND arg0 <> 0),
        maker AS (SELECT process, arg0, arg_max(id, (ts_ns, -id)) AS id FROM op WHERE NOT backward GROUP BY ALL)
        SELECT 'autograd', maker.id, op.id FROM op JOIN maker USING (process, arg0) WHERE op.backward""")
