from pathlib import Path

import pytest

from ral_trace.analysis.across import across
from tests.analysis.cases import Case, fallback


def run(
    case: Case, device: int, took: int, *, shapes: str | None = None, dtypes: str = '["float32"]', route: str = "native"
) -> None:
    """An op, its launch and its kernel."""
    number = len(case.events) + 1
    start = number * 10_000
    process = case.devices[device]["process"]
    args = {"shapes": shapes, "dtypes": dtypes} if shapes else None
    case.event("op", "aten::mm", start, 50, args=args, process=process, thread=process)
    case.event("launch", "aten::mm", start + 5, 10, device=device, correlation=number, args={"route": route})
    case.event("kernel", "aten::mm", start + 100, took, device=device, correlation=number, args={"kernel": "k"})


@pytest.fixture
def case() -> Case:
    case = Case()
    case.device(index=0)
    case.device(index=1)
    return case


def test_the_median_by_that_of_the_fastest(case: Case, tmp_path: Path):
    for took in (100, 200, 300, 1000):
        run(case, 0, took)
    for took in (50, 100, 150):
        run(case, 1, took)
    case.event("kernel", "aten::add", 0, 10, device=0)
    with case.open(tmp_path) as trace:
        fast, slow = across(trace)
        assert across(trace, device="ral:0") == [slow]
    assert (fast["name"], fast["device"], fast["median_ns"], fast["ratio"], fast["reason"]) == (
        "aten::mm", "ral:1", 100, 1.0, None
    )  # fmt: skip
    assert (slow["device"], slow["count"], slow["total_ns"], slow["mean_ns"]) == ("ral:0", 4, 1600, 400)
    # The lower of the two medians is 200. Nothing shows why.
    assert (slow["median_ns"], slow["ratio"], slow["ratio_on_equal_inputs"], slow["reason"]) == (200, 2.0, None, None)


def test_other_shapes_and_types_are_a_reason(case: Case, tmp_path: Path):
    for _ in range(3):
        run(case, 0, 400, shapes="[[64,64]]", dtypes='["float64"]')
        run(case, 1, 100, shapes="[[8,8]]")
    with case.open(tmp_path) as trace:
        [_, slow] = across(trace)
    assert slow["reason"] == 'types ["float64"], there ["float32"]; shapes [[64,64]], there [[8,8]]'
    assert slow["ratio_on_equal_inputs"] is None


def test_equal_inputs_are_compared(case: Case, tmp_path: Path):
    for _ in range(3):
        run(case, 0, 300, shapes="[[8,8]]")
        run(case, 1, 100, shapes="[[8,8]]")
    with case.open(tmp_path) as trace:
        [_, slow] = across(trace)
    assert (slow["ratio"], slow["ratio_on_equal_inputs"]) == (3.0, 3.0)
    assert slow["reason"] == "slower on the same types and shapes, too (3.00 x): the device or its kernel"


def test_the_mix_of_inputs_may_be_all(case: Case, tmp_path: Path):
    for _ in range(3):
        run(case, 0, 100, shapes="[[8,8]]")
        run(case, 1, 100, shapes="[[8,8]]")
        for _ in range(2):
            run(case, 0, 900, shapes="[[64,64]]")
    with case.open(tmp_path) as trace:
        [_, slow] = across(trace)
    assert (slow["ratio"], slow["ratio_on_equal_inputs"]) == (9.0, 1.0)
    assert slow["reason"].startswith("on equal inputs no slower (1.00 x)")


def test_a_fallback_and_a_route_are_reasons(case: Case, tmp_path: Path):
    for number in range(3):
        fallback(case, 100_000 + 1000 * number, 500, device=0, correlation=900 + number, copies=[])
    for number in range(3):
        case.event("launch", "aten::cumsum", 200_000 + 1000 * number, 5, device=1, correlation=700 + number)
        case.event("kernel", "aten::cumsum", 200_100 + 1000 * number, 50, device=1, correlation=700 + number)
        run(case, 0, 200, route="reference")
        run(case, 1, 100)
    with case.open(tmp_path) as trace:
        reasons = {row["name"]: row["reason"] for row in across(trace) if row["device"] == "ral:0"}
    assert reasons == {
        "aten::cumsum": "3 of 3 calls fell back to the CPU (native: no entry)",
        "aten::mm": "route reference, there native",
    }


def test_the_host_is_compared_where_it_ran_the_op_itself(case: Case, tmp_path: Path):
    for number in range(3):
        run(case, 0, 100)
        case.event("op", "aten::mm", 500_000 + 1000 * number, 400)
    with case.open(tmp_path) as trace:
        device, host = across(trace)
    assert (device["device"], device["count"]) == ("ral:0", 3)
    assert (host["device"], host["count"], host["median_ns"], host["ratio"]) == ("host", 3, 400, 4.0)


def test_few_runs_are_no_measure(case: Case, tmp_path: Path):
    for _ in range(3):
        run(case, 0, 100)
    for _ in range(2):
        run(case, 1, 10)
    with case.open(tmp_path) as trace:
        assert across(trace) == []


def test_several_processes_and_nothing(tmp_path: Path):
    case = Case()
    case.process(pid=1)
    case.process(pid=2)
    case.device(process=0)
    case.device(process=1)
    with case.open(tmp_path) as trace:
        assert across(trace) == []
    for _ in range(3):
        run(case, 0, 100)
        run(case, 1, 200)
    (tmp_path / "case.duckdb").unlink()
    with case.open(tmp_path) as trace:
        assert [(row["device"], row["ratio"]) for row in across(trace)] == [
            ("ral:0 (pid 1)", 1.0),
            ("ral:0 (pid 2)", 2.0),
        ]


@pytest.mark.parametrize("backwards", [False, True])
def test_of_two_routes_taken_equally_often_the_first_by_name_stands(case: Case, tmp_path: Path, backwards: bool):
    for route in ("native", "compiled", "native", "compiled")[:: -1 if backwards else 1]:
        run(case, 0, 100, route=route)
        run(case, 1, 100)
    order = list(range(len(case.events)))
    with case.open(tmp_path, order[:: -1 if backwards else 1]) as trace:
        assert {row["device"]: row["route"] for row in across(trace)} == {"ral:0": "compiled", "ral:1": "native"}
