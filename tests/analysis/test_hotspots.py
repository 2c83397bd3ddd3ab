from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.analysis.base import Rows
from ral_trace.analysis.hotspots import HOTSPOTS, hotspots, kernels
from ral_trace.tracer import _native
from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.reading import open_trace
from tests.analysis.cases import INVALID, Case, fallback
from tests.shared import CASES, TRACES, needs_shared


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


def test_what_overlaps_counts_once_and_the_sum_is_named_apart(tmp_path: Path):
    case = Case()
    case.device()
    # Two streams: a 0-100, b 40-90 within it, b 80-140 beyond it. Busy 0-140.
    case.event("kernel", "a", 0, 100, device=0)
    case.event("kernel", "b", 40, 50, device=0, stream=1)
    case.event("kernel", "b", 80, 60, device=0, stream=2)
    with case.open(tmp_path) as opened:
        a, b = hotspots(opened)
        [whole] = hotspots(opened, by="device")
        streams = {row["name"]: row["total_ns"] for row in hotspots(opened, by="stream")}
    assert (a["name"], a["total_ns"], a["sum_ns"], a["self_ns"]) == ("a", 100, 100, 40)
    assert (b["name"], b["total_ns"], b["sum_ns"], b["self_ns"]) == ("b", 100, 110, 100)
    assert a["percent"] == b["percent"] == pytest.approx(100 * 100 / 140)
    assert (whole["name"], whole["total_ns"], whole["self_ns"], whole["sum_ns"]) == ("ral:0", 140, 140, 210)
    assert streams == {"stream 0": 100, None: 100}  # the case knows one stream


def test_kernels_of_one_template_are_one(tmp_path: Path):
    case = Case()
    case.device()
    for number, name in enumerate(["void f<1>(int)", "void f<2>(int)", "void f<2>(int)", "g"]):
        case.event("kernel", name, number * 10, 10, device=0)
    with case.open(tmp_path) as opened:
        found = [(row["name"], row["count"], row["variants"], row["total_ns"]) for row in kernels(opened)]
    assert found == [("f", 3, 2, 30), ("g", 1, 1, 10)]


def test_an_imported_kernel_belongs_to_the_op_around_its_launch(tmp_path: Path):
    case = Case()
    case.device()
    case.event("annotation", "part", 0, 100)
    case.event("annotation", "Net", 1, 98, category="module")
    case.event("annotation", "Net.layer", 5, 60, category="module")
    case.event("annotation", "Outer", 0, 200, category="module")
    case.event("python", "train.py(3): forward", 6, 58)
    case.event("python", "torch/nn/functional.py(9): linear", 7, 56)
    case.event("op", "aten::linear", 8, 50)
    case.event("op", "aten::addmm", 10, 40)
    case.event("launch", "cudaLaunchKernel", 20, 10, correlation=1)
    case.event("launch", "cudaLaunchKernel", 70, 4, correlation=2)
    case.event("kernel", "gemm", 200, 30, device=0, correlation=1)
    case.event("kernel", "lonely", 300, 5, device=0, correlation=2)
    with case.open(tmp_path) as opened:
        found = {by: rows(hotspots(opened, by=by)) for by in ("op", "module", "annotation", "line")}
        host = {by: rows(hotspots(opened, device="host", by=by)) for by in ("module", "annotation", "line")}
        launching = {row["name"]: row["launch_ns"] for row in hotspots(opened)}
    assert found["op"] == {"aten::addmm": (30, 30, 1), "lonely": (5, 5, 1)}
    assert found["module"] == {"Outer": (35, 0, 0), "Net": (35, 5, 1), "Net.layer": (30, 30, 1)}
    assert found["annotation"] == {"part": (35, 35, 2)}
    assert found["line"] == {"train.py:3 forward": (30, 30, 1), None: (5, 5, 1)}
    assert launching == {"aten::addmm": 10, "lonely": 4}
    assert host["module"] == {"Outer": (200, 102, 1), "Net": (98, 38, 1), "Net.layer": (60, 60, 1)}
    assert host["annotation"] == {"part": (100, 100, 1)}
    assert host["line"] == {"train.py:3 forward": (50, 50, 2)}


def rows(found: Rows) -> dict[str | None, tuple[int, int, int]]:
    return {row["name"]: (row["total_ns"], row["self_ns"], row["count"]) for row in found}


def test_a_launch_of_several_kernels_costs_once(tmp_path: Path):
    case = Case()
    case.device()
    case.event("launch", "cudaGraphLaunch", 0, 5, correlation=9)
    for number in range(5):
        case.event("kernel", f"k{number}", 10 + 10 * number, 8, device=0, correlation=9)
    with case.open(tmp_path) as opened:
        found = {row["name"]: (row["total_ns"], row["launch_ns"]) for row in hotspots(opened)}
    assert found == {"k0": (8, 5), **{f"k{number}": (8, None) for number in range(1, 5)}}


@needs_shared
def test_a_duration_that_runs_over_its_successors_is_suspect():
    with open_trace(CASES / "rocm_dur_overflow.json") as opened:
        long, gemm = hotspots(opened)
        [whole] = hotspots(opened, by="device")
    assert (long["name"], long["suspects"], gemm["suspects"]) == ("fmha_bwd", 1, 0)
    assert (gemm["total_ns"], gemm["self_ns"]) == (4_500_000, 4_500_000)
    assert (whole["total_ns"], whole["sum_ns"]) == (1_600_000_000, 1_604_500_000)
    said = HOTSPOTS.remark(Rows([long, gemm]))
    assert said is not None
    assert said.startswith("fmha_bwd on cuda:0: 1 of 1 has a duration that cannot be")


@needs_shared
def test_children_that_rounding_makes_longer_than_their_parents():
    with open_trace(CASES / "parent_child_rounding.json") as opened:
        own = {row["name"]: row["self_ns"] for row in hotspots(opened)}
    assert own == {"ProfilerStep#1": 500_000, "grandparent": 401_000, "parent": 9_000, "child": 90_000}


@needs_shared
def test_python_calls_without_a_return_are_in_no_sum():
    with open_trace(CASES / "with_stack_overrun.json") as opened:
        [op] = hotspots(opened)
    assert (op["name"], op["count"], op["total_ns"], op["self_ns"]) == ("mylib::my_op", 100, 500_000, 500_000)


@needs_shared
def test_kernels_and_copies_as_holistic_trace_analysis_sums_them():
    """What its get_gpu_kernel_breakdown says of this file: computation 4,103,141 us, memory 630,681 us."""
    with open_trace(TRACES / "kineto_2080ti_resnet.json.gz") as opened:
        found = kernels(opened)
        whole = hotspots(opened, by="device")
    assert sum(row["sum_ns"] for row in found) == 4_103_141_000
    assert sum(row["sum_ns"] for row in whole) == (4_103_141 + 630_681) * 1000
    offsets = next(row for row in found if row["name"] == "cask_cudnn::computeWgradBOffsetsKernel")
    assert (offsets["sum_ns"], offsets["max_ns"], offsets["mean_ns"]) == (246_000, 3_000, 2_050)


@needs_shared
@pytest.mark.parametrize(
    ("file", "total", "summed"),
    [
        ("two_streams_overlap", 100_000, 200_000),
        ("stream_idle_other_busy", None, None),
        ("zero_dur_gpu", 10_000, 10_000),
        ("neg_dur", 20_000, 20_000),
    ],
)
def test_busy_is_a_union(file: str, total: int | None, summed: int | None):
    with open_trace(CASES / f"{file}.json") as opened:
        [whole] = hotspots(opened, by="device")
    if total is not None:
        assert (whole["total_ns"], whole["sum_ns"]) == (total, summed)
    assert whole["self_ns"] == whole["total_ns"]


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


@settings(max_examples=4, deadline=None)
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


ROWS = st.lists(
    st.tuples(st.sampled_from(["kernel", "transfer"]), st.integers(0, 2), st.integers(0, 60), st.integers(0, 30)),
    min_size=1,
    max_size=30,
)


@settings(max_examples=8, deadline=None)
@given(ROWS)
def test_own_times_of_a_device_add_up_to_its_busy_time(found):
    case = Case()
    case.device()
    for kind, stream, start, length in found:
        case.event(kind, f"op{(start + length) % 3}", start, length, device=0, stream=stream)
    busy = len({moment for _, _, start, length in found for moment in range(start, start + length)})
    with TemporaryDirectory() as folder, case.open(Path(folder)) as opened:
        by_name = hotspots(opened)
        [whole] = hotspots(opened, by="device")
    assert sum(row["self_ns"] for row in by_name) == whole["total_ns"] == whole["self_ns"] == busy
    assert sum(row["sum_ns"] for row in by_name) == sum(length for _, _, _, length in found)
    for row in by_name:
        assert 0 <= row["self_ns"] <= row["total_ns"] <= row["sum_ns"]
