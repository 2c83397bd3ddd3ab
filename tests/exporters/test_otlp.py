"""OTLP/JSON is what opentelemetry-proto takes for it, and holds the rows with their parents, links and times."""

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from ral_trace.tracer.exporters import Window, export
from ral_trace.tracer.exporters.drawn import SLICE_KINDS
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.schema import FLAGS
from ral_trace.tracer.store import TraceBuilder
from tests.awkward import awkward
from tests.synthetic import training

SHOWN = f"(flags & {FLAGS['INVALID']}) = 0 AND kind IN {SLICE_KINDS}"
IDS = {"traceId": 16, "spanId": 8, "parentSpanId": 8}


def parsed(document: dict[str, Any]) -> ExportTraceServiceRequest:
    """By the protocol's own messages; unknown fields and values of a wrong type raise.

    OTLP/JSON writes ids in hexadecimal, protobuf's JSON in base64: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
    """
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for one in [span, *span.get("links", [])]:
                    for key, length in IDS.items():
                        if key in one:
                            raw = bytes.fromhex(one[key])
                            assert len(raw) == length
                            assert any(raw)
                            one[key] = base64.b64encode(raw).decode()
    return json_format.ParseDict(document, ExportTraceServiceRequest())


def exported(trace: Trace, folder: Path, window: Window | None = None) -> ExportTraceServiceRequest:
    return parsed(json.loads(export(trace, folder / "run.otlp.json", window).read_bytes()))


def spans_of(request: ExportTraceServiceRequest) -> dict[int, Span]:
    """By event.id."""
    spans = [span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]
    found = {int.from_bytes(span.span_id, "big") - 1: span for span in spans}
    assert len(found) == len(spans)
    return found


def attributes(of: Any) -> dict[str, str | int]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in of.attributes}


@pytest.mark.parametrize("make", [training, awkward])
def test_each_row_is_one_span(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with open_trace(make(tmp_path / "run.duckdb")) as trace:
        spans = spans_of(exported(trace, tmp_path))
        rows = trace.rows(f"SELECT * FROM events WHERE {SHOWN}")
        launches = dict(
            trace.sql("SELECT to_event, min(from_event) FROM flow WHERE kind = 'launch' GROUP BY 1").fetchall()
        )
        ids = {row["id"] for row in rows}
    assert spans.keys() == ids
    for row in rows:
        span, found = spans[row["id"]], attributes(spans[row["id"]])
        times = (row["ts_ns"], row["ts_ns"] + (row["dur_ns"] or 0))
        assert (span.start_time_unix_nano, span.end_time_unix_nano) == times
        assert span.name == (row["name"] or row["kind"])
        for key, column in [
            ("ral_trace.kind", "kind"), ("ral_trace.category", "category"), ("ral_trace.bytes", "bytes"),
            ("ral_trace.correlation", "correlation"), ("ral_trace.step", "step"), ("ral_trace.args", "args"),
            ("thread.id", "tid"), ("ral_trace.device", "device_label"), ("ral_trace.stream", "stream_number"),
        ]:  # fmt: skip
            assert found.get(key) == row[column]
        parent = row["parent"] if row["parent"] is not None else launches.get(row["id"])
        above = int.from_bytes(span.parent_span_id, "big") - 1 if span.parent_span_id else None
        assert above == (parent if parent in ids else None)
        if above is not None:
            assert spans[above].trace_id == span.trace_id
        kinds = {
            "launch": Span.SPAN_KIND_PRODUCER,
            "kernel": Span.SPAN_KIND_CONSUMER,
            "transfer": Span.SPAN_KIND_CONSUMER,
        }
        assert span.kind == kinds.get(row["kind"], Span.SPAN_KIND_INTERNAL)
        assert (span.status.code == Status.STATUS_CODE_ERROR) == (row["kind"] == "error")
        unknown = {1: "unfinished", 0: "duration unknown"}[row["flags"] & 1] if row["dur_ns"] is None else None
        assert found.get("ral_trace.shape") == ("point" if row["kind"] in ("instant", "error") else unknown)


def test_a_process_is_a_resource(tmp_path: Path) -> None:
    with open_trace(awkward(tmp_path / "run.duckdb")) as trace:
        request = exported(trace, tmp_path)
    resources = [attributes(one.resource) for one in request.resource_spans]
    assert [one["ral_trace.rank"] for one in resources] == [0, 1, 2, 3, 4]
    assert [one.get("process.pid") for one in resources] == [100, 101, 100, None, 2**60 + 1]
    assert resources[2] == {
        "service.name": "rank 2", "process.pid": 100, "host.name": "container", "ral_trace.rank": 2,
        "ral_trace.process": "rank 2", "ral_trace.producer": "test", "ral_trace.clock_zero": "unix epoch",
    }  # fmt: skip
    ids = {span.trace_id for one in request.resource_spans for scope in one.scope_spans for span in scope.spans}
    assert len(ids) == 5


def test_spans_are_of_their_process_and_come_from_one_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a process has none, and where rows are of no process, or of one that is not there."""
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        source = builder.add("source", format="test", clock_zero="unix epoch")
        for n in range(5):
            builder.add("process", source=source, name=f"rank {n}", pid=n)
        of = [3, 1, None, 1, 77, 3, 4] * 300
        for n, process in enumerate(of):
            builder.add("event", kind="op", name="x", ts_ns=n, dur_ns=1, process=process, flags=0)
        builder.finish()
    opened = []
    real = Trace.cursor
    monkeypatch.setattr(Trace, "cursor", lambda trace: opened.append(1) or real(trace))
    with open_trace(tmp_path / "run.duckdb") as trace:
        request = exported(trace, tmp_path)
        assert len(opened) == 1
        lines = export(trace, tmp_path / "run.otlp.jsonl").read_bytes().splitlines()
    found = {
        attributes(one.resource).get("process.pid"): [int.from_bytes(span.span_id, "big") - 1 for span in each.spans]
        for one in request.resource_spans
        for each in one.scope_spans
    }
    wanted = {pid: [n for n, process in enumerate(of) if process == pid] for pid in range(5)}
    assert found == {**wanted, None: [n for n, process in enumerate(of) if process in (None, 77)]}
    assert [len(spans_of(parsed(json.loads(line)))) for line in lines] == [600, 600, 300, 600]


def test_other_flows_are_links(tmp_path: Path) -> None:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        source = builder.add("source", format="test", clock_zero="unix epoch")
        processes = [builder.add("process", source=source, name=f"rank {n}") for n in (0, 1)]
        for process in processes:
            builder.add("event", kind="op", name="send", ts_ns=process, dur_ns=1, process=process, flags=0)
        builder.add("flow", kind='p2p "quoted"', from_event=0, to_event=1)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        spans = spans_of(exported(trace, tmp_path))
    [link] = spans[1].links
    assert (link.trace_id, link.span_id) == (spans[0].trace_id, spans[0].span_id)
    assert attributes(link) == {"ral_trace.flow": 'p2p "quoted"'}
    assert not spans[0].links
    assert spans[0].trace_id != spans[1].trace_id


def test_a_clock_without_an_epoch_says_so(tmp_path: Path) -> None:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        process = builder.add("process", source=builder.add("source", format="other", clock_zero="file"))
        for ts_ns in (-500, 10):
            builder.add("event", kind="op", name="x", ts_ns=ts_ns, dur_ns=5, process=process, flags=0)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        request = exported(trace, tmp_path)
    [one] = request.resource_spans
    assert attributes(one.resource)["ral_trace.clock_zero"] == "file"
    assert attributes(one.resource)["ral_trace.clock_moved_up_ns"] == 500
    assert [span.start_time_unix_nano for span in one.scope_spans[0].spans] == [0, 510]


def test_lines_hold_the_same_spans_and_are_bounded(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        whole = spans_of(exported(trace, tmp_path))
        packed = export(trace, tmp_path / "run.otlp.json.gz").read_bytes()
        lines = export(trace, tmp_path / "run.otlp.jsonl").read_bytes().splitlines()
    assert gzip.decompress(packed) == (tmp_path / "run.otlp.json").read_bytes()
    parts = [spans_of(parsed(json.loads(line))) for line in lines]
    assert len(parts) > 1
    assert all(0 < len(part) <= 1_000 for part in parts)
    assert {id: span for part in parts for id, span in part.items()} == whole
    assert sum(map(len, parts)) == len(whole)


def test_a_part_has_no_parent_that_it_left_out(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        spans = spans_of(exported(trace, tmp_path, Window(kinds=("kernel", "launch"))))
    assert {attributes(span)["ral_trace.kind"] for span in spans.values()} == {"kernel", "launch"}
    launches = {span.span_id for span in spans.values() if span.kind == Span.SPAN_KIND_PRODUCER}
    assert all((span.parent_span_id in launches) == (span.kind == Span.SPAN_KIND_CONSUMER) for span in spans.values())


def test_rows_that_point_nowhere_are_spans_all_the_same(tmp_path: Path) -> None:
    """A trace from somebody else may say anything."""
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        builder.add("source", format="live")
        builder.add("event", kind="kernel", ts_ns=2**63 - 10, dur_ns=2**62, process=77, stream=99, device=5, stack=3)
        builder.add("event", kind="op", name="x", ts_ns=1, dur_ns=2, parent=4711)
        builder.add("flow", kind="launch", from_event=4711, to_event=0)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        spans = spans_of(exported(trace, tmp_path))
    assert [(one.name, one.end_time_unix_nano, one.parent_span_id) for one in spans.values()] == [
        ("x", 3, b""), ("kernel", 2**63 - 1, b""),
    ]  # fmt: skip


def test_a_trace_without_events_is_a_request_without_spans(tmp_path: Path) -> None:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        assert spans_of(exported(trace, tmp_path)) == {}
        assert export(trace, tmp_path / "run.otlp.jsonl").read_bytes() == b""
