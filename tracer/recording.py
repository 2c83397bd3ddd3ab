"""A recording: finds the traced processes, drains their rings, and knows what became of every event.

No torch here, and nothing of the traced program.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import tempfile
import time
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Self

from ral_trace.tracer import _native, live
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.store import TraceBuilder

DEFAULT_RING_BYTES = 4 << 20
"""Of one thread: 64 Ki events, a third of a second at 200,000 events/s."""

BATCH_ROWS = 200_000
CALIBRATION_NS = 50_000_000
"""Two readings of the clocks must be this far apart before their rate is good to a few parts in a million."""
DETACH_TIMEOUT_S = 1.0
SESSION_VARIABLE = "RAL_TRACE_SESSION"
ENDED_AT_ONCE = "ended without its exit handlers: os._exit (as forked workers do), a crash or a kill"


@dataclass
class TracedProcess:
    """One process that joined the recording."""

    number: int
    reader: _native.ProcessReader
    host_name: str
    ended_ns: int | None = None

    @cached_property
    def names(self) -> tuple[list[tuple[int, str]], int]:
        """(id, text) of every name, and how many found no room. Read once, 4 MiB: only after the recording's end."""
        return self.reader.names()

    @property
    def command(self) -> list[str]:
        """Its words, as it wrote them itself: a short-lived process is gone before anybody could look."""
        return [word.decode(errors="replace") for word in self.reader.command.split(b"\0") if word]

    @property
    def name(self) -> str:
        """A short name: the module or the script where there is one, else the program."""
        # Options of Python end at the script or the module; what follows is the program's own.
        for position, word in enumerate(self.command[1:], start=1):
            if word == "-m" and position + 1 < len(self.command):
                return self.command[position + 1]
            if word.endswith(".py"):
                return Path(word).name
            if not word.startswith("-"):
                break
        return Path((self.command or [f"pid {self.reader.pid}"])[0]).name

    def alive(self) -> bool:
        """Whether the process still runs; a reused pid does not count."""
        return _native.process_started(self.reader.pid) == self.reader.started and not _is_zombie(self.reader.pid)


@dataclass
class Totals:
    """What the live line shows."""

    events: int = 0
    dropped: int = 0
    lost: int = 0
    processes: int = 0


@dataclass
class Recording:
    """One session from `begin` to `write`.

    `target_pid` 0 records every process of this user, else that process and its children.
    """

    output: Path
    target_pid: int = 0
    ring_bytes: int = DEFAULT_RING_BYTES
    session: int = field(default_factory=lambda: secrets.randbits(63) | 1)
    processes: dict[str, TracedProcess] = field(default_factory=dict)
    exit_status: dict[int, int] = field(default_factory=dict)
    """Of our own child, by pid, as subprocess gives it: negative for a signal."""

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Whatever happened, the slot is given back and nothing stays in shared memory."""
        with contextlib.ExitStack() as whatever_happens:
            whatever_happens.callback(shutil.rmtree, self.folder, ignore_errors=True)
            whatever_happens.callback(self.builder.close)
            whatever_happens.callback(self._sessions.release, self.slot)
            if error is None:
                self.end()

    def begin(self) -> None:
        """Takes a slot on the page and wakes every traced process.

        Raises RalTraceError when there is no place for it.
        """
        try:
            self._sessions = _native.Sessions()
        except RuntimeError as error:
            raise RalTraceError(f"{error}") from error
        self.root = Path(self._sessions.folder)
        self.folder = self.root / f"session-{self.session:016x}"
        _remove_names_of_the_dead(self.root)
        self._ended = False
        self._first_sample = _native.ClockSample.now()
        self._calibration: _native.Calibration | None = None
        self._batch = _native.Batch()
        self.builder = TraceBuilder(self.output)
        live.prepare(self.builder.connection)
        records = 1 << max(self.ring_bytes // _native.RECORD_BYTES, 1024).bit_length() - 1
        self.folder.mkdir(mode=0o700)
        self.slot = self._sessions.begin(
            session=self.session, target_pid=self.target_pid, ring_records=records, folder=self.folder.name
        )
        if self.slot < 0:
            self.folder.rmdir()
            self.builder.close()
            raise RalTraceError(f"{self.root}: eight recordings are running already; wait for one to end")

    def stale(self) -> list[Path]:
        """What recordings whose collector died have left in shared memory. Their slots are freed."""
        alive = set()
        for session in self._sessions.taken():
            if session.collector_alive:
                alive.add(session.folder)
            else:
                self._sessions.release(session.slot)
        return [folder for folder in sorted(self.root.glob("session-*")) if folder.name not in alive]

    def poll(self) -> Totals:
        """Finds new processes and moves what they have written out of their rings. Returns the totals so far."""
        self._discover()
        if self._clock_ready():
            for process in self.processes.values():
                process.reader.drain(process.number, self._calibration_now(), self._batch)
            if len(self._batch) >= BATCH_ROWS:
                self._store_batch()
            self._notice_ends()
        return self.totals()

    def totals(self) -> Totals:
        """Sums over all processes, as of the last poll."""
        accounts = [process.reader.account() for process in self.processes.values()]
        return Totals(
            events=sum(account.received - account.facts for account in accounts),
            dropped=sum(account.dropped for account in accounts),
            lost=sum(account.lost for account in accounts),
            processes=len(self.processes),
        )

    def end(self) -> None:
        """Stops the writers and takes what is left in the rings. A second call does nothing."""
        if self._ended:
            return
        self._ended = True
        self._sessions.end(self.slot)
        deadline = time.monotonic() + DETACH_TIMEOUT_S
        while time.monotonic() < deadline and any(
            process.alive() and not process.reader.detached() for process in self.processes.values()
        ):
            self.poll()
            time.sleep(0.002)
        while not self._clock_ready():
            time.sleep(0.005)
        # Twice: the first takes what is there, the second what a thread in the middle of an event committed meanwhile.
        self.poll()
        time.sleep(0.002)
        self.poll()
        self._store_batch()
        self._last_sample = _native.ClockSample.now()
        self.attach_failures = self._sessions.attach_failures(self.slot)

    def write(self, command_line: str) -> None:
        """Writes the trace, after `end`. Raises RalTraceError when the output cannot be written; `rescue` may then."""
        self._describe(self.builder, command_line)
        live.transform(self.builder, [self._names_of(process) for process in self.processes.values()])
        self.builder.finish()

    def rescue(self) -> Path:
        """Writes the trace that `write` could not to a private folder of the temporary directory, and says where."""
        self.builder.output = Path(tempfile.mkdtemp(prefix="ral-trace-")) / self.output.name
        return self.builder.finish()

    def _clock_ready(self) -> bool:
        return time.monotonic_ns() - self._first_sample.monotonic_ns >= CALIBRATION_NS

    def _calibration_now(self) -> _native.Calibration:
        """The rate is refined until the first event arrives, and fixed from then on, so that converted times keep
        their order.
        """
        if self._calibration is None or not any(
            process.reader.account().received for process in self.processes.values()
        ):
            self._calibration = _native.Calibration(self._first_sample, _native.ClockSample.now())
        return self._calibration

    def _store_batch(self) -> None:
        if len(self._batch):
            live.append(self.builder.connection, self._batch)

    def _discover(self) -> None:
        for entry in os.scandir(self.folder):
            if entry.name in self.processes or not entry.is_dir(follow_symlinks=False):
                continue
            reader = _native.ProcessReader.open(entry.path)
            if reader is not None:
                self.processes[entry.name] = TracedProcess(len(self.processes), reader, socket.gethostname())

    def _notice_ends(self) -> None:
        for process in self.processes.values():
            if process.ended_ns is None and not process.alive():
                process.ended_ns = self._calibration_now().epoch_ns(_native.ClockSample.now())
                # What it wrote between our last drain and its end is still in the ring.
                process.reader.drain(process.number, self._calibration_now(), self._batch)

    def _how_ended(self, process: TracedProcess) -> str:
        status = self.exit_status.get(process.reader.pid)
        if status is not None and status < 0:
            return f"killed by {signal.Signals(-status).name}"
        if status is not None:
            return "exited" if status == 0 else f"exited with {status}"
        if process.ended_ns is None:
            return "still running"
        return "exited" if process.reader.exited() else ENDED_AT_ONCE

    def _names_of(self, process: TracedProcess) -> live.ProcessNames:
        names, _ = process.names
        return live.ProcessNames(process.number, names, process.reader.threads())

    def _describe(self, builder: TraceBuilder, command_line: str) -> None:
        calibration = self._calibration_now()
        source = builder.add(
            "source",
            format="live",
            producer=f"ral-trace {version('ral-trace')}",
            clock_zero="unix epoch",
            clock_offset_ns=0,
            clock_uncertainty_ns=abs(self._drift_ns(calibration)),
        )
        for process in self.processes.values():
            row = builder.add(
                "process",
                source=source,
                pid=process.reader.pid,
                host=process.host_name,
                name=process.name,
                command_line=" ".join(process.command),
                started_ns=process.reader.attached_ns(calibration),
                ended_ns=process.ended_ns,
                ended_how=self._how_ended(process),
            )
            account = process.reader.account()
            builder.add(
                "ledger",
                process=row,
                written=account.written,
                received=account.received,
                dropped=account.dropped,
                lost=account.lost,
                shed=0,
            )
            self._warn(builder, source, row, process, account)
        if self.attach_failures:
            what = "programs could not join: no room in shared memory for their rings"
            builder.add("quality", source=source, what=what, count=self.attach_failures)
        begun = calibration.epoch_ns(self._first_sample)
        ended = calibration.epoch_ns(self._last_sample)
        builder.info(
            command_line=command_line,
            clock=_native.CLOCK,
            created_ns=begun,
            duration_ns=ended - begun,
            clock_drift_ns=self._drift_ns(calibration),
        )

    def _drift_ns(self, calibration: _native.Calibration) -> int:
        """How far converted ticks and CLOCK_MONOTONIC came apart over the recording."""
        by_ticks = calibration.epoch_ns(self._last_sample) - calibration.epoch_ns(self._first_sample)
        return by_ticks - (self._last_sample.monotonic_ns - self._first_sample.monotonic_ns)

    def _warn(
        self, builder: TraceBuilder, source: int, row: int, process: TracedProcess, account: _native.Account
    ) -> None:
        def warn(what: str, count: int | None = None) -> None:
            builder.add("quality", source=source, process=row, what=what, count=count, example=process.name)

        if account.dropped:
            warn(
                "events dropped: a ring was full before the collector came; give it more room with --buffer",
                account.dropped,
            )
        if account.lost:
            warn("events lost: not committed when their writer died, or damaged", account.lost)
        if process.reader.note:
            warn(process.reader.note)
        if refused := process.names[1]:
            warn("names without room in the name table: their events have no name", refused)
        how = self._how_ended(process)
        if how not in ("exited", "still running", ENDED_AT_ONCE):
            warn(f"the program did not end well ({how}): the trace holds what it had written by then")
        if account.damaged_rings:
            warn("rings were damaged, or cut short, and were read no further", account.damaged_rings)


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    return _native.process_started(pid) != 0 and not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _remove_names_of_the_dead(root: Path) -> None:
    """A killed program leaves its name table behind (4 MiB of shared memory)."""
    for path in root.glob("names-*-*"):
        _, pid, started = path.name.split("-", 2)
        if pid.isdecimal() and started.isdecimal() and _native.process_started(int(pid)) != int(started):
            path.unlink(missing_ok=True)
