from pathlib import Path

import pytest

from ral_trace.analysis.small_copies import small_copies
from tests.analysis.cases import Case


def copy(case: Case, start: int, took: int, size: int, direction: str = "host_to_device", stream: int = 0) -> None:
    """A copy, and a launch that takes 20 ns, less than any copy: it does not enclose one."""
    number = len(case.events) + 1
    case.event("launch", "aten::_to_copy", start - 30, 20, device=0, correlation=number)
    case.event("transfer", "aten::_to_copy", start, took, device=0, category=direction, bytes=size, stream=stream,
               correlation=number)  # fmt: skip


def test_copies_in_a_row_save_the_latency_of_all_but_one(tmp_path: Path):
    case = Case()
    case.device()
    # Each takes 100 ns and 1 ns for 10 bytes; they are 10 ns apart, half of what launching one takes.
    start = 1000
    for size in (100, 200, 300, 400, 500):
        copy(case, start, 100 + size // 10, size)
        start += 100 + size // 10 + 10
    with case.open(tmp_path) as trace:
        [row] = small_copies(trace)
    assert (row["device"], row["stream"], row["direction"], row["op"]) == (
        "ral:0", 0, "host_to_device", "aten::_to_copy"
    )  # fmt: skip
    assert (row["runs"], row["count"], row["bytes"], row["total_ns"]) == (1, 5, 1500, 650)
    assert (row["latency_ns"], row["saved_ns"]) == (100, 400)


def test_copies_of_one_size_do_not_say_what_a_copy_of_nothing_takes(tmp_path: Path):
    case = Case()
    case.device()
    for number in range(4):
        copy(case, 1000 + 110 * number, 100, 64)
    with case.open(tmp_path) as trace:
        [row] = small_copies(trace)
    assert (row["count"], row["latency_ns"], row["saved_ns"]) == (4, None, None)


@pytest.mark.parametrize("broken", ["gap", "direction", "stream", "large", "kernel", "few"])
def test_what_ends_a_run(tmp_path: Path, broken: str):
    case = Case()
    case.device()
    for number in range(6 if broken != "few" else 3):
        late = 20 if broken == "gap" and number >= 3 else 0
        other = number == 3
        size = 1 << 16 if broken == "large" and other else 64
        direction = "device_to_host" if broken == "direction" and other else "host_to_device"
        stream = 1 if broken == "stream" and number >= 3 else 0
        if broken == "kernel" and other:
            case.event("kernel", "aten::mm", 1000 + 110 * number - 5, 2, device=0)
        copy(case, 1000 + 110 * number + late, 100, size, direction, stream)
    with case.open(tmp_path) as trace:
        assert small_copies(trace) == []


def test_without_launches_nobody_knows_what_is_close(tmp_path: Path):
    case = Case()
    case.device()
    for number in range(8):
        case.event("transfer", "c", 100 * number, 100, device=0, category="host_to_device", bytes=8)
    with case.open(tmp_path) as trace:
        assert small_copies(trace) == []
