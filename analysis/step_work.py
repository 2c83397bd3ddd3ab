"""What a program does in each of its steps, by op, module and device: what two recordings of it are compared by."""

from dataclasses import dataclass

import numpy as np

from ral_trace.analysis.base import NAMED_DEVICE, TIME_NS, VALID
from ral_trace.analysis.bootstrap import MOST, Integers
from ral_trace.analysis.pace import pace
from ral_trace.analysis.steps import steps
from ral_trace.tracer import _native
from ral_trace.tracer.reading import Trace

WHAT = ("fallback", "sync", "transfer", "kernel", "op")
"""Kinds of event that are work, the most telling first."""

MODULE_ROWS = f"""
SELECT e.thread, e.ts_ns, e.ts_ns + e.dur_ns AS end_ns, e.id FROM event e
WHERE e.category = 'module' AND e.kind = 'annotation' AND e.thread IS NOT NULL AND {TIME_NS} > 0
ORDER BY e.thread, e.ts_ns, e.dur_ns DESC, e.id DESC"""

WORK = """
CREATE OR REPLACE TEMP TABLE work AS
WITH {named_device},
launch AS (
    SELECT process, correlation, arg_min(thread, id) AS thread, min_by(ts_ns, id) AS ts_ns FROM event
    WHERE kind = 'launch' AND correlation IS NOT NULL GROUP BY ALL),
placed AS (
    SELECT e.kind, coalesce(CASE WHEN e.kind = 'transfer' THEN e.category END, e.name, '') AS name,
           coalesce(d.label, d.name, '') AS device, coalesce(e.thread, l.thread) AS thread,
           coalesce(CASE WHEN e.thread IS NULL THEN l.ts_ns END, e.ts_ns) AS ts_ns, e.step, {time_ns} AS ns, e.bytes
    FROM event e LEFT JOIN named_device d ON d.device = e.device
    LEFT JOIN launch l ON e.thread IS NULL AND l.process = e.process AND l.correlation = e.correlation
    WHERE e.kind IN ({kinds}) AND {valid})
SELECT p.kind::VARCHAR AS what, coalesce(r.base, p.device) AS device, p.name, coalesce(m.name, '') AS module, p.step,
       count(*) AS count, sum(p.ns) AS ns, sum(p.bytes) AS bytes
FROM placed p ASOF LEFT JOIN module_span m ON m.thread = p.thread AND p.ts_ns >= m.ts_ns
LEFT JOIN renamed r ON r.new = p.device
GROUP BY ALL"""
"""A row for each thing that is done and each step: how often, for how long, with how many bytes. A device's row is in
the module that launched it."""

MOST_KEYS = 400
"""Things whose steps are looked at: those that differ most."""


@dataclass(frozen=True)
class Key:
    """One thing that a program does: a kind of event, and of which op (of a copy: in which direction), where."""

    what: str
    device: str
    name: str
    module: str


KEY = ("what", "device", "name", "module")


@dataclass(frozen=True)
class Amount:
    """How often something happened, for how long and with how many bytes."""

    count: int = 0
    ns: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Steps:
    """The steady steps of a recording: their numbers, their durations, and how many were left out before them."""

    numbers: Integers
    dur_ns: Integers
    warm_up: int


def steady_steps(trace: Trace) -> Steps:
    """Steps whose duration is known, after the warm-up; of several processes the slowest says how long one took."""
    longest: dict[int, int] = {}
    for row in steps(trace):
        if row["dur_ns"] is not None and row["dur_ns"] >= 0:
            longest[row["step"]] = max(longest.get(row["step"], 0), row["dur_ns"])
    numbers = np.array(sorted(longest), dtype=np.int64)
    dur_ns = np.array([longest[number] for number in numbers.tolist()], dtype=np.int64)
    found = pace(dur_ns.tolist())
    # The first step is like no other, even where it is no slower.
    begin = max(1 if found is None else found.warm_up, min(1, len(numbers)), len(numbers) - MOST)
    return Steps(numbers[begin:], dur_ns[begin:], begin)


def matched_devices(base: Trace, new: Trace) -> dict[str, str]:
    """The devices of the new trace that are others than the base's, and which of those each is compared with.

    Two ranks use cuda:0 and cuda:1, say: devices that only one side has are matched by type, in their order.
    """
    found = [
        side.sql(f"""
            WITH {NAMED_DEVICE}
            SELECT d.label, any_value(d.type) FROM named_device d SEMI JOIN event e
              ON e.device = d.device AND e.kind IN ('kernel', 'transfer', 'fallback')
            WHERE d.label IS NOT NULL AND d.type <> 'cpu' GROUP BY d.label ORDER BY min(d.position)""").fetchall()
        for side in (base, new)
    ]
    left = [[row for row in side if row not in other] for side, other in (found, found[::-1])]
    matched = {}
    for label, kind in left[1]:
        match = next((row for row in left[0] if row[1] == kind), None)
        if match is not None:
            left[0].remove(match)
            matched[label] = match[0]
    return matched


def gather(trace: Trace, renamed: dict[str, str]) -> None:
    """Makes the temporary table `work` in the trace's connection. `renamed` says which device is told as which."""
    trace.connection.execute(
        "CREATE OR REPLACE TEMP TABLE renamed AS SELECT unnest($1::VARCHAR[]) AS new, unnest($2::VARCHAR[]) AS base",
        [list(renamed), list(renamed.values())],
    )
    spans = _module_spans(trace)
    trace.connection.register("module_at", spans)
    try:
        trace.connection.execute("""
            CREATE OR REPLACE TEMP TABLE module_span AS
            SELECT a.thread, a.ts_ns, e.name FROM module_at a LEFT JOIN event e ON e.id = a.id""")
    finally:
        trace.connection.unregister("module_at")
    kinds = ", ".join(f"'{kind}'" for kind in WHAT)
    trace.connection.execute(WORK.format(named_device=NAMED_DEVICE, time_ns=TIME_NS, valid=VALID, kinds=kinds))


def _module_spans(trace: Trace) -> dict[str, Integers]:
    """From when on a thread is in which module (event.id; -1: in none), a row a change."""
    found = trace.sql(MODULE_ROWS).fetchnumpy()
    thread, begin, end, number = (
        np.asarray(found[name], dtype=np.int64) for name in ("thread", "ts_ns", "end_ns", "id")
    )
    parent: Integers = _native.nest(thread.astype(np.int32), begin, end, number)
    # Of several changes at one moment the last one counts: ends come first, inner ones before outer ones, then begins.
    rank = np.arange(len(number))
    times = np.concatenate([end, begin])
    order = np.lexsort((np.concatenate([-rank - 1, rank]), times, np.concatenate([thread, thread])))
    thread, times = np.concatenate([thread, thread])[order], times[order]
    inside = np.concatenate([parent, number])[order]
    last = np.ones(len(times), dtype=bool)
    last[:-1] = (thread[1:] != thread[:-1]) | (times[1:] != times[:-1])
    return {"thread": thread[last], "ts_ns": times[last], "id": inside[last]}


def totals(trace: Trace) -> dict[Key, Amount]:
    """All that was done in the whole recording. Needs `gather`."""
    return {
        Key(what, device, name, module): Amount(count, ns, size)
        for what, device, name, module, count, ns, size in trace.sql("""
            SELECT what, device, name, module, sum(count)::BIGINT, sum(ns)::BIGINT, sum(bytes)::BIGINT
            FROM work GROUP BY ALL""").fetchall()
    }


def by_step(trace: Trace, keys: list[Key], steps: Steps) -> dict[str, np.ndarray]:
    """For `count`, `ns` and `bytes` a matrix: a row a steady step, a column a key; what did not happen is 0."""
    columns = {name: np.zeros((len(steps.numbers), len(keys))) for name in ("count", "ns", "bytes")}
    wanted = {name: np.array([getattr(key, name) for key in keys], dtype=object) for name in KEY}
    trace.connection.register("wanted", {"position": np.arange(len(keys)), **wanted})
    try:
        found = trace.sql(f"""
            SELECT w.position, k.step, k.count, coalesce(k.ns, 0)::BIGINT AS ns, coalesce(k.bytes, 0)::BIGINT AS bytes
            FROM work k JOIN wanted w USING ({", ".join(KEY)}) WHERE k.step IS NOT NULL""").fetchnumpy()
    finally:
        trace.connection.unregister("wanted")
    step = np.asarray(found["step"], dtype=np.int64)
    row = np.searchsorted(steps.numbers, step)
    known = row < len(steps.numbers)
    known[known] = steps.numbers[row[known]] == step[known]
    for name, matrix in columns.items():
        matrix[row[known], np.asarray(found["position"])[known]] = np.asarray(found[name])[known]
    return columns
