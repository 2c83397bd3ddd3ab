from pathlib import Path

import pytest

from ral_trace.analysis.fallbacks import fallbacks
from tests.analysis.cases import Case, fallback


def test_cost_copies_and_share(tmp_path: Path):
    case = Case()
    case.device(index=1, vendor="sim")
    fallback(case, 1000, 100, device=0, correlation=1, copies=[(1010, 20, 64), (1070, 10, 32)])
    fallback(case, 2000, 50, device=0, correlation=2, copies=[(2010, 5, 16)])
    fallback(case, 3000, 500, device=0, correlation=3, copies=[], reason="native: dtype")
    case.event("launch", "aten::mm", 4000, 10, device=0, correlation=4)
    case.event("kernel", "aten::mm", 4001, 8, device=0, correlation=4)
    with case.open(tmp_path) as trace:
        by_dtype, no_entry = fallbacks(trace)
        assert fallbacks(trace, device="ral:0") == []
    assert (by_dtype["reason"], by_dtype["total_ns"], by_dtype["copies"], by_dtype["copied_bytes"]) == (
        "native: dtype",
        500,
        0,
        None,
    )
    assert (no_entry["device"], no_entry["name"], no_entry["routed"]) == ("ral:1", "aten::cumsum", "aten::cumsum.out")
    assert (no_entry["count"], no_entry["total_ns"], no_entry["copies_ns"]) == (2, 150, 35)
    assert (no_entry["copies"], no_entry["copied_bytes"], no_entry["forced_syncs"]) == (3, 112, 3)
    # Four calls went to the device; the launches of the fallbacks' own copies are none of them.
    assert no_entry["percent_of_launches"] == pytest.approx(50.0)


def test_rows_beneath_ops_within_a_fallback_are_its_own(tmp_path: Path):
    case = Case()
    case.device(index=1)
    case.event("transfer", "aten::_to_copy", 120, 10, device=0, correlation=5, bytes=8)
    case.event("launch", "aten::_to_copy", 115, 20, device=0, correlation=5)
    case.event("op", "aten::_to_copy", 112, 26)
    case.event("fallback", "aten::cumsum", 100, 100, device=0, correlation=1)
    case.event("transfer", "aten::copy_", 320, 10, device=0, correlation=6, bytes=800)
    case.event("launch", "aten::copy_", 315, 20, device=0, correlation=6)
    with case.open(tmp_path) as trace:
        (row,) = fallbacks(trace)
    assert (row["copies"], row["copied_bytes"], row["copies_ns"]) == (1, 8, 10)


def test_a_parent_that_is_its_own_ancestor_does_not_hang(tmp_path: Path):
    case = Case()
    case.device(index=0)
    case.event("fallback", "a", 0, 10, device=0, parent=1)
    case.event("op", "b", 0, 10, parent=0)
    with case.open(tmp_path) as trace:
        assert [row["count"] for row in fallbacks(trace)] == [1]
