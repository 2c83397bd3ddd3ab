"""Waits of the host for a device: for what, why, from which line, and how long the device then had nothing to do."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ral_trace.analysis.ancestors import LINE_OF_CALL
from ral_trace.analysis.base import (
    DEVICE,
    LINE,
    NAMED_DEVICE,
    SOME_SYNCS,
    TIME_NS,
    WANTED,
    Analysis,
    Bars,
    Column,
    Row,
    Rows,
)
from ral_trace.analysis.holds import held_work, idle_after, in_order, owned, per_owner
from ral_trace.analysis.intervals import Integers, Union
from ral_trace.analysis.remember import once, table
from ral_trace.analysis.steady import in_steady
from ral_trace.analysis.units import duration, short_path
from ral_trace.analysis.wait_names import HOST_WAITS
from ral_trace.analysis.wait_reasons import REASONS, reasons
from ral_trace.analysis.waits import waits
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

HIDDEN = {reason.name for reason in REASONS[1:] if reason.hidden}
"""Reasons of waits that a line does not show. A fallback's are the fallback's."""


@once
def idle_by(trace: Trace) -> dict[str, Integers]:
    """Columns, a row a wait in the order of `waits`: `within_ns` and `after_ns` of it, as analysis/holds.py says."""
    found = waits(trace)
    work = held_work(trace)
    within, after = np.zeros_like(found.begin), np.zeros_like(found.begin)
    own_copies = np.isin(work.id, found.copy)
    for device in np.unique(found.device[found.device >= 0]):
        ours = np.flatnonzero(found.device == device)
        ours = ours[in_order(found.begin[ours], found.end[ours])]
        begin, end, pending = found.begin[ours], found.end[ours], found.pending[ours]
        others = (work.device == device) & ~own_copies
        busy = Union.of(np.concatenate([begin, work.start[others]]), np.concatenate([pending, work.end[others]]))
        start, stop, owner = owned(begin, end)
        held = per_owner(owner, busy.within(start, stop), len(ours))
        within[ours] = per_owner(owner, stop - start, len(ours)) - held
        after[ours] = np.minimum(idle_after(begin, end, int(device), work), held)
    return {"within_ns": within, "after_ns": after}


_NAMES = ", ".join(f"'{reason.name}'" for reason in REASONS)
WAITED = f"""
    {LINE_OF_CALL},
    waited AS (
        SELECT d.position, d.shown AS device, e.id, e.name, e.ts_ns, e.process, e.step,
               list_extract([{_NAMES}], w.reason::INTEGER + 1) AS reason, coalesce(s.line, p.line) AS line,
               CASE WHEN o.id IS NOT NULL THEN o.kind::VARCHAR WHEN c.id IS NOT NULL THEN 'its own copy'
                    WHEN w.id IS NOT NULL AND w.device >= 0 THEN 'nothing' END AS waited_kind,
               CASE WHEN o.id IS NOT NULL THEN coalesce(e.args->>'waited_for', o.args->>'kernel', o.name)
                    ELSE c.name END AS waited_for,
               {TIME_NS} AS dur_ns,
               if(w.device >= 0, w.within_ns + w.after_ns, NULL) AS idle_ns,
               if(w.device >= 0, w.pending - e.ts_ns, NULL) AS pending_ns
        FROM event e LEFT JOIN {{each}} w ON w.id = e.id
        LEFT JOIN named_device d ON d.device = coalesce(e.device, nullif(w.device, -1))
        LEFT JOIN line_of s ON s.stack = e.stack
        LEFT JOIN line_of_call p ON p.id = w.python
        LEFT JOIN event o ON o.id = w.waited LEFT JOIN event c ON c.id = w.copy
        WHERE {HOST_WAITS} AND {WANTED})"""
"""CTE `waited`: each wait with what is known of it; waits of unknown duration have no reason."""


@contextmanager
def waited_rows(trace: Trace) -> Iterator[str]:
    """The CTEs that a query over `waited` begins with; they hold inside the block."""
    found = waits(trace)
    own = {name: getattr(found, name) for name in ("id", "device", "copy", "waited", "pending")}
    with table(trace, {**own, **reasons(trace), **idle_by(trace)}) as each:
        yield f"WITH {NAMED_DEVICE}, {LINE}, {WAITED.format(each=each)}"


GROUP = "position, device, reason, name, line, waited_kind"


def syncs(trace: Trace, *, device: str | None = None, steady: bool = False, limit: int | None = 200) -> Rows:
    """A row for each name, line and kind of what was waited for; those that left a device idle longest come first.

    `steady`: of steady steps only, if there are steps.
    """
    with waited_rows(trace) as waited, in_steady(trace, steady, "waited") as condition:
        return trace.rows(
            f"""
            {waited}, one AS (
                SELECT {GROUP}, waited_for, count(*) AS count, sum(dur_ns)::BIGINT AS total_ns,
                       max(dur_ns) AS max_ns, sum(pending_ns)::BIGINT AS pending_ns, sum(idle_ns)::BIGINT AS idle_ns
                FROM waited WHERE {condition} GROUP BY {GROUP}, waited_for)
            SELECT device, reason, name, line, waited_kind,
                   arg_max(waited_for, (total_ns, waited_for)) AS waited_for, sum(count)::BIGINT AS count,
                   sum(total_ns)::BIGINT AS total_ns, max(max_ns) AS max_ns, sum(pending_ns)::BIGINT AS pending_ns,
                   sum(idle_ns)::BIGINT AS idle_ns
            FROM one GROUP BY {GROUP}
            ORDER BY sum(idle_ns) DESC NULLS LAST, sum(total_ns) DESC NULLS LAST, {GROUP} LIMIT $2""",
            [device, limit],
        )


def longest_syncs(trace: Trace, *, device: str | None = None, limit: int | None = 50) -> Rows:
    """The longest waits, a row each."""
    with waited_rows(trace) as waited:
        return trace.rows(
            f"""
            {waited} SELECT device, ts_ns, dur_ns, reason, name, line, waited_kind, waited_for, pending_ns, idle_ns,
                   step
            FROM waited ORDER BY dur_ns DESC NULLS LAST, ts_ns, id LIMIT $2""",
            [device, limit],
        )


def syncs_said(rows: Rows) -> str | None:
    """The line that costs most, of those that do not look like a wait. None where none of them left a device idle."""
    row = next(
        (row for row in rows if row["reason"] in HIDDEN and row["reason"] != "fallback" and row["idle_ns"]), None
    )
    if row is None:
        return None
    times = "once" if row["count"] == 1 else f"{row['count']:,} times"
    where = f"at {plain(short_path(row['line']))}" if row["line"] else f"in {plain(str(row['name']))}"
    return (
        f"A hidden wait ({row['reason']}) {where} held the host up {times}: "
        f"that left {plain(str(row['device']))} without other work for {duration(row['idle_ns'])}."
    )


def _idle(row: Row) -> list[str]:
    return ["idle_ns"] if row["idle_ns"] and row["pending_ns"] and row["idle_ns"] > row["pending_ns"] else []


REASON = Column(
    "reason",
    "text",
    "why the host waited: " + ", ".join(reason.name for reason in REASONS) + "; none: unknown duration",
)
NAME = Column("name", "text", "op or call that waited")
WHERE = Column("line", "text", "the program's line; none: no stack was recorded")
KIND = Column(
    "waited_kind", "text", "kernel, transfer, its own copy, or nothing: no work was pending; none: unknown", "kind"
)
PENDING_NS = Column("pending_ns", "ns", "of that, until the work that it waited for had ended", "until done")
IDLE_NS = Column(
    "idle_ns",
    "ns",
    "time in which the device had nothing else to do because of it: the rest of the wait, and idle time after it until "
    "the first work launched later starts, but no more than it had waited for work; an upper bound of what leaving it "
    "out saves",
    "left idle",
)

SYNCS = Analysis(
    "syncs",
    "Syncs",
    "Where the host waits for a device: why, for what, and how long the device was idle because of it. Waits that a "
    "line does not show (item, copies, shapes that depend on data) are named by the ops around them; those of "
    "fallbacks are told apart. Copies that block are among them.",
    (
        DEVICE,
        REASON,
        NAME,
        WHERE,
        KIND,
        Column("waited_for", "text", "what it waited for, by name: that with most time; none: nothing or unknown"),
        Column("count", "count", "waits"),
        Column("total_ns", "ns", "time in them; none: no duration is known"),
        Column("max_ns", "ns", "the longest"),
        PENDING_NS,
        IDLE_NS,
    ),
    syncs,
    chapter="waits",
    most=5,
    shown="device reason line idle_ns total_ns count waited_for name pending_ns max_ns waited_kind",
    chart=Bars("reason", "idle_ns"),
    needs=(SOME_SYNCS,),
    remark=syncs_said,
    notable=_idle,
)

LONGEST_SYNCS = Analysis(
    "longest_syncs",
    "Longest syncs",
    "The longest waits of the host for a device, one by one.",
    (
        DEVICE,
        Column("ts_ns", "time", "its start", "at"),
        Column("dur_ns", "ns", "its length; none: unknown", "duration"),
        REASON,
        NAME,
        WHERE,
        KIND,
        Column("waited_for", "text", "what it waited for, by name; none: nothing or unknown"),
        PENDING_NS,
        IDLE_NS,
        Column("step", "id", "training step; none: outside of steps"),
    ),
    longest_syncs,
    chapter="waits",
    shown="device ts_ns dur_ns reason line waited_for idle_ns pending_ns name waited_kind step",
    detail=True,
    needs=(SOME_SYNCS,),
    most=5,
    notable=_idle,
)
