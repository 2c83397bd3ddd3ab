"""Unions of times, against the plain definition: a set of nanoseconds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ral_trace.analysis.intervals import Union, groups

SPANS = st.lists(st.tuples(st.integers(-20, 40), st.integers(0, 12)), max_size=12)


def union(spans: list[tuple[int, int]]) -> Union:
    start = np.array([begin for begin, _ in spans], dtype=np.int64)
    return Union.of(start, start + np.array([length for _, length in spans], dtype=np.int64))


def moments(found: Union) -> set[int]:
    return {at for start, end in zip(found.start, found.end, strict=True) for at in range(start, end)}


def of_spans(spans: list[tuple[int, int]]) -> set[int]:
    return {at for begin, length in spans for at in range(begin, begin + length)}


@given(SPANS)
def test_a_union_is_disjoint_sorted_and_whole(spans: list[tuple[int, int]]):
    found = union(spans)
    assert moments(found) == of_spans(spans)
    assert found.total_ns == len(of_spans(spans))
    assert (found.end > found.start).all()
    assert (found.start[1:] > found.end[:-1]).all()


@given(SPANS, SPANS)
def test_common_minus_and_gaps(one: list[tuple[int, int]], two: list[tuple[int, int]]):
    first, second = of_spans(one), of_spans(two)
    assert moments(union(one).common(union(two))) == first & second
    assert moments(union(one).minus(union(two))) == first - second
    span = set(range(min(second), max(second) + 1)) if second else set()
    assert moments(union(one).gaps(union(two))) == span - first


@given(SPANS, SPANS)
def test_how_much_lies_within(spans: list[tuple[int, int]], windows: list[tuple[int, int]]):
    start = np.array([begin for begin, _ in windows], dtype=np.int64)
    end = start + np.array([length for _, length in windows], dtype=np.int64)
    expected = [len(of_spans(spans) & set(range(begin, begin + length))) for begin, length in windows]
    assert union(spans).within(start, end).tolist() == expected


def test_times_since_the_epoch_keep_their_nanoseconds():
    start = np.array([1_790_000_000_000_000_001, 1_790_000_000_000_000_004])
    assert Union.of(start, start + 2).total_ns == 4


def test_groups_are_the_runs_of_a_key():
    assert [(key, rows.start, rows.stop) for key, rows in groups(np.array([3, 3, 5, 7, 7, 7]))] == [
        (3, 0, 2),
        (5, 2, 3),
        (7, 3, 6),
    ]
    assert list(groups(np.array([], dtype=np.int64))) == []
