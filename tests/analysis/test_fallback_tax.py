"""The fallback tax, its parts, what implementing gains; the map and the storms."""

from pathlib import Path

import pytest

from ral_trace.analysis.fallback_heat import STORM_FALLBACKS, STORM_GAP_NS, fallback_heat, fallback_storms, storm_said
from ral_trace.analysis.fallback_tax import PARTS, fallback_lines, fallback_tax, implement_first
from ral_trace.tracer.schema import FLAGS
from tests.analysis.cases import INVALID, Case

FORCED = FLAGS["FORCED"]


def copy(
    case: Case, launch: int, start: int, end: int, correlation: int, *, wait: tuple[int, int] | None = None
) -> None:
    """A copy that a fallback makes, and the wait that it forces."""
    if wait is not None:
        case.event("sync", "aten::cumsum", wait[0], wait[1] - wait[0], device=0, flags=FORCED)
    case.event("transfer", "aten::cumsum", start, end - start, device=0, correlation=correlation)
    length = wait[1] - launch if wait is not None else 10
    case.event("launch", "aten::cumsum", launch, length, device=0, correlation=correlation)


def kernel(case: Case, launch: int, start: int, end: int, correlation: int, device: int = 0) -> None:
    case.event("kernel", "aten::mm", start, end - start, device=device, correlation=correlation)
    case.event("launch", "aten::mm", launch, 5, device=device, correlation=correlation, args={"route": "native"})


def fell(case: Case, begin: int, end: int, correlation: int, name: str = "aten::cumsum", **more: object) -> int:
    args = {"routed": f"{name}.out", "reason": "native: no entry"}
    found = case.event("fallback", name, begin, end - begin, device=0, correlation=correlation, args=args, **more)
    case.event("launch", name, begin - 1, end - begin + 2, device=0, correlation=correlation, args={"route": "cpu"})
    return found


def one_of_all(case: Case) -> None:
    """A kernel 10-200; a fallback 100-500 that copies 210-250 in a wait 120-260, and back 460-520; a kernel at 560."""
    case.device()
    kernel(case, 0, 10, 200, 1)
    copy(case, 110, 210, 250, 3, wait=(120, 260))
    copy(case, 440, 460, 520, 4)
    fell(case, 100, 500, 2)
    kernel(case, 540, 560, 600, 5)


def test_the_parts_add_up(tmp_path: Path):
    case = Case()
    one_of_all(case)
    with case.open(tmp_path) as trace:
        (row,) = fallback_tax(trace)
        assert fallback_tax(trace, steady=True) == [row]  # no steps
        assert fallback_tax(trace, device="ral:7") == []
    # Copies 40 + 40 within and 20 after; the wait of 140 less its copy; idle 500-560 less the copy.
    assert [row[part] for part in PARTS] == [400 - 80 - 100, 100, 100, 40]
    assert row["tax_ns"] == 460
    assert row["overlapped_ns"] == 100  # the kernel ran until 200
    assert row["gain_ns"] == 360
    assert (row["percent"], row["left_ns"], row["left_percent"]) == (100, 0, 0)


def test_overlap_is_lost_only_as_far_as_the_device_had_other_work(tmp_path: Path):
    case = Case()
    case.device()
    kernel(case, 0, 10, 110, 1)
    fell(case, 100, 200, 2)
    kernel(case, 900, 905, 950, 3)
    with case.open(tmp_path) as trace:
        (row,) = fallback_tax(trace)
    # It ran beside the kernel for 10; so much earlier, and no more, could the host have been.
    assert (row["compute_ns"], row["overlapped_ns"], row["lost_ns"], row["gain_ns"]) == (100, 10, 10, 100)


def test_a_fallback_beneath_a_fallback_counts_once(tmp_path: Path):
    case = Case()
    case.device()
    fell(case, 120, 160, 2, "aten::inner")
    fell(case, 100, 200, 1, "aten::outer")
    with case.open(tmp_path) as trace:
        assert [(row["name"], row["tax_ns"], row["left_ns"]) for row in fallback_tax(trace)] == [
            ("aten::outer", 60, 40),
            ("aten::inner", 40, 0),
        ]


def test_what_is_left_after_the_first(tmp_path: Path):
    case = Case()
    case.device()
    for number, (name, length) in enumerate([("aten::a", 10), ("aten::b", 60), ("aten::c", 30), ("aten::b", 100)]):
        fell(case, number * 1000, number * 1000 + length, number, name)
    with case.open(tmp_path) as trace:
        rows = fallback_tax(trace)
        lines = fallback_lines(trace)
    assert [(row["name"], row["tax_ns"], row["left_ns"], row["left_percent"]) for row in rows] == [
        ("aten::b", 160, 40, 20),
        ("aten::c", 30, 10, 5),
        ("aten::a", 10, 0, 0),
    ]
    assert [(row["line"], row["name"], row["tax_ns"]) for row in lines] == [
        (None, "aten::b", 160),
        (None, "aten::c", 30),
        (None, "aten::a", 10),
    ]
    assert implement_first(rows) == "Fallbacks cost 200 ns; 80 % of that goes with aten::b on ral:0."


def test_only_steady_steps_if_there_are_steps(tmp_path: Path):
    case = Case()
    case.device()
    fell(case, 100, 150, 1)
    fell(case, 1100, 1130, 2)
    case.step(0, 1000, 500)
    with case.open(tmp_path) as trace:
        assert [row["tax_ns"] for row in fallback_tax(trace)] == [80]
        assert [row["tax_ns"] for row in fallback_tax(trace, steady=True)] == [30]


def test_unknown_and_impossible_durations_are_counted_and_in_no_sum(tmp_path: Path):
    case = Case()
    case.device()
    fell(case, 100, 200, 1)
    case.event("fallback", "aten::cumsum", 300, None, device=0)
    case.event("fallback", "aten::cumsum", 400, 10**12, device=0, flags=INVALID)
    case.event("fallback", "aten::other", 500, None, device=0)
    with case.open(tmp_path) as trace:
        known, unknown = fallback_tax(trace)
    assert (known["count"], known["tax_ns"]) == (3, 100)
    assert (unknown["count"], unknown["tax_ns"], unknown["gain_ns"], unknown["percent"]) == (1, None, None, None)
    assert implement_first([unknown]) is None


def test_the_map_has_the_devices_that_serve_the_op(tmp_path: Path):
    case = Case()
    case.device(index=0)
    case.device(index=1)
    for number in range(3):
        fell(case, number * 100, number * 100 + 50, number, "aten::gelu")
    kernel(case, 1000, 1010, 1020, 50)
    case.event("launch", "aten::gelu", 2000, 7, device=0, correlation=60, args={"route": "native"})
    case.event("launch", "aten::gelu", 2100, 9, device=1, correlation=61, args={"route": "native"})
    with case.open(tmp_path) as trace:
        found = [tuple(row.values()) for row in fallback_heat(trace)]
        assert [row["device"] for row in fallback_heat(trace, device="ral:1")] == ["ral:1"]
    assert found == [
        ("aten::gelu", "ral:0", "cpu", "native: no entry", 3, 150, 75.0, 75.0),
        ("aten::gelu", "ral:0", "native", None, 1, 7, 25.0, 0.0),
        ("aten::gelu", "ral:1", "native", None, 1, 9, 100.0, 0.0),
    ]


def test_a_storm_is_many_in_a_row(tmp_path: Path):
    case = Case()
    case.device()
    every = STORM_GAP_NS + 100
    for number in range(STORM_FALLBACKS):
        fell(case, number * every, number * every + 100, number, "aten::a" if number % 4 else "aten::b")
    apart = 10**9
    for number in range(STORM_FALLBACKS - 1):
        fell(case, apart + number * 200, apart + number * 200 + 100, 1000 + number)
    with case.open(tmp_path) as trace:
        (row,) = fallback_storms(trace)
    assert (row["count"], row["dur_ns"], row["total_ns"]) == (16, 15 * every + 100, 1600)
    assert (row["name"], row["percent"]) == ("aten::a", 75)
    assert row["per_second"] == pytest.approx(16e9 / (15 * every + 100))
    assert storm_said([row]) == "16 fallbacks within 15.0 ms on ral:0: 75 % of them aten::a."
