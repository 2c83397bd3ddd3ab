"""Rows on their way into a trace: what cannot be, what is taken back, and whose fault it is when they do not fit."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ral_trace.tracer import importers
from ral_trace.tracer.errors import InputRefused, RalTraceError
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.importers.placing import Places
from ral_trace.tracer.importers.rows import BYTES_BEYOND, DURATION_BEYOND, TIME_BEYOND, Rows, text
from ral_trace.tracer.importers.staging import Staging
from ral_trace.tracer.schema import FLAGS
from ral_trace.tracer.store import TraceBuilder

INVALID = FLAGS["INVALID"]


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[TraceBuilder]:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        yield builder


@pytest.fixture
def rows(builder: TraceBuilder) -> Rows:
    return Rows(builder, Path("it"), "format")


def all_of(rows: Rows, query: str) -> list[Any]:
    rows.finish()
    return rows.builder.connection.sql(query).fetchall()


def test_places_are_handed_over_many_at_a_time(rows: Rows) -> None:
    device = rows.device(rows.process("it", pid=2**63, name="\0"), "cuda", 0)
    streams = [rows.stream(device, number, pipeline="compute" if number else None) for number in range(10_000)]
    assert streams == list(range(10_000))
    assert [rows.stream(device, number) for number in range(10_000)] == streams
    found = all_of(rows, "SELECT id, device, number, pipeline, priority FROM stream ORDER BY id")
    assert found == [(number, device, number, "compute" if number else None, None) for number in range(10_000)]
    assert all_of(rows, "SELECT pid, name FROM process") == [(None, "\ufffd")]


def test_what_is_taken_back_leaves_nothing_behind(builder: TraceBuilder, rows: Rows) -> None:
    rows.memory("alloc", None, 0, rows.device(rows.process("a"), "cuda", 0), 512, size_bytes=1, before_trace=True)
    rows.flush()
    refused = Rows(builder, Path("b"), "format")
    device = refused.device(refused.process("b"), "cuda", 0)
    refused.memory("alloc", None, 0, device, 1024, size_bytes=1, before_trace=True)
    refused.flush()
    assert refused.discard()
    assert builder.connection.sql("SELECT address FROM memory_change").fetchall() == [(512,)]
    assert builder.connection.sql("SELECT count(*) FROM device").fetchall() == [(1,)]


LIMIT = 2**61


@pytest.mark.parametrize(("ts_ns", "kept"), [(LIMIT - 1, True), (1 - LIMIT, True), (LIMIT, False), (-LIMIT, False)])
def test_events_and_changes_at_times_that_cannot_be_are_left_out(rows: Rows, ts_ns: int, kept: bool) -> None:
    process = rows.process("it")
    early = rows.event("instant", "early", 0, 0, process)
    late = rows.event("alloc", "late", ts_ns, 0, process)
    rows.flow("wait", early, late)
    rows.memory("alloc", late, ts_ns, rows.device(process, "cuda", 0), 512, size_bytes=1)
    counts = "SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM flow), (SELECT count(*) FROM memory_change)"
    assert all_of(rows, counts) == [(2, 1, 1) if kept else (1, 0, 0)]
    assert rows.builder.connection.sql("SELECT count(*) FROM quality").fetchall() == [(0 if kept else 2,)]


@pytest.mark.parametrize(("number", "wanted"), [(0, 0), (LIMIT - 1, LIMIT - 1), (LIMIT, None), (-1, None)])
def test_durations_and_bytes_that_cannot_be_are_unknown(rows: Rows, number: int, wanted: int | None) -> None:
    process = rows.process("it")
    rows.event("transfer", "copy", 0, number, process, bytes=number)
    rows.memory("alloc", None, 0, rows.device(process, "cuda", 0), 512, size_bytes=number, requested_bytes=number)
    assert all_of(rows, "SELECT dur_ns, bytes, flags > 0 FROM event") == [(wanted, wanted, wanted is None)]
    changes = rows.builder.connection.sql("SELECT size_bytes, requested_bytes FROM memory_change").fetchall()
    assert changes == [(wanted, wanted)]
    said = rows.builder.connection.sql("SELECT sum(count)::INT FROM quality").fetchall()
    assert said == [(None if wanted is not None else 4,)]


@pytest.mark.parametrize(("start_ns", "end_ns", "size", "wanted"), [
    (1 - LIMIT, 0, LIMIT - 1, (1 - LIMIT, LIMIT - 1, LIMIT - 1, 0, [])),
    (-LIMIT, 0, 0, None),
    (0, LIMIT, 0, None),
    (-1, LIMIT - 1, 0, (-1, None, 0, INVALID, [DURATION_BEYOND])),
    (0, 1, LIMIT, (0, 1, None, 0, [BYTES_BEYOND])),
    (0, 1, -1, (0, 1, None, 0, [BYTES_BEYOND])),
])  # fmt: skip
def test_tables_of_others_have_the_same_bounds(rows: Rows, start_ns: int, end_ns: int, size: int, wanted: Any) -> None:
    with Staging(rows, Places("cuda", "NVIDIA", lambda key: {"name": key})) as staging:
        staging.add(f"""SELECT 'transfer' AS kind, 'copy' AS name, ({start_ns})::BIGINT AS start_ns,
                               ({end_ns})::BIGINT AS end_ns, ({size})::BIGINT AS bytes""")
        staging.place()
    found = all_of(rows, "SELECT ts_ns, dur_ns, bytes, flags FROM event")
    whats = [what for (what,) in rows.builder.connection.sql("SELECT what FROM quality").fetchall()]
    assert (found, whats) == (([], [TIME_BEYOND]) if wanted is None else ([wanted[:4]], wanted[4]))


def test_values_that_are_not_finite_are_gaps(rows: Rows) -> None:
    counter = rows.counter("power", "W")
    for ts_ns, value in enumerate((1.5, math.inf, -math.inf, math.nan, None)):
        rows.value(counter, ts_ns, value)
    assert all_of(rows, "SELECT value FROM counter_value ORDER BY ts_ns") == [(1.5,), *[(None,)] * 4]


@pytest.mark.parametrize("query", ["SELECT 'x'::BIGINT", "SELECT 9223372036854775807 + 1", "SELECT 300::UTINYINT"])
def test_numbers_that_do_not_fit_are_the_fault_of_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    def read(path: Path, rows: Rows) -> None:
        rows.builder.connection.execute(query).fetchall()

    odd = SimpleNamespace(FORMAT="odd", sniff=lambda head: float(head.data == b"odd"), read=read)
    monkeypatch.setattr(importers, "IMPORTERS", [odd])
    (tmp_path / "odd").write_bytes(b"odd")
    with pytest.raises(InputRefused, match="odd: holds numbers that"):
        import_files([tmp_path / "odd"], tmp_path / "out.duckdb")


def test_what_fails_at_the_end_is_said_of_the_output(builder: TraceBuilder, rows: Rows) -> None:
    rows.finish()
    builder.connection.execute("DROP TABLE event")
    with pytest.raises(RalTraceError, match=r"run\.duckdb: the trace could not be written"):
        builder.finish()


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udfff", "\ufffd"),
        ("\ud83d\ude00", "\ufffd\ufffd"),
        ("\0", "\ufffd"),
        ("\0\udc80\0", "\ufffd\ufffd\ufffd"),
        ("na\u00efve \U0001f600 \ue000", "na\u00efve \U0001f600 \ue000"),
        ("", ""),
        (None, None),
    ],
)
def test_each_character_that_no_reader_can_hold_is_one_replacement(given: str | None, held: str | None) -> None:
    assert text(given) == held
