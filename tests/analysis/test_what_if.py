"""Predictions for small runs, worked out on paper; times in ns."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ral_trace.analysis.what_if import what_if
from ral_trace.analysis.what_if_command import factor_of, native_of
from ral_trace.analysis.what_if_command import what_if as command
from ral_trace.tracer.errors import UsageError
from tests.analysis.cases import Case
from tests.analysis.test_critical_path import waiting_program


def predicted(case: Case, folder: Path, **scenario: object) -> tuple[int, int, int]:
    with case.open(folder) as trace:
        [row] = what_if(trace, **scenario)  # type: ignore[arg-type]
    assert row["gain_ns"] == row["before_ns"] - row["predicted_ns"]
    return row["before_ns"], row["predicted_ns"], row["calls"]


def test_without_a_wait_the_host_goes_on(tmp_path: Path):
    """The host is through at 20, the kernel at 58 as before."""
    assert predicted(waiting_program(), tmp_path, without_syncs=["torch.ral.synchronize"]) == (70, 58, 1)


def test_a_faster_kernel(tmp_path: Path):
    """8 to 33; the wait returns 2 later, the last call takes 10."""
    assert predicted(waiting_program(), tmp_path, faster={"gemm": 2.0}) == (70, 45, 1)


def test_a_slower_kernel(tmp_path: Path):
    assert predicted(waiting_program(), tmp_path, faster={"gemm": 0.5}) == (70, 120, 1)


def test_an_op_by_the_name_that_launched_the_kernel(tmp_path: Path):
    """Its kernel is faster, its own time on the host is as it was."""
    assert predicted(waiting_program(), tmp_path, faster={"aten::mm": 2.0}) == (70, 45, 1)


def test_an_op_of_the_host(tmp_path: Path):
    """The last call takes 10 / 4, rounded to 2."""
    assert predicted(waiting_program(), tmp_path, faster={"aten::add": 4.0}) == (70, 62, 1)


def test_all_at_once(tmp_path: Path):
    """The kernel is over at 33, the host at 20."""
    changes = {"without_syncs": ["torch.ral.synchronize"], "faster": {"gemm": 2.0}}
    assert predicted(waiting_program(), tmp_path, **changes) == (70, 33, 2)


def item_program(direction: str) -> Case:
    """A kernel, then an op that copies and waits for the copy, then a call."""
    case = Case()
    case.device(index=0)
    case.event("launch", "aten::mm", 0, 4, device=0, correlation=1)
    case.event("kernel", "aten::mm", 6, 50, device=0, correlation=1)
    item = case.event("op", "aten::item", 10, 60)
    local = case.event("op", "aten::_local_scalar_dense", 11, 58, parent=item)
    case.event("launch", "aten::_local_scalar_dense", 12, 3, device=0, correlation=2, parent=local)
    case.event("transfer", "copy", 58, 4, device=0, correlation=2, category=direction)
    case.event("sync", "aten::_local_scalar_dense", 16, 48, device=0, parent=local)
    case.event("op", "aten::add", 70, 30)
    return case


@pytest.mark.parametrize("name", ["aten::item", "aten::_local_scalar_dense"])
def test_without_reading_a_value_its_call_and_its_copy_are_gone(tmp_path: Path, name: str):
    """The host: 10, then 30. The kernel ends at 56."""
    assert predicted(item_program("device_to_host"), tmp_path, without_syncs=[name]) == (100, 56, 1)


def test_a_copy_to_the_device_stays_when_nobody_waits_for_it(tmp_path: Path):
    """The host: 16, the wait's 48 less, 6 to the end of the op, 30: 52. The copy ends at 62."""
    assert predicted(item_program("host_to_device"), tmp_path, without_syncs=["aten::item"]) == (100, 62, 1)


def test_a_queue_moves_up(tmp_path: Path):
    """k0 5 to 15; k1 was queued and begins 2 after it: 17 to 27."""
    case = Case()
    case.device(index=0)
    for number, (launch, start, length) in enumerate([(0, 5, 20), (2, 27, 10)]):
        case.event("launch", "l", launch, 1, device=0, correlation=number + 1)
        case.event("kernel", f"k{number}", start, length, device=0, correlation=number + 1)
    assert predicted(case, tmp_path, faster={"k0": 2.0}) == (37, 27, 1)


def fallback_program() -> Case:
    """A fallback with a copy each way, then a call, then a kernel; another kernel first."""
    case = Case()
    case.device(index=0)
    case.event("launch", "aten::mm", 0, 4, device=0, correlation=1)
    case.event("kernel", "aten::mm", 6, 10, device=0, correlation=1, bytes=100)
    case.event("launch", "aten::gelu", 20, 100, device=0, correlation=2)
    case.event("fallback", "aten::gelu", 21, 98, device=0, correlation=2, bytes=120)
    case.event("launch", "aten::gelu", 22, 3, device=0, correlation=3)
    case.event("transfer", "aten::gelu", 26, 20, device=0, correlation=3, category="device_to_host")
    case.event("sync", "aten::gelu", 25, 23, device=0)
    case.event("launch", "aten::gelu", 90, 3, device=0, correlation=4)
    case.event("transfer", "aten::gelu", 95, 20, device=0, correlation=4, category="host_to_device")
    case.event("op", "aten::view", 120, 10)
    case.event("launch", "aten::mm", 130, 4, device=0, correlation=5)
    case.event("kernel", "aten::mm", 136, 10, device=0, correlation=5, bytes=100)
    return case


def test_a_kernel_in_place_of_a_fallback(tmp_path: Path):
    """The call at 20 takes 4 as the others do, its kernel begins 6 after it and takes 15: 26 to 41. The host goes on:
    10 for the view, at 34 the last launch. Its kernel waits for the one before: 41 to 51."""
    assert predicted(fallback_program(), tmp_path, native={"aten::gelu": 15}) == (146, 51, 1)


def test_what_a_kernel_would_take_is_what_others_of_its_size_take(tmp_path: Path):
    """10: 26 to 36, and 40 to 50 for the last one, which begins 6 after its launch."""
    assert predicted(fallback_program(), tmp_path, native=["aten::gelu"]) == (146, 50, 1)


def test_a_faster_backward_pass_on_its_own_thread(tmp_path: Path):
    """9 less, and all that follows is earlier."""
    case = Case()
    case.event("op", "aten::mm", 0, 10)
    case.event("op", "MmBackward0", 12, 18, thread=7, category="backward")
    case.event("op", "AddBackward0", 31, 19, thread=8, category="backward")
    case.event("op", "aten::add_", 55, 5)
    assert predicted(case, tmp_path, faster={"MmBackward0": 2.0}) == (60, 51, 1)


def test_a_step_is_the_time_over_the_number_of_steps(tmp_path: Path):
    """Steps 1 and 2 of four: 100 to 290. Each has a wait of 20 for nothing that was recorded."""
    case = Case()
    case.device(index=0)
    for number in range(4):
        case.step(number, number * 100, 90)
        case.event("sync", "wait", number * 100 + 10, 20, device=0)
    assert predicted(case, tmp_path, without_syncs=["wait"]) == (95, 75, 2)


def test_the_likeliest_changes_the_best_first(tmp_path: Path):
    with fallback_program().open(tmp_path) as trace:
        rows = what_if(trace)
    assert [row["scenario"] for row in rows] == [
        "aten::gelu native", "without waiting in aten::gelu", "aten::gelu 2 x as fast", "aten::mm 2 x as fast",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ({"without_syncs": ["nobody"]}, "no wait of the steps looked at is named nobody"),
        ({"native": ["aten::mm"]}, "no fallback of the steps looked at is named aten::mm"),
        ({"native": {"aten::mm": -1}}, "cannot take -1 ns"),
        ({"faster": {"nobody": 2.0}}, "no op, kernel or copy of the steps looked at is named nobody"),
        ({"faster": {"gemm": 0.0}}, "0.0 times as fast is no speed"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, scenario: dict[str, object], message: str):
    with waiting_program().open(tmp_path) as trace, pytest.raises(UsageError, match=message):
        what_if(trace, **scenario)  # type: ignore[arg-type]


def test_the_command(tmp_path: Path):
    waiting_program().open(tmp_path).close()
    words = [str(tmp_path / "case.duckdb"), "--without-sync", "torch.ral.synchronize", "--faster", "gemm=2"]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    assert "70 ns" in done.output
    assert "33 ns" in done.output


@pytest.mark.parametrize(
    ("text", "name", "ns"),
    [("aten::gelu", "aten::gelu", None), ("aten::gelu=20us", "aten::gelu", 20_000), ("a=b=1.5ms", "a=b", 1_500_000)],
)
def test_native_of(text: str, name: str, ns: int | None):
    assert native_of(text) == (name, ns)


@pytest.mark.parametrize("text", ["aten::gelu=", "aten::gelu=20", "=20us", "aten::gelu=fast"])
def test_no_time(text: str):
    with pytest.raises(UsageError, match="--native"):
        native_of(text)


def test_factor_of():
    assert factor_of("aten::mm=2.5") == ("aten::mm", 2.5)
    for text in ("aten::mm", "=2", "aten::mm=", "aten::mm=twice", "aten::mm=-1"):
        with pytest.raises(UsageError, match="--faster"):
            factor_of(text)
