"""How far the host runs ahead of each stream: its queue, and how long launched work waits to begin."""

import numpy as np

from ral_trace.analysis.base import DEVICE, SOME_DEVICE_WORK, SOME_LAUNCHES, Analysis, Column, Lines, Row, Rows
from ral_trace.analysis.device_work import (
    DeviceWork,
    device_work,
    exact_sum,
    named_devices,
    percentile,
    streams,
)
from ral_trace.analysis.idle import PIPELINE, STREAM
from ral_trace.analysis.intervals import Integers
from ral_trace.tracer.reading import Trace


def queues(trace: Trace, *, device: str | None = None) -> Rows:
    """A row a stream: the length of its queue over time, and the delays from launch to start."""
    work, known = device_work(trace).by_device(), streams(trace)
    return Rows(
        {"device": found.shown, **_row(on_stream, *known.get(stream, (None, None)))}
        for found in named_devices(trace, device)
        if found.id in work
        for stream, on_stream in work[found.id].by_stream()
    )


def _row(work: DeviceWork, number: int | None, pipeline: str | None) -> Row:
    queued = _queued(work)
    row: Row = {
        "stream": number,
        "pipeline": pipeline,
        "count": len(queued),
        "before_launch": int((work.launched & (work.start < work.launch_start)).sum()),
        "no_launch": int((~work.launched).sum()),
    }
    if not len(queued):
        return row | dict.fromkeys(MEASURES)
    over_ns = int(queued.start.max() - queued.launch_start.min())
    delay = np.maximum(queued.start - queued.launch_stop, 0)
    return row | {
        "mean_length": exact_sum(queued.start - queued.launch_start) / over_ns if over_ns else 0.0,
        "max_length": int(_length(queued)[1].max()),
        "mean_delay_ns": round(exact_sum(delay) / len(delay)),
        "median_delay_ns": percentile(delay, 0.5),
        "p99_delay_ns": percentile(delay, 0.99),
        "max_delay_ns": int(delay.max()),
    }


def _queued(work: DeviceWork) -> DeviceWork:
    """What was launched before it began. The rest has clocks that disagree, or no launch at all."""
    known = work.launched & (work.start >= work.launch_start)
    return work if known.all() else work[known]


def _length(queued: DeviceWork) -> tuple[Integers, Integers]:
    """The length of one stream's queue: after each moment at which it may change."""
    times = np.concatenate([queued.launch_start, queued.start])
    change = np.repeat([1, -1], len(queued))
    order = np.argsort(times, kind="stable")
    times, length = times[order], np.cumsum(change[order])
    last = np.flatnonzero(np.concatenate([times[1:] != times[:-1], [True]])[: len(times)])
    return times[last], length[last]


MEASURES = ("mean_length", "max_length", "mean_delay_ns", "median_delay_ns", "p99_delay_ns", "max_delay_ns")
NONE = "none: none such"

QUEUES = Analysis(
    "queues",
    "Queues and launch delays",
    "How far the host ran ahead of each stream. A queue has one more with each kernel or copy from when its launch "
    "began, and one less when that begins (a launch of several puts all of them in it). A launch delay runs from the "
    "launch's end to the start, 0 where it began before that. Means of the queue are over time, where "
    "HolisticTraceAnalysis' are over changes.",
    (
        DEVICE,
        STREAM,
        PIPELINE,
        Column("count", "count", "kernels and copies that began after their launch began: the others are in no figure"),
        Column("before_launch", "count", "those that began before their launch, which cannot be: clocks disagree"),
        Column("no_launch", "count", "those whose launch is not known"),
        Column("mean_length", "number", f"of its queue, from the first launch to the last start; {NONE}", "mean queue"),
        Column("max_length", "count", f"longest queue; {NONE}", "max queue"),
        Column("mean_delay_ns", "ns", f"mean launch delay; {NONE}"),
        Column("median_delay_ns", "ns", f"median launch delay: one that occurred, the lower of two; {NONE}"),
        Column("p99_delay_ns", "ns", f"99th percentile of launch delays: one that occurred; {NONE}", "p99 delay"),
        Column("max_delay_ns", "ns", f"longest launch delay; {NONE}"),
    ),
    queues,
    chapter="devices",
    detail=True,
    shown="stream pipeline mean_length max_length mean_delay_ns median_delay_ns p99_delay_ns max_delay_ns count "
    "before_launch no_launch",
    per_device=True,
    needs=(SOME_DEVICE_WORK, SOME_LAUNCHES),
    most=8,
    notable=lambda row: ["before_launch"] if row["before_launch"] else [],
)


def queue_curve(trace: Trace, *, device: str | None = None, points: int = 2000) -> Rows:
    """The length of each stream's queue over time, at most `points` rows a device (but 4 a stream).

    A longer curve is cut into stretches of time, and of each the first, last, lowest and highest row are kept.
    """
    work, known = device_work(trace).by_device(), streams(trace)
    rows = Rows()
    for found in named_devices(trace, device):
        curves = [
            (known.get(stream, (None, None)), *_length(queued))
            for stream, on_stream in (work[found.id].by_stream() if found.id in work else ())
            if len(queued := _queued(on_stream))
        ]
        for (stream, pipeline), times, length in curves:
            kept = thinned(times, length, points // len(curves))
            for at, value in zip(times[kept].tolist(), length[kept].tolist(), strict=True):
                place = {"device": found.shown, "stream": stream, "pipeline": pipeline}
                rows.append(place | {"ts_ns": at, "length": value})
    return rows


def thinned(times: Integers, values: Integers, points: int) -> Integers:
    """Which rows of a curve to keep, at most `points` but 4: of equal stretches the first, last, lowest and highest."""
    if len(times) <= points:
        return np.arange(len(times))
    stretches = max(points // 4, 1)
    span = int(times[-1]) - int(times[0]) + 1
    edges = np.array([int(times[0]) + span * number // stretches for number in range(stretches)])
    first = np.unique(np.searchsorted(times, edges))
    first = first[first < len(times)]
    last = np.concatenate([first[1:], [len(times)]]) - 1
    number = np.repeat(np.arange(len(first)), last - first + 1)
    by_value = np.lexsort((times, values, number))
    return np.unique(np.concatenate([first, last, by_value[first], by_value[last]]))


QUEUE_CURVE = Analysis(
    "queue_curve",
    "Queues over time",
    "The length of each stream's queue (see `queues`) after each change; a value holds until the next row. Long curves "
    "are thinned so that no peak is lost.",
    (
        DEVICE,
        STREAM,
        PIPELINE,
        Column("ts_ns", "time", "when"),
        Column("length", "count", "launched and not yet begun"),
    ),
    queue_curve,
    chapter="devices",
    chart=Lines(("device", "stream", "pipeline"), "ts_ns", "length"),
    needs=(SOME_DEVICE_WORK, SOME_LAUNCHES),
)
