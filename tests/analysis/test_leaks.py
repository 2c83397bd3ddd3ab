"""What grows from step to step, and what of it is a leak."""

from pathlib import Path

import pytest

from ral_trace.analysis.leaks import leak_said, leaks
from ral_trace.tracer.reading import open_trace
from tests.analysis.cases import Case
from tests.shared import CASES, TRACES, needs_shared


def growing(steps: int, stated: bool = True) -> Case:
    """A site that leaks 64 bytes a step, one that frees within the step, one a step later, and a cache."""
    case = Case()
    case.device(index=0)
    for step in range(steps):
        start = step * 1000
        if stated:
            case.step(step, start, 900)
        case.alloc("leak", start + 10, 64, 10_000 + step * 64)
        case.alloc("scratch", start + 20, 512, 0)
        case.free(start + 30, 512, 0)
        if step == 2:
            case.alloc("cache", start + 40, 4096, 5_000_000)
        if step > 0:
            case.free(start + 50, 8, 9_000_000 + step - 1)
        case.alloc("steady", start + 60, 8, 9_000_000 + step)
    case.alloc("after the last step", steps * 1000 - 50, 8, 99_999_999)
    return case


def test_a_leak_is_told_from_a_cache(tmp_path: Path):
    with growing(6).open(tmp_path) as trace:
        leak, cache = leaks(trace)
    assert (cache["op"], cache["grown_bytes"], cache["steps_grown"], cache["steps"]) == ("cache", 4096, 1, 6)
    assert cache["confidence"] is None
    assert (leak["op"], leak["first_bytes"], leak["last_bytes"], leak["grown_bytes"], leak["grown_blocks"]) == (
        "leak", 64, 384, 320, 5,
    )  # fmt: skip
    assert (leak["steps_grown"], leak["steps_shrunk"], leak["bytes_per_step"], leak["live_blocks"]) == (5, 0, 64, 6)
    assert leak["fit_percent"] == pytest.approx(100)
    assert (leak["confidence"], leak["counted_in"]) == ("medium", "step")


@pytest.mark.parametrize(("steps", "confidence"), [(4, None), (5, "medium"), (9, "medium"), (10, "high"), (40, "high")])
def test_more_steps_are_more_evidence(steps: int, confidence: str | None, tmp_path: Path):
    with growing(steps).open(tmp_path) as trace:
        found = {row["op"]: row["confidence"] for row in leaks(trace)}
    assert found == {"leak": confidence, "cache": None}


def test_without_steps_parts_of_the_recording_are_compared(tmp_path: Path):
    with growing(30, stated=False).open(tmp_path) as trace:
        found = {row["op"]: row for row in leaks(trace)}
        said = leak_said(leaks(trace))
    assert (found["leak"]["confidence"], found["leak"]["counted_in"], found["leak"]["steps"]) == ("medium", "part", 10)
    assert "cache" not in found, "it was there at the end of the first part"
    assert said is not None
    assert "memory from leak on ral:0 grew in 9 of 9 parts of the recording" in said


def test_what_a_collection_frees_every_few_steps_is_no_leak(tmp_path: Path):
    """It grows in nine steps of ten, which at the ends of steps looks like a leak."""
    case = Case()
    case.device(index=0)
    for step in range(35):
        case.step(step, step * 1000, 900)
        case.alloc("cycle", step * 1000 + 10, 64, step * 64)
        if step % 10 == 9:
            for older in range(step - 9, step):
                case.free(step * 1000 + 20 + older % 10, 64, older * 64)
    with case.open(tmp_path) as trace:
        assert [row["confidence"] for row in leaks(trace)] == [None]


def test_each_process_has_its_own_steps_and_devices(tmp_path: Path):
    case = Case()
    for number in range(2):
        case.process(pid=number + 1)
        case.device(process=number, index=0)
        for step in range(10):
            case.step(step, step * 1000 + number * 77, 900, process=number)
            if number == 1:
                case.alloc("leak", step * 1000 + 100, 64, step * 64, device=1)
    with case.open(tmp_path) as trace:
        assert [(row["device"], row["confidence"]) for row in leaks(trace)] == [("ral:0 (pid 2)", "high")]
        assert leaks(trace, device="ral:0 (pid 1)") == []


@needs_shared
def test_f7():
    with open_trace(CASES / "snap" / "cyclic_garbage_collected.pickle") as trace:
        assert leaks(trace) == []
    with open_trace(CASES / "snap" / "leak_every_step.pickle") as trace:
        [leak] = leaks(trace)
    assert leak["confidence"] == "medium"
    assert (leak["live_blocks"], leak["last_bytes"], leak["line"]) == (30, 60 << 20, "train.py:10 <module>")


@needs_shared
def test_a_real_program_that_does_not_leak_is_not_accused():
    with open_trace(TRACES / "cuda_memory_snapshot.pickle") as trace:
        assert {row["confidence"] for row in leaks(trace)} == {None}
