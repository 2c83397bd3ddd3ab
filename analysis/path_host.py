"""The host's part of the graph of a run: where its threads start device work, wait for it, and hand over to others."""

from dataclasses import dataclass, field

import numpy as np

from ral_trace.analysis.intervals import Integers, Union, groups
from ral_trace.analysis.path_rows import NONE, Columns

ENDED, WAKES, PASSES_ON, POINT, BEGINS, INSTEAD_ENDS, GATHERED = range(7)
"""What happens first of what happens at the same time: device work ends, a thread wakes another, a thread ends its
part, any other point of a thread, device work begins, work that stands for a fallback ends, all ranks have come.
"""

FEW_LATER = 8
"""Device rows launched by others during a wait that may end before it does."""


@dataclass
class Points:
    """Places on threads where the graph branches, in the order of their naming; the same place may be named often."""

    thread: list[Integers] = field(default_factory=list)
    time: list[Integers] = field(default_factory=list)
    order: list[Integers] = field(default_factory=list)
    count: int = 0

    def add(self, thread: Integers, time: Integers, order: int = POINT) -> Integers:
        """Names them; returns their numbers."""
        self.thread.append(np.asarray(thread, dtype=np.int64))
        self.time.append(np.asarray(time, dtype=np.int64))
        self.order.append(np.full(len(time), order))
        self.count += len(time)
        return np.arange(self.count - len(time), self.count)

    def distinct(self) -> tuple[Integers, Integers, Integers, Integers]:
        """(thread, time, order) of each place once, by thread and time; and which of them each number is."""
        columns = [
            np.concatenate([*column, np.zeros(0, dtype=np.int64)]) for column in (self.thread, self.time, self.order)
        ]
        sequence = np.lexsort(columns[::-1])
        thread, time, order = (column[sequence] for column in columns)
        new = np.ones(len(thread), dtype=bool)
        new[1:] = (thread[1:] != thread[:-1]) | (time[1:] != time[:-1]) | (order[1:] != order[:-1])
        which = np.empty(len(thread), dtype=np.int64)
        which[sequence] = np.cumsum(new) - 1
        return thread[new], time[new], order[new], which


@dataclass
class Spans:
    """Stretches of time on threads."""

    thread: list[Integers] = field(default_factory=list)
    start: list[Integers] = field(default_factory=list)
    stop: list[Integers] = field(default_factory=list)

    def add(self, thread: Integers, start: Integers, stop: Integers) -> None:
        """Adds a stretch a row."""
        self.thread.append(np.asarray(thread, dtype=np.int64))
        self.start.append(start)
        self.stop.append(stop)

    def unions(self) -> dict[int, Union]:
        """By thread."""
        if not self.thread:
            return {}
        thread = np.concatenate(self.thread)
        order = np.argsort(thread, kind="stable")
        start, stop = np.concatenate(self.start)[order], np.concatenate(self.stop)[order]
        return {key: Union.of(start[rows], stop[rows]) for key, rows in groups(thread[order])}


NO_TIME = Union(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


def awaited(waits: Columns, device: Columns) -> Integers:
    """The row of `device` at whose end each wait ended: of what was launched before the wait, in what it waits for (a
    stream, a device, or whatever the process has), the last to end before the wait did. -1: nothing that was recorded.
    """
    found = np.full(len(waits["id"]), NONE)
    scopes = np.stack([waits["process"], waits["device"], waits["lane"]], axis=1)
    for scope in np.unique(scopes, axis=0):
        rows = np.flatnonzero((scopes == scope).all(axis=1))
        inside = device["process"] == scope[0]
        for column, value in zip(("device", "lane"), scope[1:], strict=True):
            if value != NONE:
                inside &= device[column] == value
        work = np.flatnonzero(inside)
        found[rows] = _last_ended(waits["start"][rows], waits["stop"][rows], device, work)
    return found


def _last_ended(start: Integers, stop: Integers, device: Columns, work: Integers) -> Integers:
    work = work[np.argsort(device["stop"][work], kind="stable")]
    if not len(work):
        return np.full(len(start), NONE)
    ends, launched = device["stop"][work], device["launched"][work]
    place = np.searchsorted(ends, stop, side="right") - 1
    for _ in range(FEW_LATER):
        later = (place >= 0) & (launched[place] > start)
        if not later.any():
            break
        place = place - later
    known = (place >= 0) & (launched[place] <= start)
    # What takes no time and ends with the wait cannot be told from what came after it.
    known &= (ends[place] < stop) | (device["start"][work][place] < ends[place])
    return np.where(known, work[place], NONE)


@dataclass(frozen=True)
class Handovers:
    """A thread that waits while others run its backward pass. Each field is a number in `Points`."""

    source: Integers
    target: Integers


def hand_over(backward: Columns, host: Columns, points: Points, waiting: Spans, engine: Spans) -> Handovers:
    """The backward pass of a thread runs on threads of its own, one for each device, while nothing begins or ends on
    the thread that called it: it wakes the first of them, each hands over to the next, and the last one wakes it.

    Adds the times in which they wait to `waiting`, and what autograd takes between two nodes to `engine`.
    """
    part, first = _parts(backward, host)
    if not len(part):
        return Handovers(part, part)
    thread, waiter = backward["thread"][part].astype(np.int64), backward["waiter"][part].astype(np.int64)
    start, stop = backward["start"][part], backward["stop"][part]
    before = np.arange(len(part)) - 1  # the row before it in the same pass, on whichever thread
    same = ~first & (thread == thread[before])
    own = _before_on_thread(thread, start)
    changes = ~first & ~same & (stop[before] <= start)
    changes &= (own == NONE) | (stop[own] <= start[before])
    engine.add(thread[same], stop[before][same], start[same])
    woken = np.flatnonzero((first | changes) & (own != NONE))
    waiting.add(thread[woken], np.minimum(stop[own[woken]], start[woken]), start[woken])
    begins, passes = np.flatnonzero(first), np.flatnonzero(changes)
    ends = np.maximum.reduceat(stop, begins)
    last = _first_in_group(stop == np.repeat(ends, np.diff(np.append(begins, len(part)))), begins)
    waiting.add(waiter[begins], start[begins], ends)
    source = [
        points.add(waiter[begins], start[begins], WAKES),
        points.add(thread[before[passes]], stop[before[passes]], PASSES_ON),
        points.add(thread[last], ends, PASSES_ON),
    ]
    target = [
        points.add(thread[begins], start[begins]),
        points.add(thread[passes], start[passes]),
        points.add(waiter[begins], ends),
    ]
    return Handovers(np.concatenate(source), np.concatenate(target))


def _parts(backward: Columns, host: Columns) -> tuple[Integers, Integers]:
    """The rows during which nothing begins or ends on their waiter, those of a pass together; which begin a pass."""
    rows: list[Integers] = []
    first: list[Integers] = []
    for waiter in np.unique(backward["waiter"]):
        of_waiter = host["thread"] == waiter
        moments = np.unique(np.concatenate([host["start"][of_waiter], host["stop"][of_waiter]]))
        mine = np.flatnonzero(backward["waiter"] == waiter)
        gap = np.searchsorted(moments, backward["start"][mine], side="right")
        alone = gap == np.searchsorted(moments, backward["stop"][mine], side="left")
        mine, gap = mine[alone], gap[alone]
        order = np.argsort(gap, kind="stable")
        rows.append(mine[order])
        first.append(np.diff(gap[order], prepend=-1) != 0)
    none = np.zeros(0, dtype=np.int64)
    return np.concatenate([none, *rows]), np.concatenate([none.astype(bool), *first])


def _before_on_thread(thread: Integers, start: Integers) -> Integers:
    order = np.lexsort((start, thread))
    found = np.full(len(thread), NONE)
    follows = thread[order][1:] == thread[order][:-1]
    found[order[1:][follows]] = order[:-1][follows]
    return found


def _first_in_group(chosen: Integers, begins: Integers) -> Integers:
    """Of each group of rows the first that is chosen; every group has one."""
    places = np.flatnonzero(chosen)
    return places[np.searchsorted(places, begins)]
