"""What the devices did, as columns: every kernel and copy with its launch. Busy, idle and queues are all made of it."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import KERNEL_CLASS, NAMED_DEVICE, TIME_NS, VALID
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

WORK = f"""
    WITH class_of AS MATERIALIZED (
        SELECT e.kind, e.name, list_position({list(CLASSES)}, {KERNEL_CLASS}) - 1 AS class
        FROM (SELECT DISTINCT kind, name FROM event WHERE kind IN ('kernel', 'transfer')) e)
    SELECT e.device::BIGINT AS device, coalesce(e.stream, {NO_STREAM})::BIGINT AS stream, e.id, e.ts_ns AS start,
           e.ts_ns + e.dur_ns AS stop, e.kind = 'kernel' AS kernel, c.class::BIGINT AS class,
           coalesce(e.step, {NO_STEP}) AS step,
           CASE WHEN e.correlation IS NULL THEN -1 ELSE e.process END::BIGINT AS process,
           coalesce(e.correlation, 0) AS correlation
    FROM event e JOIN class_of c ON c.kind = e.kind AND c.name IS NOT DISTINCT FROM e.name
    WHERE e.kind IN ('kernel', 'transfer') AND e.device IS NOT NULL AND {TIME_NS} IS NOT NULL"""

LAUNCHES = f"""
    SELECT e.process::BIGINT AS process, e.correlation, e.ts_ns AS start, e.ts_ns + coalesce({TIME_NS}, 0) AS stop
    FROM event e WHERE e.kind = 'launch' AND e.correlation IS NOT NULL AND e.process IS NOT NULL AND {VALID}"""


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
        rows = self.class_ == CLASSES.index(name)
        return Union.of(self.start[rows], self.stop[rows])

    @property
    def kernels(self) -> Union:
        """When any kernel ran."""
        return Union.of(self.start[self.kernel], self.stop[self.kernel])

    def by_device(self) -> "dict[int, DeviceWork]":
        """The rows of each device."""
        return {device: self[rows] for device, rows in groups(self.device)}

    def by_stream(self) -> "Iterator[tuple[int, DeviceWork]]":
        """The rows of each stream of one device."""
        if len(self) and (self.stream == self.stream[0]).all():
            yield int(self.stream[0]), self
            return
        ordered = np.argsort(self.stream, kind="stable")
        for stream, rows in groups(self.stream[ordered]):
            yield stream, self[ordered[rows]]


@once
def device_work(trace: Trace) -> DeviceWork:
    """All kernels and copies of a trace whose times are known."""
    rows = _columns(trace, WORK)
    rows |= _launches(rows, _columns(trace, LAUNCHES))
    order = np.lexsort([rows[name] for name in ("id", "stop", "launch_start", "start", "device")])
    return DeviceWork(*(rows[field.name.rstrip("_")][order] for field in fields(DeviceWork)))


Columns = dict[str, npt.NDArray[Any]]


def _columns(trace: Trace, query: str) -> Columns:
    return {name: np.asarray(values) for name, values in trace.sql(query).fetchnumpy().items()}


def _launches(work: Columns, launches: Columns) -> Columns:
    """When the launch of each row began and ended; NEVER: it is not known. Of several the first one counts.

    A correlation is one within its process only.
    """
    order = np.lexsort([launches[name] for name in ("stop", "start", "correlation", "process")])
    launches = {name: values[order] for name, values in launches.items()}
    of_process = dict(groups(launches["process"]))
    begun, ended = np.full((2, len(work["id"])), NEVER)
    by_process = np.argsort(work["process"], kind="stable")
    for process, at in groups(work["process"][by_process]):
        if process not in of_process:
            continue
        rows, own = by_process[at], of_process[process]
        wanted, known = work["correlation"][rows], launches["correlation"][own]
        place = np.searchsorted(known, wanted)
        place[place == len(known)] = 0
        found = known[place] == wanted
        begun[rows[found]] = launches["start"][own][place[found]]
        ended[rows[found]] = launches["stop"][own][place[found]]
    return {"launch_start": begun, "launch_stop": ended}


@dataclass(frozen=True)
class Gaps:
    """The times between the first start and the last end in which nothing ran, and why."""

    start: Integers
    end: Integers
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
    host = work.launched[after] & (work.launch_start[after] > start)
    return Gaps(start, end, after, host, ~host & (end - start < kernel_wait_ns))


def exact_sum(values: Integers) -> int:
    """The sum, which may be beyond 64 bits."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def percentile(values: Integers, share: float) -> int:
    """The smallest of `values` that at least `share` of them do not exceed: one that occurred."""
    place = max(int(np.ceil(share * len(values))) - 1, 0)
    return int(np.partition(values, place)[place])


@dataclass(frozen=True)
class NamedDevice:
    """A device as answers show it."""

    id: int
    process: int
    shown: str
    label: str | None


def named_devices(trace: Trace, device: str | None) -> list[NamedDevice]:
    """The devices that the option `device` asks for (see base.WANTED), in the order of answers."""
    return [found for found in _named_devices(trace) if device is None or device in (found.shown, found.label)]


@once
def _named_devices(trace: Trace) -> list[NamedDevice]:
    every = "SELECT d.device, d.process, d.shown, d.label FROM named_device d ORDER BY d.position"
    return [NamedDevice(*row) for row in trace.sql(f"WITH {NAMED_DEVICE} {every}").fetchall()]


@once
def streams(trace: Trace) -> dict[int, tuple[int | None, str | None]]:
    """The number and pipeline of each stream."""
    found = trace.sql("SELECT id, number, pipeline FROM stream").fetchall()
    return {key: (number, pipeline) for key, number, pipeline in found}
