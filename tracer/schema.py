"""The trace file: its tables, its views, its version. The one place that defines them.

Times are integer nanoseconds (`*_ns`), sizes integer bytes (`*_bytes`); unknown is NULL, never 0. `id` columns are unique in a trace, so that a
join needs only the id; `correlation` is unique within a process only, so that every join on it carries the process.
"""

import sys
from dataclasses import dataclass, field

import duckdb

from ral_trace.tracer import _native

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Table:
    """One table. `columns` maps a column to (DuckDB type, what it means)."""

    name: str
    row: str
    columns: dict[str, tuple[str, str]]
    sort: str = ""
    """Rows are stored in this order, so that DuckDB can skip what a time window leaves out."""

    def ddl(self, catalog: str) -> str:
        body = ", ".join(f'"{column}" {kind}' for column, (kind, _) in self.columns.items())
        return f"CREATE TABLE {catalog}.{self.name} ({body})"


@dataclass(frozen=True)
class View:
    """One view: friendly names over the tables."""

    name: str
    about: str
    sql: str = field(repr=False)


TABLES = [
    Table("trace_info", "one fact about the trace", {
        "key": ("VARCHAR", "schema_version, tool_version, created_ns, clock, command_line, steps_from, duration_ns"),
        "value": ("VARCHAR", "as text"),
    }),
    Table("source", "one origin of events: a live recording or an imported file", {
        "id": ("INTEGER", "unique"),
        "path": ("VARCHAR", "file, or NULL when live"),
        "program": ("VARCHAR", "program, or NULL when unknown"),
        "format": ("VARCHAR", "live, kineto, ..."),
        "producer": ("VARCHAR", "tool and version that made the events"),
        "rank": ("INTEGER", "distributed rank"),
        "clock_zero": ("VARCHAR", "what ts_ns 0 means: 'unix epoch', or 'file' when the file has a zero of its own"),
        "clock_offset_ns": ("BIGINT", "added to the source's own times; NULL: not aligned"),
        "clock_uncertainty_ns": ("BIGINT", "of the offset"),
    }),
    Table("process", "a process, or a rank, of a source", {
        "id": ("INTEGER", "unique"),
        "source": ("INTEGER", "source.id"),
        "pid": ("BIGINT", "NULL where the source has text instead"),
        "rank": ("INTEGER", "distributed rank"),
        "host": ("VARCHAR", "host name"),
        "name": ("VARCHAR", "short name"),
        "command_line": ("VARCHAR", "arguments joined by spaces"),
        "started_ns": ("BIGINT", "when its recording began"),
        "ended_ns": ("BIGINT", "when it ended; NULL: it was still running when the recording ended"),
        "ended_how": ("VARCHAR", "'exited', 'exited with N', 'killed by SIGKILL', 'still running'; NULL: unknown"),
    }),
    Table("thread", "a host thread", {
        "id": ("INTEGER", "unique"),
        "process": ("INTEGER", "process.id"),
        "tid": ("BIGINT", "NULL where the source has text instead"),
        "name": ("VARCHAR", "as the operating system or the source names it"),
    }),
    Table("device", "a device as one process sees it", {
        "id": ("INTEGER", "unique"),
        "process": ("INTEGER", "process.id"),
        "type": ("VARCHAR", "as in torch: cuda (AMD's too), npu, xpu, ..., ral"),
        "index": ("INTEGER", "as in ral:1"),
        "vendor": ("VARCHAR", "who makes it"),
        "name": ("VARCHAR", "product name"),
        "memory_bytes": ("BIGINT", "capacity"),
    }),
    Table("stream", "a stream of a device", {
        "id": ("INTEGER", "unique"),
        "device": ("INTEGER", "device.id"),
        "number": ("BIGINT", "as the source counts them"),
        "pipeline": ("VARCHAR", "compute, copy_in, copy_out"),
        "priority": ("INTEGER", "lower runs first, as in torch"),
    }),
    Table("event", "one event", {
        "id": ("BIGINT", "unique"),
        "kind": ("event_kind", "op, launch, kernel, transfer, sync, fallback, alloc, free, region, wait, runtime, annotation, ..."),
        "category": ("VARCHAR", "transfer: host_to_device, device_to_host, device_to_device, within_device, host_to_host, memset; op: forward, backward; annotation: step, module, dataloader, resumed; else the source's own"),
        "name": ("VARCHAR", "untrusted text: aten::add.Tensor, a kernel's name, an annotation"),
        "ts_ns": ("BIGINT", "start"),
        "dur_ns": ("BIGINT", "NULL: unknown"),
        "process": ("INTEGER", "process.id"),
        "thread": ("INTEGER", "thread.id; NULL on device rows"),
        "device": ("INTEGER", "device.id; NULL on pure host rows"),
        "stream": ("INTEGER", "stream.id"),
        "correlation": ("BIGINT", "ties a launch to its kernels, copies or fallback; unique within a process"),
        "parent": ("BIGINT", "event.id of the innermost enclosing host row of the thread; NULL on device rows unless known"),
        "bytes": ("BIGINT", "moved, allocated or copied"),
        "step": ("BIGINT", "training step"),
        "stack": ("INTEGER", "stack.id"),
        "args": ("JSON", "what else is known: routed, route, reason, ..."),
        "flags": ("UTINYINT", "bits: see FLAGS"),
    }, sort="ts_ns, id"),
    Table("flow", "an arrow from one event to another", {
        "kind": ("VARCHAR", "launch (launch to kernel, copy or fallback), autograd (forward op to backward node), wait (record to wait), or the source's own"),
        "from_event": ("BIGINT", "event.id"),
        "to_event": ("BIGINT", "event.id"),
    }),
    Table("counter", "a series of numbers", {
        "id": ("INTEGER", "unique"),
        "process": ("INTEGER", "process.id"),
        "device": ("INTEGER", "device.id"),
        "series": ("VARCHAR", "its name"),
        "unit": ("VARCHAR", "bytes, percent, ..."),
    }),
    Table("counter_value", "one value of a series", {
        "counter": ("INTEGER", "counter.id"),
        "ts_ns": ("BIGINT", "when"),
        "value": ("DOUBLE", "NULL: a gap"),
    }, sort="counter, ts_ns"),
    Table("region", "a region of device memory that the allocator took from the driver", {
        "id": ("INTEGER", "unique"),
        "device": ("INTEGER", "device.id"),
        "handle": ("BIGINT", "the vendor's handle"),
        "address": ("UBIGINT", "first byte"),
        "size_bytes": ("BIGINT", "length"),
        "opened_ns": ("BIGINT", "NULL: before the recording"),
        "closed_ns": ("BIGINT", "NULL: still open"),
    }),
    Table("allocation", "the life of one block of device memory", {
        "id": ("BIGINT", "unique"),
        "device": ("INTEGER", "device.id"),
        "address": ("UBIGINT", "first byte"),
        "size_bytes": ("BIGINT", "what the block takes"),
        "requested_bytes": ("BIGINT", "what was asked for"),
        "alloc_ns": ("BIGINT", "NULL: before the recording"),
        "free_ns": ("BIGINT", "NULL: still live at the end"),
        "alloc_event": ("BIGINT", "event.id"),
        "free_event": ("BIGINT", "event.id"),
        "stack": ("INTEGER", "stack.id of the allocating line"),
        "op": ("VARCHAR", "op that allocated it"),
        "category": ("VARCHAR", "parameter, gradient, ...; NULL: not classified"),
        "last_use_ns": ("BIGINT", "when the last kernel or copy that touched it was launched; NULL: not known, or not freed yet"),
        "uses": ("BIGINT", "kernels and copies that touched it; NULL: not counted or not freed yet"),
        "before_trace": ("BOOLEAN", "it was already there when the recording began"),
    }, sort="device, alloc_ns"),
    Table("allocation_piece", "the part of a block that lies in one region", {
        "allocation": ("BIGINT", "allocation.id"),
        "region": ("INTEGER", "region.id"),
        "offset_bytes": ("BIGINT", "from the region's first byte"),
        "length_bytes": ("BIGINT", "length"),
    }),
    Table("access", "an op's use of a block (recorded on request)", {
        "event": ("BIGINT", "event.id"),
        "allocation": ("BIGINT", "allocation.id"),
        "mode": ("VARCHAR", "read, write, read_write"),
    }),
    Table("stack", "an interned Python stack", {
        "id": ("INTEGER", "unique"),
        "frames": ("STRUCT(file VARCHAR, line INTEGER, \"function\" VARCHAR)[]", "innermost first"),
    }),
    Table("ledger", "what became of the events of one ring, which is one thread's: written = received + dropped + lost", {
        "process": ("INTEGER", "process.id"),
        "tid": ("BIGINT", "thread; NULL: all threads for whose rings there was no room"),
        "written": ("BIGINT", "events past the filter, by the rings' sequence numbers"),
        "received": ("BIGINT", "read by the collector; facts such as device descriptions are among them"),
        "dropped": ("BIGINT", "no room in the ring, or overwritten before they were read"),
        "lost": ("BIGINT", "not yet committed when the writer died"),
        "shed": ("BIGINT", "events left out on purpose, to stay within --max-overhead; not among the written"),
    }),
    Table("quality", "one thing to know before believing the numbers", {
        "source": ("INTEGER", "source.id"),
        "process": ("INTEGER", "process.id; NULL: of the whole source"),
        "what": ("VARCHAR", "one sentence"),
        "count": ("BIGINT", "how many events it concerns"),
        "example": ("VARCHAR", "one of them, as text"),
    }),
]  # fmt: skip

KINDS: list[str] = list(_native.KINDS)
FLAGS: dict[str, int] = dict(_native.FLAGS)

DEVICE_KINDS = ("kernel", "transfer")
"""Rows of these kinds happen on a device's stream and count as its work."""

VIEWS = [
    View("device_label", "a device and how people write it: ral:1", """
        SELECT d.id AS device, d.process, d.type || ':' || d."index" AS label, d.vendor, d.name, d.memory_bytes FROM device d"""),
    View("events", "events with names in place of ids", f"""
        SELECT e.id, e.kind, e.category, e.name, e.ts_ns, e.dur_ns, e.ts_ns + e.dur_ns AS end_ns, e.process, p.pid, p.name AS process_name,
               e.thread, t.tid, e.device, l.label AS device_label, l.vendor, e.stream, s.number AS stream_number,
               s.pipeline,
               e.correlation, e.parent, e.bytes, e.step, e.stack, e.args, e.flags, (e.flags & {FLAGS["INVALID"]}) = 0 AS valid
        FROM event e
        JOIN process p ON p.id = e.process
        LEFT JOIN thread t ON t.id = e.thread
        LEFT JOIN device_label l ON l.device = e.device
        LEFT JOIN stream s ON s.id = e.stream"""),
    View("launches", "calls that went to a device, with what reached the router and the route it took", """
        SELECT *, args->>'routed' AS routed, args->>'route' AS route FROM events WHERE kind = 'launch'"""),
    View("kernels", "kernels that ran on a device", "SELECT * FROM events WHERE kind = 'kernel'"),
    View("transfers", "copies", "SELECT * FROM events WHERE kind = 'transfer'"),
    View("syncs", "waits of the host for a device", "SELECT *, args->>'waited_for' AS waited_for FROM events WHERE kind = 'sync'"),
    View("fallbacks", "calls that PyTorch's CPU kernel served instead of the device", """
        SELECT *, args->>'routed' AS routed, args->>'reason' AS reason FROM events WHERE kind = 'fallback'"""),
    View("memory_curve", "allocated bytes of a device after each change; blocks from before the recording count from its begin", """
        WITH change AS (
            SELECT a.device, coalesce(a.alloc_ns, least(p.started_ns, a.free_ns)) AS ts_ns, a.size_bytes AS delta FROM allocation a
            JOIN device d ON d.id = a.device JOIN process p ON p.id = d.process
            UNION ALL
            SELECT device, free_ns, -size_bytes FROM allocation WHERE free_ns IS NOT NULL),
        moment AS (SELECT device, ts_ns, sum(delta) AS delta FROM change GROUP BY ALL)
        SELECT device, ts_ns, (sum(delta) OVER (PARTITION BY device ORDER BY ts_ns))::BIGINT AS allocated_bytes FROM moment"""),
    View("reserved_curve", "bytes in a device's regions after each change", """
        WITH change AS (
            SELECT r.device, coalesce(r.opened_ns, least(p.started_ns, r.closed_ns)) AS ts_ns, r.size_bytes AS delta FROM region r
            JOIN device d ON d.id = r.device JOIN process p ON p.id = d.process
            UNION ALL
            SELECT device, closed_ns, -size_bytes FROM region WHERE closed_ns IS NOT NULL),
        moment AS (SELECT device, ts_ns, sum(delta) AS delta FROM change GROUP BY ALL)
        SELECT device, ts_ns, (sum(delta) OVER (PARTITION BY device ORDER BY ts_ns))::BIGINT AS reserved_bytes FROM moment"""),
    View("steps", "training steps that annotations state; the duration is NULL when the end was never seen", """
        SELECT process, step, min(ts_ns) AS ts_ns, if(count(*) = count(dur_ns), max(ts_ns + dur_ns) - min(ts_ns), NULL) AS dur_ns
        FROM event WHERE kind = 'annotation' AND step IS NOT NULL AND category = 'step' GROUP BY ALL"""),
]  # fmt: skip


def create(connection: duckdb.DuckDBPyConnection, catalog: str) -> None:
    """Creates all types, tables and views in the attached database `catalog`, which must be empty."""
    kinds = ", ".join(f"'{kind}'" for kind in KINDS)
    statements = [f"USE {catalog}", f"CREATE TYPE event_kind AS ENUM ({kinds})"]
    statements += [table.ddl(catalog) for table in TABLES]
    statements += [f"CREATE VIEW {view.name} AS {view.sql}" for view in VIEWS]
    connection.execute(";".join(statements))


def as_markdown() -> str:
    """The schema as docs/trace-schema.md; `python -m ral_trace.tracer.schema > docs/trace-schema.md` writes it anew."""
    lines = [
        "# The trace file",
        "",
        *(__doc__ or "").strip().splitlines()[2:],
        "",
        f"Schema version {SCHEMA_VERSION}.",
        "",
    ]
    lines += ["Bits of `event.flags`: " + ", ".join(f"{bit} {name}" for name, bit in FLAGS.items()) + ".", ""]
    for table in TABLES:
        lines += [f"## {table.name}", "", f"A row is {table.row}.", "", "| column | type | meaning |", "|---|---|---|"]
        lines += [f"| {name} | {kind.replace('|', ' ')} | {about} |" for name, (kind, about) in table.columns.items()]
        lines += [""]
    lines += ["## Views", "", "| view | gives |", "|---|---|", *(f"| {view.name} | {view.about} |" for view in VIEWS)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_markdown())
