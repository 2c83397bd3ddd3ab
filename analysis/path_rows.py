"""What the graph of a program's run is made of: its host rows, device work, waits and fallbacks, out of a trace."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ral_trace.analysis.base import KERNEL_CLASS, TIME_NS
from ral_trace.analysis.intervals import Integers
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.schema import FLAGS

HOST_KINDS = "('op', 'launch', 'sync', 'wait', 'fallback', 'annotation', 'runtime', 'python')"

NONE = -1
"""In a column of numbers: no thread, no stream, no step."""

MOST_EVENTS = 100_000
"""Of the stretch of steps that is looked at where nobody names one."""

Columns = dict[str, Any]


@dataclass(frozen=True)
class Window:
    """The steps that are looked at, first to last; none: the whole trace."""

    first: int | None = None
    last: int | None = None

    @property
    def parameters(self) -> list[int | None]:
        """Of the conditions below."""
        return [self.first, self.last]


INSIDE = "($1::BIGINT IS NULL OR e.step BETWEEN $1 AND $2)"
"""Condition on an event `e`: it lies in the window, whose steps are the query's first two parameters."""

LAUNCHED = f"""launched AS (
    SELECT e.process, e.correlation, arg_min(e.thread, (e.ts_ns, e.id)) AS thread, min(e.ts_ns) AS ts_ns,
           arg_min(e.ts_ns + {TIME_NS}, (e.ts_ns, e.id)) AS end_ns
    FROM event e WHERE e.kind = 'launch' AND e.thread IS NOT NULL AND e.correlation IS NOT NULL AND {INSIDE}
    GROUP BY e.process, e.correlation)"""
"""CTE: the call that launched what has a correlation; it is of the same step."""


def steady_steps(trace: Trace, at_least: int = 1) -> Window:
    """Steps from the middle of the trace: neither the first, which warms up, nor the last, which may be cut short."""
    steps = trace.sql("SELECT step, count(*) FROM event WHERE step IS NOT NULL GROUP BY step ORDER BY step").fetchall()
    if len(steps) >= at_least + 2:
        steps = steps[1:-1]
    if not steps:
        return Window()
    first = last = len(steps) // 2
    events = steps[first][1]
    while last - first + 1 < len(steps):
        grown_down = first > 0 and (last == len(steps) - 1 or len(steps) - 1 - last <= first)
        more = first - 1 if grown_down else last + 1
        events += steps[more][1]
        if events > MOST_EVENTS and last - first + 1 >= at_least:
            break
        first, last = min(first, more), max(last, more)
    return Window(steps[first][0], steps[last][0])


def host_rows(trace: Trace, window: Window) -> Columns:
    """Calls with a duration, as `nest` wants them. What was suspended in between encloses nothing."""
    return trace.sql(
        f"""
        SELECT e.id, e.thread, e.ts_ns AS start, e.ts_ns + e.dur_ns AS stop, coalesce(e.step, {NONE}) AS step
        FROM event e
        WHERE e.thread IS NOT NULL AND e.kind IN {HOST_KINDS} AND {TIME_NS} > 0
          AND (coalesce(e.flags, 0) & {FLAGS["SUSPENDED"]}) = 0 AND {INSIDE}
        ORDER BY e.thread, e.ts_ns, e.dur_ns DESC, e.id DESC""",
        window.parameters,
    ).fetchnumpy()


def device_rows(trace: Trace, window: Window) -> Columns:
    """Kernels and copies with the call that launched each. `lane` is the stream, which is in order whichever pipeline
    does the work; `engine` the pipeline that all streams share; `far_lane` the other device's stream of a copy
    between two.
    """
    return trace.sql(
        f"""
        WITH {LAUNCHED}, lane AS (
            SELECT s.id AS stream, s.device, s.number, dense_rank() OVER (ORDER BY s.device, s.number) - 1 AS lane,
                   CASE WHEN s.pipeline IS NULL THEN {NONE}
                        ELSE dense_rank() OVER (ORDER BY s.device, s.pipeline) - 1 END AS engine FROM stream s),
        far AS (
            SELECT lane.*, d.process, l.label, d.device AS near FROM lane JOIN device_label l USING (device)
            JOIN device_label d ON d.process = l.process)
        SELECT e.id, e.process, e.ts_ns AS start, e.ts_ns + e.dur_ns AS stop, coalesce(e.device, {NONE}) AS device,
               coalesce(lane.lane, {NONE}) AS lane, coalesce(lane.engine, {NONE}) AS engine,
               coalesce((SELECT min(far.lane) FROM far WHERE far.near = e.device AND far.number = lane.number
                         AND far.label = e.args->>'other_device' AND e.kind = 'transfer'), {NONE}) AS far_lane,
               e.kind = 'kernel' AS is_kernel,
               e.kind = 'transfer' AND e.category IS NOT DISTINCT FROM 'device_to_host' AS to_host,
               {KERNEL_CLASS} = 'communication' AS communicates,
               (hash(e.name) >> 1)::BIGINT AS name,
               coalesce(e.step, {NONE}) AS step, coalesce(e.bytes, {NONE}) AS bytes,
               coalesce(l.thread, {NONE}) AS launcher, coalesce(l.ts_ns, e.ts_ns) AS launched,
               coalesce(l.end_ns - l.ts_ns, {NONE}) AS call_ns
        FROM event e LEFT JOIN lane ON lane.stream = e.stream
        LEFT JOIN launched l ON l.process = e.process AND l.correlation = e.correlation
        WHERE e.kind IN ('kernel', 'transfer') AND {TIME_NS} >= 0 AND {INSIDE}
        ORDER BY e.ts_ns, e.ts_ns + e.dur_ns, e.id""",
        window.parameters,
    ).fetchnumpy()


def wait_rows(trace: Trace, window: Window) -> Columns:
    """Waits of the host for a device, with the stream where one is known: the row's own, or that of its image there.

    A wait for a whole device has none.
    """
    return trace.sql(
        f"""
        WITH image AS (
            SELECT process, correlation, min(device) AS device, min(stream) AS stream FROM event
            WHERE kind = 'wait' AND thread IS NULL AND correlation IS NOT NULL AND stream IS NOT NULL
            GROUP BY process, correlation HAVING count(DISTINCT stream) = 1),
        lane AS (SELECT s.id AS stream, dense_rank() OVER (ORDER BY s.device, s.number) - 1 AS lane FROM stream s)
        SELECT e.id, e.process, e.thread, e.ts_ns AS start, e.ts_ns + e.dur_ns AS stop,
               coalesce(e.device, i.device, {NONE}) AS device,
               CASE WHEN regexp_matches(e.name, '(?i)(device|context|torch.*[.])synchronize|SynchronizeDevice')
                    THEN {NONE} ELSE coalesce(lane.lane, {NONE}) END AS lane
        FROM event e LEFT JOIN image i ON i.process = e.process AND i.correlation = e.correlation
        LEFT JOIN lane ON lane.stream = coalesce(e.stream, i.stream)
        WHERE e.kind IN ('sync', 'wait') AND e.thread IS NOT NULL AND {TIME_NS} >= 0 AND {INSIDE}
        ORDER BY e.ts_ns, e.dur_ns, e.id""",
        window.parameters,
    ).fetchnumpy()


def fallback_rows(trace: Trace, window: Window) -> Columns:
    """Fallbacks with the call around each, and where a kernel in their place would run."""
    return trace.sql(
        f"""
        WITH {LAUNCHED}, lane AS (
            SELECT s.id AS stream, dense_rank() OVER (ORDER BY s.device, s.number) - 1 AS lane FROM stream s)
        SELECT e.id, e.thread, e.device, coalesce(lane.lane, {NONE}) AS lane, coalesce(e.bytes, {NONE}) AS bytes,
               coalesce(e.step, {NONE}) AS step, least(e.ts_ns, coalesce(l.ts_ns, e.ts_ns)) AS start,
               greatest(e.ts_ns + e.dur_ns, coalesce(l.end_ns, e.ts_ns)) AS stop
        FROM event e LEFT JOIN lane ON lane.stream = e.stream
        LEFT JOIN launched l ON l.process = e.process AND l.correlation = e.correlation AND l.thread = e.thread
        WHERE e.kind = 'fallback' AND e.thread IS NOT NULL AND e.device IS NOT NULL AND {TIME_NS} >= 0 AND {INSIDE}
        ORDER BY e.ts_ns, e.dur_ns, e.id""",
        window.parameters,
    ).fetchnumpy()


ENGINE = "autograd::engine::%"
"""Names of autograd's own rows around a backward node; they say that they are forward ops."""


def backward_rows(trace: Trace, window: Window) -> Columns:
    """The outermost rows of backward passes that run on threads of their own, with the thread that waits for them:
    the one of the process that calls most forward ops itself.
    """
    return trace.sql(
        f"""
        WITH outermost AS (
            SELECT e.id, e.process, e.thread, e.category = 'backward' OR e.name LIKE '{ENGINE}' AS backward,
                   e.ts_ns, e.dur_ns
            FROM event e LEFT JOIN event p ON p.id = e.parent AND p.thread = e.thread
            WHERE e.kind = 'op' AND e.thread IS NOT NULL AND {TIME_NS} > 0 AND {INSIDE}
              AND (p.id IS NULL OR p.kind NOT IN ('op', 'launch'))),
        forward AS (
            SELECT process, arg_max(thread, (n, -thread)) AS waiter FROM (
                SELECT process, thread, count(*) AS n FROM outermost WHERE NOT coalesce(backward, false)
                GROUP BY process, thread) GROUP BY process)
        SELECT o.id, o.thread, f.waiter, o.ts_ns AS start, o.ts_ns + o.dur_ns AS stop
        FROM outermost o JOIN forward f USING (process)
        WHERE o.backward AND o.thread <> f.waiter ORDER BY o.ts_ns, o.dur_ns, o.id""",
        window.parameters,
    ).fetchnumpy()


def stated_orders(trace: Trace) -> Columns:
    """Arrows of the source from one kernel or copy to another, such as from what was recorded to what waited for it."""
    return trace.sql("""
        SELECT DISTINCT f.from_event AS earlier, f.to_event AS later FROM flow f
        JOIN event a ON a.id = f.from_event JOIN event b ON b.id = f.to_event
        WHERE f.kind NOT IN ('launch', 'autograd') AND a.kind IN ('kernel', 'transfer')
          AND b.kind IN ('kernel', 'transfer') ORDER BY ALL""").fetchnumpy()


def positions(ids: Integers, wanted: Integers) -> Integers:
    """Where each of `wanted` is in `ids`; -1: nowhere."""
    if not len(ids):
        return np.full(len(wanted), NONE)
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    return np.where(ids[order][place] == wanted, order[place], NONE)
