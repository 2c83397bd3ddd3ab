"""The native longest path against its definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ral_trace.tracer import _native

EDGES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(-5, 20)), max_size=15)


def columns(edges: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    source, target, weight = np.array(edges, dtype=np.int64).reshape(-1, 3).T
    return source.astype(np.int32), target.astype(np.int32), weight


@given(EDGES, st.lists(st.integers(-10, 10), min_size=7, max_size=7))
def test_the_best_of_all_paths(edges: list[tuple[int, int, int]], value: list[int]):
    upwards = [edge for edge in edges if edge[0] < edge[1]]

    def best(node: int) -> int:
        return max([value[node], *(best(source) + weight for source, target, weight in upwards if target == node)])

    found, via = _native.longest_paths(*columns(upwards), np.array(value))
    assert found.tolist() == [best(node) for node in range(7)]
    for node, edge in enumerate(via.tolist()):
        if edge == -1:
            assert found[node] == value[node]
        else:
            source, target, weight = upwards[edge]
            assert (target, found[node]) == (node, found[source] + weight)


def test_of_edges_as_good_the_last_one_counts():
    _, via = _native.longest_paths(*columns([(0, 1, 3), (0, 1, 3), (0, 1, 2)]), np.array([0, 3]))
    assert via.tolist() == [-1, 1]


@pytest.mark.parametrize("edge", [(1, 1, 0), (2, 1, 0), (-1, 1, 0), (0, 3, 0)])
def test_an_edge_that_leads_nowhere_is_refused(edge: tuple[int, int, int]):
    with pytest.raises(ValueError, match="higher number"):
        _native.longest_paths(*columns([edge]), np.zeros(3, dtype=np.int64))


def test_columns_of_different_lengths_are_refused():
    source, target, weight = columns([(0, 1, 1), (1, 2, 1)])
    with pytest.raises(ValueError, match="same length"):
        _native.longest_paths(source, target[:1], weight, np.zeros(3, dtype=np.int64))


def test_sums_beyond_what_fits_stay_at_the_limit():
    most = np.iinfo(np.int64).max
    found, _ = _native.longest_paths(*columns([(0, 1, most), (1, 2, 5)]), np.array([5, 0, 0]))
    assert found.tolist() == [5, most, most]
