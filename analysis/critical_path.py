"""The critical path: the chain of work that the run could not have been shorter than, and what it consists of."""

import uuid
from dataclasses import dataclass

import numpy as np

from ral_trace.analysis.base import LINE, NAMED_DEVICE, Analysis, Column, Need, Row, Rows
from ral_trace.analysis.intervals import Integers, Union, groups
from ral_trace.analysis.path_edges import Edge
from ral_trace.analysis.path_graph import Graph, graph_of
from ral_trace.analysis.path_host import NO_TIME, Spans
from ral_trace.analysis.path_rows import NONE, Window, steady_steps
from ral_trace.analysis.units import duration
from ral_trace.tracer import _native
from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

HOST, WORK, DELAY, GAP, ENGINE = range(5)
"""What a piece of the path is: a call's own time, a kernel or copy, from a launch to what it started on an idle stream,
from work to the next that was queued, between two nodes of a backward pass.
"""

GAP_EDGES = (Edge.QUEUE, Edge.ORDER)


@dataclass(frozen=True)
class Pieces:
    """Parts of a path, disjoint in time: of which event, what, from when to when."""

    event: Integers
    what: Integers
    start: Integers
    stop: Integers

    @property
    def total_ns(self) -> int:
        """What the path takes."""
        return int((self.stop - self.start).sum())

    def some(self, rows: Integers) -> "Pieces":
        """Some of them."""
        return Pieces(self.event[rows], self.what[rows], self.start[rows], self.stop[rows])


def window_of(trace: Trace, step: int | None, whole: bool, at_least: int = 1) -> Window:
    """What is looked at: a step, the whole trace, or as many steps from its middle as are quickly gone through.

    Raises UsageError where there is no such step.
    """
    if step is not None:
        if not trace.sql("SELECT 1 FROM event WHERE step = ? LIMIT 1", [step]).fetchall():
            raise UsageError(f"there is no step {step} in this trace")
        return Window(step, step)
    return Window() if whole else steady_steps(trace, at_least)


def critical_path(trace: Trace, *, step: int | None = None, whole: bool = False, limit: int | None = 200) -> Rows:
    """What the critical path consists of, by kind, name, place and line: the largest parts first.

    Of one step, of the whole trace, or else of some steps from its middle. The last row is what is left of the span:
    time in which nothing that was recorded ran on the path.
    """
    window = window_of(trace, step, whole)
    graph = graph_of(trace, window)
    pieces = pieces_of(graph)
    rows = _shares(trace, pieces, limit)
    start, stop = bounds(graph)
    if stop > start:
        rest = dict.fromkeys(column.name for column in COLUMNS) | {
            "kind": NOTHING, "total_ns": stop - start - pieces.total_ns,
        }  # fmt: skip
        rows = Rows([*rows, rest])
    for row in rows:
        row["percent"] = 100.0 * row["total_ns"] / (stop - start)
        row["first_step"], row["last_step"] = window.first, window.last
    return rows


def critical_path_pieces(
    trace: Trace, *, step: int | None = None, whole: bool = False, limit: int | None = 200
) -> Rows:
    """The critical path itself, in order: the longest `limit` of its pieces."""
    pieces = pieces_of(graph_of(trace, window_of(trace, step, whole)))
    if limit is not None and len(pieces.event) > limit:
        longest = np.argsort(pieces.start - pieces.stop, kind="stable")[:limit]
        pieces = pieces.some(np.sort(longest))
    return _joined(trace, pieces, """
        SELECT start AS ts_ns, stop - start AS dur_ns, kind, name, "where", line, event
        FROM named ORDER BY start, stop, event""")  # fmt: skip


def bounds(graph: Graph) -> tuple[int, int]:
    """From the first begin to the last end of all that was recorded."""
    starts = [columns["start"].min() for columns in (graph.host, graph.device) if len(columns["id"])]
    stops = [columns["stop"].max() for columns in (graph.host, graph.device) if len(columns["id"])]
    return (int(min(starts)), int(max(stops))) if starts else (0, 0)


def pieces_of(graph: Graph) -> Pieces:
    """The path with most work, in order of time. Any event is a path, too: it is never shorter than the longest."""
    path = graph.longest_path()
    pieces, longest = _of_path(graph, path), _longest(graph)
    return pieces if pieces.total_ns >= longest.total_ns else longest


def _longest(graph: Graph) -> Pieces:
    """The longest event."""
    pieces = [
        Pieces(rows["id"], np.full(len(rows["id"]), what), rows["start"], rows["stop"]).some(
            np.argsort(rows["start"] - rows["stop"], kind="stable")[:1]
        )
        for what, rows in ((HOST, graph.host), (WORK, graph.device))
    ]
    return max(pieces, key=lambda piece: piece.total_ns)


def _of_path(graph: Graph, path: Integers) -> Pieces:
    path = path[graph.work[path] > 0]
    source, target, kind = graph.source[path], graph.target[path], graph.kind[path]
    about, start, stop = graph.about[path], graph.time[source], graph.time[target]
    # A rank in a collective works only from when all are there.
    start = np.where(kind == Edge.WORK, stop - graph.work[path], start)
    parts = [_host_pieces(graph, kind, about, start, stop)]
    work = np.isin(kind, [Edge.WORK, Edge.TOGETHER])
    delay, gap, engine = kind == Edge.LAUNCH, np.isin(kind, GAP_EDGES), kind == Edge.HANDOVER
    ids = np.append(graph.device["id"], NONE)
    for chosen, what in ((work, WORK), (delay, DELAY), (gap, GAP)):
        event = ids[np.minimum(about[chosen], len(ids) - 1)]
        parts.append(Pieces(event, np.full(len(event), what), start[chosen], stop[chosen]))
    count = int(engine.sum())
    parts.append(Pieces(np.full(count, NONE), np.full(count, ENGINE), start[engine], stop[engine]))
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in ("event", "what", "start", "stop")]
    return Pieces(*columns).some(np.lexsort((columns[3], columns[2])))


def _host_pieces(graph: Graph, kind: Integers, about: Integers, start: Integers, stop: Integers) -> Pieces:
    """The path's stretches on threads, cut where another call begins to be the innermost."""
    spans = Spans()
    program, release = kind == Edge.PROGRAM, kind == Edge.RELEASE
    spans.add(about[program], start[program], stop[program])
    spans.add(graph.waits["thread"][about[release]], start[release], stop[release])
    parts = [Pieces(*(np.zeros(0, dtype=np.int64) for _ in range(4)))]
    slices = dict(groups(graph.host["thread"]))
    for thread, union in spans.unions().items():
        busy = graph.busy.get(thread, NO_TIME).minus(graph.waiting.get(thread, NO_TIME))
        on_path = union.common(busy)
        rows = slices.get(thread, slice(0, 0))
        at, innermost = innermost_calls(graph.host["start"][rows], graph.host["stop"][rows])
        event = np.append(graph.host["id"][rows], NONE)[innermost]
        parts.append(_cut(on_path, at, event))
    return Pieces(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("event", "what", "start", "stop")))


def innermost_calls(start: Integers, stop: Integers) -> tuple[Integers, Integers]:
    """(from when on, which row is the innermost that runs on a thread; -1: none). Rows by start, the longer first."""
    row = np.arange(len(start))
    parent = _native.nest(np.zeros(len(row), dtype=np.int32), start, stop, row)
    time = np.concatenate([stop, start])
    runs = np.concatenate([parent, row])
    # At one time calls end before others begin, inner ones first; outer ones begin first.
    order = np.lexsort((np.concatenate([-row, row]), np.repeat([0, 1], len(row)), time))
    time, runs = time[order], runs[order]
    for _ in range(len(row)):
        over = np.flatnonzero((runs >= 0) & (stop[runs] <= time) if len(row) else np.zeros(0, dtype=bool))
        if not len(over):
            break
        runs[over] = parent[runs[over]]
    return time, runs


def _cut(union: Union, at: Integers, event: Integers) -> Pieces:
    """The parts of a union with the event that is the innermost in each."""
    moments = np.sort(np.concatenate([union.start, union.end, at]))
    start, stop = moments[:-1], moments[1:]
    inside = union.within(start, stop) > 0
    start, stop = start[inside], stop[inside]
    place = np.searchsorted(at, start, side="right") - 1
    which = np.where(place >= 0, event[np.maximum(place, 0)], NONE) if len(event) else np.full(len(start), NONE)
    return Pieces(which, np.where(which == NONE, ENGINE, HOST), start, stop)


NOTHING = "nothing recorded"

NAMED = f"""
    WITH {NAMED_DEVICE}, {LINE}, named AS (
        SELECT p.start, p.stop, p.event, CASE p.what
                   WHEN {WORK} THEN if(e.kind = 'transfer', 'copy', 'kernel') WHEN {DELAY} THEN 'launch delay'
                   WHEN {GAP} THEN 'queue gap' WHEN {ENGINE} THEN 'autograd'
                   ELSE CASE e.kind WHEN 'launch' THEN 'launch call' WHEN 'wait' THEN 'sync' ELSE e.kind::VARCHAR END
                   END AS kind,
               if(e.category = 'step' AND e.kind = 'annotation', regexp_replace(e.name, '#.*', ''), e.name) AS name,
               CASE WHEN p.what IN ({HOST}, {ENGINE}) THEN 'host' ELSE coalesce(d.shown, 'device') END AS "where", line
        FROM {{pieces}} p LEFT JOIN event e ON e.id = p.event LEFT JOIN named_device d ON d.device = e.device
        LEFT JOIN (SELECT process, correlation, min(stack) AS stack FROM event
                   WHERE kind = 'launch' AND stack IS NOT NULL AND correlation IS NOT NULL
                   GROUP BY process, correlation) l
             ON e.thread IS NULL AND l.process = e.process AND l.correlation = e.correlation
        LEFT JOIN line_of ON line_of.stack = coalesce(e.stack, l.stack))"""


def _joined(trace: Trace, pieces: Pieces, query: str, parameters: list[int | None] | None = None) -> Rows:
    name = f"pieces_{uuid.uuid4().hex}"
    columns = {"event": pieces.event, "what": pieces.what, "start": pieces.start, "stop": pieces.stop}
    trace.connection.register(name, columns)
    try:
        return trace.rows(f"{NAMED.format(pieces=name)} {query}", parameters)
    finally:
        trace.connection.unregister(name)


def _shares(trace: Trace, pieces: Pieces, limit: int | None) -> Rows:
    return _joined(trace, pieces, """
        SELECT kind, name, "where", line, count(*) AS count, sum(stop - start)::BIGINT AS total_ns,
               NULL::DOUBLE AS percent, NULL::BIGINT AS first_step, NULL::BIGINT AS last_step
        FROM named GROUP BY kind, name, "where", line
        ORDER BY total_ns DESC, kind, name, "where", line LIMIT ?""", [limit])  # fmt: skip


def said(rows: Rows) -> str | None:
    """How long it is, and what it mostly is."""
    if len(rows) < 2:
        return None
    first, rest = rows[0], rows[-1]
    of = "" if first["first_step"] is None else f" of {_steps(first['first_step'], first['last_step'])}"
    name = "" if first["name"] is None else f" {plain(str(first['name']))}"
    return (
        f"{100 - rest['percent']:.0f} % of the time{of} is on the critical path; its largest part is "
        f"{first['kind']}{name} on {plain(str(first['where']))}: {duration(first['total_ns'])}."
    )


def _steps(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _notable(row: Row) -> list[str]:
    return ["kind"] if row["kind"] in ("sync", "fallback", "launch delay") else []


KIND = Column(
    "kind",
    "text",
    "op, annotation, python, runtime, fallback: that call's own time on the host; launch call, sync: the call, without "
    "what it waited; kernel, copy; launch delay: from a launch to its begin on an idle stream; queue gap: between two "
    "that were queued; autograd: between two nodes of a backward pass; nothing recorded: the rest of the span",
)
NAME = Column("name", "text", "of the op, kernel or annotation; of a step what states it; none: not known")
WHERE = Column("where", "text", "host, or the device")
WHERE_FROM = Column("line", "text", "the program's line; none: no stack was recorded")

COLUMNS = (
    KIND,
    NAME,
    WHERE,
    WHERE_FROM,
    Column("count", "count", "pieces of the path"),
    Column("total_ns", "ns", "their sum", "on the path"),
    Column("percent", "percent", "of the span from the first begin to the last end", "share"),
    Column("first_step", "id", "first step that was looked at; none: the whole trace"),
    Column("last_step", "id", "last step that was looked at"),
)

SOMETHING_TIMED = Need(
    "EXISTS (FROM event WHERE kind IN ('op', 'launch', 'kernel', 'transfer', 'annotation', 'runtime') AND dur_ns > 0)",
    "nothing with a duration was recorded",
)

CRITICAL_PATH = Analysis(
    "critical_path",
    "Critical path",
    "What the run could not have been shorter than: the longest chain of calls, launches, kernels, copies and waits in "
    "which each had to be over before the next, and what it consists of. Waits for others and orders weigh nothing; "
    "from a launch to its kernel counts where the stream was idle. Of some steps from the middle of the trace.",
    COLUMNS,
    critical_path,
    chapter="time",
    shown="name kind total_ns percent where count line",
    needs=(SOMETHING_TIMED,),
    most=8,
    remark=said,
    notable=_notable,
)

CRITICAL_PATH_PIECES = Analysis(
    "critical_path_pieces",
    "Along the critical path",
    "The pieces of the critical path in order of time, the longest of them.",
    (
        Column("ts_ns", "time", "its begin"),
        Column("dur_ns", "ns", "its length", "duration"),
        KIND,
        NAME,
        WHERE,
        WHERE_FROM,
        Column("event", "id", "event.id; -1: autograd's own time"),
    ),
    critical_path_pieces,
    chapter="time",
    needs=(SOMETHING_TIMED,),
)
