"""The flight recorder: rings that overwrite hold the last seconds of every program, and nothing reads them until
somebody asks: `ral-trace dump`, or a program that dies.

A dump reads without taking: the rings go on, and the next dump holds what is then the last. How far back they reach is
what fits into them, which the dump states.
"""

import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ral_trace.tracer import _native
from ral_trace.tracer.assemble import ENDED_AT_ONCE, short_name
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.recording import SPOOL, ProcessView, Recording, Snapshot, Totals, TracedProcess, Wanted, view_of

ALARMS = {1: "an uncaught exception", 2: "device memory ran out"}
"""Why a program asks for a dump: Alarm in native/layout.h."""

FORGET_SPANS = 2
"""What is older than so many times the span is given up: ended programs, ended threads, readings of clocks."""
LOOK_S = 0.5


@dataclass
class _Watched:
    """What the flight recorder remembers of a process."""

    is_worker: bool
    """Its parent is recorded as well."""
    alarms: int = 0
    ended_s: float | None = None
    closed_s: dict[int, float] = field(default_factory=dict)
    """By number of the ring: when its thread was first seen to be gone."""


class FlightRecording(Recording):
    """A session whose rings are read only when somebody asks. `due` says why dumps are wanted, oldest first; whoever
    writes them takes the reasons out.
    """

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        assert wanted.flight_ns is not None
        self.span_ns = wanted.flight_ns
        self.due: list[str] = []
        self._watched: dict[int, _Watched] = {}
        self._next_look = 0.0

    def begin(self) -> None:
        super().begin()
        self.notes.on_disk = False

    def poll(self) -> Totals:
        """Notices programs that come, go or ask for a dump. Reads no events."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            self.discover()
            self.take_readings()
            for process in list(self.processes.values()):
                self._watch(process, now)
            self._forget_readings()
        return self.totals()

    def totals(self) -> Totals:
        """What was written; none of it is dropped or lost before somebody asks for it."""
        written = sum(process.reader.account().written for process in self.processes.values())
        return Totals(events=written, processes=len(self.processes))

    def look_once_more(self) -> None:
        """Now, and not when it is time again."""
        self._next_look = 0.0
        self.poll()

    def end(self) -> None:
        """Nothing is drained: what the rings hold is for dumps."""
        if not self._ended:
            self._ended = True
            self._sessions.end(self.slot)

    @contextmanager
    def dump(self, reason: str) -> Iterator[Snapshot]:
        """What the rings hold now, of the span that was asked for."""
        self.discover()
        with tempfile.TemporaryDirectory(prefix="ral-trace-") as folder:
            spool = _native.Spool(str(Path(folder) / SPOOL))
            views = [self._read(process, spool) for process in self.processes.values()]
            now = self.notes.clock()  # after the last event that was read
            yield Snapshot(
                self.notes.journal.as_of_now(),
                Path(folder) / SPOOL,
                [view for view in views if view],
                since_ticks=self._since_ticks(now),
                facts={"flight_reason": reason},
            )

    def _read(self, process: TracedProcess, spool: _native.Spool) -> ProcessView | None:
        """Through a reader of its own, which begins at the oldest event that is still there."""
        reader = _native.ProcessReader.open(str(process.names.parent))
        if reader is None:
            return None
        if not reader.drain(process.number, spool):
            raise RalTraceError("there is no room in $TMPDIR for a dump; make some, and dump again")
        return view_of(TracedProcess(process.number, reader, process.names))

    def _since_ticks(self, now: _native.ClockSample) -> int:
        first = self.notes.journal.clocks[0]
        elapsed_ns = now.monotonic_ns - first.monotonic_ns
        span_ticks = self.span_ns * (now.ticks - first.ticks) // elapsed_ns if elapsed_ns else 0
        return max(0, now.ticks - span_ticks)

    def _watch(self, process: TracedProcess, now: float) -> None:
        process.reader.look()
        watched = self._watched.get(process.number)
        if watched is None:
            watched = self._watched[process.number] = _Watched(self._is_worker(process))
        who = f"{short_name(process.reader.command)} (pid {process.reader.pid})"
        if (alarms := process.reader.alarms()) != watched.alarms:
            watched.alarms = alarms
            self.due.append(f"{who}: {ALARMS.get(process.reader.alarm, 'it asked for a dump')}")
        if watched.ended_s is None and not process.alive():
            watched.ended_s = now
            self.notes.gone(process.number, _native.ClockSample.now().ticks)
            # Who died of an exception has said so above. Workers that were forked always end like this; when one dies,
            # its parent hears of it.
            if not process.reader.exited() and not watched.is_worker:
                self.due.append(f"{who}: {ENDED_AT_ONCE}")
        self._give_up(process, watched, now)

    def _is_worker(self, process: TracedProcess) -> bool:
        return any(other.reader.pid == process.reader.parent for other in self.processes.values())

    def _give_up(self, process: TracedProcess, watched: _Watched, now: float) -> None:
        """Removes what has been gone for so long that no dump can be about it."""
        too_old = now - FORGET_SPANS * self.span_ns / 1e9
        if watched.ended_s is not None and watched.ended_s < too_old:
            shutil.rmtree(process.names.parent, ignore_errors=True)
            self.forget_names(process)
            self.processes = {name: other for name, other in self.processes.items() if other is not process}
            return
        for ring in process.reader.rings():
            if ring.closed and watched.closed_s.setdefault(ring.ring, now) < too_old:
                watched.closed_s[ring.ring] = math.inf
                (process.names.parent / f"ring-{ring.ring}").unlink(missing_ok=True)

    def _forget_readings(self) -> None:
        """Keeps the readings of clocks and hosts that a dump can be about, and the two that give the clock's rate."""
        journal = self.notes.journal
        oldest = journal.clocks[-1].monotonic_ns - FORGET_SPANS * self.span_ns
        kept = [clock for clock in journal.clocks[:-2] if clock.monotonic_ns >= oldest]
        journal.clocks[:] = [*kept, *journal.clocks[-2:]]
        since = journal.clocks[0].ticks
        for samples in journal.samples.values():
            samples[:] = [sample for sample in samples if sample.ticks >= since]
