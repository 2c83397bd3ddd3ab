"""`.otlp.json[.gz]` and `.otlp.jsonl`: OpenTelemetry spans as OTLP/JSON, for Jaeger, Tempo, a Collector and others.

https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding. `.otlp.json` is one ExportTraceServiceRequest, to be
posted to /v1/traces; `.otlp.jsonl` has many of a thousand spans, a line each, as a Collector's file receiver reads them
(https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/).

- A process is a resource and has one trace id, made from what the trace says of itself, so that exporting it again
  gives the same ids. Its valid rows of SLICE_KINDS are its spans; a span's id is event.id + 1.
- A span's parent is the row's parent; that of a kernel, copy or fallback without one is the launch that started it. A
  launch is a PRODUCER, what it started on a device a CONSUMER. Other flows are links of the span that they lead to.
- Times are nanoseconds since 1970 where the source's clock is known to count so. Where it is not, they count from the
  clock's own zero, and the resource says so: `ral_trace.clock_zero` is then not 'unix epoch'.
- OpenTelemetry knows no points and no unknown ends: such a span ends when it begins, and `ral_trace.shape` says why.
- Counters, memory and rows with the flag INVALID have no form here, and are left out."""

import hashlib
import json
from collections.abc import Iterator
from importlib.metadata import version
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import duckdb

from ral_trace.tracer.exporters import drawn
from ral_trace.tracer.exporters.output import MAX_NS, Selection, Window, create_packed, select
from ral_trace.tracer.reading import Trace

FORMAT = "OpenTelemetry"
ENDINGS: tuple[str, ...] = (".otlp.json", ".otlp.json.gz", ".otlp.jsonl")

SPANS_AT_ONCE = 1_000
INTERNAL, PRODUCER, CONSUMER = 1, 4, 5
"""SpanKind of https://github.com/open-telemetry/opentelemetry-proto/blob/main/opentelemetry/proto/trace/v1/trace.proto."""
STATUS_ERROR = 2

ATTRIBUTES = {
    "kind": ("ral_trace.kind", "stringValue"),
    "category": ("ral_trace.category", "stringValue"),
    "shape_name": ("ral_trace.shape", "stringValue"),
    "tid": ("thread.id", "intValue"),
    "thread_name": ("thread.name", "stringValue"),
    "device_name": ("ral_trace.device", "stringValue"),
    "stream_number": ("ral_trace.stream", "intValue"),
    "bytes": ("ral_trace.bytes", "intValue"),
    "step": ("ral_trace.step", "intValue"),
    "correlation": ("ral_trace.correlation", "intValue"),
    "file": ("code.file.path", "stringValue"),
    "line": ("code.line.number", "intValue"),
    "function": ("code.function.name", "stringValue"),
    "args": ("ral_trace.args", "stringValue"),
}
"""A span's attributes: the column of `_spans_sql`, its name by OpenTelemetry's conventions where there is one, type."""


def write(trace: Trace, out: Path, window: Window) -> None:
    """Writes the trace to `out`, compressed where the output's name ends in .gz. Raises duckdb.Error, OSError."""
    selection = select(trace, window)
    spans = _Spans(trace, selection)
    with create_packed(out) as file:
        if out.name.endswith(".jsonl"):
            _write_lines(file, spans)
        else:
            _write_document(file, spans)


def _write_lines(file: IO[bytes], spans: "_Spans") -> None:
    for process, chunks in spans.by_process():
        for chunk in chunks:
            file.write(f'{{"resourceSpans":[{_before(process)}{",".join(chunk)}{_AFTER}]}}\n'.encode())


def _write_document(file: IO[bytes], spans: "_Spans") -> None:
    file.write(b'{"resourceSpans":[')
    for number, (process, chunks) in enumerate(spans.by_process()):
        file.write(f"{',' if number else ''}{_before(process)}".encode())
        for part, chunk in enumerate(chunks):
            file.write(f"{',' if part else ''}{','.join(chunk)}".encode())
        file.write(_AFTER.encode())
    file.write(b"]}\n")


_AFTER = "]}]}"


def _before(process: dict[str, Any]) -> str:
    """The resource that a process is, up to its spans."""
    clock = process["clock_zero"] or "unknown"
    known = [
        ("service.name", process["program"] or process["name"] or "unknown_service"),
        ("process.pid", process["pid"]),
        ("process.command_line", process["command_line"]),
        ("host.name", process["host"]),
        ("ral_trace.rank", process["rank"]),
        ("ral_trace.process", process["name"]),
        ("ral_trace.producer", process["producer"]),
        ("ral_trace.clock_zero", clock),
        ("ral_trace.clock_moved_up_ns", process["moved_up_ns"]),
    ]
    attributes = [_attribute(key, value) for key, value in known if value is not None]
    scope = {"name": "ral_trace", "version": version("ral-trace")}
    return (
        f'{{"resource":{json.dumps({"attributes": attributes})},"scopeSpans":[{{"scope":{json.dumps(scope)},"spans":['
    )


def _attribute(key: str, value: str | int) -> dict[str, Any]:
    """64-bit integers are text in OTLP/JSON."""
    return {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}


class _Spans:
    """The processes of a trace, and the spans of each as JSON texts."""

    def __init__(self, trace: Trace, selection: Selection) -> None:
        self._trace = trace
        self._selection = selection
        facts = trace.sql("SELECT key, value FROM trace_info ORDER BY ALL").fetchall()
        sources = trace.sql("SELECT path, program, format FROM source ORDER BY ALL").fetchall()
        seed = json.dumps([facts, sources, selection.first_ns])
        self._seed = hashlib.sha256(seed.encode()).hexdigest()

    def _processes(self) -> list[dict[str, Any]]:
        """With what their sources say; last one without an id, for rows that point to none."""
        found = self._trace.rows("""
            SELECT p.id, p.pid, p.rank, p.host, p.name, p.command_line, s.program, s.producer, s.clock_zero
            FROM process p LEFT JOIN source s ON s.id = p.source WHERE p.id IS NOT NULL ORDER BY p.id""")
        [(lost,)] = self._trace.sql("SELECT count(*) FROM event WHERE process IS NULL OR process NOT IN "
                                    "(SELECT id FROM process WHERE id IS NOT NULL)").fetchall()  # fmt: skip
        if lost:
            found.append(dict.fromkeys(("id", "pid", "rank", "host", "name", "command_line", "program", "producer",
                                        "clock_zero")))  # fmt: skip
        moved = -self._selection.shift_ns or None
        return [{**process, "moved_up_ns": moved} for process in found]

    def by_process(self) -> Iterator[tuple[dict[str, Any], Iterator[list[str]]]]:
        """Each process, and its spans in chunks, by start.

        They come from one query, so that those of a process are gone when the next one is asked for.
        """
        with self._trace.cursor() as connection:
            groups = groupby(_rows(connection.execute(self._texts_sql())), key=itemgetter(0))
            home, rows = next(groups, _NO_MORE)
            for process in self._processes():
                if process["id"] == home:
                    yield process, _chunked(text for _, text in rows)
                    home, rows = next(groups, _NO_MORE)
                else:
                    yield process, iter(())

    def _texts_sql(self) -> str:
        """Rows: the process or NULL, a span as JSON text; in the order of `_processes`."""
        attributes = ", ".join(
            f'CASE WHEN {column} IS NOT NULL THEN \'{{"key":"{key}","value":{{"{kind}":\' || '
            f"to_json({column}::VARCHAR) || '}}}}' END"
            for column, (key, kind) in ATTRIBUTES.items()
        )
        return f"""
            SELECT home, concat('{{"traceId":"', {self._trace_id("process")}, '","spanId":"', {_span_id("id")},
                   '"', ',"parentSpanId":"' || {_span_id("above")} || '"', ',"name":', to_json(name), ',"kind":',
                   CASE WHEN kind = 'launch' THEN {PRODUCER} WHEN kind IN ('kernel', 'transfer') THEN {CONSUMER}
                        ELSE {INTERNAL} END,
                   ',"startTimeUnixNano":"', start_ns, '","endTimeUnixNano":"', end_ns, '","attributes":[',
                   concat_ws(',', {attributes}), ']', ',"links":[' || links || ']',
                   CASE WHEN kind = 'error' THEN ',"status":{{"code":{STATUS_ERROR}}}' END, '}}')
            FROM ({self._spans_sql()}) ORDER BY home NULLS LAST, start_ns, id"""

    def _spans_sql(self) -> str:
        shown = drawn.shown_sql(self._selection)
        link = f"""'{{"traceId":"' || {self._trace_id("o.process")} || '","spanId":"' || {_span_id("o.id")} ||
            '","attributes":[{{"key":"ral_trace.flow","value":{{"stringValue":' || to_json(f.kind) || '}}}}]}}'"""
        return f"""
            WITH shown AS ({shown}),
            started AS (SELECT to_event AS id, min(from_event) AS launch FROM flow WHERE kind = 'launch' GROUP BY 1),
            linked AS (
                SELECT f.to_event AS id, string_agg({link}, ',' ORDER BY o.id, f.kind) AS links
                FROM flow f JOIN (SELECT id, process FROM shown) o ON o.id = f.from_event
                WHERE f.kind IS DISTINCT FROM 'launch' GROUP BY 1),
            places AS (
                SELECT s.id AS stream, any_value(s.number) AS stream_number FROM stream s GROUP BY 1),
            frames AS (SELECT id AS stack, any_value(frames[1]) AS frame FROM stack GROUP BY 1)
            SELECT home, e.id, e.name, e.kind, e.category, e.start_ns, e.process, e.bytes, e.step, e.correlation,
                   e.args, CASE WHEN e.shape = {drawn.SHAPE_SLICE} THEN least(e.start_ns::HUGEINT + e.dur_ns, {MAX_NS})
                        ELSE e.start_ns END AS end_ns,
                   CASE e.shape WHEN {drawn.SHAPE_OPEN} THEN 'unfinished' WHEN {drawn.SHAPE_POINT} THEN
                        CASE WHEN e.kind IN ('instant', 'error') THEN 'point' ELSE 'duration unknown' END
                   END AS shape_name,
                   above.id AS above, linked.links, t.tid, t.name AS thread_name, d.label AS device_name,
                   places.stream_number, frame.file AS file, frame.line AS line, frame."function" AS "function"
            FROM shown e
            LEFT JOIN (SELECT DISTINCT id AS home FROM process) p ON home = e.process
            LEFT JOIN started USING (id)
            LEFT JOIN (SELECT id, process FROM shown) above
                   ON above.id = coalesce(e.parent, started.launch) AND above.process IS NOT DISTINCT FROM e.process
            LEFT JOIN linked ON linked.id = e.id
            LEFT JOIN (SELECT id, any_value(tid) AS tid, any_value(name) AS name FROM thread GROUP BY 1) t
                   ON t.id = e.thread
            LEFT JOIN (SELECT device, any_value(label) AS label FROM device_label GROUP BY 1) d ON d.device = e.device
            LEFT JOIN places ON places.stream = e.stream
            LEFT JOIN frames ON frames.stack = e.stack"""

    def _trace_id(self, process: str) -> str:
        """SQL: the 16 bytes of a process's trace id, as OTLP/JSON writes them."""
        return f"md5('{self._seed}:' || coalesce({process}::VARCHAR, ''))"


_NO_MORE: tuple[Any, Iterator[tuple[Any, str]]] = (object(), iter(()))
"""No process's id; None is one."""


def _rows(found: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, str]]:
    while rows := found.fetchmany(SPANS_AT_ONCE):
        yield from rows


def _chunked(texts: Iterator[str]) -> Iterator[list[str]]:
    while chunk := list(islice(texts, SPANS_AT_ONCE)):
        yield chunk


def _span_id(event: str) -> str:
    """SQL: 8 bytes in hexadecimal; all zero would be no id."""
    return f"lpad(lower(to_hex({event} + 1)), 16, '0')"
