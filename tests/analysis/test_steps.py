from pathlib import Path

import pytest

from ral_trace.analysis.bound import step_bounds
from ral_trace.analysis.pace import pace
from ral_trace.analysis.steps import STEPS, step_times, steps
from tests.analysis.cases import T0, Case


def test_steps_count_what_began_in_them(tmp_path: Path):
    case = Case()
    case.device(index=0)
    case.step(0, 0, 100)
    case.step(1, 100, None)
    case.event("launch", "aten::mm", 10, 20, device=0, correlation=1)
    # The kernel begins after the step's end, but belongs to it through its launch.
    case.event("kernel", "aten::mm", 150, 30, device=0, correlation=1)
    case.event("transfer", "aten::copy_", 40, 5, device=0, correlation=2, bytes=7)
    case.event("launch", "aten::copy_", 38, 9, device=0, correlation=2)
    case.event("sync", "aten::item", 60, 10, device=0)
    with case.open(tmp_path) as trace:
        first, second = steps(trace)
    assert first == {
        "step": 0, "process": 0, "pid": 1, "ts_ns": T0, "dur_ns": 100, "launches": 2, "fallbacks": 0, "syncs": 1,
        "transferred_bytes": 7, "kernel_ns": 30, "sync_ns": 10, "fallback_ns": 0, "allocations": 0,
        "allocated_bytes": 0, "first_calls": 0,
        # The device worked in 40-45; nobody waited for input, compiled or collected; one step tells nothing.
        "idle_ns": 95, "input_wait_ns": None, "input_percent": None, "compile_ns": None, "gc_ns": None, "state": None,
        "why": None,
    }  # fmt: skip
    assert (second["step"], second["dur_ns"], second["idle_ns"]) == (1, None, None)


def test_steps_inferred_from_the_optimiser(tmp_path: Path):
    case = Case()
    case.event("op", "aten::mm", 10, 20)
    case.event("annotation", "Optimizer.step#SGD.step", 50, 50)
    case.event("op", "aten::mm", 110, 40)
    case.event("annotation", "Optimizer.step#SGD.step", 150, 60)
    with case.open(tmp_path) as trace:
        assert [(row["step"], row["ts_ns"] - T0, row["dur_ns"]) for row in steps(trace)] == [(0, 10, 90), (1, 110, 100)]


def test_the_pace_of_steps():
    # Later half: 100, 101, 99, 102, 100. The first two take more than 1.5 times its median, the third does not.
    found = pace([900, 151, 150, 98, 100, 100, 101, 99, 102, 100])
    assert found is not None
    assert (found.warm_up, found.median_ns, found.deviation_ns) == (2, 100, 1)
    # 5 * 1.4826 is less than a tenth of 100.
    assert [found.state(number, dur_ns) for number, dur_ns in enumerate([900, 99, 110, 111])] == [
        "warm-up", "warm-up", "steady", "outlier",
    ]  # fmt: skip
    # With a deviation of 10: 100 + 74.13.
    found = pace([80, 90, 90, 100, 100, 110, 110, 120])
    assert found is not None
    assert (found.warm_up, found.deviation_ns) == (0, 10)
    assert (found.state(3, 174), found.state(3, 175)) == ("steady", "outlier")


def test_few_steps_tell_nothing_and_half_may_be_warm_up():
    assert pace([1, 2, 3]) is None
    assert pace([]) is None
    for durations, warm_up in [([9, 9, 1, 1], 2), ([9, 1, 9, 9], 0), ([0, 0, 0, 0], 0), ([7, 0, 0, 0], 1)]:
        found = pace(durations)
        assert found is not None
        assert found.warm_up == warm_up


def training(case: Case, durations: list[int]) -> list[int]:
    """Contiguous steps with a launch each; returns their starts."""
    starts = [sum(durations[:number]) for number in range(len(durations))]
    for number, (start, dur) in enumerate(zip(starts, durations, strict=True)):
        case.step(number, start, dur)
        case.event("op", "aten::mm", start + 1, 10)
        case.event("launch", "aten::mm", start + 2, 5, device=0, correlation=number + 1)
        case.event("kernel", "aten::mm", start + 5, 50, device=0, correlation=number + 1)
    return starts


def test_what_was_different_in_an_outlier(tmp_path: Path):
    case = Case()
    case.device()
    starts = training(case, [1000, *[100] * 5, 400, *[100] * 3])
    case.event("annotation", "enumerate(DataLoader)#Iter.__next__", starts[6] + 100, 200)
    case.event("annotation", "inner (dynamo_timed)", starts[6] + 310, 40)
    case.event("annotation", "outer (dynamo_timed)", starts[6] + 305, 45)
    case.event("op", "aten::validate", starts[6] + 360, 5)
    case.event("sync", "aten::item", starts[6] + 370, 20, device=0)
    case.event("transfer", "aten::item", starts[6] + 371, 5, device=0, bytes=2048)
    with case.open(tmp_path) as trace:
        rows = steps(trace)
        (times,) = step_times(trace)
    assert [row["state"] for row in rows] == ["warm-up", *["steady"] * 5, "outlier", *["steady"] * 3]
    assert (rows[0]["why"], rows[1]["why"]) == ("1 more ops called for the first time", None)
    # 300 ns more than the median: 30 are worth saying.
    assert rows[6]["why"] == (
        "200 ns more waiting for input; 45 ns more compiling; 1 more syncs; 2.00 KiB more copied; "
        "1 more ops called for the first time"
    )
    assert (rows[6]["input_wait_ns"], rows[6]["input_percent"], rows[6]["compile_ns"]) == (200, 50.0, 45)
    assert (rows[6]["idle_ns"], rows[1]["idle_ns"], rows[1]["input_wait_ns"]) == (400 - 55, 50, 0)
    assert STEPS.remark(rows) == f"1 step is an outlier; the slowest is step 6 with 400 ns: {rows[6]['why']}."
    assert (set(STEPS.notable(rows[6])), set(STEPS.notable(rows[1]))) == ({"dur_ns", "state", "input_percent"}, set())
    # Without the warm-up: 8 of 100 and one of 400.
    assert (times["steps"], times["warm_up"], times["outliers"], times["input_bound"]) == (10, 1, 1, 1)
    assert (times["mean_ns"], times["median_ns"], times["p99_ns"], times["max_ns"]) == (133, 100, 400, 400)
    assert (times["per_second"], times["deviation_ns"]) == (pytest.approx(9e9 / 1200), 0)
    assert times["idle_percent"] == pytest.approx(100 * (8 * 50 + 345) / 1200)
    assert times["input_percent"] == pytest.approx(100 * 200 / 1200)


def test_steps_of_unknown_duration_have_no_times(tmp_path: Path):
    case = Case()
    case.step(0, 0, None)
    with case.open(tmp_path) as trace:
        (row,) = step_times(trace)
    assert (row["steps"], row["warm_up"], row["mean_ns"], row["per_second"]) == (1, None, None, None)


def test_most_steps_wait_for_input(tmp_path: Path):
    case = Case()
    case.device()
    for start in training(case, [100] * 4):
        case.event("annotation", "enumerate(DataLoader)#Iter.__next__", start + 50, 20)
    with case.open(tmp_path) as trace:
        assert STEPS.remark(steps(trace)) == "4 of 4 steps wait for input for 20 % of their time or more."


def test_what_bounds_each_step(tmp_path: Path):
    """Steps of 100 ns on the host. Their work on the device: 10-50; 110-130; 310-330; 340-440; 540-560."""
    case = Case()
    case.device()
    work = [
        (0, 5, 10, 40),  # the first work: the window begins with it
        (1, 105, 110, 20),  # launched after the end of what was before it
        (2, 250, 310, 20),  # launched meanwhile too, but the process waited for its batch
        (3, 305, 340, 100),  # launched before: 10 ns of idle time are less than a tenth
        (4, 407, 540, 20),  # launched before: it waited for another stream
    ]
    for step, launch, start, dur in work:
        case.step(step, step * 100, 100)
        case.event("launch", "aten::mm", launch, 2, device=0, correlation=step + 1)
        case.event("kernel", "aten::mm", start, dur, device=0, correlation=step + 1)
    case.event("annotation", "enumerate(DataLoader)#Iter.__next__", 131, 100)
    with case.open(tmp_path) as trace:
        rows = sorted(step_bounds(trace), key=lambda row: row["step"])
        longest = step_bounds(trace, limit=1)
    assert [(row["step"], row["ts_ns"] - T0, row["window_ns"], row["idle_ns"], row["bound"]) for row in rows] == [
        (0, 10, 40, 0, "device"),
        (1, 50, 80, 60, "launch"),
        (2, 130, 200, 180, "input"),
        (3, 330, 110, 10, "device"),
        (4, 440, 120, 100, "wait"),
    ]
    assert [row["host_wait_ns"] for row in rows] == [0, 60, 180, 0, 0]
    assert [row["input_wait_ns"] for row in rows] == [0, 0, 100, 0, 0]
    assert [row["mean_delay_ns"] for row in rows] == [3, 3, 58, 33, 131]
    assert [row["mean_queue"] for row in rows] == [5 / 40, 5 / 80, 60 / 200, 35 / 110, 133 / 120]
    assert [row["step"] for row in longest] == [2]
