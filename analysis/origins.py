"""Where the work of devices comes from: the op that launched it, and the line of the program."""

import numpy as np

from ral_trace.analysis.base import LINE
from ral_trace.analysis.callers import Callers, Integers
from ral_trace.tracer.reading import Trace

Origin = tuple[str | None, str | None]
"""Op, line; None: not known."""


def launches_of(trace: Trace, events: Integers) -> Integers:
    """The launch of each event, else the row that it says called it; -1: none."""
    found = dict(
        trace.sql(
            """
            SELECT e.id, coalesce(min(l.id), any_value(e.parent)) FROM event e
            LEFT JOIN event l ON l.kind = 'launch' AND l.process = e.process AND l.correlation = e.correlation
            WHERE e.id IN (SELECT unnest($1::BIGINT[])) GROUP BY e.id""",
            [np.unique(events).tolist()],
        ).fetchall()
    )
    return np.array([-1 if found.get(event) is None else found[event] for event in events.tolist()], np.int64)


def lines_of(trace: Trace, callers: Integers) -> list[str | None]:
    """The line of each row of the host, or of the innermost row around it that has a stack."""
    lines = dict(trace.sql(f"WITH {LINE} SELECT stack, line FROM line_of").fetchall())
    if not lines:
        return [None] * len(callers)
    return [lines.get(stack) for stack in Callers(trace, "e.stack").nearest(callers).tolist()]


def origins(trace: Trace, events: Integers) -> list[Origin]:
    """Op and line of each event. An event that a launch of the same name started is named for its op already."""
    if not len(events):
        return []
    launch = launches_of(trace, events)
    op = Callers(trace, "CASE WHEN e.kind = 'op' THEN e.id END").nearest(launch)
    lines = lines_of(trace, launch)
    rows = np.unique(np.concatenate([events, launch, op])).tolist()
    names = dict(trace.sql("SELECT id, name FROM event WHERE id IN (SELECT unnest($1::BIGINT[]))", [rows]).fetchall())
    found: list[Origin] = []
    for event, call, caller, line in zip(events.tolist(), launch.tolist(), op.tolist(), lines, strict=True):
        same = names.get(event) is not None and names.get(event) == names.get(call)
        found.append((names.get(event) if same else names.get(caller), line))
    return found
