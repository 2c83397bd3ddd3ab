"""What bounds each step on each device: the device itself, the host's launches, input, or waits of streams."""

from dataclasses import dataclass

import numpy as np

from ral_trace.analysis.base import DEVICE, SOME_DEVICE_WORK, SOME_STEPS, TIME_NS, Analysis, Column, Row, Rows
from ral_trace.analysis.device_work import NO_STEP, DeviceWork, device_work, find_gaps, named_devices
from ral_trace.analysis.intervals import Integers, Union, groups
from ral_trace.tracer.reading import Trace

DEVICE_BOUND_IDLE = 0.1
"""A device that is idle for less than this share of the time is what bounds."""
MAIN_SHARE = 0.5
"""Share of the idle time from which on one cause is the cause."""

BOUND = Column(
    "bound",
    "text",
    "what bounds it: device (idle for less than a tenth of the time), else what at least half of its idle time is: "
    "input (input_wait_ns), launch (host_wait_ns without that), wait (what is left: streams that wait for each other); "
    "else mixed; none: not known",
)
HOST_WAIT = Column(
    "host_wait_ns",
    "ns",
    "idle time before work whose launch began only when all before it had ended; none: no launch is known",
    "for the host",
)
INPUT_WAIT = Column(
    "input_wait_ns", "ns", "idle time in which the process waited for its next batch; a part of any cause", "for input"
)


@dataclass(frozen=True)
class Idle:
    """Idle time of a device, in nanoseconds, and what of it was waiting for what."""

    total_ns: int
    host_ns: int | None
    """For the host; None: no launch is known."""
    launch_ns: int | None
    """The same, without what the host itself waited for input."""
    input_ns: int
    """The process waited for its next batch meanwhile."""


class IdleCauses:
    """The idle time of one device by cause, in any window. `waits`: when its process waited for its next batch."""

    def __init__(self, work: DeviceWork, waits: Union | None) -> None:
        gaps = find_gaps(work)
        idle = gaps.where(gaps.end > gaps.start)
        host = gaps.where(gaps.host_wait)
        self._known = bool(work.launched.any())
        self._parts = [idle, host, host, Union(idle.start[:0], idle.end[:0])]
        if waits is not None:
            self._parts[2:] = [host.minus(waits), idle.common(waits)]

    def within(self, start: Integers, end: Integers) -> list[Idle]:
        """Of each window."""
        idle, host, launch, waits = (part.within(start, end).tolist() for part in self._parts)
        if not self._known:
            host = launch = [None] * len(idle)
        return [Idle(*row) for row in zip(idle, host, launch, waits, strict=True)]


def verdict(idle: Idle, window_ns: int) -> str | None:
    """What bounds a device in a window of that length: see BOUND."""
    if not window_ns:
        return None
    if idle.total_ns < DEVICE_BOUND_IDLE * window_ns:
        return "device"
    causes = {"input": idle.input_ns}
    if idle.launch_ns is not None:
        causes |= {"launch": idle.launch_ns, "wait": idle.total_ns - idle.input_ns - idle.launch_ns}
    main = max(causes, key=causes.__getitem__)
    if causes[main] >= MAIN_SHARE * idle.total_ns:
        return main
    return None if idle.launch_ns is None else "mixed"


def annotated(trace: Trace, condition: str) -> dict[int, Union]:
    """When each process was in annotations `e` of which the condition holds."""
    rows = trace.sql(f"""
        SELECT e.process, e.ts_ns AS start, e.ts_ns + e.dur_ns AS stop FROM event e
        WHERE e.kind = 'annotation' AND {condition} AND e.process IS NOT NULL AND {TIME_NS} IS NOT NULL
        ORDER BY e.process""").fetchnumpy()
    process, start, stop = (np.asarray(rows[name]) for name in ("process", "start", "stop"))
    return {of: Union.of(start[at], stop[at]) for of, at in groups(process)}


def input_waits(trace: Trace) -> dict[int, Union]:
    """When each process waited for its next batch."""
    return annotated(trace, "e.category = 'dataloader'")


def step_bounds(trace: Trace, *, device: str | None = None, limit: int | None = 200) -> Rows:
    """A row a step and device, the one with most idle time first."""
    work, waits = device_work(trace).by_device(), input_waits(trace)
    rows = [
        {"device": found.shown, **row}
        for found in named_devices(trace, device)
        if found.id in work
        for row in _steps_of(work[found.id], waits.get(found.process))
    ]
    return Rows(sorted(rows, key=lambda row: (-row["idle_ns"], row["ts_ns"], row["device"]))[:limit])


def _steps_of(work: DeviceWork, waits: Union | None) -> list[Row]:
    """The steps of one device. A step's window runs from the end of the work of the steps before it to the end of its
    own, so that windows do not overlap; the first begins with its work.
    """
    stepped = work[work.step != NO_STEP]
    stepped = stepped[np.argsort(stepped.step, kind="stable")]
    step, first = np.unique(stepped.step, return_index=True)
    if not len(step):
        return []
    begun, ended = np.minimum.reduceat(stepped.start, first), np.maximum.reduceat(stepped.stop, first)
    known = stepped.launched & (stepped.start >= stepped.launch_start)
    delay = np.where(known, np.maximum(stepped.start - stepped.launch_stop, 0), 0)
    queued = np.where(known, stepped.start - stepped.launch_start, 0)
    sums = [np.add.reduceat(values, first) for values in (known.astype(np.int64), delay, queued)]
    order = np.lexsort((step, ended))
    step, begun, end = step[order], begun[order], np.maximum.accumulate(ended[order])
    start = np.concatenate([begun[:1], end[:-1]])
    busy = work.busy.within(start, end)
    idle = IdleCauses(work, waits).within(start, end)
    columns = (step, start, end - start, busy, *(values[order] for values in sums))
    return [
        _row(*row, idle=of)
        for of, row in zip(idle, zip(*(column.tolist() for column in columns), strict=True), strict=True)
    ]


def _row(
    step: int, start: int, window_ns: int, busy_ns: int, known: int, delay_ns: int, queued_ns: int, *, idle: Idle
) -> Row:
    return {
        "step": step,
        "ts_ns": start,
        "window_ns": window_ns,
        "busy_ns": busy_ns,
        "busy_percent": 100.0 * busy_ns / window_ns if window_ns else None,
        "idle_ns": window_ns - busy_ns,
        "bound": verdict(idle, window_ns),
        "host_wait_ns": idle.host_ns,
        "input_wait_ns": idle.input_ns,
        "mean_delay_ns": round(delay_ns / known) if known else None,
        "mean_queue": queued_ns / window_ns if known and window_ns else None,
    }


STEP_BOUNDS = Analysis(
    "step_bounds",
    "What bounds each step",
    "What bounds each step on each device, the step with most idle time first. A launch-bound step has most of its "
    "idle time before launches that came too late, short launch delays and a short queue; a device-bound one has "
    "hardly any idle time, long delays and a long queue.",
    (
        DEVICE,
        Column("step", "id", "the step's number"),
        Column("ts_ns", "time", "end of the work of the steps before it on this device; of the first: its first start"),
        Column("window_ns", "ns", "from then to the end of the step's own work", "over"),
        Column("busy_ns", "ns", "of that the union of kernels and copies, whatever step they are of", "busy time"),
        Column("busy_percent", "percent", "busy_ns of window_ns; none: window_ns is 0", "busy"),
        Column("idle_ns", "ns", "the remainder", "idle time"),
        BOUND,
        HOST_WAIT,
        INPUT_WAIT,
        Column("mean_delay_ns", "ns", "mean of the step's launch delays (see `queues`); none: no launch is known"),
        Column("mean_queue", "number", "launched and not yet begun, of the step, on average over window_ns"),
    ),
    step_bounds,
    chapter="steps",
    detail=True,
    shown="device step bound busy_percent idle_ns host_wait_ns input_wait_ns mean_delay_ns mean_queue window_ns",
    needs=(SOME_STEPS, SOME_DEVICE_WORK),
    most=8,
)
