"""What if: the run again, without some waits, with kernels in place of fallbacks, with some things faster."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ral_trace.analysis.base import LINE, TIME_NS, Analysis, Column, Rows
from ral_trace.analysis.critical_path import SOMETHING_TIMED, bounds, window_of
from ral_trace.analysis.intervals import Integers, Union, groups
from ral_trace.analysis.path_edges import Edge
from ral_trace.analysis.path_graph import Flags, Graph, graph_of
from ral_trace.analysis.path_host import NO_TIME, Spans
from ral_trace.analysis.path_rows import INSIDE, NONE, positions
from ral_trace.analysis.units import duration
from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

EACH = 5
"""Waits, fallbacks and kernels that are tried where nobody names any."""

DEEPEST = 64
"""Calls around a wait that are looked at."""


@dataclass(frozen=True)
class Scenario:
    """What would be different. Names are those of the trace: of ops, kernels, waits."""

    without_syncs: Sequence[str] = ()
    """Waits by their name, that of an op around them, or a part of the line (train.py:12) that waits."""
    native: Mapping[str, int | None] = field(default_factory=dict)
    """Ops that fall back, and how long a kernel of the device would take (ns); None: as its kernels of such size do."""
    faster: Mapping[str, float] = field(default_factory=dict)
    """Ops, kernels or copies, and how many times as fast they are."""

    @property
    def said(self) -> str:
        """In words, with the trace's names, which are untrusted text."""
        parts = [f"without waiting in {name}" for name in self.without_syncs]
        parts += [f"{name} native" + ("" if ns is None else f" in {duration(ns)}") for name, ns in self.native.items()]
        parts += [f"{name} {factor:g} x as fast" for name, factor in self.faster.items()]
        return ", ".join(parts) or "as it was"


@dataclass
class Changed:
    """The weights of a graph's edges in a scenario."""

    graph: Graph
    weight: Integers
    kept: Flags
    gone: Spans = field(default_factory=Spans)
    """Of the host's time."""
    calls: int = 0
    """Waits, fallbacks, kernels, copies and host calls that the scenario concerns."""
    quick: list[tuple[float, dict[int, Union]]] = field(default_factory=list)
    """Factors of the host's time."""

    def times(self) -> Integers:
        """When everything would be reached."""
        weight = self.weight.copy()
        gone = self.gone.unions()
        edges = np.flatnonzero(self.graph.kind == Edge.PROGRAM)
        for thread, rows in groups(self.graph.about[edges]):
            if thread in gone or any(thread in spans for _, spans in self.quick):
                weight[edges[rows]] = self._on_thread(thread, edges[rows], gone.get(thread, NO_TIME))
        return self.graph.times(weight, self.kept)

    def _on_thread(self, thread: int, edges: Integers, gone: Union) -> Integers:
        begin, end = self.graph.time[self.graph.source[edges]], self.graph.time[self.graph.target[edges]]
        idle = _joined(self.graph.waiting.get(thread, NO_TIME), gone)
        takes = end - begin - idle.within(begin, end)
        for factor, spans in self.quick:
            mine = spans.get(thread, NO_TIME).minus(idle)
            spent = mine.within(begin, end)
            takes += np.rint(spent / factor).astype(np.int64) - spent
            idle = _joined(idle, mine)
        return takes

    def without_time(self, row: Integers) -> None:
        """Rows of `device` (and what they wait for to begin) that take no time."""
        graph = self.graph
        concerned = np.isin(graph.kind, [Edge.WORK, Edge.LAUNCH, Edge.QUEUE, Edge.ORDER]) & np.isin(graph.about, row)
        self.weight[concerned] = 0


def _joined(first: Union, second: Union) -> Union:
    return Union.of(np.concatenate([first.start, second.start]), np.concatenate([first.end, second.end]))


def changed(trace: Trace, graph: Graph, scenario: Scenario) -> Changed:
    """The graph in a scenario. Raises UsageError for a name that the steps looked at do not have."""
    change = Changed(graph, graph.weight.copy(), np.ones(len(graph.kind), dtype=bool))
    for name in scenario.without_syncs:
        _found(_without_sync(trace, change, name), name, "wait")
    for name, ns in scenario.native.items():
        if ns is not None and ns < 0:
            raise UsageError(f"a kernel cannot take {ns} ns")
        _found(_native(trace, change, name, ns), name, "fallback")
    for name, factor in scenario.faster.items():
        if not 0 < factor < float("inf"):
            raise UsageError(f"{name}: {factor} times as fast is no speed; give a number above 0")
        _found(_faster(trace, change, name, factor), name, "op, kernel or copy")
    return change


def _found(count: int, name: str, what: str) -> None:
    if not count:
        raise UsageError(f"no {what} of the steps looked at is named {plain(name)}")


MATCHED_WAITS = f"""
    WITH RECURSIVE {LINE}, inside AS MATERIALIZED (
        SELECT e.id, e.parent, e.kind, e.name, e.thread, e.ts_ns, e.dur_ns, e.stack, {TIME_NS} >= 0 AS timed
        FROM event e WHERE e.thread IS NOT NULL AND e.dur_ns IS NOT NULL AND {INSIDE}),
    up AS (
        SELECT e.id AS wait, e.id, e.parent, e.name, line, true AS whole, 0 AS depth
        FROM inside e LEFT JOIN line_of USING (stack) WHERE e.kind IN ('sync', 'wait') AND e.timed
        UNION ALL
        SELECT up.wait, p.id, p.parent, p.name, up.line, up.whole AND p.kind IN ('op', 'launch', 'runtime'), depth + 1
        FROM up JOIN inside p ON p.id = up.parent WHERE depth < {DEEPEST}),
    matched AS (
        SELECT wait, arg_max(id, depth) FILTER (whole) AS call FROM up
        GROUP BY wait HAVING bool_or(name = $3) OR bool_or(contains(line, $3)))
    SELECT m.wait, c.thread, c.ts_ns AS start, c.ts_ns + c.dur_ns AS stop, w.ts_ns AS wait_start,
           w.ts_ns + w.dur_ns AS wait_stop
    FROM matched m JOIN inside c ON c.id = m.call JOIN inside w ON w.id = m.wait ORDER BY m.wait"""


def _without_sync(trace: Trace, change: Changed, name: str) -> int:
    """The wait is gone, and with it a call that is there for it only: one that does no more than copy to the host."""
    graph = change.graph
    found = trace.sql(MATCHED_WAITS, [*graph.window.parameters, name]).fetchnumpy()
    thread, start, stop = found["thread"], found["start"].copy(), found["stop"].copy()
    device = graph.device
    inside = _contains(thread, start, stop, device["launcher"], device["launched"])
    does_more = np.isin(np.arange(len(thread)), inside[0][~device["to_host"][inside[1]]])
    start[does_more], stop[does_more] = found["wait_start"][does_more], found["wait_stop"][does_more]
    change.gone.add(thread, start, stop)
    change.without_time(np.unique(inside[1][~does_more[inside[0]]]))
    rows = positions(graph.waits["id"], found["wait"])
    change.kept &= ~((graph.kind == Edge.RELEASE) & np.isin(graph.about, rows[rows != NONE]))
    change.calls += len(thread)
    return len(thread)


def _contains(
    thread: Integers, start: Integers, stop: Integers, of_thread: Integers, time: Integers
) -> tuple[Integers, Integers]:
    """Pairs (span, place): the places on threads that lie within each span."""
    order = np.lexsort((time, of_thread))
    spans, places = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
    for number, rows in groups(of_thread[order]):
        mine = np.flatnonzero(thread == number)
        at = time[order[rows]]
        first, last = np.searchsorted(at, start[mine]), np.searchsorted(at, stop[mine])
        counts = np.maximum(last - first, 0)
        spans.append(np.repeat(mine, counts))
        offset = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        places.append(order[rows][np.repeat(first, counts) + offset])
    return np.concatenate(spans), np.concatenate(places)


def _native(trace: Trace, change: Changed, name: str, ns: int | None) -> int:
    """In place of the fallback, its copies and its waits: a launch as others take, and a kernel in stream order."""
    graph = change.graph
    named = trace.sql(
        f"SELECT e.id FROM event e WHERE e.kind = 'fallback' AND e.name = $3 AND {INSIDE} ORDER BY e.id",
        [*graph.window.parameters, name],
    ).fetchnumpy()["id"]
    rows = positions(graph.fallbacks["id"], named)
    rows = rows[rows != NONE]
    columns = {key: values[rows] for key, values in graph.fallbacks.items()}
    call = typical_launch(graph)
    stop = columns["stop"]
    change.gone.add(columns["thread"], np.minimum(columns["start"] + call, stop), stop)
    inside = _contains(columns["thread"], columns["start"], stop, graph.device["launcher"], graph.device["launched"])
    change.without_time(np.unique(inside[1]))
    waits = graph.waits
    over = np.unique(_contains(columns["thread"], columns["start"], stop, waits["thread"], waits["start"])[1])
    change.kept &= ~((graph.kind == Edge.RELEASE) & np.isin(graph.about, over))
    takes = kernel_times(graph, columns["device"], columns["bytes"]) if ns is None else np.full(len(rows), ns)
    about = np.zeros(len(graph.device["id"]) + len(graph.fallbacks["id"]), dtype=np.int64)
    about[len(graph.device["id"]) + rows] = takes
    instead = np.isin(graph.about, len(graph.device["id"]) + rows)
    work = instead & (graph.kind == Edge.WORK)
    change.weight[work] = about[graph.about[work]]
    change.weight[instead & (graph.kind == Edge.LAUNCH)] = launch_delay(graph)
    change.calls += len(rows)
    return len(rows)


def typical_launch(graph: Graph) -> int:
    """ns: the median call that launched a kernel."""
    took = graph.device["call_ns"][graph.device["is_kernel"]]
    known = took[took != NONE]
    return int(np.median(known)) if len(known) else 0


def launch_delay(graph: Graph) -> int:
    """ns: the median from a call to the kernel that it started on an idle stream."""
    edges = np.flatnonzero((graph.kind == Edge.LAUNCH) & (graph.work > 0))
    delays = graph.work[edges[graph.device["is_kernel"][graph.about[edges]]]]
    return int(np.median(delays)) if len(delays) else 0


def kernel_times(graph: Graph, device: Integers, size: Integers) -> Integers:
    """ns that a kernel for so many bytes would take: the median of the device's kernels with about half to twice as
    many, else of all that it has, else 0.
    """
    takes = np.zeros(len(device), dtype=np.int64)
    kernels = graph.device
    rows = np.flatnonzero(kernels["is_kernel"])
    length, moved = (kernels["stop"] - kernels["start"])[rows], _octave_parts(kernels["bytes"][rows])
    wanted, which = np.unique(np.stack([device, _octave_parts(size)], axis=1), axis=0, return_inverse=True)
    for number, (on, part) in enumerate(wanted.tolist()):
        mine = kernels["device"][rows] == on
        like = mine & (np.abs(moved - part) <= OCTAVE_PARTS) & (moved >= 0)
        chosen = like if part >= 0 and like.any() else mine
        takes[which.reshape(-1) == number] = int(np.median(length[chosen])) if chosen.any() else 0
    return takes


OCTAVE_PARTS = 4


def _octave_parts(size: Integers) -> Integers:
    """Sizes on a scale on which twice as many bytes are OCTAVE_PARTS more; -1: unknown."""
    return np.where(size > 0, np.floor(OCTAVE_PARTS * np.log2(np.maximum(size, 1))), NONE).astype(np.int64)


def _faster(trace: Trace, change: Changed, name: str, factor: float) -> int:
    """Its kernels and copies take less; where it launched none, its time on the host."""
    graph, device = change.graph, change.graph.device
    found = trace.sql(
        f"""
        SELECT e.id, coalesce(e.thread, {NONE}) AS thread, e.ts_ns AS start, e.ts_ns + e.dur_ns AS stop,
               e.kind IN ('op', 'fallback', 'annotation') AS calls
        FROM event e WHERE (e.name = $3 OR (e.kind = 'kernel' AND e.args->>'kernel' = $3))
          AND e.kind IN ('op', 'fallback', 'annotation', 'kernel', 'transfer') AND {TIME_NS} >= 0 AND {INSIDE}
        ORDER BY e.id""",
        [*graph.window.parameters, name],
    ).fetchnumpy()
    on_host = found["calls"] & (found["thread"] != NONE)
    thread, start, stop = (found[column][on_host] for column in ("thread", "start", "stop"))
    inside = _contains(thread, start, stop, device["launcher"], device["launched"])
    named = positions(device["id"], found["id"][~on_host])
    rows = np.unique(np.concatenate([named[named != NONE], inside[1]]))
    work = np.isin(graph.kind, [Edge.WORK, Edge.TOGETHER]) & np.isin(graph.about, rows)
    change.weight[work] = np.rint(change.weight[work] / factor).astype(np.int64)
    idle = ~np.isin(np.arange(len(thread)), inside[0])
    spans = Spans()
    spans.add(thread[idle], start[idle], stop[idle])
    change.quick.append((factor, spans.unions()))
    change.calls += len(rows) + int(idle.sum())
    return len(found["id"])


@dataclass(frozen=True)
class Prediction:
    """A scenario, how many calls it concerns, and ns of a step, or of all where no steps are looked at."""

    scenario: Scenario
    calls: int
    before_ns: int
    predicted_ns: int


def step_time(graph: Graph, times: Integers) -> int:
    """ns of a step: all that was looked at, from the first begin to the last end, over the number of steps in it.

    Where the host runs ahead of the devices steps overlap, and only this says how fast they follow each other.
    """
    used = np.concatenate([graph.source, graph.target])
    if not len(used):
        return 0
    steps = np.concatenate([graph.host["step"], graph.device["step"]])
    count = len(np.unique(steps[steps != NONE])) if graph.window.first is not None else 1
    return round((int(times[used].max()) - int(graph.time[used].min())) / max(count, 1))


def what_if(
    trace: Trace, *, without_syncs: Sequence[str] = (), native: Mapping[str, int | None] | Sequence[str] = (),
    faster: Mapping[str, float] | None = None, step: int | None = None, whole: bool = False,
) -> Rows:  # fmt: skip
    """What a step would take: all changes at once, or, where none is named, each of the likeliest alone.

    Of the likeliest those that gain nothing are left out. Raises UsageError for names that are not there.
    """
    natives = dict(native) if isinstance(native, Mapping) else dict.fromkeys(native)
    asked = Scenario(tuple(without_syncs), natives, dict(faster or {}))
    graph = graph_of(trace, window_of(trace, step, whole, at_least=2))
    scenarios = [asked] if asked != Scenario() else likely(trace, graph)
    rows = Rows(_row(graph, predicted(trace, graph, scenario)) for scenario in scenarios)
    if asked == Scenario():  # What was asked for is answered, even with nothing.
        rows = Rows(row for row in rows if row["gain_ns"] > 0)
    rows.sort(key=lambda row: (row["predicted_ns"], row["scenario"]))
    return rows


def predicted(trace: Trace, graph: Graph, scenario: Scenario) -> Prediction:
    """What a step would take in one scenario."""
    change = changed(trace, graph, scenario)
    return Prediction(scenario, change.calls, step_time(graph, graph.time), step_time(graph, change.times()))


def likely(trace: Trace, graph: Graph) -> list[Scenario]:
    """Each without one of the waits, with one of the fallbacks native, with one kernel twice as fast: the costliest."""
    if bounds(graph) == (0, 0):
        return []

    def costliest(kinds: str) -> list[str]:
        return [
            name
            for (name,) in trace.sql(
                f"""
                SELECT name FROM event e
                WHERE e.kind IN ({kinds}) AND e.name IS NOT NULL AND {TIME_NS} >= 0 AND {INSIDE}
                  AND CASE e.kind WHEN 'sync' THEN e.thread IS NOT NULL
                                  WHEN 'fallback' THEN e.thread IS NOT NULL AND e.device IS NOT NULL ELSE true END
                GROUP BY name ORDER BY sum({TIME_NS}) DESC, name LIMIT {EACH}""",
                graph.window.parameters,
            ).fetchall()
        ]

    tried: list[tuple[str, Callable[[str], Scenario]]] = [
        ("'sync'", lambda name: Scenario(without_syncs=[name])),
        ("'fallback'", lambda name: Scenario(native={name: None})),
        ("'kernel', 'transfer'", lambda name: Scenario(faster={name: 2.0})),
    ]
    return [make(name) for kinds, make in tried for name in costliest(kinds)]


def _row(graph: Graph, found: Prediction) -> dict[str, object]:
    gain = found.before_ns - found.predicted_ns
    return {
        "scenario": found.scenario.said, "calls": found.calls, "before_ns": found.before_ns,
        "predicted_ns": found.predicted_ns, "gain_ns": gain,
        "gain_percent": 100.0 * gain / found.before_ns if found.before_ns else None,
        "first_step": graph.window.first, "last_step": graph.window.last,
    }  # fmt: skip


WHAT_IF = Analysis(
    "what_if",
    "What if",
    "What a step would take without a wait, with a kernel in place of a fallback, or with a kernel or copy twice as "
    "fast: the run again, in its recorded order, with what followed from what. Where nothing changes it gives the "
    "recorded times exactly. Its limits: the order of launches stays, and nobody competes for the host's cores.",
    (
        Column("scenario", "text", "what is different"),
        Column("calls", "count", "waits, fallbacks, kernels, copies and host calls that it concerns"),
        Column("before_ns", "ns", "a step as recorded: from the first begin to the last end of the steps looked at, "
               "over their number; of the whole trace where it has no steps", "step"),
        Column("predicted_ns", "ns", "the same in the scenario", "predicted"),
        Column("gain_ns", "ns", "their difference", "gain"),
        Column("gain_percent", "percent", "of the step as recorded", "gain %"),
        Column("first_step", "id", "first step that was looked at; none: the whole trace"),
        Column("last_step", "id", "last step that was looked at"),
    ),
    what_if,
    chapter="advice",
    most=5,
    shown="scenario gain_ns gain_percent before_ns predicted_ns calls",
    needs=(SOMETHING_TIMED,),
)  # fmt: skip
