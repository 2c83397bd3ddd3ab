from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.analysis.hotspots import hotspots, kernels
from ral_trace.tracer import _native
from ral_trace.tracer.errors import UsageError
from tests.analysis.cases import INVALID, Case, fallback


@pytest.fixture
def trace(tmp_path: Path):
    case = Case()
    case.device(index=0)
    case.device(index=1, vendor="sim")
    for number, length in enumerate([10, 20, 30, 40]):
        case.event("kernel", "aten::mm", number * 100, length, device=0, args={"kernel": "gemm" if number else "gemv"})
    case.event("kernel", "aten::add.Tensor", 1000, 25, device=0, args={"kernel": "add"})
    case.event("kernel", "aten::mm", 1100, None, device=0)
    case.event("kernel", "aten::mm", 1200, 5000, device=0, flags=INVALID)
    case.event("transfer", "aten::copy_", 1300, 75, device=0, bytes=64)
    fallback(case, 2000, 100, device=1, correlation=7, copies=[(2010, 20, 64), (2070, 20, 64)])
    with case.open(tmp_path) as opened:
        yield opened


def test_by_op(trace):
    mm, copy, add = hotspots(trace, device="ral:0")
    # Six calls; the one without a duration and the one with impossible times are in no sum.
    assert (mm["name"], mm["count"], mm["total_ns"], mm["mean_ns"]) == ("aten::mm", 6, 100, 25)
    assert (mm["median_ns"], mm["p99_ns"], mm["max_ns"], mm["percent"]) == (20, 40, 40, pytest.approx(50.0))
    assert (copy["name"], copy["total_ns"]) == ("aten::copy_", 75)
    assert (add["name"], add["total_ns"], add["fallbacks"], add["self_ns"]) == ("aten::add.Tensor", 25, 0, 25)


def test_a_fallback_counts_once_with_its_copies_inside(trace):
    (row,) = hotspots(trace, device="ral:1")
    assert (row["name"], row["count"], row["total_ns"], row["fallbacks"], row["percent"]) == (
        "aten::cumsum",
        1,
        100,
        1,
        100.0,
    )


def test_by_kernel(trace):
    found = {row["name"]: row["total_ns"] for row in hotspots(trace, by="kernel")}
    assert found == {"gemm": 90, "gemv": 10, "add": 25, "aten::mm": None}
    assert kernels(trace) == hotspots(trace, by="kernel")


def test_limit_is_for_each_device(trace):
    assert [row["device"] for row in hotspots(trace, limit=1)] == ["ral:0", "ral:1"]
    assert [row["device"] for row in hotspots(trace)] == ["ral:0"] * 3 + ["ral:1"]


def test_by_something_else_is_refused(trace):
    with pytest.raises(UsageError, match="by stream or by device, not by colour"):
        hotspots(trace, by="colour")


def test_cpu_only_has_self_times(tmp_path: Path):
    case = Case()
    # linear 0-100 calls t 10-20 and addmm 30-90, which calls expand 40-50; then a lone add.
    for name, start, length in [
        ("t", 10, 10),
        ("expand", 40, 10),
        ("addmm", 30, 60),
        ("linear", 0, 100),
        ("add", 200, 7),
    ]:
        case.event("op", name, start, length)
    case.event("op", "add", 300, None)
    with case.open(tmp_path) as opened:
        found = {row["name"]: (row["self_ns"], row["total_ns"], row["count"]) for row in hotspots(opened)}
        assert {row["device"] for row in hotspots(opened)} == {"host"}
        assert hotspots(opened) == hotspots(opened, device="host")
    assert found == {
        "addmm": (50, 60, 1),
        "linear": (30, 100, 1),
        "t": (10, 10, 1),
        "expand": (10, 10, 1),
        "add": (7, 7, 2),
    }


INTERVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=40)


def union(rows: list[tuple[int, int, int]]) -> int:
    return len({(thread, moment) for thread, start, length in rows for moment in range(start, start + length)})


@settings(deadline=None)
@given(INTERVALS)
def test_self_times_are_never_negative_and_add_up_to_the_union(rows):
    rows = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    thread = np.array([row[0] for row in rows], dtype=np.int32)
    start = np.array([row[1] for row in rows], dtype=np.int64)
    own = _native.own_times(thread, start, start + np.array([row[2] for row in rows], dtype=np.int64))
    assert (own >= 0).all()
    assert own.sum() == union(rows)
    # Each moment is the row's that started last.
    expected = [0] * len(rows)
    for number in {row[0] for row in rows}:
        for moment in range(100):
            open_rows = [
                i for i, (at, begin, length) in enumerate(rows) if at == number and begin <= moment < begin + length
            ]
            if open_rows:
                expected[open_rows[-1]] += 1
    assert own.tolist() == expected


@settings(max_examples=10, deadline=None)
@given(INTERVALS, st.randoms())
def test_answers_do_not_depend_on_the_order_of_rows(rows, random):
    case = Case()
    case.device(index=0)
    for number, (thread, start, length) in enumerate(rows):
        kind = ["kernel", "op", "fallback"][thread]
        case.event(kind, f"op{number % 3}", start, length, device=0 if kind != "op" else None)
    order = list(range(len(case.events)))
    answers = []
    for _ in range(2):
        with TemporaryDirectory() as folder, case.open(Path(folder), order) as opened:
            answers.append((hotspots(opened), hotspots(opened, device="host"), hotspots(opened, by="kernel")))
        random.shuffle(order)
    assert answers[0] == answers[1]
