from pathlib import Path

from ral_trace.analysis.steps import steps
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
        "transferred_bytes": 7, "kernel_ns": 30,
    }  # fmt: skip
    assert (second["step"], second["dur_ns"]) == (1, None)


def test_steps_inferred_from_the_optimiser(tmp_path: Path):
    case = Case()
    case.event("op", "aten::mm", 10, 20)
    case.event("annotation", "Optimizer.step#SGD.step", 50, 50)
    case.event("op", "aten::mm", 110, 40)
    case.event("annotation", "Optimizer.step#SGD.step", 150, 60)
    with case.open(tmp_path) as trace:
        assert [(row["step"], row["ts_ns"] - T0, row["dur_ns"]) for row in steps(trace)] == [(0, 10, 90), (1, 110, 100)]
