"""What takes time, and what it stands for: the work of devices and the rows of the host by op, kernel, module, line."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import LINE, TIME_NS
from ral_trace.analysis.beneath import find_inside_fallbacks
from ral_trace.analysis.callers import NONE, Callers
from ral_trace.analysis.intervals import numbered
from ral_trace.analysis.kernel_names import family
from ral_trace.analysis.remember import once
from ral_trace.analysis.stream_order import suspects
from ral_trace.tracer import _native
from ral_trace.tracer.reading import Trace

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

MODULE_CALL = "nn.Module: "
"""What torch.profiler's Python rows begin with that are calls of modules."""
LIBRARIES = r"(^|/)(torch|ral_trace|(site|dist)-packages)/|^<"

LABELS = {
    "op": "CASE WHEN e.kind = 'op' THEN e.name END",
    "module": f"""CASE WHEN e.kind = 'annotation' AND e.category = 'module' THEN e.name
        WHEN e.kind = 'python' AND starts_with(e.name, '{MODULE_CALL}') THEN substr(e.name, {len(MODULE_CALL) + 1}) END
        """,
    "annotation": """CASE WHEN e.kind = 'annotation' AND coalesce(e.category, '') NOT IN ('module', 'step')
        THEN e.name END""",
    "line": f"""CASE WHEN e.stack IS NOT NULL THEN line_of.line
        WHEN e.kind = 'python' AND regexp_matches(e.name, '^[^(]+\\(\\d+\\): .')
             AND NOT regexp_matches(e.name, '{LIBRARIES}') THEN regexp_replace(e.name, '\\((\\d+)\\):', ':\\1') END""",
}
"""What a row of the host stands for, in SQL, by what is asked for."""
NESTED = ("module", "annotation")
"""Of these the time includes that of those within; an op's kernels are its own, and what it called has its own row."""
LINES = "LEFT JOIN line_of ON line_of.stack = e.stack"


@dataclass(frozen=True)
class Work:
    """Rows by start, each with its place (device.id, or thread.id on the host) and name (index into `names`, NONE:
    none). Rows without a known duration have ns = NONE and end where they start.

    `around`: for each further (row, name) that the row's time counts for too.
    """

    names: Sequence[str | None]
    place: npt.NDArray[np.int32]
    name: Integers
    variant: Integers
    start: Integers
    ns: Integers
    own: Integers
    caller: Integers
    """The event that started it: its launch, else what it says called it; NONE: not known. On the host the row."""
    launch: Integers
    """Time of the host's call that launched it; NONE: none known, or another row of that call has it."""
    fallback: Booleans
    suspect: Booleans
    around: tuple[Integers, Integers]
    stream: Integers
    """NONE: not known."""
    kernel: Booleans
    families: bool = False
    """Names are of families of kernels, and `variant` is the kernel."""

    @property
    def end(self) -> Integers:
        """Where the rows end."""
        return self.start + np.maximum(self.ns, 0)


@contextmanager
def registered(trace: Trace, columns: Mapping[str, npt.NDArray[Any]]) -> Iterator[str]:
    """The name under which SQL finds the columns."""
    table = f"columns_{uuid.uuid4().hex}"
    trace.connection.register(table, dict(columns))
    try:
        yield table
    finally:
        trace.connection.unregister(table)


@contextmanager
def _numbered(trace: Trace, text: str, joined: str) -> Iterator[tuple[str, list[str | None]]]:
    """A temporary table (name, code) of the different values of `text`, and the names by code."""
    table = f"name_{uuid.uuid4().hex}"
    lines = f"WITH {LINE} " if joined else ""
    trace.connection.execute(f"""
        CREATE TEMP TABLE {table} AS {lines}
        SELECT name, row_number() OVER (ORDER BY name) - 1 AS code
        FROM ({text}) WHERE name IS NOT NULL GROUP BY name""")
    try:
        names = trace.sql(f"SELECT name FROM {table} ORDER BY code").fetchall()
        yield table, [name for (name,) in names]
    finally:
        trace.connection.execute(f"DROP TABLE {table}")


NAMED_DISTINCT = "SELECT DISTINCT {text} AS name FROM event e {joined} WHERE {where}"


OWN_NAMES = {
    "kernel": "coalesce(e.args->>'kernel', e.name)",
    "stream": "(SELECT 'stream ' || s.number FROM stream s WHERE s.id = e.stream)",
    "device": "(SELECT coalesce(l.label, l.name) FROM device_label l WHERE l.device = e.device)",
}
"""What a row of a device is called, where it is not the op's name or that of what called it."""


def on_devices(trace: Trace, by: str) -> Work:
    """Kernels, copies and fallbacks (whose own copies lie within them), by op, kernel, stream or device; or by module,
    annotation or line that launched them.
    """
    return _by_op(trace) if by == "op" else _on_devices(trace, by)


@once
def _by_op(trace: Trace) -> Work:
    """Several questions ask for the ops. Nobody may write into what all of them share."""
    work = _on_devices(trace, "op")
    for column in (getattr(work, each.name) for each in fields(work)):
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
    return work


def _on_devices(trace: Trace, by: str) -> Work:
    own_name = OWN_NAMES.get(by, "e.name")
    label, joined = LABELS.get(by, "NULL::VARCHAR"), LINES if by == "line" else ""
    text = NAMED_DISTINCT.format(text=label, joined=joined, where="e.thread IS NOT NULL")
    work_rows = "e.kind IN ('kernel', 'transfer', 'fallback')"
    text += " UNION ALL " + NAMED_DISTINCT.format(text=own_name, joined="", where=work_rows)
    with _numbered(trace, text, joined) as (table, names):
        rows = _device_rows(trace, by, own_name, table)
        work = _device_work(trace, rows, names)
        if by in LABELS:
            work = _labelled(trace, by, work, rows, table)
    return _by_family(work) if by == "kernel" else work


Columns = dict[str, npt.NDArray[np.int64]]


def _device_rows(trace: Trace, by: str, own_name: str, table: str) -> Columns:
    """What is time of a device; the call that launched it, and whether that has the same name: then it is the op's."""
    kinds = "e.kind = 'kernel'" if by == "kernel" else "e.kind IN ('kernel', 'fallback', 'transfer')"
    find_inside_fallbacks(trace)
    return dict(
        trace.sql(f"""
        WITH launch AS (
            SELECT process, correlation, min(id) AS id, arg_min(name, id) AS name, arg_min(ts_ns, id) AS ts_ns,
                   arg_min({TIME_NS}, id) AS ns
            FROM event e WHERE kind = 'launch' AND correlation IS NOT NULL GROUP BY process, correlation),
        work AS (
            SELECT e.id, e.device, coalesce(e.stream, {NONE}) AS stream, {own_name} AS name, e.ts_ns,
                   {TIME_NS} AS ns, e.kind = 'fallback' AS fallback, e.kind, e.process, e.correlation, e.parent
            FROM event e WHERE {kinds} AND e.device IS NOT NULL
                  AND NOT (e.kind = 'transfer' AND e.id IN (SELECT id FROM copy_inside)))
        SELECT e.id, e.device, coalesce(n.code, {NONE}) AS name, e.ts_ns, coalesce(e.ns, {NONE}) AS ns,
               e.stream, e.kind = 'kernel' AS kernel, e.fallback,
               coalesce(e.name = l.name OR l.id IS NULL AND e.parent IS NULL, false) AS is_op,
               CASE WHEN e.fallback THEN e.id ELSE coalesce(l.id, e.parent, {NONE}) END AS caller,
               coalesce(l.id, {NONE}) AS launch,
               coalesce(CASE WHEN e.fallback THEN NULL
                             WHEN e.ns <= l.ns AND e.ts_ns >= l.ts_ns AND e.ts_ns + e.ns <= l.ts_ns + l.ns
                             THEN l.ns - e.ns ELSE l.ns END, {NONE}) AS launch_ns
        FROM work e LEFT JOIN launch l ON l.process = e.process AND l.correlation = e.correlation
        LEFT JOIN {table} n ON n.name = e.name
        ORDER BY e.ts_ns, e.id""").fetchnumpy()
    )


def _device_work(trace: Trace, rows: Columns, names: list[str | None]) -> Work:
    number, ns, start = (np.asarray(rows[name]) for name in ("id", "ns", "ts_ns"))
    device = np.asarray(rows["device"]).astype(np.int32)
    launch, launch_ns = np.asarray(rows["launch"]), np.asarray(rows["launch_ns"])
    calls, call = numbered(launch)
    first = np.full(len(calls), len(launch), np.int64)
    np.minimum.at(first, call, np.arange(len(launch)))
    once = np.full(len(launch), NONE, np.int64)
    once[first] = launch_ns[first]
    name = np.asarray(rows["name"], dtype=np.int64)
    return Work(
        names,
        device,
        name,
        name,
        start,
        ns,
        _own(device, start, start + np.maximum(ns, 0), ns, np.zeros(len(device), np.int64)),
        np.asarray(rows["caller"]),
        np.where(launch == NONE, NONE, once),
        np.asarray(rows["fallback"]),
        np.isin(number, suspects(trace)),
        NOTHING_AROUND,
        np.asarray(rows["stream"], dtype=np.int64),
        np.asarray(rows["kernel"]),
    )


NOTHING_AROUND = (np.array([], np.int64), np.array([], np.int64))


def _labelled(trace: Trace, by: str, work: Work, rows: Columns, table: str) -> Work:
    """The work by what launched it. Of an op that is not known the kernel's name stands."""
    caller, is_op = np.asarray(rows["caller"]), np.asarray(rows["is_op"])
    if by == "op" and is_op.all():
        return work
    callers = _callers(trace, by, table)
    label = callers.nearest(caller)
    if by == "op":
        label = np.where(is_op | np.asarray(rows["fallback"]) | (label == NONE), work.name, label)
    return replace(work, name=label, around=_around(callers, caller) if by in NESTED else NOTHING_AROUND)


def _callers(trace: Trace, by: str, table: str) -> Callers:
    """Who called whom, with the codes of the names in `table` as labels."""
    if by != "line":
        return Callers(trace, "n.code", f"LEFT JOIN {table} n ON n.name = {LABELS[by]}")
    return Callers(
        trace,
        "n.code",
        f"LEFT JOIN (WITH {LINE} FROM line_of) line_of ON line_of.stack = e.stack "
        f"LEFT JOIN {table} n ON n.name = {LABELS[by]}",
    )


def _around(callers: Callers, caller: Integers) -> tuple[Integers, Integers]:
    """The names around each row, each once a row, without the innermost; by row."""
    levels = list(callers.around(caller))
    if len(levels) < 2:
        return NOTHING_AROUND
    row = np.concatenate([index for index, _ in levels])
    label = np.concatenate([found for _, found in levels])
    inner = np.full(len(caller), NONE, np.int64)
    inner[levels[0][0]] = levels[0][1]
    key = np.unique(np.stack([row, label], axis=1)[label != inner[row]], axis=0)
    return key[:, 0], key[:, 1]


def _by_family(work: Work) -> Work:
    """Kernels that differ in their template arguments only are variants of one."""
    found: dict[str, int] = {}
    codes = [found.setdefault(family(str(name)), len(found)) for name in work.names]
    of_name = np.array([*codes, NONE], np.int64)  # NONE is the last
    return replace(work, names=list(found), name=of_name[work.name], families=True)


def on_host(trace: Trace, by: str) -> Work:
    """The rows of the host that are ops, modules or annotations; for lines: the ops that they called."""
    label, joined = LABELS[by], LINES if by == "line" else ""
    wanted = "e.kind = 'op'" if by == "line" else f"({label}) IS NOT NULL"
    text = NAMED_DISTINCT.format(text=label, joined=joined, where="e.thread IS NOT NULL")
    with _numbered(trace, text, joined) as (table, names):
        code = "NULL" if by == "line" else "n.code"
        join = "" if by == "line" else f"LEFT JOIN {table} n ON n.name = {label}"
        rows = trace.sql(f"""
            SELECT e.id, e.thread, e.process, e.ts_ns, coalesce({TIME_NS}, {NONE}) AS ns,
                   coalesce({code}, {NONE})::BIGINT AS name
            FROM event e {join} WHERE e.thread IS NOT NULL AND {wanted}
            ORDER BY e.ts_ns, e.id DESC""").fetchnumpy()
        name = np.asarray(rows["name"])
        if by == "line":
            name = _callers(trace, by, table).nearest(np.asarray(rows["id"]))
    thread, start, ns = (np.asarray(rows[column]) for column in ("thread", "ts_ns", "ns"))
    own = _own(thread, start, start + np.maximum(ns, 0), ns, np.asarray(rows["process"]))
    nothing = np.zeros(len(name), bool)
    return Work(
        names, thread.astype(np.int32), name, name, start, ns, own, np.asarray(rows["id"]),
        np.full(len(name), NONE, np.int64), nothing, nothing, NOTHING_AROUND,
        np.full(len(name), NONE, np.int64), nothing,
    )  # fmt: skip


ROUNDED_NS = 1000
"""Sources of whole microseconds round their times to them."""


def _own(place: npt.NDArray[np.int32], start: Integers, end: Integers, ns: Integers, process: Integers) -> Integers:
    """What of each row's time belongs to no row within it. Rows are by start, and of two with the same times the outer
    one comes first. Those of unknown duration have none.
    """
    own = np.zeros(len(start), np.int64)
    for one in np.unique(process):
        some = np.flatnonzero((process == one) & (ns != NONE))
        if not len(some):
            continue
        whole = not ((start[some] - start[some[0]]) % ROUNDED_NS).any() and not (ns[some] % ROUNDED_NS).any()
        some = some[np.lexsort((-ns[some], start[some], place[some]))]
        own[some] = _native.own_times(place[some], start[some], end[some], ROUNDED_NS if whole else 0)
    return own
