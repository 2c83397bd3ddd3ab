"""What the devices did, as columns: every kernel and copy with its launch. Busy, idle and queues are all made of it."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import KERNEL_CLASS, NAMED_DEVICE, TIME_NS, VALID, WANTED
from ral_trace.analysis.intervals import Integers, Union, groups
from ral_trace.analysis.remember import once
from ral_trace.tracer.reading import Trace

Booleans = npt.NDArray[np.bool_]

CLASSES = ("compute", "memory", "communication")

NEVER = 2**63 - 1
"""Start of a launch that is not known."""

NO_STREAM = -1
NO_STEP = -(2**63)

KERNEL_WAIT_NS = 30_000
"""Shorter gaps between kernels are what launching costs: HolisticTraceAnalysis' consecutive_kernel_delay."""

LOADED = f"""
    WITH class_of AS MATERIALIZED (
        SELECT e.kind, e.name, list_position({list(CLASSES)}, {KERNEL_CLASS}) - 1 AS class
        FROM (SELECT DISTINCT kind, name FROM event WHERE kind IN ('kernel', 'transfer')) e),
    launch AS (
        SELECT e.process, e.correlation, min(e.ts_ns) AS start, min(e.ts_ns + {TIME_NS}) AS stop FROM event e
        WHERE e.kind = 'launch' AND e.correlation IS NOT NULL AND {VALID} GROUP BY e.process, e.correlation)
    SELECT e.device::BIGINT AS device, coalesce(e.stream, {NO_STREAM})::BIGINT AS stream, e.id, e.ts_ns AS start,
           e.ts_ns + e.dur_ns AS stop, e.kind = 'kernel' AS kernel, c.class::BIGINT AS class,
           coalesce(e.step, {NO_STEP}) AS step,
           coalesce(l.start, {NEVER}) AS launch_start, coalesce(l.stop, l.start, {NEVER}) AS launch_stop
    FROM event e JOIN class_of c ON c.kind = e.kind AND c.name IS NOT DISTINCT FROM e.name
    LEFT JOIN launch l ON l.process = e.process AND l.correlation = e.correlation
    WHERE e.kind IN ('kernel', 'transfer') AND e.device IS NOT NULL AND {TIME_NS} IS NOT NULL
    ORDER BY e.device, start, launch_start, stop, e.id"""


@dataclass(frozen=True)
class DeviceWork:
    """Kernels and copies whose times are known, by device and start; of those that start together the one that was
    launched first comes first. Times are nanoseconds.

    Waits that a source records on a stream are not work. Kernels that share a launch share its times.
    """

    device: Integers
    stream: Integers
    """NO_STREAM: not known."""
    id: Integers
    start: Integers
    stop: Integers
    kernel: Booleans
    """Whether it is a kernel; else it is a copy."""
    class_: Integers
    """Index of CLASSES."""
    step: Integers
    """NO_STEP: none."""
    launch_start: Integers
    """NEVER: its launch is not known."""
    launch_stop: Integers

    def __getitem__(self, rows: slice | Booleans | Integers) -> "DeviceWork":
        return DeviceWork(*(getattr(self, field.name)[rows] for field in fields(self)))

    def __len__(self) -> int:
        return len(self.start)

    @property
    def busy(self) -> Union:
        """When any of it ran."""
        return Union.of(self.start, self.stop)

    @property
    def launched(self) -> Booleans:
        """Which rows have a launch."""
        return np.asarray(self.launch_start != NEVER)

    def of_class(self, name: str) -> Union:
        """When any of that class ran."""
        return self[self.class_ == CLASSES.index(name)].busy

    def by_device(self) -> "dict[int, DeviceWork]":
        """The rows of each device."""
        return {device: self[rows] for device, rows in groups(self.device)}

    def by_stream(self) -> "Iterator[tuple[int, DeviceWork]]":
        """The rows of each stream of one device."""
        ordered = np.argsort(self.stream, kind="stable")
        for stream, rows in groups(self.stream[ordered]):
            yield stream, self[ordered[rows]]


@once
def device_work(trace: Trace) -> DeviceWork:
    """All kernels and copies of a trace whose times are known."""
    columns = trace.sql(LOADED).fetchnumpy()
    return DeviceWork(*(np.asarray(columns[field.name.rstrip("_")]) for field in fields(DeviceWork)))


@dataclass(frozen=True)
class Gaps:
    """The times between the first start and the last end in which nothing ran, and why."""

    start: Integers
    end: Integers
    before: Integers
    """Index of the row whose end began the gap."""
    after: Integers
    """Index of the row whose start ended it."""
    host_wait: Booleans
    """Its launch began only when all before it had ended: the device waited for the host."""
    kernel_wait: Booleans
    """Not so, and it is no longer than what launching costs."""

    @property
    def duration_ns(self) -> Integers:
        """How long each lasts."""
        return self.end - self.start

    def total_ns(self, which: Booleans) -> int:
        """How long those gaps last."""
        return int(self.duration_ns[which].sum())

    def where(self, which: Booleans) -> Union:
        """Those gaps as a set of times."""
        return Union.of(self.start[which], self.end[which])


def find_gaps(work: DeviceWork, kernel_wait_ns: int = KERNEL_WAIT_NS) -> Gaps:
    """The gaps in the work of one device or stream, by HolisticTraceAnalysis' definition.

    A row that overlaps the one before it leaves no gap; there HTA subtracts the overlap. A row without a known launch
    does not count as waited for by the host.
    """
    covered = np.maximum.accumulate(work.stop) if len(work) else work.stop
    after = np.flatnonzero(work.start[1:] > covered[:-1]) + 1
    start, end = covered[after - 1], work.start[after]
    latest = np.flatnonzero(np.concatenate([[True], work.stop[1:] > covered[:-1]])[: len(work)])
    before = latest[np.searchsorted(latest, after - 1, side="right") - 1]
    host = work.launched[after] & (work.launch_start[after] > start)
    return Gaps(start, end, before, after, host, ~host & (end - start < kernel_wait_ns))


def exact_sum(values: Integers) -> int:
    """The sum, which may be beyond 64 bits."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def percentile(values: Integers, share: float) -> int:
    """The smallest of sorted `values` that at least `share` of them do not exceed: one that occurred."""
    return int(values[max(int(np.ceil(share * len(values))) - 1, 0)])


@dataclass(frozen=True)
class NamedDevice:
    """A device as answers show it."""

    id: int
    process: int
    shown: str


def named_devices(trace: Trace, device: str | None) -> list[NamedDevice]:
    """The devices that the option `device` asks for, in the order of answers."""
    wanted = f"SELECT d.device, d.process, d.shown FROM named_device d WHERE {WANTED} ORDER BY d.position"
    return [NamedDevice(*row) for row in trace.sql(f"WITH {NAMED_DEVICE} {wanted}", [device]).fetchall()]


def streams(trace: Trace) -> dict[int, tuple[int | None, str | None]]:
    """The number and pipeline of each stream."""
    return {
        key: (number, pipeline)
        for key, number, pipeline in trace.sql("SELECT id, number, pipeline FROM stream").fetchall()
    }
