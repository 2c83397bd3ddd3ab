"""What each wait of the host waited for: the last other work of its stream that ended in it."""

from dataclasses import dataclass

import numpy as np

from ral_trace.analysis.ancestors import UNKNOWN
from ral_trace.analysis.base import TIME_NS
from ral_trace.analysis.beneath import find_inside_fallbacks
from ral_trace.analysis.holds import Flags, Work, held_work
from ral_trace.analysis.intervals import Integers
from ral_trace.analysis.remember import once
from ral_trace.analysis.wait_names import HOST_WAITS, WHOLE_DEVICE
from ral_trace.tracer.reading import Trace


@dataclass(frozen=True)
class Waits:
    """Waits of the host with a known duration, by id."""

    id: Integers
    process: Integers
    device: Integers
    """As the row says, else that of its own copy, else of what it waited for, else of the only one with work."""
    begin: Integers
    end: Integers
    fallback: Integers
    """The fallback that forced it."""
    copy: Integers
    """event.id of its own copy: the last one that the op, launch or fallback around it had launched before it."""
    waited: Integers
    """event.id of the last other work of its stream (of its device, of its process where that is not known) that was
    launched before it and ended in it. UNKNOWN: nothing else was pending."""
    pending: Integers
    """The end of that, else `begin`: until then the device had something else to do."""


def _rows(trace: Trace) -> dict[str, Integers]:
    """The waits with their own copies. A copy's launch is around the wait, or beside it under the same op; a fallback's
    copies hang under the fallback itself.
    """
    find_inside_fallbacks(trace)
    found = trace.sql(f"""
        WITH wait AS (
            SELECT e.id, e.kind, e.process, e.device, if({WHOLE_DEVICE}, NULL, e.stream) AS stream, e.ts_ns, e.dur_ns,
                   e.correlation, e.parent
            FROM event e WHERE {HOST_WAITS} AND {TIME_NS} IS NOT NULL),
        near AS (SELECT DISTINCT parent AS id FROM wait SEMI JOIN event p ON p.id = wait.parent
                 AND p.kind IN ('op', 'launch', 'fallback')),
        copy AS (
            SELECT l.id AS launch, l.parent, t.parent AS stated, l.ts_ns, t.id, t.device, t.stream
            FROM event t JOIN event l ON l.process = t.process AND l.correlation = t.correlation AND l.kind = 'launch'
            WHERE t.kind = 'transfer'
              AND (l.id IN (FROM near) OR l.parent IN (FROM near) OR t.parent IN (FROM near))),
        beside AS (
            SELECT launch AS near, * FROM copy UNION SELECT parent, * FROM copy UNION SELECT stated, * FROM copy),
        last AS (
            SELECT w.id, c.id AS copy, c.device, c.stream FROM wait w ASOF JOIN beside c
              ON c.near = w.parent AND w.ts_ns >= c.ts_ns WHERE w.kind = 'sync'
            UNION ALL
            SELECT w.id, max(t.id), max(t.device), max(t.stream) FROM wait w JOIN event t
              ON t.process = w.process AND t.correlation = w.correlation AND t.kind = 'transfer'
            WHERE w.kind = 'launch' GROUP BY w.id),
        stated AS (
            SELECT process, correlation, max(device) AS device, max(stream) AS stream FROM event
            WHERE kind = 'wait' AND correlation IS NOT NULL GROUP BY ALL)
        SELECT w.id, w.process::BIGINT AS process, coalesce(w.device, s.device, c.device, {UNKNOWN})::BIGINT AS device,
               coalesce(w.stream, if(w.device IS NULL, s.stream, NULL), if(w.kind = 'launch' OR w.device IS NULL,
                        c.stream, NULL), {UNKNOWN})::BIGINT AS stream,
               w.ts_ns AS begin, w.ts_ns + w.dur_ns AS end, coalesce(b.fallback, {UNKNOWN}) AS fallback,
               coalesce(c.copy, {UNKNOWN}) AS copy
        FROM wait w
        LEFT JOIN below_fallback b ON b.id = w.id
        LEFT JOIN last c ON c.id = w.id
        LEFT JOIN stated s ON s.process = w.process AND s.correlation = w.correlation
        ORDER BY w.id""").fetchnumpy()
    return {name: np.asarray(column) for name, column in found.items()}


@once
def waits(trace: Trace) -> Waits:
    """All of them."""
    rows = _rows(trace)
    stream = rows.pop("stream")
    work = held_work(trace)
    waited = np.full(len(rows["id"]), UNKNOWN, dtype=np.int64)
    pending = rows["begin"].copy()
    for process, device, on in np.unique(np.stack([rows["process"], rows["device"], stream]), axis=1).T:
        ours = np.flatnonzero((rows["process"] == process) & (rows["device"] == device) & (stream == on))
        some = work.process == process
        if device != UNKNOWN:
            some &= work.device == device
        if on != UNKNOWN:
            some &= work.stream == on
        candidates = work.of(some)
        found = last_ended(candidates, rows["begin"][ours], rows["end"][ours], rows["copy"][ours])
        known = found >= 0
        waited[ours[known]] = candidates.id[found[known]]
        pending[ours[known]] = candidates.end[found[known]]
        if device == UNKNOWN and len(candidates.id):
            rows["device"][ours[known]] = candidates.device[found[known]]
            if (candidates.device == candidates.device[0]).all():
                rows["device"][ours] = candidates.device[0]
    return Waits(**rows, waited=waited, pending=pending)


def last_ended(work: Work, begin: Integers, end: Integers, copy: Integers) -> Integers:
    """For each wait the index of the work that ended last in it, `copy` left out, among what was launched before it;
    -1 where there is none.
    """
    order = np.lexsort((work.id, work.end))
    ends, launched, ids = work.end[order], work.launched[order], work.id[order]
    at = np.searchsorted(ends, end, side="right") - 1
    floor = np.searchsorted(ends, begin, side="right") - 1

    def unfit() -> Integers:
        some = np.flatnonzero(at > floor)
        wrong: Flags = (launched[at[some]] > begin[some]) | (ids[at[some]] == copy[some])
        return some[wrong]

    for _ in range(8):
        at[unfit()] -= 1
    # What other threads launched meanwhile: waits of one thread do not overlap, so that this is one pass for each.
    for one in unfit().tolist():
        fits = (launched[floor[one] + 1 : at[one] + 1] <= begin[one]) & (ids[floor[one] + 1 : at[one] + 1] != copy[one])
        places = np.flatnonzero(fits)
        at[one] = floor[one] + 1 + places[-1] if len(places) else floor[one]
    return np.where(at > floor, order[np.maximum(at, 0)] if len(order) else at, -1)
