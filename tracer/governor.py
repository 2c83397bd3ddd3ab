"""Keeps recording within a share of the programs' own CPU time: `--max-overhead 1%`.

Programs estimate what recording costs them (RingHeader::spent_ticks in native/layout.h: a sample of the ops is timed).
Where that is more than allowed, detail is taken back, one step of `ORDER` at a time, and the trace says when.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ral_trace.tracer import _native, host_samples
from ral_trace.tracer.journal import Shed
from ral_trace.tracer.recording import Recording, TracedProcess, details

ORDER = [
    ("Python stacks", details("OP_STACKS", "SITE_STACKS")),
    ("shapes, accesses and module names", details("SHAPES", "ACCESSES", "MODULES")),
    ("small ops", details("SMALL_OPS")),
    ("all ops, and the host's memory", details("OPS", "HOST_BLOCKS")),
]
"""What is given up, first to last, and its bits."""

EVERY_S = 0.5
LEAST_CPU_NS = 100_000_000
"""A share of less time than this says nothing: the kernel counts it in hundredths of a second."""


@dataclass
class _Measured:
    """One process, as it was last looked at."""

    spent_ticks: int
    cpu_ns: int
    steps: int = 0
    """Of ORDER, taken already."""


class Governor:
    """Looks at every process of a recording now and then, and sheds detail of those that pay too much."""

    def __init__(self, recording: Recording, most: float) -> None:
        self.recording = recording
        self.most = most
        self._measured: dict[int, _Measured] = {}
        self._next = 0.0

    def look(self) -> None:
        """Does nothing until it is time again."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S
        for process in self.recording.processes.values():
            self._look_at(process)

    def _look_at(self, process: TracedProcess) -> None:
        used = host_samples.usage(process.reader.pid)
        if used is None:
            return
        spent_ticks = process.reader.spent_ticks()
        last = self._measured.setdefault(process.number, _Measured(spent_ticks, used[1]))
        cpu_ns = used[1] - last.cpu_ns
        if cpu_ns < LEAST_CPU_NS:
            return
        share = self.recording.ns_of(spent_ticks - last.spent_ticks) / cpu_ns
        last.spent_ticks, last.cpu_ns = spent_ticks, used[1]
        wanted = self.recording.wanted.details
        while last.steps < len(ORDER) and not ORDER[last.steps][1] & wanted:
            last.steps += 1  # nobody asked for it
        if share <= self.most or last.steps == len(ORDER):
            return
        last.steps += 1
        bits = sum(mask for _, mask in ORDER[: last.steps]) & wanted
        self.recording.shed(process, bits)
        self.recording.notes.shed(process.number, Shed(_native.ClockSample.now().ticks, bits, share))


def governed(recording: Recording, most: float | None) -> Callable[[], None]:
    """What a run does each turn to keep within `--max-overhead`: nothing where no limit was given."""
    return (lambda: None) if most is None else Governor(recording, most).look
