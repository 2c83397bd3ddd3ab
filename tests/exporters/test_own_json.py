"""The .json is Chrome's trace format, without overlaps, and exact to the nanosecond."""

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer.exporters import export
from ral_trace.tracer.exporters.drawn import SLICE_KINDS
from ral_trace.tracer.forms import MARK
from ral_trace.tracer.reading import Trace, open_trace
from tests.awkward import awkward
from tests.synthetic import training


def document(trace: Trace, folder: Path) -> Any:
    out = export(trace, folder / "run.json")
    return json.loads(out.read_text(encoding="utf-8"), parse_float=Decimal)


@pytest.mark.parametrize("make", [training, awkward])
def test_viewers_see_each_row_once_with_its_exact_times(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with open_trace(make(tmp_path / "run.duckdb")) as trace:
        found = document(trace, tmp_path)
        rows = trace.sql(
            f"SELECT id, name, kind, ts_ns, dur_ns FROM event WHERE flags & 4 = 0 AND kind IN {SLICE_KINDS}"
        )
        expected = {id: (name or kind, kind, ts_ns, dur_ns) for id, name, kind, ts_ns, dur_ns in rows.fetchall()}
    zero_ns = found["ralTrace"]["zero_ns"]
    drawn = [one for one in found["traceEvents"] if one["ph"] in "XBi"]
    marks = [one["args"]["fallback"] for one in drawn if one["cat"] == MARK]
    assert sorted(marks) == sorted(id for id, (_, kind, _, _) in expected.items() if kind == "fallback")
    shown = [one for one in drawn if one["cat"] != MARK]
    assert {one["args"]["event"] for one in shown} == set(expected)
    assert len(shown) == len(expected)
    for one in shown:
        name, kind, ts_ns, dur_ns = expected[one["args"]["event"]]
        assert (one["name"], one["cat"], one["ts"] * 1000 + zero_ns) == (name, kind, ts_ns)
        assert (one["dur"] * 1000 if one["ph"] == "X" else None) == dur_ns


@pytest.mark.parametrize("make", [training, awkward])
def test_slices_of_a_thread_nest(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with open_trace(make(tmp_path / "run.duckdb")) as trace:
        found = document(trace, tmp_path)["traceEvents"]
    open_ends: dict[tuple[int, int], list[Decimal]] = defaultdict(list)
    for one in found:
        if one["ph"] in "XB":
            ends = open_ends[one["pid"], one["tid"]]
            while ends and ends[-1] <= one["ts"]:
                ends.pop()
            end = one["ts"] + one["dur"] if one["ph"] == "X" else Decimal("inf")
            assert not ends or end <= ends[-1]
            ends.append(end)


def test_threads_and_streams_have_names(tmp_path: Path) -> None:
    with open_trace(awkward(tmp_path / "run.duckdb")) as trace:
        found = document(trace, tmp_path)["traceEvents"]
    named = {(one["pid"], one["tid"]): one["args"]["name"] for one in found if one["name"] == "thread_name"}
    used = {(one["pid"], one["tid"]) for one in found if one["ph"] in "XBi"}
    assert used <= set(named)
    assert named[101, 7] == "python"
    assert "stream 1 · compute (overlap 1)" in named.values()


def test_arrows_have_two_ends_on_slices(tmp_path: Path) -> None:
    with open_trace(awkward(tmp_path / "run.duckdb")) as trace:
        found = document(trace, tmp_path)["traceEvents"]
        [(flows,)] = trace.sql("SELECT count(*) FROM flow").fetchall()
        [(launches,)] = trace.sql("""
            SELECT count(*) FROM event l JOIN event op ON op.id = l.parent AND op.kind = 'op' WHERE l.kind = 'launch'
        """).fetchall()
    begins = {one["id"]: one for one in found if one["ph"] == "s"}
    ends = {one["id"]: one for one in found if one["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) == flows + launches
    starts = {(one["pid"], one["tid"], one["ts"]) for one in found if one["ph"] in "XBi"}
    assert {(one["pid"], one["tid"], one["ts"]) for one in [*begins.values(), *ends.values()]} <= starts


def test_compressed_is_the_same(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        plain = export(trace, tmp_path / "run.json").read_bytes()
        assert gzip.decompress(export(trace, tmp_path / "run.json.gz").read_bytes()) == plain
