"""Holds: times [begin, end) in which the host stood still, or worked, in place of feeding a device: a sync, a fallback.

What a hold costs its device is worked out alike for both. While it lasts the host launches nothing, so the device runs
dry; after it the device still waits for what the host launches next. Two parts, which never overlap:

- within: time of the hold in which the device had nothing else to do;
- after: idle time of the device from the hold's end to the start of the first work launched after it, but no more than
  the time of the hold in which it did have something to do. By so much would the host have been ahead without the hold,
  and by no more than that would the work have come earlier.

So a hold never costs more than it lasted. Where holds on a device overlap (threads, a fallback beneath a fallback),
each moment counts for the one that began last, so that their costs add up to time that really passed.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import TIME_NS
from ral_trace.analysis.beneath import find_inside_fallbacks
from ral_trace.analysis.intervals import Integers, Union
from ral_trace.analysis.remember import once
from ral_trace.analysis.wait_names import HOST_WAITS
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.schema import FLAGS

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Work:
    """Kernels and copies with a known duration, of the processes in which there are holds. `launched` is when the host
    launched them, or else their own start."""

    id: Integers
    process: Integers
    device: Integers
    stream: Integers
    start: Integers
    end: Integers
    launched: Integers
    of_fallback: Flags
    """It is a copy that a fallback made."""

    def of(self, some: Flags) -> "Work":
        """A part of it."""
        return Work(*(getattr(self, name)[some] for name in self.__dataclass_fields__))

    @property
    def busy(self) -> Union:
        """When any of it ran."""
        return Union.of(self.start, self.end)


@once
def held_work(trace: Trace) -> Work:
    """The work of the processes that have syncs or fallbacks."""
    find_inside_fallbacks(trace)
    found = trace.sql(f"""
        SELECT e.id, e.process::BIGINT AS process, e.device::BIGINT AS device, coalesce(e.stream, -1)::BIGINT AS stream,
               e.ts_ns AS start, e.ts_ns + e.dur_ns AS end, coalesce(l.ts_ns, e.ts_ns) AS launched,
               c.id IS NOT NULL AS of_fallback
        FROM event e
        LEFT JOIN event l ON l.kind = 'launch' AND l.process = e.process AND l.correlation = e.correlation
             AND (coalesce(l.flags, 0) & {FLAGS["INVALID"]}) = 0
        LEFT JOIN copy_inside c ON c.id = e.id
        WHERE e.kind IN ('kernel', 'transfer') AND e.device IS NOT NULL AND {TIME_NS} IS NOT NULL
          AND e.process IN (SELECT process FROM event e WHERE e.kind = 'fallback' OR {HOST_WAITS}) ORDER BY e.id
        """).fetchnumpy()
    return Work(**{name: np.asarray(column) for name, column in found.items()})


def owned(begin: Integers, end: Integers) -> tuple[Integers, Integers, Integers]:
    """Cuts intervals so that each moment belongs to the one that began last: starts, ends and owners of the parts.

    The intervals have a length, and are sorted by begin, the longer first.
    """
    number = np.arange(len(begin), dtype=np.int64)
    reach = np.maximum.accumulate(end) if len(end) else end
    fresh = np.concatenate([[True], begin[1:] >= reach[:-1]]) if len(begin) else np.zeros(0, dtype=bool)
    cluster = np.cumsum(fresh)
    alone = np.bincount(cluster)[cluster] == 1 if len(begin) else fresh
    rest = number[~alone]
    parts = np.array(_cut(begin[rest].tolist(), end[rest].tolist()), dtype=np.int64).reshape(-1, 3)
    return (
        np.concatenate([begin[alone], parts[:, 0]]),
        np.concatenate([end[alone], parts[:, 1]]),
        np.concatenate([number[alone], rest[parts[:, 2]]]),
    )


def _cut(begin: list[int], end: list[int]) -> list[tuple[int, int, int]]:
    """`owned` for intervals that overlap: a sweep that keeps the open ones, the last begun on top."""
    parts: list[tuple[int, int, int]] = []
    opened: list[int] = []
    now = 0
    for number in range(len(begin) + 1):
        until = begin[number] if number < len(begin) else None
        while opened and (until is None or now < until):
            top = opened[-1]
            stop = end[top] if until is None else min(end[top], until)
            if stop > now:
                parts.append((now, stop, top))
                now = stop
            if end[top] <= now:
                opened.pop()
        if until is not None:
            now = until
            opened.append(number)
    return parts


def idle_after(begin: Integers, end: Integers, device: int, work: Work) -> Integers:
    """How long a device is idle after each hold, until what was launched after it starts. 0 where nothing was."""
    here = work.of(work.device == device)
    until = aftermath(begin, end, resumed(here, work.of(np.isin(work.process, here.process[:1])), end))
    return until - end - here.busy.within(end, until)


def resumed(here: Work, process: Work, times: Integers) -> Integers:
    """Until when a device waits for the host: the first of its work that was launched at one of `times` or later
    starts. Where that work was launched and other devices of the process run, it waits for those. Else the time itself.
    """
    launched, start = _after_launch(here, times)
    _, anywhere = _after_launch(process, times)
    return np.minimum(start, np.maximum(launched, anywhere))


def _after_launch(work: Work, times: Integers) -> tuple[Integers, Integers]:
    """When the first launch of the work at `times` or later is, and when the first of what is so launched starts."""
    order = np.argsort(work.launched, kind="stable")
    launched = work.launched[order]
    # Clocks that disagree: nothing can start before it is launched.
    start = np.maximum(work.start[order], launched)
    first = np.minimum.accumulate(start[::-1])[::-1]
    index = np.searchsorted(launched, times, side="left")
    some = index < len(launched)
    when, then = times.copy(), times.copy()
    when[some], then[some] = launched[index[some]], first[index[some]]
    return when, then


def aftermath(begin: Integers, end: Integers, resumes: Integers) -> Integers:
    """Until when the time after each hold is on its account: the device resumes, or the next hold begins.

    That is at once where another hold still lasts. The holds are sorted as for `owned`.
    """
    if not len(begin):
        return end
    following = np.searchsorted(begin, end, side="left")
    reach = np.maximum.accumulate(end)
    until = np.minimum(resumes, np.where(following < len(begin), begin[np.minimum(following, len(begin) - 1)], resumes))
    _, last = np.unique(end[::-1], return_index=True)
    lasting = np.ones(len(end), dtype=bool)
    lasting[len(end) - 1 - last] = False
    return np.where(lasting | (reach[following - 1] > end), end, until)


def per_owner(owner: Integers, amount: Integers, count: int) -> Integers:
    """Adds up amounts exactly: floats, as bincount's weights are, are not exact above 2^53."""
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, owner, amount)
    return total


def in_order(begin: Integers, end: Integers) -> Integers:
    """The order that `owned` and `aftermath` want, of those that have a length."""
    some = np.flatnonzero(end > begin)
    return some[np.lexsort((-end[some], begin[some]))]
