"""Why streams and devices were idle, and what the host did while a device had nothing to do."""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import DEVICE, LINE, SOME_DEVICE_WORK, TIME_NS, Analysis, Column, Row, Rows
from ral_trace.analysis.device_work import (
    KERNEL_WAIT_NS,
    DeviceWork,
    device_work,
    find_gaps,
    named_devices,
    streams,
)
from ral_trace.analysis.intervals import Integers
from ral_trace.tracer import _native
from ral_trace.tracer.reading import Trace


def stream_idle(trace: Trace, *, device: str | None = None, kernel_wait_ns: int = KERNEL_WAIT_NS) -> Rows:
    """A row a stream. Gaps that are shorter than `kernel_wait_ns`, and no wait for the host, are a kernel wait."""
    work, known = device_work(trace).by_device(), streams(trace)
    return Rows(
        {"device": found.shown, **_stream_row(on_stream, kernel_wait_ns, *known.get(stream, (None, None)))}
        for found in named_devices(trace, device)
        if found.id in work
        for stream, on_stream in work[found.id].by_stream()
    )


def _stream_row(work: DeviceWork, kernel_wait_ns: int, number: int | None, pipeline: str | None) -> Row:
    gaps = find_gaps(work, kernel_wait_ns)
    total_ns = int(work.stop.max() - work.start.min())
    busy_ns = total_ns - int(gaps.duration_ns.sum())
    return {
        "stream": number,
        "pipeline": pipeline,
        "count": len(work),
        "total_ns": total_ns,
        "busy_ns": busy_ns,
        "busy_percent": 100.0 * busy_ns / total_ns if total_ns else None,
        "idle_ns": total_ns - busy_ns,
        "host_wait_ns": gaps.total_ns(gaps.host_wait) if work.launched.any() else None,
        "kernel_wait_ns": gaps.total_ns(gaps.kernel_wait),
        "other_wait_ns": gaps.total_ns(~gaps.host_wait & ~gaps.kernel_wait),
    }


STREAM = Column("stream", "id", "its number, as the source counts; none: not known")
PIPELINE = Column("pipeline", "text", "compute, copy_in, copy_out; none: not known")

STREAM_IDLE = Analysis(
    "stream_idle",
    "Idle time of streams",
    "Why each stream was idle between its first start and its last end, by HolisticTraceAnalysis' idle time breakdown. "
    "A stream may be idle while another keeps the device busy: what the device was idle is in `utilisation`. Where "
    "kernels of one stream overlap, HTA counts the overlap as negative idle time; here it is no gap.",
    (
        DEVICE,
        STREAM,
        PIPELINE,
        Column("count", "count", "kernels and copies whose times are known"),
        Column("total_ns", "ns", "from the first start to the last end", "over"),
        Column("busy_ns", "ns", "union of its kernels and copies", "busy time"),
        Column("busy_percent", "percent", "busy_ns of total_ns; none: total_ns is 0", "busy"),
        Column("idle_ns", "ns", "the remainder: the sum of the three waits", "idle time"),
        Column(
            "host_wait_ns",
            "ns",
            "gaps before work whose launch began only when all before it had ended; none: no launch is known",
            "for the host",
        ),
        Column("kernel_wait_ns", "ns", "other gaps of less than 30 us: what launching costs", "launching"),
        Column("other_wait_ns", "ns", "all other gaps: it waited for another stream, or nobody knows", "other"),
    ),
    stream_idle,
    chapter="devices",
    detail=True,
    shown="stream pipeline idle_ns busy_percent host_wait_ns kernel_wait_ns other_wait_ns count total_ns busy_ns",
    per_device=True,
    needs=(SOME_DEVICE_WORK,),
    most=8,
)


def idle_gaps(trace: Trace, *, device: str | None = None, limit: int = 50) -> Rows:
    """The `limit` longest times in which a device did nothing, on no stream, and what the host did meanwhile."""
    work = device_work(trace).by_device()
    gaps = [
        (found.shown, gap)
        for found in named_devices(trace, device)
        if found.id in work
        for gap in _longest(work[found.id], limit)
    ]
    gaps.sort(key=lambda found: (-found[1].dur_ns, found[1].ts_ns, found[0]))
    return _rows(trace, gaps[:limit]) if gaps else Rows()


@dataclass(frozen=True)
class _Gap:
    ts_ns: int
    dur_ns: int
    reason: str | None
    after: int
    """Id of the row whose end began it."""
    before: int
    """Id of the row whose start ended it."""


def _longest(work: DeviceWork, limit: int) -> list[_Gap]:
    """The longest gaps of one device."""
    gaps = find_gaps(work)
    known = bool(work.launched.any())
    reason = np.where(gaps.host_wait, "host", np.where(gaps.kernel_wait, "launching", "other"))
    return [
        _Gap(
            int(gaps.start[at]),
            int(gaps.duration_ns[at]),
            str(reason[at]) if known else None,
            int(work.id[np.flatnonzero(work.stop[: gaps.after[at]] == gaps.start[at])[0]]),
            int(work.id[gaps.after[at]]),
        )
        for at in np.lexsort((gaps.start, -gaps.duration_ns))[:limit]
    ]


AROUND = """
    SELECT g.number, a.name AS after, b.name AS before, b.step,
           (SELECT min(l.thread) FROM event l
            WHERE l.kind = 'launch' AND l.process = b.process AND l.correlation = b.correlation) AS thread
    FROM {gaps} g JOIN event a ON a.id = g.after JOIN event b ON b.id = g.before ORDER BY g.number"""
"""What lies around each gap, and the thread that launched what ended it."""


def _rows(trace: Trace, gaps: list[tuple[str, _Gap]]) -> Rows:
    with _registered(
        trace,
        number=np.arange(len(gaps)),
        after=np.array([gap.after for _, gap in gaps]),
        before=np.array([gap.before for _, gap in gaps]),
    ) as table:
        around = trace.rows(AROUND.format(gaps=table))
    host = _Host.of(trace, {row["thread"] for row in around if row["thread"] is not None})
    busiest = [
        host.busiest(row["thread"], gap.ts_ns, gap.ts_ns + gap.dur_ns)
        for row, (_, gap) in zip(around, gaps, strict=True)
    ]
    facts = _facts(trace, [found[0] for found in busiest if found])
    rows = Rows()
    for (shown, gap), row, found in zip(gaps, around, busiest, strict=True):
        name, kind, line = facts[found[0]] if found else (None, None, None)
        rows.append(
            {
                "device": shown,
                "ts_ns": gap.ts_ns,
                "dur_ns": gap.dur_ns,
                "reason": gap.reason,
                "step": row["step"],
                "after": row["after"],
                "before": row["before"],
                "host": name,
                "host_kind": kind,
                "host_ns": found[1] if found else None,
                "line": line,
            }
        )
    return rows


@contextlib.contextmanager
def _registered(trace: Trace, **columns: Integers) -> Iterator[str]:
    """A table of these columns, for as long as it is needed."""
    name = f"gaps_{uuid.uuid4().hex}"
    trace.connection.register(name, columns)
    try:
        yield name
    finally:
        trace.connection.unregister(name)


def _facts(trace: Trace, ids: list[int]) -> dict[int, tuple[str | None, str, str | None]]:
    """Name, kind and line of the program of these rows."""
    if not ids:
        return {}
    with _registered(trace, id=np.unique(np.array(ids))) as table:
        found = trace.sql(f"""
            WITH {LINE} SELECT e.id, e.name, e.kind::VARCHAR, s.line
            FROM event e JOIN {table} g ON g.id = e.id LEFT JOIN line_of s ON s.stack = e.stack""").fetchall()
    return {id: (name, kind, line) for id, name, kind, line in found}


@dataclass(frozen=True)
class _Host:
    """What some threads did, by thread and start, the longer first."""

    thread: Integers
    start: Integers
    stop: Integers
    id: Integers
    what: npt.NDArray[np.uint64]
    """A hash of kind and name."""

    @classmethod
    def of(cls, trace: Trace, threads: set[int]) -> Self:
        """All rows of these threads that last."""
        rows = trace.sql(
            f"""
            SELECT e.thread, e.ts_ns AS start, e.ts_ns + e.dur_ns AS stop, e.id, hash(e.kind, e.name) AS what
            FROM event e WHERE e.thread IN (SELECT unnest($1::INTEGER[])) AND {TIME_NS} > 0
            ORDER BY e.thread, start, stop DESC, e.id DESC""",
            [sorted(threads)],
        ).fetchnumpy()
        return cls(*(np.asarray(rows[field.name]) for field in fields(cls)))

    def busiest(self, thread: int | None, start: int, stop: int) -> tuple[int, int] | None:
        """What took most time of a thread: (id of its longest row, nanoseconds); None: there is nothing.

        Each moment counts for the row that started last. Rows are cut to the window.
        """
        inside = np.flatnonzero((self.thread == thread) & (self.start < stop) & (self.stop > start))
        if not len(inside):
            return None
        begin, end = np.maximum(self.start[inside], start), np.minimum(self.stop[inside], stop)
        order = np.lexsort((np.arange(len(inside)), -end, begin))
        inside = inside[order]
        own = _native.own_times(self.thread[inside].astype(np.int32), begin[order], end[order])
        by_what = np.argsort(self.what[inside], kind="stable")
        what = self.what[inside][by_what]
        first = np.flatnonzero(np.concatenate([[True], what[1:] != what[:-1]]))
        sums = np.add.reduceat(own[by_what], first)
        most = int(sums.argmax())
        of_it = by_what[first[most] :][: int((what == what[first[most]]).sum())]
        return int(self.id[inside[of_it[own[of_it].argmax()]]]), int(sums[most])


IDLE_GAPS = Analysis(
    "idle_gaps",
    "Longest idle times of devices",
    "The longest times in which a device did nothing on any stream, and what took most of the launching thread's time "
    "meanwhile.",
    (
        DEVICE,
        Column("ts_ns", "time", "when it began", "at"),
        Column("dur_ns", "ns", "how long it lasted", "idle time"),
        Column(
            "reason",
            "text",
            "host: what ended it was launched only after it began; launching: not so, and shorter than 30 us; other; "
            "none: no launch is known",
        ),
        Column("step", "id", "step of the work that ended it; none: not in a step"),
        Column("after", "text", "the work that ended last before it"),
        Column("before", "text", "the work that ended it"),
        Column(
            "host",
            "text",
            "what took most of the time of the thread that launched the work that ended it; each moment counts for the "
            "row that started last; none: not known",
            "host meanwhile",
        ),
        Column("host_kind", "text", "event.kind of that", "kind"),
        Column("host_ns", "ns", "its time within the idle time", "of that"),
        Column("line", "text", "line of the program of its longest row; none: no stack was recorded"),
    ),
    idle_gaps,
    chapter="devices",
    detail=True,
    shown="device dur_ns reason host host_ns ts_ns step before after line host_kind",
    needs=(SOME_DEVICE_WORK,),
    most=8,
)
