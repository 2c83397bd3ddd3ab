"""The edges of the graph of a run, and how much later than their source their target is at the least."""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from ral_trace.analysis.intervals import Integers, Union, groups
from ral_trace.analysis.path_host import NO_TIME
from ral_trace.analysis.path_rows import NONE, Columns

JOIN_NS = 10_000
"""Work that was queued and begins so soon after another stream's work ended had waited for that."""


class Edge(IntEnum):
    """What an edge is. Of those that come together the later listed one is the cause: the device, not the host."""

    PROGRAM = 0  # along a thread; `about` is the thread
    HANDOVER = 1  # from thread to thread
    WORK = 2  # a kernel or copy; `about` is its row, from len(device) on what stands for a fallback
    LAUNCH = 3  # from the call to what it started; `about` as for work, here and below
    TOGETHER = 4  # among the ranks of a collective
    QUEUE = 5  # in order: of a stream, of a pipeline
    ORDER = 6  # across streams
    RELEASE = 7  # from what was waited for to the end of the wait; `about` is the wait's row


@dataclass
class Edges:
    """Edges as they are found, between nodes that have no final numbers yet."""

    source: list[Integers] = field(default_factory=list)
    target: list[Integers] = field(default_factory=list)
    kind: list[Integers] = field(default_factory=list)
    about: list[Integers] = field(default_factory=list)

    def add(self, kind: Edge, source: Integers, target: Integers, about: Integers) -> None:
        """Adds some of one kind."""
        self.source.append(np.asarray(source, dtype=np.int64))
        self.target.append(np.asarray(target, dtype=np.int64))
        self.kind.append(np.full(len(source), kind, dtype=np.int64))
        self.about.append(np.asarray(about, dtype=np.int64))

    def columns(self) -> tuple[Integers, Integers, Integers, Integers]:
        """(source, target, kind, about), by kind; those that do not lead from a node to another are left out."""
        source, target, kind, about = (np.concatenate(c) for c in (self.source, self.target, self.kind, self.about))
        order = np.flatnonzero(source != target)
        order = order[np.argsort(kind[order].astype(np.int8), kind="stable")]
        return source[order], target[order], kind[order], about[order]


def last_ended(start: Integers, stop: Integers) -> Integers:
    """For each row the last to end of those that were over when it began; -1: none. Rows by start, then stop.

    That is the row before it, unless rows overlap.
    """
    if not len(start):
        return np.zeros(0, dtype=np.int64)
    before = np.arange(len(start)) - 1
    latest = np.maximum.accumulate(stop)[:-1]
    rows = np.flatnonzero(np.concatenate([[False], (latest > start[1:]) | (latest > stop[:-1])]))
    if len(rows):
        by_end = np.argsort(stop, kind="stable")
        # What takes no time is not over before it begins.
        until = np.where(stop[rows] > start[rows], start[rows], start[rows] - 1)
        place = np.searchsorted(stop[by_end], until, side="right") - 1
        before[rows] = np.where(place >= 0, by_end[place], NONE)
    return before


def implied(edges: Edges, device: Columns, time: Integers, ends: Integers) -> None:
    """Adds the waits of a stream for another that nobody recorded: work that was queued, whose own stream was free,
    and that began as other work ended which had been launched before it.
    """
    ready = np.full(len(device["id"]), np.iinfo(np.int64).min)
    for source, target, kind in zip(edges.source, edges.target, edges.kind, strict=True):
        if len(kind) and kind[0] in (Edge.LAUNCH, Edge.QUEUE, Edge.ORDER):
            real = target < len(ready)
            np.maximum.at(ready, target[real], time[source[real]])
    for process in np.unique(device["process"]):
        rows = np.flatnonzero(device["process"] == process)
        start, stop = device["start"][rows], device["stop"][rows]
        order = np.argsort(stop, kind="stable")
        by_end = rows[order]
        place = np.searchsorted(stop[order], start, side="right") - 1
        cause = by_end[np.maximum(place, 0)]
        after = start - device["stop"][cause]
        waited = (place >= 0) & (device["launcher"][rows] != NONE) & (device["stop"][cause] > ready[rows])
        waited &= (after == 0) | ((after <= JOIN_NS) & (start - JOIN_NS > ready[rows]))
        waited &= device["launched"][cause] <= device["launched"][rows]
        edges.add(Edge.ORDER, ends[cause[waited]], rows[waited], rows[waited])


def gatherings(device: Columns) -> tuple[Integers, Integers]:
    """(row of `device`, number of the collective) where ranks meet: the n-th of a name in each of several processes,
    where all of them were in it at one time.
    """
    rows = np.flatnonzero(device["communicates"] & (device["stop"] > device["start"]))
    none = np.zeros(0, dtype=np.int64)
    if len(np.unique(device["process"][rows])) < 2:
        return none, none
    order = np.lexsort((rows, device["process"][rows], device["name"][rows]))
    rows = rows[order]
    key = np.stack([device["name"][rows], device["process"][rows]], axis=1)
    begins = np.concatenate([[True], (key[1:] != key[:-1]).any(axis=1)])
    first = np.flatnonzero(begins)
    nth = np.arange(len(rows)) - first[np.cumsum(begins) - 1]
    _, group = np.unique(np.stack([device["name"][rows], nth], axis=1), axis=0, return_inverse=True)
    group = group.reshape(-1)
    groups_there = group.max() + 1
    came, left = np.full(groups_there, np.iinfo(np.int64).min), np.full(groups_there, np.iinfo(np.int64).max)
    np.maximum.at(came, group, device["start"][rows])
    np.minimum.at(left, group, device["stop"][rows])
    met = ((came < left) & (np.bincount(group) > 1))[group]
    _, group = np.unique(group[met], return_inverse=True)
    return rows[met], group.reshape(-1)


def weights(
    source: Integers, target: Integers, kind: Integers, about: Integers, time: Integers,
    rows: tuple[Columns, Columns], threads: tuple[dict[int, Union], dict[int, Union]],
) -> tuple[Integers, Integers]:  # fmt: skip
    """(ns that each edge takes at the least, ns of that which count as work on a path)."""
    device, waits = rows
    delay = time[target] - time[source]
    weight, work = delay.copy(), delay.copy()
    _on_threads(source, target, kind, about, time, threads, weight, work)
    _starts(source, target, kind, about, time, device, weight, work)
    together = np.flatnonzero(kind == Edge.TOGETHER)
    arrives = together[_begins(source, together, device, about, time)]
    weight[arrives] = work[arrives] = 0
    goes_on = np.setdiff1d(together, arrives)
    shared = np.flatnonzero((kind == Edge.WORK) & np.isin(about, about[goes_on]))
    left = np.zeros(len(device["id"]), dtype=np.int64)
    left[about[goes_on]] = delay[goes_on]
    weight[shared] = work[shared] = left[about[shared]]
    release = np.flatnonzero(kind == Edge.RELEASE)
    begun = waits["start"][about[release]]
    idle = release[time[source[release]] <= begun]
    weight[idle] = waits["stop"][about[idle]] - waits["start"][about[idle]]
    work[idle] = 0
    return weight, work


def _begins(source: Integers, together: Integers, device: Columns, about: Integers, time: Integers) -> Integers:
    """Which of the edges of collectives lead from a rank's begin, rather than to its end."""
    row = about[together]
    to_end = np.zeros(len(together), dtype=bool)
    # Each row has two: the first was added for the begin.
    _, first = np.unique(row, return_index=True)
    to_end[:] = True
    to_end[first] = False
    return ~to_end


def _on_threads(
    source: Integers, target: Integers, kind: Integers, about: Integers, time: Integers,
    threads: tuple[dict[int, Union], dict[int, Union]], weight: Integers, work: Integers,
) -> None:  # fmt: skip
    """A thread takes its time but for what it waits; what it does while nothing is recorded of it is no work."""
    busy, waiting = threads
    edges = np.flatnonzero(kind == Edge.PROGRAM)
    for thread, rows in groups(about[edges]):
        mine = edges[rows]
        begin, end = time[source[mine]], time[target[mine]]
        idle = waiting.get(thread, NO_TIME)
        weight[mine] -= idle.within(begin, end)
        work[mine] = busy.get(thread, NO_TIME).minus(idle).within(begin, end)


def _starts(
    source: Integers, target: Integers, kind: Integers, about: Integers, time: Integers,
    device: Columns, weight: Integers, work: Integers,
) -> None:  # fmt: skip
    """What came last let a kernel or copy begin: the whole delay is its. The others have what that takes mostly."""
    stands_in = (about >= len(device["id"])) & np.isin(kind, [Edge.LAUNCH, Edge.QUEUE])
    weight[stands_in] = work[stands_in] = 0
    edges = np.flatnonzero(np.isin(kind, [Edge.LAUNCH, Edge.QUEUE, Edge.ORDER]) & ~stands_in)
    came = np.full(len(time), np.iinfo(np.int64).min)
    np.maximum.at(came, target[edges], time[source[edges]])
    decides = time[source[edges]] == came[target[edges]]
    work[edges[~decides]] = 0
    where = device["device"][about[edges]]
    for edge_kind in (Edge.LAUNCH, Edge.QUEUE, Edge.ORDER):
        of_kind = kind[edges] == edge_kind
        for on in np.unique(where[of_kind]):
            mine = of_kind & (where == on)
            lets = edges[mine & decides]
            typical = int(np.median(weight[lets])) if len(lets) else 0
            others = edges[mine & ~decides]
            weight[others] = np.minimum(weight[others], typical)
