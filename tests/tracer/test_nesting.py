"""The native nesting against its definition, written out."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.tracer import _native

Row = tuple[int, int, int]
"""Thread, start, end."""

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)).map(lambda r: (r[0], r[1], r[1] + r[2])),
    max_size=40,
)


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row[0], row[1], row[1] - row[2]))


def nested(rows: list[Row], tolerance_ns: int = 0) -> list[int]:
    thread, start, end = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(3))
    ids = np.arange(100, 100 + len(rows), dtype=np.int64)
    return [int(parent) for parent in _native.nest(thread.astype(np.int32), start, end, ids, tolerance_ns)]


def by_definition(rows: list[Row]) -> list[int]:
    """The last begun of the rows before it on its thread that contain it; an instant at a row's end lies in it too."""
    parents = []
    for i, (thread, start, end) in enumerate(rows):
        parent = -1
        for j, (other, begin, finish) in enumerate(rows[:i]):
            contains = start < finish and end <= finish
            touches = start == end == finish and begin < finish
            if other == thread and (contains or touches):
                parent = 100 + j
        parents.append(parent)
    return parents


@settings(max_examples=300, deadline=None)
@given(ROWS)
def test_parents_are_the_innermost_enclosing_rows(rows: list[Row]) -> None:
    assert nested(ordered(rows)) == by_definition(ordered(rows))


@settings(max_examples=100, deadline=None)
@given(ROWS)
def test_threads_do_not_see_each_other(rows: list[Row]) -> None:
    alone = [row for row in ordered(rows) if row[0] == 1]
    first = next((i for i, row in enumerate(ordered(rows)) if row[0] == 1), 0)
    together = [parent for row, parent in zip(ordered(rows), nested(ordered(rows)), strict=True) if row[0] == 1]
    assert [parent if parent < 0 else parent - first for parent in together] == nested(alone)


def test_a_rounding_error_does_not_orphan_a_child() -> None:
    rows = [(0, 0, 10), (0, 5, 11)]
    assert nested(rows) == [-1, -1]
    assert nested(rows, tolerance_ns=1) == [-1, 100]


def test_neighbours_are_not_nested() -> None:
    assert nested([(0, 0, 10), (0, 10, 20)]) == [-1, -1]
    assert nested([(0, 0, 10), (0, 10, 10)]) == [-1, 100]
    assert nested([]) == []
