"""Advice about planted problems, with the gain worked out on paper; none where nothing is wrong."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ral_trace.analysis.advice import advice, first_of_all
from ral_trace.tracer.schema import FLAGS
from tests.analysis.cases import INVALID, Case
from tests.analysis.test_communication import NAME, US, reduced, two_ranks

STEPS, STEP_NS = 10, 10_000


class Training:
    """Steps of STEP_NS; what happens in each is given relative to its begin."""

    def __init__(self) -> None:
        self.case = Case()
        self.case.device(type="ral", index=1)
        self.correlation = 0

    def run(self, step: Callable[[int], None]) -> Case:
        for number in range(STEPS):
            step(number * STEP_NS)
            self.case.step(number, number * STEP_NS, STEP_NS)
        return self.case

    def kernel(self, launch: int, start: int, end: int, name: str = "aten::mm", dur: int = 50) -> None:
        self.correlation += 1
        at = {"device": 0, "correlation": self.correlation}
        self.case.event("kernel", name, start, end - start, **at)
        self.case.event("launch", name, launch, dur, args={"route": "native"}, **at)

    def transfer(self, name: str, launch: int, start: int, dur: int, size: int, direction: str) -> None:
        self.correlation += 1
        at = {"device": 0, "correlation": self.correlation}
        self.case.event("transfer", name, start, dur, bytes=size, category=direction, **at)
        self.case.event("launch", "cudaMemcpyAsync", launch, 50, **at)


def healthy(training: Training, at: int) -> None:
    """Five kernels, launched well before they run, end to end."""
    for number in range(5):
        training.kernel(at + 100 * number, at + 500 + 2000 * number, at + 2500 + 2000 * number)


def test_a_healthy_program_gets_none(tmp_path: Path):
    training = Training()
    with training.run(lambda at: healthy(training, at)).open(tmp_path) as trace:
        assert advice(trace) == []
    assert first_of_all([]) is None


def test_an_op_that_falls_back(tmp_path: Path):
    training = Training()

    def step(at: int) -> None:
        training.kernel(at + 100, at + 500, at + 3500)
        training.case.event("fallback", "aten::gelu", at + 4000, 2000, device=0, args={"reason": "native: no entry"})
        training.kernel(at + 6100, at + 6200, at + 10_500)

    with training.run(step).open(tmp_path) as trace:
        first = advice(trace)[0]
        assert advice(trace, device="ral:0") == []
    # Nothing was pending while it ran: all of it is to be gained, 2000 of each 10,000.
    assert (first["what"], first["device"], first["to_do"]) == (
        "implement op",
        "ral:1",
        "implement aten::gelu on ral:1",
    )
    assert (first["gain_ns"], first["gain_percent"], first["gain_per_step_ns"], first["count"]) == (
        STEPS * 2000,
        20,
        2000,
        STEPS,
    )
    assert first["evidence"] == "fell back 10 times (1 a step): 20.0 µs of tax; native: no entry"
    assert first_of_all([first]) == "First: implement aten::gelu on ral:1 (about 20.0 µs, 20.0 %)."


def test_a_hidden_wait(tmp_path: Path):
    training = Training()

    def step(at: int) -> None:
        training.kernel(at + 100, at + 500, at + 5000)
        training.case.event("sync", "aten::_local_scalar_dense", at + 4000, 1200, device=0)
        training.case.event("op", "aten::item", at + 3900, 1400)
        training.kernel(at + 5800, at + 6000, at + 10_500)

    with training.run(step).open(tmp_path) as trace:
        first = advice(trace)[0]
    # 200 of the wait after the kernel had ended, and 800 until the next one: of 1000 that it had waited for work.
    assert (first["what"], first["gain_per_step_ns"], first["gain_percent"]) == ("remove wait", 1000, 10)
    assert first["to_do"].startswith("item: keep it on the device")
    assert first["found_by"] == "syncs"


def test_kernels_that_convert_between_layouts(tmp_path: Path):
    training = Training()

    def step(at: int) -> None:
        training.kernel(at + 100, at + 500, at + 1500, "void cudnn::ops::nchwToNhwcKernel<float>(int)")
        training.kernel(at + 200, at + 1500, at + 9500, "sm80_conv")
        training.kernel(at + 300, at + 9500, at + 10_500, "void cudnn::ops::nhwcToNchwKernel<float>(int)")

    with training.run(step).open(tmp_path) as trace:
        (only,) = advice(trace)
    assert (only["what"], only["gain_per_step_ns"], only["count"]) == ("change layout", 2000, 2 * STEPS)
    assert "channels_last" in only["to_do"]


def test_copies_that_reshape_makes(tmp_path: Path):
    training = Training()

    def step(at: int) -> None:
        training.kernel(at + 100, at + 500, at + 9000)
        training.transfer("aten::clone", at + 1000, at + 9000, 1500, 4096, "within_device")
        for number, name in enumerate(["aten::copy_", "aten::clone", "aten::reshape"], 1):
            training.case.event("op", name, at + 1000 - number, 60 + 2 * number)

    with training.run(step).open(tmp_path) as trace:
        (only,) = advice(trace)
    assert (only["what"], only["gain_per_step_ns"], only["count"]) == ("change layout", 1500, STEPS)


def test_steps_that_wait_for_input(tmp_path: Path):
    training = Training()

    def step(at: int) -> None:
        training.case.event("annotation", "enumerate(DataLoader)#_Iter.__next__", at, 3000)
        for number in range(3):
            training.kernel(at + 3000 + 60 * number, at + 3200 + 2000 * number, at + 5200 + 2000 * number)

    with training.run(step).open(tmp_path) as trace:
        first = advice(trace)[0]
    # All waits but the first, which is before any work of the device.
    assert (first["what"], first["gain_ns"], first["count"]) == ("prepare input", (STEPS - 1) * 3000, STEPS - 1)


def test_input_without_a_device(tmp_path: Path):
    training = Training()

    def step(at: int) -> None:
        training.case.event("annotation", "enumerate(DataLoader)#_Iter.__next__", at, 4000)
        training.case.event("op", "aten::mm", at + 4000, 6000)

    with training.run(step).open(tmp_path) as trace:
        (only,) = advice(trace)
    assert (only["what"], only["gain_per_step_ns"], only["device"]) == ("prepare input", 4000, None)


def test_steps_that_launch_too_slowly(tmp_path: Path):
    training = Training()

    def step(at: int) -> None:
        for number in range(20):
            training.kernel(at + 500 * number, at + 500 * number + 100, at + 500 * number + 200, f"aten::op{number}")

    with training.run(step).open(tmp_path) as trace:
        first = {row["what"]: row for row in advice(trace)}["launch less"]
    # 400 idle before each kernel but the first of the first step.
    assert first["gain_ns"] == (20 * STEPS - 1) * 400
    assert first["count"] == 20 * STEPS  # launches: many of them in one step are no chance
    assert "half the kernels take at most 100 ns, and half the launches come 500 ns or more" in first["evidence"]


def test_waits_are_not_counted_as_slow_launches(tmp_path: Path):
    training = Training()

    def step(at: int) -> None:
        for number in range(20):
            begin = at + 500 * number
            training.kernel(begin, begin + 10, begin + 100, f"aten::op{number}")
            training.case.event("sync", "aten::_local_scalar_dense", begin + 50, 440, device=0)

    with training.run(step).open(tmp_path) as trace:
        found = [row["what"] for row in advice(trace)]
    assert found[0] == "remove wait"
    assert "launch less" not in found


def test_copies_from_pageable_memory(tmp_path: Path):
    training = Training()

    def step(at: int) -> None:
        healthy(training, at)
        training.transfer("Memcpy HtoD (Pageable -> Device)", at + 600, at + 1000, 4000, 2000, "host_to_device")

    case = training.run(step)
    # At the link's 1 byte a nanosecond the 2,000 bytes would take 2,000.
    training.transfer("Memcpy HtoD (Pinned -> Device)", -(1 << 27), -(1 << 26), 1 << 26, 1 << 26, "host_to_device")
    with case.open(tmp_path) as trace:
        assert [row["what"] for row in advice(trace)] == []  # 20 us of 134 ms
    other = Training()
    other.run(lambda at: [other.transfer("Memcpy HtoD (Pageable -> Device)", at * 10**4, at * 10**4 + 100, 4 * 10**7,
                                         2 * 10**7, "host_to_device"), None][-1])  # fmt: skip
    other.transfer("Memcpy HtoD (Pinned -> Device)", -(1 << 27), -(1 << 26), 1 << 26, 1 << 26, "host_to_device")
    with other.case.open(tmp_path) as trace:
        (only,) = [row for row in advice(trace) if row["what"] == "pin memory"]
    assert (only["gain_ns"], only["count"], only["gain_per_step_ns"]) == (STEPS * 2 * 10**7, STEPS, None)


def test_small_copies_in_a_row(tmp_path: Path):
    """Copies take 100 and a nanosecond a byte: one of all saves 100 for each but the first."""
    training = Training()

    def step(at: int) -> None:
        training.kernel(at + 100, at + 500, at + 8500)
        for number in range(10):
            begin = at + 8500 + 130 * number
            training.transfer("Memcpy HtoD", begin - 40, begin, 100 + number, number, "host_to_device")

    with training.run(step).open(tmp_path) as trace:
        found = {row["what"]: row for row in advice(trace)}["merge copies"]
    assert (found["gain_ns"], found["count"], found["gain_per_step_ns"]) == (STEPS * 9 * 100, STEPS * 10, None)


def test_a_rank_that_is_always_late(tmp_path: Path):
    facts = reduced(1_000)
    first = [(NAME, 100 + 200 * number, 60, facts) for number in range(4)]
    second = [(NAME, 140 + 200 * number, 20, facts) for number in range(4)]
    with two_ranks(tmp_path, first, second) as trace:
        found = [row for row in advice(trace) if row["what"] == "balance ranks"]
    (late,) = found
    assert (late["gain_ns"], late["count"], late["to_do"][:29]) == (4 * 40 * US, 4, "see what makes rank 1 late: i")


def test_a_leak_has_no_gain_in_time(tmp_path: Path):
    training = Training()

    def step(at: int) -> None:
        healthy(training, at)
        training.case.alloc("aten::mm", at + 50, 1 << 20, at << 20)

    with training.run(step).open(tmp_path) as trace:
        (only,) = advice(trace)
    assert (only["what"], only["gain_ns"], only["gain_percent"]) == ("stop leak", None, None)
    assert "by 1.00 MiB a step" in only["evidence"]
    assert first_of_all([only]) == f"First: {only['to_do']}."


@pytest.mark.parametrize("seed", range(5))
def test_noise_gets_none(tmp_path: Path, seed: int):
    """Kernels that vary, gaps below a percent, waits that cost next to nothing, and what happens once or twice."""
    training = Training()
    dice = random.Random(seed)
    now = 500

    def step(at: int) -> None:
        nonlocal now
        for number in range(5):
            end = max(now + 10, at + 500 + 2000 * (number + 1) + dice.randint(-60, 60))
            training.kernel(at + 100 * number, now, end)
            now = end + dice.randint(0, 5)
        training.case.event("sync", "aten::_local_scalar_dense", at + 9000, dice.randint(1, 20), device=0)
        if at == 3 * STEP_NS or at == 7 * STEP_NS:
            training.case.event("fallback", "aten::rare", at + 8000, 900, device=0)

    case = training.run(step)
    training.case.event("fallback", "aten::odd", 0, 10**9, device=0, flags=INVALID)
    training.case.event("sync", "aten::item", 10**6, None, device=0, flags=FLAGS["UNFINISHED"])
    with case.open(tmp_path) as trace:
        assert advice(trace) == []


def test_one_event_gets_none(tmp_path: Path):
    case = Case()
    case.device()
    case.event("fallback", "aten::gelu", 0, 100, device=0)
    with case.open(tmp_path) as trace:
        assert advice(trace) == []


def test_of_a_real_program_with_an_op_missing(char_lm_without_gelu: Path):
    from ral_trace.tracer.reading import open_trace

    with open_trace(char_lm_without_gelu) as trace:
        found = {(row["what"], row["device"]): row for row in advice(trace)}
    gelu = found["implement op", "ral:1"]
    assert gelu["to_do"] == "implement aten::gelu on ral:1"
    assert gelu["gain_percent"] > 1
    assert "native: no entry" in gelu["evidence"]
