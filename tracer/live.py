"""From drained records to the rows of a trace. SQL over the columns that the native reader hands over."""

from dataclasses import dataclass

import duckdb
from ral_trace.tracer import _native
from ral_trace.tracer.schema import DEVICE_KINDS, FLAGS
from ral_trace.tracer.store import TraceBuilder

RECORDS = """
CREATE TABLE record (process INTEGER, tid UINTEGER, kind UTINYINT, ts_ns BIGINT, dur_ns BIGINT, correlation BIGINT, bytes BIGINT,
                     arg0 UBIGINT, arg1 UBIGINT, name UINTEGER, device TINYINT, stream UTINYINT, flags UTINYINT)
"""
"""The columns of tracer/native/columns.h, in their order; tracer/native/record.h says what arg0 and arg1 are for each kind. rowid is event.id."""

NAMES = "CREATE TABLE record_name (process INTEGER, id UINTEGER, text VARCHAR)"

NUMBER = {kind: number for number, kind in enumerate(_native.KINDS)}
NO_DEVICE = 2**64 - 1
"""arg0 of a transfer without a second device: -1 as an unsigned number."""


@dataclass(frozen=True)
class ProcessNames:
    """What the tables in a process's shared memory say: names by id, threads by tid."""

    process: int
    names: list[tuple[int, str]]
    threads: list[tuple[int, str]]


def prepare(connection: duckdb.DuckDBPyConnection) -> None:
    """Makes the staging tables that `append` fills."""
    connection.execute(RECORDS)
    connection.execute(NAMES)


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
    _threads(builder, processes)
    _devices(connection)
    _events(connection)
    _memory(connection)
    connection.execute("DROP TABLE record; DROP TABLE record_name")


def _threads(builder: TraceBuilder, processes: list[ProcessNames]) -> None:
    names = {(process.process, tid): name for process in processes for tid, name in process.threads}
    used = builder.connection.execute("SELECT DISTINCT process, tid FROM record ORDER BY ALL").fetchall()
    builder.add_rows(
        "thread", [{"process": process, "tid": tid, "name": names.get((process, tid))} for process, tid in used]
    )


def _devices(connection: duckdb.DuckDBPyConnection) -> None:
    """Devices describe themselves when a recording begins; one that never did still gets its row."""
    connection.execute(f"""
        INSERT INTO device
        SELECT row_number() OVER (ORDER BY used.process, used.device) - 1, used.process, coalesce(fact->>'type', 'ral'), used.device,
               fact->>'vendor', fact->>'name', memory_bytes
        FROM (SELECT DISTINCT process, device FROM record WHERE device >= 0) used
        LEFT JOIN (SELECT r.process, r.device, any_value(n.text)::JSON AS fact, any_value(r.bytes) AS memory_bytes
                   FROM record r JOIN record_name n ON n.process = r.process AND n.id = r.name WHERE r.kind = {_native.KIND_DEVICE} GROUP BY ALL) described
        ON described.process = used.process AND described.device = used.device""")
    connection.execute(f"""
        INSERT INTO stream
        SELECT row_number() OVER (ORDER BY d.id, used.stream) - 1, d.id, used.stream, described.pipeline, described.priority
        FROM (SELECT DISTINCT process, device, stream FROM record WHERE device >= 0 AND kind <> {_native.KIND_DEVICE}) used
        JOIN device d ON d.process = used.process AND d."index" = used.device
        LEFT JOIN (SELECT r.process, r.device, r.stream, any_value(n.text) AS pipeline, any_value(r.bytes) AS priority
                   FROM record r LEFT JOIN record_name n ON n.process = r.process AND n.id = r.name WHERE r.kind = {_native.KIND_STREAM} GROUP BY ALL) described
        ON described.process = used.process AND described.device = used.device AND described.stream = used.stream""")


def _events(connection: duckdb.DuckDBPyConnection) -> None:
    directions = "[" + ", ".join(f"'{direction}'" for direction in _native.DIRECTIONS) + "]"
    device_kinds = ", ".join(str(NUMBER[kind]) for kind in DEVICE_KINDS)
    connection.execute(f"""
        INSERT INTO event (id, kind, category, name, ts_ns, dur_ns, process, thread, device, stream, correlation, bytes, args, flags)
        SELECT r.rowid, enum_range(NULL::event_kind)[r.kind + 1]::event_kind,
               CASE r.kind WHEN {NUMBER["op"]} THEN CASE WHEN (r.flags & {FLAGS["BACKWARD"]}) = 0 THEN 'forward' ELSE 'backward' END
                           WHEN {NUMBER["transfer"]} THEN {directions}[try_cast(r.arg1 AS BIGINT) + 1] END,
               n.text, r.ts_ns, r.dur_ns, r.process, CASE WHEN r.kind NOT IN ({device_kinds}) THEN t.id END, d.id, s.id,
               nullif(r.correlation, 0), nullif(r.bytes, -1),
               CASE r.kind WHEN {NUMBER["launch"]} THEN json_object('routed', n0.text, 'route', n1.text)
                           WHEN {NUMBER["kernel"]} THEN json_object('kernel', n0.text, 'vendor', n1.text)
                           WHEN {NUMBER["fallback"]} THEN json_object('routed', n0.text, 'reason', n1.text)
                           WHEN {NUMBER["sync"]} THEN CASE WHEN n0.text IS NOT NULL THEN json_object('waited_for', n0.text) END
                           WHEN {NUMBER["transfer"]} THEN CASE WHEN r.arg0 <> {NO_DEVICE} THEN json_object('other_device', other.type || ':' || other."index") END
               END, r.flags
        FROM record r
        LEFT JOIN record_name n ON n.process = r.process AND n.id = r.name
        LEFT JOIN record_name n0 ON n0.process = r.process AND n0.id = r.arg0
              AND r.kind IN ({NUMBER["launch"]}, {NUMBER["kernel"]}, {NUMBER["fallback"]}, {NUMBER["sync"]})
        LEFT JOIN record_name n1 ON n1.process = r.process AND n1.id = r.arg1 AND r.kind IN ({NUMBER["launch"]}, {NUMBER["kernel"]}, {NUMBER["fallback"]})
        LEFT JOIN thread t ON t.process = r.process AND t.tid = r.tid
        LEFT JOIN device d ON d.process = r.process AND d."index" = r.device
        LEFT JOIN device other ON other.process = r.process AND other."index" = r.arg0 AND r.kind = {NUMBER["transfer"]}
        LEFT JOIN stream s ON s.device = d.id AND s.number = r.stream AND r.kind NOT IN ({NUMBER["alloc"]}, {NUMBER["free"]}, {NUMBER["region"]})
        WHERE r.kind < {len(NUMBER)} AND NOT (r.kind IN ({NUMBER["alloc"]}, {NUMBER["region"]}) AND (r.flags & {FLAGS["BEFORE_TRACE"]}) <> 0)""")


def _memory(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(f"""
        INSERT INTO memory_change
        SELECT CASE r.kind WHEN {NUMBER["alloc"]} THEN 'alloc' WHEN {NUMBER["free"]} THEN 'free'
                           ELSE CASE WHEN (r.flags & {FLAGS["CLOSED"]}) = 0 THEN 'open' ELSE 'close' END END,
               r.rowid, r.ts_ns, d.id, r.arg0, r.bytes, CASE WHEN r.kind = {NUMBER["alloc"]} THEN r.arg1 END,
               CASE WHEN r.kind = {NUMBER["free"]} THEN r.arg1 END, CASE WHEN r.kind = {NUMBER["region"]} THEN r.arg1 END,
               (r.flags & {FLAGS["BEFORE_TRACE"]}) <> 0
        FROM record r JOIN device d ON d.process = r.process AND d."index" = r.device
        WHERE r.kind IN ({NUMBER["alloc"]}, {NUMBER["free"]}, {NUMBER["region"]})""")
