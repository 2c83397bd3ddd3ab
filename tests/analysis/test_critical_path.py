"""The critical path of small runs, worked out on paper; times in ns after T0."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ral_trace.analysis.critical_path import critical_path, critical_path_pieces, innermost_calls, said
from ral_trace.tracer import open_trace
from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.schema import FLAGS
from tests.analysis.cases import T0, Case
from tests.shared import CASES, needs_shared


def parts(rows: list[dict[str, Any]]) -> dict[tuple[str, str | None], int]:
    return {(row["kind"], row["name"]): row["total_ns"] for row in rows}


def waiting_program() -> Case:
    """A call that starts a kernel, a wait for it, another call."""
    case = Case()
    case.device(index=0)
    case.event("op", "aten::mm", 0, 10)
    case.event("launch", "aten::mm", 2, 3, device=0, correlation=1)
    case.event("kernel", "gemm", 8, 50, device=0, correlation=1)
    case.event("sync", "torch.ral.synchronize", 10, 50, device=0)
    case.event("op", "aten::add", 60, 10)
    return case


def test_through_the_device_while_the_host_waits(tmp_path: Path):
    with waiting_program().open(tmp_path) as trace:
        rows = critical_path(trace)
        pieces = critical_path_pieces(trace)
    assert parts(rows) == {
        ("kernel", "gemm"): 50,
        ("op", "aten::add"): 10,
        ("launch delay", "gemm"): 6,  # the stream was idle: from the call's begin at 2 to 8
        ("op", "aten::mm"): 2,
        ("sync", "torch.ral.synchronize"): 2,  # what it took to return after the kernel was over at 58
        ("nothing recorded", None): 0,
    }
    assert [(row["ts_ns"] - T0, row["dur_ns"], row["kind"]) for row in pieces] == [
        (0, 2, "op"), (2, 6, "launch delay"), (8, 50, "kernel"), (58, 2, "sync"), (60, 10, "op"),
    ]  # fmt: skip
    assert said(rows) == "100 % of the time is on the critical path; its largest part is kernel gemm on ral:0: 50 ns."


def test_calls_within_calls_have_their_own_time(tmp_path: Path):
    case = Case()
    case.event("annotation", "forward", 0, 100)
    case.event("op", "aten::linear", 10, 50)
    case.event("op", "aten::addmm", 20, 30)
    with case.open(tmp_path) as trace:
        found = parts(critical_path(trace))
    assert found == {
        ("annotation", "forward"): 50, ("op", "aten::linear"): 20, ("op", "aten::addmm"): 30,
        ("nothing recorded", None): 0,
    }  # fmt: skip


def test_between_calls_outside_of_any_other_nothing_is_work(tmp_path: Path):
    case = Case()
    case.event("op", "aten::mm", 0, 10)
    case.event("op", "aten::mm", 40, 10)
    with case.open(tmp_path) as trace:
        assert parts(critical_path(trace)) == {("op", "aten::mm"): 20, ("nothing recorded", None): 30}


def test_queued_kernels_follow_each_other(tmp_path: Path):
    """The second was queued before the first was over: the 3 ns between them are the queue's, not the launch's."""
    case = Case()
    case.device(index=0)
    for number, (launch, start, length) in enumerate([(0, 5, 20), (2, 28, 10)]):
        case.event("launch", "l", launch, 1, device=0, correlation=number + 1)
        case.event("kernel", f"k{number}", start, length, device=0, correlation=number + 1)
    with case.open(tmp_path) as trace:
        found = parts(critical_path(trace))
    assert found == {
        ("launch delay", "k0"): 5, ("kernel", "k0"): 20, ("queue gap", "k1"): 3, ("kernel", "k1"): 10,
        ("nothing recorded", None): 0,
    }  # fmt: skip


def test_what_is_launched_later_than_the_stream_was_free_waits_for_its_launch(tmp_path: Path):
    case = Case()
    case.device(index=0)
    case.event("op", "a", 0, 100)
    for number, (launch, start, length) in enumerate([(0, 5, 20), (60, 66, 40)]):
        case.event("launch", "l", launch, 2, device=0, correlation=number + 1)
        case.event("kernel", f"k{number}", start, length, device=0, correlation=number + 1)
    with case.open(tmp_path) as trace:
        found = parts(critical_path(trace))
    assert found == {
        ("op", "a"): 58, ("launch call", "l"): 2, ("launch delay", "k1"): 6, ("kernel", "k1"): 40,
        ("nothing recorded", None): 0,
    }  # fmt: skip


def test_a_stream_that_waited_for_another(tmp_path: Path):
    """k1 was queued on an idle stream at 2 and began as k0 was over at 25_000: it had waited for that."""
    case = Case()
    case.device(index=0)
    case.device(index=1)
    case.event("launch", "l", 0, 1, device=0, correlation=1)
    case.event("kernel", "k0", 5, 24_995, device=0, correlation=1)
    case.event("launch", "l", 2, 1, device=1, correlation=2)
    case.event("kernel", "k1", 25_000, 10, device=1, correlation=2)
    with case.open(tmp_path) as trace:
        found = parts(critical_path(trace))
    assert found == {
        ("launch delay", "k0"): 5, ("kernel", "k0"): 24_995, ("kernel", "k1"): 10, ("nothing recorded", None): 0,
    }  # fmt: skip


def test_a_backward_pass_on_threads_of_its_own(tmp_path: Path):
    case = Case()
    case.event("op", "aten::mm", 0, 10)
    case.event("op", "MmBackward0", 12, 18, thread=7, category="backward")
    case.event("op", "AddBackward0", 31, 19, thread=8, category="backward")
    case.event("op", "aten::add_", 55, 5)
    with case.open(tmp_path) as trace:
        found = parts(critical_path(trace))
    assert found == {
        ("op", "aten::mm"): 10, ("op", "MmBackward0"): 18, ("autograd", None): 1, ("op", "AddBackward0"): 19,
        ("op", "aten::add_"): 5, ("nothing recorded", None): 7,  # 10 to 12 and 50 to 55
    }  # fmt: skip


def test_a_collective_goes_on_when_the_last_rank_is_there(tmp_path: Path):
    case = Case()
    for rank in range(2):
        case.process(pid=rank, rank=rank)
        case.device(process=rank, index=rank, type="cuda")
    for rank, (launch, start, length) in enumerate([(5, 10, 40), (35, 40, 12)]):
        case.event("op", f"work{rank}", 0, launch, process=rank, thread=rank)
        case.event("launch", "l", launch, 2, device=rank, correlation=1, process=rank, thread=rank)
        case.event("kernel", "ncclDevKernel_AllReduce", start, length, device=rank, correlation=1)
    with case.open(tmp_path) as trace:
        found = parts(critical_path(trace))
    assert found == {
        ("op", "work1"): 35, ("launch delay", "ncclDevKernel_AllReduce"): 5, ("kernel", "ncclDevKernel_AllReduce"): 12,
        ("nothing recorded", None): 0,
    }  # fmt: skip


def test_one_event_is_a_path(tmp_path: Path):
    for number, (kind, more) in enumerate([("op", {}), ("kernel", {"device": 0})]):
        case = Case()
        case.device(index=0)
        case.event(kind, "only", 5, 70, **more)
        (tmp_path / str(number)).mkdir()
        with case.open(tmp_path / str(number)) as trace:
            assert parts(critical_path(trace)) == {(kind, "only"): 70, ("nothing recorded", None): 0}


def test_rows_without_times_are_no_part_of_it(tmp_path: Path):
    case = waiting_program()
    case.event("kernel", "unknown", 20, None, device=0)
    case.event("kernel", "invalid", 20, 900, device=0, flags=FLAGS["INVALID"])
    case.event("op", "unfinished", 5, None)
    with case.open(tmp_path) as trace:
        rows = critical_path(trace)
    assert sum(row["total_ns"] for row in rows) == 70
    assert not {"unknown", "invalid", "unfinished"} & {row["name"] for row in rows}


def test_nothing_at_all(tmp_path: Path):
    with Case().open(tmp_path) as trace:
        assert critical_path(trace) == []
        assert critical_path_pieces(trace) == []
        assert said(critical_path(trace)) is None


def test_steps(tmp_path: Path):
    """By default neither the first step nor the last one."""
    case = Case()
    for number in range(4):
        case.step(number, number * 100, 90)
        case.event("op", f"op{number}", number * 100 + 10, 50)
    with case.open(tmp_path) as trace:
        middle, one, whole = critical_path(trace), critical_path(trace, step=3), critical_path(trace, whole=True)
        with pytest.raises(UsageError, match="no step 9"):
            critical_path(trace, step=9)
    assert parts(middle) == {
        ("annotation", "step"): 80,
        ("op", "op1"): 50,
        ("op", "op2"): 50,
        ("nothing recorded", None): 10,
    }
    assert {(row["first_step"], row["last_step"]) for row in middle} == {(1, 2)}
    assert parts(one) == {("annotation", "step"): 40, ("op", "op3"): 50, ("nothing recorded", None): 0}
    assert sum(row["total_ns"] for row in whole) == 390


def test_the_longest_pieces_in_order(tmp_path: Path):
    with waiting_program().open(tmp_path) as trace:
        assert [row["name"] for row in critical_path_pieces(trace, limit=2)] == ["gemm", "aten::add"]
        rows = critical_path(trace, limit=1)
    assert parts(rows) == {("kernel", "gemm"): 50, ("nothing recorded", None): 0}


def test_innermost_calls_where_calls_cross():
    """A row that outlives the one around it ends no later for it; what ended never runs."""
    time, row = innermost_calls(np.array([0, 5, 20]), np.array([10, 12, 30]))
    running = dict(zip(time.tolist(), row.tolist(), strict=True))
    assert (running[0], running[5], running[12], running[20], running[30]) == (0, 1, -1, 2, -1)


@needs_shared
@pytest.mark.parametrize(
    "name",
    [
        "zero_dur_gpu.json",
        "cuda_graph_one_correlation.json",
        "cpu_only.json",
        "kernel_before_launch.json",
        "two_streams_overlap.json",
        "stream_sync_row.json",
        "no_profiler_step.json",
        "rocm_dur_overflow.json",
        "parent_child_rounding.json",
        "neg_dur.json",
        "xss_names.json",
    ],
)
def test_odd_files(name: str):
    """The path and what is left of the span are the span; the path is never shorter than the longest event."""
    with open_trace(CASES / name) as trace:
        rows = critical_path(trace, whole=True)
        [(longest, span)] = trace.sql(f"""
            SELECT max(dur_ns), max(ts_ns + dur_ns) - min(ts_ns) FROM event
            WHERE dur_ns > 0 AND (flags & {FLAGS["INVALID"]}) = 0 AND (
                thread IS NOT NULL AND kind IN ('op', 'launch', 'annotation', 'runtime', 'sync', 'python', 'fallback')
                OR kind IN ('kernel', 'transfer'))""").fetchall()
    assert sum(row["total_ns"] for row in rows) == span
    assert longest <= sum(row["total_ns"] for row in rows[:-1]) <= span
    assert all(row["total_ns"] >= 0 for row in rows)
