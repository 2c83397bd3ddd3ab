from pathlib import Path

import pytest

from ral_trace.analysis.fusion import fusion
from tests.analysis.cases import Case


class Stream:
    """Kernels one after the other on ral:0, each launched by a call of 100 ns."""

    def __init__(self) -> None:
        self.case = Case()
        self.case.device()
        self.now = 1000

    def add(self, name: str, took: int, gap: int = 0) -> None:
        self.now += gap
        number = len(self.case.events) + 1
        self.case.event("launch", name, self.now - 200, 100, device=0, correlation=number)
        self.case.event("kernel", name, self.now, took, device=0, correlation=number)
        self.now += took

    def other(self) -> None:
        """Something that belongs to no run."""
        self.add("aten::sort", 5000, 5000)


def test_a_multiplication_and_what_follows_it(tmp_path: Path):
    stream = Stream()
    for _ in range(3):
        stream.other()
        stream.add("aten::addmm", 3000, 5000)
        stream.add("aten::gelu", 40, 60)  # the gap goes
        stream.add("aten::mul.Tensor", 30, 150)  # the gap is longer than a launch takes: 100 of it go
    with stream.case.open(tmp_path) as trace:
        [row] = fusion(trace)
    assert (row["pattern"], row["ops"]) == (
        "matrix multiplication + elementwise",
        "aten::addmm → aten::gelu → aten::mul.Tensor",
    )
    assert (row["device"], row["count"], row["kernels"], row["launches_saved"]) == ("ral:0", 3, 3, 6)
    assert (row["total_ns"], row["gap_ns"], row["gain_ns"], row["launch_ns"]) == (3 * 3070, 3 * 210, 3 * 160, 100)


@pytest.mark.parametrize(
    ("names", "pattern"),
    [
        (["aten::convolution", "aten::native_batch_norm", "aten::relu_"], "convolution + norm + elementwise"),
        (["aten::add.Tensor", "aten::native_layer_norm"], "norm chain"),
        (["aten::add.Tensor", "aten::mul.Tensor", "aten::add.Tensor"], "elementwise chain"),
        (["aten::_foreach_mul_.Scalar", "aten::_foreach_add_.Scalar"], "optimizer"),
    ],
)
def test_known_patterns(tmp_path: Path, names: list[str], pattern: str):
    stream = Stream()
    for _ in range(4):
        stream.other()
        for number, name in enumerate(names):
            stream.add(name, 20, 50 if number else 5000)
    with stream.case.open(tmp_path) as trace:
        [row] = fusion(trace)
    assert (row["pattern"], row["count"], row["kernels"]) == (pattern, 4, len(names))
    assert row["gain_ns"] == 4 * 50 * (len(names) - 1)


def test_a_long_run_of_any_small_kernels(tmp_path: Path):
    stream = Stream()
    for _ in range(3):
        stream.other()
        for number in range(10):
            stream.add(["aten::sum", "aten::cat"][number % 2], 20, 50 if number else 5000)
    with stream.case.open(tmp_path) as trace:
        [row] = fusion(trace)
    assert (row["pattern"], row["kernels"], row["count"], row["gain_ns"]) == ("launch-bound run", 10, 3, 3 * 9 * 50)


@pytest.mark.parametrize("why", ["seldom", "large", "at once", "far", "another stream", "copy between"])
def test_no_evidence_no_row(tmp_path: Path, why: str):
    stream = Stream()
    for _ in range(2 if why == "seldom" else 5):
        stream.other()
        stream.add("aten::mul.Tensor", 20, 5000)
        if why == "copy between":
            stream.case.event("transfer", "aten::copy_", stream.now + 10, 5, device=0, bytes=4)
        stream.add("aten::add.Tensor", 3000 if why == "large" else 20, {"at once": 1, "far": 1001}.get(why, 50))
        if why == "another stream":
            stream.case.events[-1]["stream"] = 1
    with stream.case.open(tmp_path) as trace:
        assert fusion(trace) == []


def test_unknown_launch_costs_gain_nothing(tmp_path: Path):
    case = Case()
    case.device()
    for number in range(50):
        case.event("kernel", "aten::add.Tensor", 100 * number, 10, device=0)
    with case.open(tmp_path) as trace:
        assert fusion(trace) == []
