"""A recording while it runs: finds the traced processes and moves what they write out of their rings, onto disk.

No torch here, and nothing of the traced program. `assemble.py` makes the trace of it.
"""

import contextlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from ral_trace.tracer import _native, host_samples
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.journal import Begin, HostSample, Journal, JournalWriter, RingRow

DEFAULT_RING_BYTES = 4 << 20
"""Of one thread: 64 Ki events, a third of a second at 200,000 events/s."""

DETACH_TIMEOUT_S = 1.0
SAMPLE_S = 0.1
CLOCK_S = 1.0
NAMES, SPOOL, JOURNAL, SPOOL_LINK = "names", "records", "journal", "spool"
SPOOL_PREFIX = "ral-trace-"
DEFAULT_DETAILS = ("ANNOTATIONS", "OPS", "SMALL_OPS", "SITE_STACKS", "HOST_BLOCKS", "PAUSES")


def details(*names: str) -> int:
    """Bits of _native.DETAILS by name."""
    return sum(_native.DETAILS[name] for name in names)


@dataclass(frozen=True)
class Wanted:
    """What a recording is to hold, and of whom. `target_pid` 0: every process of this user, else that process and its
    children.
    """

    target_pid: int = 0
    ring_bytes: int = DEFAULT_RING_BYTES
    details: int = field(default_factory=lambda: details(*DEFAULT_DETAILS))
    overwrite: bool = False
    flight_ns: int | None = None


@dataclass
class TracedProcess:
    """One process that joined the recording."""

    number: int
    reader: _native.ProcessReader
    names: Path
    """Its table of names; moved to the disk when the process is gone."""

    def alive(self) -> bool:
        """Whether the process still runs; a reused pid does not count."""
        return _is_there(self.reader.pid, self.reader.started) and not host_samples.is_zombie(self.reader.pid)


@dataclass(frozen=True)
class ProcessView:
    """What is known of a process at one moment: everything that `assemble` asks for, and nothing that changes."""

    number: int
    reader: _native.ProcessReader
    names: tuple[Path, ...]
    """Where its table of names is, or will be: it is moved to the disk when the process is gone."""
    rings: list[RingRow]
    """Of threads that still wrote."""
    unrecorded: int
    exited: bool

    def read_names(self) -> _native.NameList:
        """Its names and stacks; none where the table is damaged."""
        # It is copied before it is removed: who finds it at neither place finds it at the second by now.
        here = next((path for path in (*self.names, *self.names) if path.exists()), self.names[0])
        return _native.NameList.read(str(here))


@dataclass(frozen=True)
class Snapshot:
    """A recording at one moment."""

    journal: Journal
    spool: Path
    processes: list[ProcessView]
    attach_failures: int = 0
    since_ticks: int = 0
    """What had ended before is no part of it."""
    facts: dict[str, object] = field(default_factory=dict)
    """For trace_info."""


@dataclass
class Totals:
    """What the live line shows."""

    events: int = 0
    dropped: int = 0
    lost: int = 0
    processes: int = 0


class Recording:
    """One session, from `begin` to `end`. As a context manager it leaves nothing behind, unless `keep` says so."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.session = secrets.randbits(63) | 1
        self.processes: dict[str, TracedProcess] = {}
        self.full = False
        """The disk has no room for what is drained: nothing more is."""
        self.keep = False
        """Leave everything where it is, for --salvage."""
        self._ended = False
        self._next_sample = self._next_clock = 0.0

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Whatever happened, the slot is given back. Nothing stays in shared memory, but after an error that nobody
        foresaw: then the recording is there to be salvaged.
        """
        with contextlib.ExitStack() as whatever_happens:
            whatever_happens.callback(_remove_names_of_the_dead, self.root)
            # After its folder: one without a slot is taken for one whose collector died.
            whatever_happens.callback(self._sessions.release, self.slot)
            if not self.keep and (error is None or isinstance(error, (RalTraceError, KeyboardInterrupt))):
                whatever_happens.callback(shutil.rmtree, self.folder, ignore_errors=True)
                whatever_happens.callback(shutil.rmtree, self.spool_folder, ignore_errors=True)
            whatever_happens.callback(self.notes.close)
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
        with contextlib.ExitStack() as unless_begun:
            try:
                self.spool_folder = Path(tempfile.mkdtemp(prefix=SPOOL_PREFIX))
                unless_begun.callback(shutil.rmtree, self.spool_folder, ignore_errors=True)
                self.folder.mkdir(mode=0o700)
                unless_begun.callback(shutil.rmtree, self.folder, ignore_errors=True)
                self._describe_to_salvage()
                self.spool = _native.Spool(str(self.spool_folder / SPOOL))
                self.notes.clock()
                self._take_slot()
            except (OSError, RuntimeError) as error:
                raise RalTraceError(f"a recording cannot begin ({error}); make room, or set TMPDIR") from error
            unless_begun.pop_all()

    def _take_slot(self) -> None:
        records = 1 << max(self.wanted.ring_bytes // _native.RECORD_BYTES, 1024).bit_length() - 1
        self.slot = self._sessions.begin(
            session=self.session,
            target_pid=self.wanted.target_pid,
            ring_records=records,
            folder=self.folder.name,
            details=self.wanted.details,
            overwrite=self.wanted.overwrite,
        )
        if self.slot < 0:
            raise RalTraceError(f"{self.root}: eight recordings are running already; wait for one to end")

    def _describe_to_salvage(self) -> None:
        """Where what we drain goes, and how to read it, for whoever comes after our death."""
        begin = Begin(
            session=self.session,
            command_line=" ".join(["ral-trace", *sys.argv[1:]]),
            host=socket.gethostname(),
            boot_id=boot_id(),
            details=self.wanted.details,
            ring_bytes=self.wanted.ring_bytes,
            overwrite=self.wanted.overwrite,
            flight_ns=self.wanted.flight_ns,
        )
        self.notes = JournalWriter(self.spool_folder / JOURNAL, begin)
        (self.folder / SPOOL_LINK).touch(0o600)
        (self.folder / SPOOL_LINK).write_text(str(self.spool_folder))

    def poll(self) -> Totals:
        """Finds new processes and moves what they have written out of their rings. Returns the totals so far.

        Raises OSError when the disk has no room even for a line.
        """
        self.discover()
        self.take_readings()
        for process in self.processes.values():
            self._drain(process)
        self._notice_ends()
        return self.totals()

    def take_readings(self) -> None:
        """Reads the clocks, and what the processes take of their host, when it is time to."""
        now = time.monotonic()
        if now >= self._next_clock:
            self._next_clock = now + CLOCK_S
            self.notes.clock()
        if now >= self._next_sample:
            self._next_sample = now + SAMPLE_S
            self._sample_hosts()

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
        # Twice: the first takes what is there, the second what a thread in the middle of an event committed meanwhile.
        self.poll()
        time.sleep(0.002)
        self.poll()
        self.notes.clock()

    def snapshot(self) -> Snapshot:
        """What there is so far. Cheap; the caller may make a trace of it in another thread."""
        self.notes.clock()
        return Snapshot(
            journal=self.notes.journal.as_of_now(),
            spool=self.spool_folder / SPOOL,
            processes=[view_of(process, self._moved_names(process)) for process in self.processes.values()],
            attach_failures=self._sessions.attach_failures(self.slot),
        )

    def ns_of(self, ticks: int) -> int:
        """A span of ticks, by the rate since the begin."""
        first, now = self.notes.journal.clocks[0], _native.ClockSample.now()
        elapsed_ticks = now.ticks - first.ticks
        return ticks * (now.monotonic_ns - first.monotonic_ns) // elapsed_ticks if elapsed_ticks else 0

    def shed(self, process: TracedProcess, bits: int) -> None:
        """Takes back details from one process."""
        process.reader.shed(bits)
        self._sessions.announce()

    def exited(self, pid: int, status: int) -> None:
        """Notes how our own child ended."""
        self.notes.exit(pid, status)

    def discover(self) -> None:
        """Finds processes that have joined."""
        for entry in os.scandir(self.folder):
            if entry.name in self.processes or not entry.is_dir(follow_symlinks=False):
                continue
            reader = _native.ProcessReader.open(entry.path)
            if reader is not None:
                number = self.notes.process(entry.name)
                self.processes[entry.name] = TracedProcess(number, reader, Path(entry.path) / NAMES)

    def _drain(self, process: TracedProcess) -> None:
        if not process.reader.drain(process.number, self.spool):
            self.full = True
        for ring in process.reader.finished():
            self.notes.ring(process.number, RingRow.of(ring))
        process.reader.forget_finished()

    def _notice_ends(self) -> None:
        for process in self.processes.values():
            if process.number not in self.notes.journal.gone and not process.alive():
                # What it wrote between our last drain and its end is still in the rings.
                if not process.reader.drain(process.number, self.spool):
                    self.full = True
                    continue
                self.notes.gone(process.number, _native.ClockSample.now().ticks)
                process.reader.finish()
                self._drain(process)
                self._move_names(process)

    def _move_names(self, process: TracedProcess) -> None:
        """Shared memory may be small, and processes many. Where the disk is full, the table stays where it is."""
        kept = self._moved_names(process)
        try:
            # Whole under its name at once: somebody may be reading.
            copy = kept.with_suffix(".copy")
            copy.touch(0o600)
            shutil.copyfile(process.names, copy)
            copy.replace(kept)
        except OSError:
            kept.unlink(missing_ok=True)
            return
        process.names.unlink(missing_ok=True)
        self.forget_names(process)
        process.names = kept

    def forget_names(self, process: TracedProcess) -> None:
        """Gives back what a process that is gone left beside the sessions: the other name of its table."""
        (self.root / f"names-{process.reader.pid}-{process.reader.started}").unlink(missing_ok=True)

    def _moved_names(self, process: TracedProcess) -> Path:
        return self.spool_folder / f"{NAMES}-{process.number}"

    def _sample_hosts(self) -> None:
        now = _native.ClockSample.now().ticks
        for process in self.processes.values():
            if process.number in self.notes.journal.gone:
                continue
            if used := host_samples.usage(process.reader.pid):
                self.notes.sample(process.number, HostSample(now, *used, process.reader.spent_ticks()))


def view_of(process: TracedProcess, *moved: Path) -> ProcessView:
    """What is known of a process now; its names may move."""
    reader = process.reader
    rings = [RingRow.of(ring) for ring in reader.rings()]
    return ProcessView(process.number, reader, (process.names, *moved), rings, reader.unrecorded(), reader.exited())


def _is_there(pid: int, started: int) -> bool:
    found = _native.process_started(pid)
    # 0 also where this process may open no more files: asking for the folder needs none.
    return found == started or (found == 0 and Path(f"/proc/{pid}").exists())


def boot_id() -> str:
    """A name for this boot of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def is_running(pid: int, started: int | None = None) -> bool:
    """Whether a process is there and has not ended; with `started`, that very one and no later one of its pid."""
    found = _native.process_started(pid)
    return found != 0 and (started is None or found == started) and not host_samples.is_zombie(pid)


def _remove_names_of_the_dead(root: Path) -> None:
    """A killed program leaves its name table behind."""
    for path in root.glob("names-*-*"):
        _, pid, started = path.name.split("-", 2)
        if pid.isdecimal() and started.isdecimal() and _native.process_started(int(pid)) != int(started):
            path.unlink(missing_ok=True)
