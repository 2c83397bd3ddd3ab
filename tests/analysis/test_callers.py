from pathlib import Path

import numpy as np

from ral_trace.analysis.callers import NONE, Callers
from tests.analysis.cases import Case

OPS = "CASE WHEN e.kind = 'op' THEN e.id END"


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_rows_around_a_row(tmp_path: Path):
    case = Case()
    outer = case.event("op", "outer", 0, 100)
    case.event("annotation", "between", 10, 80)
    inner = case.event("op", "inner", 20, 60)
    launch = case.event("launch", "launch", 30, 10, correlation=1)
    alone = case.event("launch", "launch", 200, 10, correlation=2)
    with case.open(tmp_path) as trace:
        callers = Callers(trace, OPS)
        assert callers.nearest(ids(launch, inner, alone, 999)).tolist() == [inner, inner, NONE, NONE]
        around = [(index.tolist(), label.tolist()) for index, label in callers.around(ids(launch, alone, outer))]
        assert around == [([0, 2], [inner, outer]), ([0], [outer])]
        assert callers.around_any(ids(outer, inner, launch, 999), ids(launch, alone)).tolist() == [
            True,
            True,
            False,
            False,
        ]


def test_rows_that_lie_in_each_other_end(tmp_path: Path):
    case = Case()
    # a in b in a, and c in a; d and e, which stand for nothing, in each other.
    case.event("op", "a", 0, 10, parent=1)
    case.event("op", "b", 0, 10, parent=0)
    case.event("op", "c", 0, 10, parent=0)
    case.event("runtime", "d", 20, 10, parent=4)
    case.event("runtime", "e", 20, 10, parent=3)
    with case.open(tmp_path) as trace:
        callers = Callers(trace, OPS)
        assert callers.nearest(ids(2, 3, 4)).tolist() == [2, NONE, NONE]
        assert [label.tolist() for _, label in callers.around(ids(2, 3))] == [[2]]
        assert callers.around_any(ids(0, 1, 2, 3), ids(0, 1, 2, 3)).tolist() == [True, True, True, False]


def test_a_trace_without_host_rows(tmp_path: Path):
    case = Case()
    case.device()
    case.event("kernel", "k", 0, 10, device=0)
    with case.open(tmp_path) as trace:
        callers = Callers(trace, OPS)
        assert callers.nearest(ids(0, 5)).tolist() == [NONE, NONE]
        assert list(callers.around(ids(0))) == []
        assert callers.around_any(ids(0), ids(0)).tolist() == [False]
