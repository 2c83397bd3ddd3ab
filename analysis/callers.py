"""Who called whom: from a row of the host to the rows around it that stand for something, such as ops or modules."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ral_trace.tracer.reading import Trace

Integers = npt.NDArray[np.int64]

MOST_LEVELS = 4096
"""Calls nest no deeper. (A damaged trace may have rows that lie in each other.)"""
NONE = -1


class Callers:
    """The rows of the host. `label` is an integer in SQL for an event `e`: what it stands for; NULL: for nothing."""

    def __init__(self, trace: Trace, label: str, joined: str = "") -> None:
        rows = trace.sql(f"""
            SELECT e.id, coalesce(e.parent, {NONE}) AS parent, coalesce({label}, {NONE})::BIGINT AS label
            FROM event e {joined}
            WHERE e.thread IS NOT NULL AND e.kind NOT IN ('alloc', 'free', 'region', 'instant', 'counter', 'error')
            ORDER BY e.id""").fetchnumpy()
        self._id: Integers = np.asarray(rows["id"])
        self._label: Integers = np.asarray(rows["label"])
        self._above = self._positions(np.asarray(rows["parent"]))

    def _positions(self, ids: Integers) -> Integers:
        """Where rows are; NONE: they are not of the host."""
        if not len(self._id):
            return np.full(len(ids), NONE, np.int64)
        at = np.minimum(np.searchsorted(self._id, ids), len(self._id) - 1)
        return np.where(self._id[at] == ids, at, NONE)

    def _nearest(self, at: Integers) -> Integers:
        """The positions of the labelled rows at or above the rows at `at`."""
        found = at.copy()
        going = np.flatnonzero(found != NONE)
        for _ in range(MOST_LEVELS):
            going = going[self._label[found[going]] == NONE]
            if not len(going):
                return found
            found[going] = self._above[found[going]]
            going = going[found[going] != NONE]
        found[going] = NONE
        return found

    def nearest(self, ids: Integers) -> Integers:
        """The label of each row of `ids`, or of the innermost labelled row around it; NONE: there is none."""
        at = self._nearest(self._positions(ids))
        found = np.full(len(ids), NONE, np.int64)
        known = at != NONE
        found[known] = self._label[at[known]]
        return found

    def around(self, ids: Integers) -> Iterator[tuple[Integers, Integers]]:
        """The labels of all rows around the rows `ids`, themselves included: (indexes into ids, labels) of each level.

        The first level is `nearest`'s.
        """
        at = self._nearest(self._positions(ids))
        going = np.flatnonzero(at != NONE)
        outer = self._without_circles() if len(going) else at
        while len(going):
            yield going, self._label[at[going]]
            at[going] = outer[at[going]]
            going = going[at[going] != NONE]

    def around_any(self, rows: Integers, ids: Integers) -> npt.NDArray[np.bool_]:
        """Whether each of the labelled `rows` is, or lies around, any of the rows `ids`."""
        seen = np.zeros(len(self._id), bool)
        at = self._nearest(self._positions(ids))
        outer = self._without_circles()
        at = at[at != NONE]
        while len(at):
            seen[at] = True
            at = outer[at]
            at = at[at != NONE]
            at = at[~seen[at]]
        where = self._positions(rows)
        return np.asarray((where != NONE) & seen[where]) if len(seen) else np.zeros(len(rows), bool)

    def _without_circles(self) -> Integers:
        """For each labelled row the next one around it. Rows that lie in each other have none."""
        outer = np.full(len(self._id), NONE, np.int64)
        labelled = np.flatnonzero(self._label != NONE)
        outer[labelled] = self._nearest(self._above[labelled])
        jump = outer.copy()
        for _ in range(MOST_LEVELS.bit_length()):  # each round sees twice as many levels
            going = labelled[jump[labelled] != NONE]
            if not len(going):
                return outer
            jump[going] = jump[jump[going]]
        outer[labelled[jump[labelled] != NONE]] = NONE
        return outer
