"""The graph of a run: what had to be over before what could begin, on host threads, streams, devices and ranks.

Its nodes are moments: the begin and end of each kernel and copy, and the places on threads where device work is
started, waited for or handed over. Its edges say how much later the target is at the least. What arrives last
decides; the rest of the delay (a latency, a gap) belongs to that edge. So the graph, run through again, gives every
recorded time back exactly, and with other weights it says what would have been.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.intervals import Integers, Union, groups
from ral_trace.analysis.path_edges import Edge, Edges, gatherings, implied, last_ended, weights
from ral_trace.analysis.path_host import BEGINS, ENDED, GATHERED, INSTEAD_ENDS, Points, Spans, awaited, hand_over
from ral_trace.analysis.path_rows import (
    NONE,
    Columns,
    Window,
    backward_rows,
    device_rows,
    fallback_rows,
    host_rows,
    positions,
    stated_orders,
    wait_rows,
)
from ral_trace.tracer import _native
from ral_trace.tracer.reading import Trace

Flags = npt.NDArray[np.bool_]
Nodes = npt.NDArray[np.int32]

NOT_REACHED = np.iinfo(np.int64).min
"""Of a place that something else must reach first."""


@dataclass
class Graph:
    """See above. Nodes are numbered in the order of time, edges sorted by kind."""

    window: Window
    host: Columns
    device: Columns
    waits: Columns
    fallbacks: Columns
    time: Integers
    source: Nodes
    target: Nodes
    kind: Integers
    about: Integers
    weight: Integers
    """ns: how much later at the least, where all is run through again."""
    work: Integers
    """ns: of that what counts as work on a path; where the host did nothing that was recorded it is 0."""
    busy: dict[int, Union]
    waiting: dict[int, Union]
    """By thread: when something that was recorded ran on it; when it waited for a device or another thread."""
    ends: Integers
    """Node at which each row of `device`, then each of `fallbacks`, is over."""

    @property
    def delay(self) -> Integers:
        """ns between the two ends of each edge, as recorded."""
        return self.time[self.target] - self.time[self.source]

    def times(self, weight: Integers, kept: Flags | None = None) -> Integers:
        """When each node is reached with other weights, and with some of the edges only. What depends on nothing that
        was recorded stays where it was.
        """
        source, target = self.source, self.target
        depends = np.zeros(len(self.time), dtype=bool)
        depends[target] = True
        if kept is not None:
            source, target, weight = source[kept], target[kept], weight[kept]
            depends = np.zeros(len(self.time), dtype=bool)
            depends[target] = True
        found, _ = _native.longest_paths(source, target, weight, np.where(depends, NOT_REACHED, self.time))
        return found

    def longest_path(self) -> Integers:
        """The edges of the path with most work, in order."""
        value, via = _native.longest_paths(
            self.source, self.target, self.work, np.zeros(len(self.time), dtype=np.int64)
        )
        if not len(value):
            return value
        node, edges = int(np.argmax(value)), []
        while (edge := int(via[node])) != NONE:
            edges.append(edge)
            node = int(self.source[edge])
        return np.array(edges[::-1], dtype=np.int64)


def graph_of(trace: Trace, window: Window) -> Graph:
    """The graph of a stretch of steps, or of all."""
    return _Build(trace, window).graph()


class _Build:
    """Device nodes are numbered first (begins, ends, then the same of what stands for fallbacks), then the places on
    threads, then the gatherings of ranks.
    """

    def __init__(self, trace: Trace, window: Window) -> None:
        self.trace, self.window = trace, window
        self.host, self.device = host_rows(trace, window), device_rows(trace, window)
        self.waits, self.fallbacks = wait_rows(trace, window), fallback_rows(trace, window)
        self.count, self.instead = len(self.device["id"]), len(self.fallbacks["id"])
        self.begins = np.arange(self.count)
        # What takes no time is one moment.
        self.ends = np.where(self.device["stop"] > self.device["start"], self.begins + self.count, self.begins)
        self.instead_begins = 2 * self.count + np.arange(self.instead)
        self.instead_ends = self.instead_begins + self.instead
        self.edges, self.points = Edges(), Points()
        self.waiting, self.running = Spans(), Spans()
        self.device_nodes = 2 * (self.count + self.instead)

    def graph(self) -> Graph:
        self.running.add(self.host["thread"], self.host["start"], self.host["stop"])
        launches = self._launches()
        releases = self._releases()
        instead = self.points.add(self.fallbacks["thread"], self.fallbacks["start"])
        handed = hand_over(backward_rows(self.trace, self.window), self.host, self.points, self.waiting, self.running)
        self._thread_bounds()
        thread, time, order, which = self.points.distinct()
        node = self.device_nodes + which
        busy, waiting = self.running.unions(), self.waiting.unions()
        self._program(thread)
        self.edges.add(Edge.HANDOVER, node[handed.source], node[handed.target], np.full(len(handed.source), NONE))
        self.edges.add(Edge.WORK, self.begins, self.ends, self.begins)
        self.edges.add(Edge.WORK, self.instead_begins, self.instead_ends, self.count + np.arange(self.instead))
        self.edges.add(Edge.LAUNCH, node[launches[1]], self.begins[launches[0]], launches[0])
        self.edges.add(Edge.LAUNCH, node[instead], self.instead_begins, self.count + np.arange(self.instead))
        self._queues()
        self._stated()
        self.edges.add(Edge.RELEASE, self.ends[releases[0]], node[releases[2]], releases[1])
        moment, order = self._moments(time, order)
        moment, order = self._gather(moment, order)
        implied(self.edges, self.device, moment, self.ends)
        return self._numbered(moment, order, busy, waiting)

    def _launches(self) -> tuple[Integers, Integers]:
        rows = np.flatnonzero((self.device["launcher"] != NONE) & (self.device["launched"] <= self.device["start"]))
        return rows, self.points.add(self.device["launcher"][rows], self.device["launched"][rows])

    def _releases(self) -> tuple[Integers, Integers, Integers]:
        """(row of device, row of waits, point); the thread waits until that row's end."""
        by = awaited(self.waits, self.device)
        rows = np.flatnonzero(by != NONE)
        by = by[rows]
        thread, start, stop = (self.waits[column][rows] for column in ("thread", "start", "stop"))
        self.waiting.add(thread, start, np.maximum(start, self.device["stop"][by]))
        return by, rows, self.points.add(thread, stop)

    def _thread_bounds(self) -> None:
        for thread, rows in groups(self.host["thread"]):
            bounds = np.array([self.host["start"][rows].min(), self.host["stop"][rows].max()])
            self.points.add(np.full(2, thread), bounds)

    def _program(self, thread: Integers) -> None:
        follows = np.flatnonzero(thread[1:] == thread[:-1]) + self.device_nodes
        self.edges.add(Edge.PROGRAM, follows, follows + 1, thread[follows - self.device_nodes])

    def _queues(self) -> None:
        """In order within a stream and within a pipeline; a copy between devices is in a stream of both."""
        lane, engine = self.device["lane"], self.device["engine"]
        lanes = 1 + max(int(lane.max(initial=NONE)), int(self.device["far_lane"].max(initial=NONE)))
        queue = np.concatenate([lane, np.where(engine == NONE, NONE, engine + lanes), self.device["far_lane"]])
        row = np.tile(self.begins, 3)
        row, queue = row[queue != NONE], queue[queue != NONE]
        order = np.lexsort((row, queue))
        for number, rows in groups(queue[order]):
            work = row[order[rows]]
            before = last_ended(self.device["start"][work], self.device["stop"][work])
            known = before != NONE
            self.edges.add(Edge.QUEUE, self.ends[work[before[known]]], work[known], work[known])
            self._queue_instead(number, work)

    def _queue_instead(self, lane: int, work: Integers) -> None:
        """What would run in place of a fallback comes where the fallback is over."""
        mine = np.flatnonzero(self.fallbacks["lane"] == lane)
        at = self.fallbacks["stop"][mine]
        by_end = work[np.argsort(self.device["stop"][work], kind="stable")]
        earlier = np.searchsorted(self.device["stop"][by_end], at, side="right") - 1
        later = np.searchsorted(self.device["start"][work], at, side="left")
        some, more = earlier >= 0, later < len(work)
        row = self.count + mine
        self.edges.add(Edge.QUEUE, self.ends[by_end[earlier[some]]], self.instead_begins[mine[some]], row[some])
        self.edges.add(Edge.QUEUE, self.instead_ends[mine[more]], work[later[more]], row[more])

    def _stated(self) -> None:
        """Orders across streams that the source states."""
        stated = stated_orders(self.trace)
        earlier, later = (positions(self.device["id"], stated[column]) for column in ("earlier", "later"))
        known = (earlier != NONE) & (later != NONE)
        earlier, later = earlier[known], later[known]
        known = (self.device["stop"][earlier] <= self.device["start"][later]) & (earlier != later)
        self.edges.add(Edge.ORDER, self.ends[earlier[known]], later[known], later[known])

    def _moments(self, point_time: Integers, point_order: Integers) -> tuple[Integers, Integers]:
        begin, end, instead = self.device["start"], self.device["stop"], self.fallbacks["stop"]
        time = np.concatenate([begin, end, instead, instead, point_time])
        kinds = (BEGINS, ENDED, BEGINS, INSTEAD_ENDS)
        rows = (self.count, self.count, self.instead, self.instead)
        return time, np.concatenate([np.repeat(kinds, rows), point_order])

    def _gather(self, time: Integers, order: Integers) -> tuple[Integers, Integers]:
        """A collective goes on when the last rank is there."""
        row, group = gatherings(self.device)
        node = len(time) + group
        came = np.full(group.max(initial=NONE) + 1, np.iinfo(np.int64).min)
        np.maximum.at(came, group, self.device["start"][row])
        self.edges.add(Edge.TOGETHER, row, node, row)
        self.edges.add(Edge.TOGETHER, node, self.ends[row], row)
        return np.concatenate([time, came]), np.concatenate([order, np.full(len(came), GATHERED)])

    def _numbered(self, time: Integers, order: Integers, busy: dict[int, Union], waiting: dict[int, Union]) -> Graph:
        """All that leads forward. What takes no time and comes at the same time as what it leads to may not."""
        sequence = in_time(time, order)
        number = np.empty(len(sequence), dtype=np.int64)
        number[sequence] = np.arange(len(sequence))
        source, target, kind, about = self.edges.columns()
        source, target = number[source], number[target]
        forward = source < target
        source, target, kind, about = source[forward], target[forward], kind[forward], about[forward]
        time = time[sequence]
        ends = number[np.concatenate([self.ends, self.instead_ends])]
        weight, work = weights(source, target, kind, about, time, (self.device, self.waits), (busy, waiting))
        return Graph(
            self.window, self.host, self.device, self.waits, self.fallbacks, time, source.astype(np.int32),
            target.astype(np.int32), kind, about, weight, work, busy, waiting, ends,
        )  # fmt: skip


WITHIN_KEY = 1 << 59
"""ns; what a key of time and order can span."""


def in_time(time: Integers, order: Integers) -> Integers:
    """The nodes by time, and by order where that is the same."""
    if len(time) and int(time.max()) - int(time.min()) < WITHIN_KEY:
        return np.argsort((time - time.min()) * (GATHERED + 1) + order, kind="stable")
    return np.lexsort((order, time))
