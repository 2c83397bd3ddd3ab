"""Whose a moment is: the native own times and unions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.tracer import _native

ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40)


def own(rows: list[tuple[int, int]], tolerance_ns: int = 0) -> list[int]:
    """Of (start, end) rows of one thread."""
    start, end = (np.array([row[i] for row in rows], np.int64) for i in range(2))
    return [int(each) for each in _native.own_times(np.zeros(len(rows), np.int32), start, end, tolerance_ns)]


def test_a_child_that_rounding_made_too_long_keeps_its_time() -> None:
    # The child ends 1 after its parent: the parent has 99 - 90, and the row around them what neither has.
    assert own([(10, 510), (20, 119), (30, 120)], 1) == [401, 9, 90]
    # Without a tolerance they cross: each moment is the row's that started last.
    assert own([(10, 510), (20, 119), (30, 120)]) == [400, 10, 90]


def test_what_a_parent_does_not_have_the_row_around_it_gives() -> None:
    # Its children have 15 + 16 of its 30.
    assert own([(0, 100), (10, 40), (10, 25), (25, 41)], 1) == [69, 0, 15, 16]


def test_neighbours_that_rounding_made_overlap_are_no_crossing() -> None:
    assert own([(0, 100), (10, 31), (30, 60)], 1) == [100 - 21 - 30, 21, 30]


@settings(deadline=None)
@given(ROWS, st.integers(0, 3))
def test_own_times_are_never_negative(rows: list[tuple[int, int, int]], tolerance: int) -> None:
    rows = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    thread, start, length = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    found = _native.own_times(thread.astype(np.int32), start, start + length, tolerance)
    assert (found >= 0).all()
    assert (found <= length).all()


@given(ROWS)
def test_a_union_counts_each_moment_once(rows: list[tuple[int, int, int]]) -> None:
    rows = sorted(rows, key=lambda row: row[1])
    group, start, length = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    found = _native.unions(group.astype(np.int32), start, start + length, 3)
    assert found.tolist() == [
        len({moment for other, begin, took in rows if other == number for moment in range(begin, begin + took)})
        for number in range(3)
    ]


@pytest.mark.parametrize("group", [-1, 2])
def test_a_group_that_there_is_not_is_refused(group: int) -> None:
    one = np.zeros(1, np.int64)
    with pytest.raises(ValueError, match="group beyond"):
        _native.unions(np.array([group], np.int32), one, one, 2)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="own_times: all columns"):
        _native.own_times(np.zeros(2, np.int32), np.zeros(1, np.int64), np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="unions: all columns"):
        _native.unions(np.zeros(2, np.int32), np.zeros(1, np.int64), np.zeros(2, np.int64), 1)
