"""Sets of times: unions, what two have in common, the gaps. All exact, in integer nanoseconds.

A union of intervals is what "busy" means: two kernels that run at the same time keep a device busy once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Union:
    """Disjoint intervals [start, end) that do not touch, in order of time."""

    start: Integers
    end: Integers

    @classmethod
    def of(cls, start: Integers, end: Integers) -> Self:
        """The union of intervals in any order. Those without length add nothing."""
        some = end > start
        start, end = start[some], end[some]
        if not len(start):
            return cls(start, end)
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        begins = np.concatenate([[True], start[1:] > end[:-1]])
        last = np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(start) - 1]])
        return cls(start[begins], end[last])

    @property
    def total_ns(self) -> int:
        """How much time it covers."""
        return int((self.end - self.start).sum())

    def before(self, times: Integers) -> Integers:
        """How much of it lies before each of `times`."""
        covered = np.concatenate([[0], np.cumsum(self.end - self.start)])
        index = np.searchsorted(self.start, times, side="right")
        inside = np.zeros(len(times), dtype=np.int64)
        begun = index > 0
        over = self.end[index[begun] - 1] - times[begun]
        inside[begun] = np.maximum(over, 0)
        return np.asarray(covered[index] - inside, dtype=np.int64)

    def within(self, start: Integers, end: Integers) -> Integers:
        """How much of it lies in each of the intervals, which may overlap each other."""
        return self.before(end) - self.before(start)

    def common(self, other: "Union") -> "Union":
        """The times that lie in both."""
        return self.minus(other.gaps(self))

    def minus(self, other: "Union") -> "Union":
        """The times that lie in this one only."""
        times = np.concatenate([self.start, self.end, other.start, other.end])
        ours = np.concatenate([np.ones_like(self.start), -np.ones_like(self.end), np.zeros(2 * len(other.start), int)])
        theirs = np.concatenate(
            [np.zeros(2 * len(self.start), int), np.ones_like(other.start), -np.ones_like(other.end)]
        )
        order = np.argsort(times, kind="stable")
        times = times[order]
        free = (np.cumsum(ours[order]) > 0) & (np.cumsum(theirs[order]) == 0)
        return Union.of(times[:-1][free[:-1]], times[1:][free[:-1]])

    def gaps(self, over: "Union") -> "Union":
        """The times that it leaves free between the first begin and the last end of `over`."""
        if not len(over.start):
            return over
        return Union(over.start[:1], over.end[-1:]).minus(self)


def numbered(key: Integers) -> tuple[Integers, Integers]:
    """The different values of a key, sorted, and which of them each row has."""
    if not len(key):
        return key, key
    least, most = int(key.min()), int(key.max())
    if most - least > 4 * len(key) + 1_000_000:
        values, number = np.unique(key, return_inverse=True)
        return values, number
    there = np.zeros(most - least + 1, bool)
    there[key - least] = True
    values = np.flatnonzero(there)
    place = np.zeros(len(there), np.int64)
    place[values] = np.arange(len(values))
    return values + least, place[key - least]


def groups(key: npt.NDArray[np.generic]) -> Iterator[tuple[int, slice]]:
    """Each value of a sorted key, with where its rows are."""
    if len(key):
        begins = np.concatenate([[0], np.flatnonzero(key[1:] != key[:-1]) + 1, [len(key)]])
        for begin, end in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True):
            yield int(key[begin]), slice(begin, end)
