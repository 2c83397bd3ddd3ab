"""`ral-trace [--duration 10s] [-- COMMAND …]`: runs a recording, shows how it goes, and says what came of it."""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from rich.console import Console

from ral_trace.tracer import _native, exporters, salvage
from ral_trace.tracer.answering import Answers
from ral_trace.tracer.assemble import assemble
from ral_trace.tracer.control import ControlServer
from ral_trace.tracer.errors import EventsLost, NothingRecorded, RalTraceError, UsageError
from ral_trace.tracer.outputs import output_file
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.recording import DEFAULT_DETAILS, DEFAULT_RING_BYTES, Recording, Snapshot, Totals, Wanted, details, is_running
from ral_trace.tracer.watch import SESSION_VARIABLE

INSTALL = "install ral-trace in the Python that runs it"
COMMAND = "ral-trace -- COMMAND"
TRACE_ENDING = ".duckdb"
POLL_S = 0.02
LIVE_LINE_S = 0.25
LEAST_RING_BYTES, MOST_RING_BYTES = 64 << 10, 4 << 30
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class RecordOptions:
    """What the command line said."""

    output: Path
    duration_ns: int | None = None
    command: tuple[str, ...] = ()
    pid: int | None = None
    ring_bytes: int = DEFAULT_RING_BYTES
    strict: bool = False
    details: int = details(*DEFAULT_DETAILS)
    overwrite: bool = False
    leash: bool = False
    """End when stdin speaks or closes, and say "ready" and the session's folder on stdout: the collector of a program
    that records itself.
    """


def default_output() -> Path:
    """`ral-trace-<UTC time>.duckdb` in the current folder."""
    return Path(f"ral-trace-{datetime.now(UTC):%Y%m%d-%H%M%S}.duckdb")


def record(options: RecordOptions, console: Console) -> int:
    """Records, writes the trace in the format that the output's ending names, and returns the exit code.

    Raises RalTraceError; NothingRecorded when there was not one event.
    """
    _check(options)
    with Recording(_wanted(options)) as recording:
        announce_stale(console)
        run = _Run(options, recording, console)
        with _stop_signals(run.interrupt):
            try:
                run.until_done()
                recording.end()
            except OSError as error:
                recording.keep = True
                cause = f"the recording failed ({error.strerror})"
                raise RalTraceError(f"{cause}; make room in $TMPDIR, then: ral-trace --salvage") from error
            return _exit_code(run, _write(run, console), console)


def announce_stale(console: Console) -> None:
    """Says which recordings were left by collectors that died."""
    for folder in salvage.stale_sessions(_native.Sessions()):
        _say(console, f"an earlier recording's collector died; {salvage.REMEDY} {folder}")


def _wanted(options: RecordOptions) -> Wanted:
    # A command and its children are our descendants.
    target = os.getpid() if options.command else options.pid or 0
    return Wanted(target, options.ring_bytes, options.details, options.overwrite)


def _check(options: RecordOptions) -> None:
    if options.output.suffix == TRACE_ENDING:
        output_file(options.output)
    else:
        exporters.checked_output(options.output)
    if not LEAST_RING_BYTES <= options.ring_bytes <= MOST_RING_BYTES:
        raise UsageError("--buffer must lie between 64k and 4g: it is the ring of one thread")
    folder = options.output.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise RalTraceError(f"{folder}: cannot be written; choose another place with --output")
    if options.pid is not None and options.command:
        raise UsageError("--pid and a command do not go together; record one of them")
    if options.pid is not None and not is_running(options.pid):
        raise UsageError(f"there is no process {options.pid}; see what runs with: ps")


class _Run:
    """The time between the begin and the end of a recording."""

    def __init__(self, options: RecordOptions, recording: Recording, console: Console) -> None:
        self.options = options
        self.recording = recording
        self.console = console
        self.child: subprocess.Popen[bytes] | None = None
        self.interrupts = 0
        self.totals = Totals()
        self.control = ControlServer(recording.folder, Answers(recording).prepare)

    def interrupt(self, number: int, _frame: FrameType | None) -> None:
        """Ctrl-C, SIGTERM or a closed terminal: the command gets it too; a second one kills it."""
        self.interrupts += 1
        if self.child is None:
            return
        if self.interrupts > 1:
            self.child.kill()
        elif number != signal.SIGINT or not _terminal_signals_child():
            self.child.send_signal(number)

    def until_done(self) -> None:
        """Polls until the time is up, the command or the traced process has ended, or somebody interrupts."""
        self._start()
        begun = time.monotonic_ns()
        first_event_ns: int | None = None
        next_line = 0.0
        with self.console.status("recording", spinner="dots") if self.console.is_terminal else _nothing() as status:
            while True:
                done = self._done(begun, first_event_ns)
                self.totals = self.recording.poll()
                self.control.serve()
                if self.totals.events and first_event_ns is None:
                    first_event_ns = time.monotonic_ns()
                if self.recording.full:
                    self.recording.notes.note("the disk was full: the recording ended early")
                    done = True
                if done:
                    self.control.close()
                    return
                if status is not None and time.monotonic() >= next_line:
                    status.update(self._line(first_event_ns if self.options.command else begun))
                    next_line = time.monotonic() + LIVE_LINE_S
                time.sleep(POLL_S)

    def _start(self) -> None:
        if self.options.leash:
            sys.stdout.write(f"ready {self.recording.folder}\n")
            sys.stdout.flush()
        if not self.options.command:
            return
        environment = {**os.environ, SESSION_VARIABLE: f"{self.recording.session:016x}"}
        try:
            self.child = subprocess.Popen(self.options.command, env=environment)
        except OSError as error:
            raise UsageError(
                f"{self.options.command[0]}: cannot be started ({error.strerror}); give a program after --"
            ) from error

    def _done(self, begun: int, first_event_ns: int | None) -> bool:
        if self.child is not None:
            if self.child.poll() is not None:
                self.recording.exited(self.child.pid, self.child.returncode)
                return True
        elif self.interrupts or (self.options.leash and _stdin_speaks()):
            return True
        if self.options.pid is not None and not is_running(self.options.pid):
            return True
        counted_from = first_event_ns if self.options.command else begun
        return (
            self.options.duration_ns is not None
            and counted_from is not None
            and time.monotonic_ns() - counted_from >= self.options.duration_ns
        )

    def _line(self, counted_from: int | None) -> str:
        parts = []
        if self.options.duration_ns is not None:
            spent = 0 if counted_from is None else time.monotonic_ns() - counted_from
            parts.append(f"{max(0.0, (self.options.duration_ns - spent) / 1e9):.1f} s left")
        parts.append(f"{self.totals.events:,} events")
        parts.append(_programs(self.totals))
        parts.append(f"{self.totals.dropped:,} dropped")
        return "recording · " + " · ".join(parts)


def _write(run: _Run, console: Console) -> RalTraceError | None:
    """Writes the trace. Returns what the exit code must say, after the command has ended."""
    recording, options, totals = run.recording, run.options, run.recording.totals()
    if totals.events == 0:
        return NothingRecorded(_why_nothing(run))
    try:
        write_snapshot(recording.snapshot(), options.output)
    except RalTraceError as error:
        recording.keep = True
        return RalTraceError(f"{error}; what was recorded is kept: ral-trace --salvage --output ELSEWHERE")
    _say_what_came_of_it(run, totals, console)
    if options.strict and totals.dropped + totals.lost:
        missing = f"{totals.dropped:,} events dropped and {totals.lost:,} lost"
        return EventsLost(f"{options.output}: {missing}; give the rings more room with --buffer")
    return None


def write_snapshot(snapshot: Snapshot, output: Path) -> int:
    """Writes the trace of a recording in the format that the output's ending names. Returns how many events it has."""
    if output.suffix == TRACE_ENDING:
        return assemble(snapshot, output_file(output))
    with tempfile.TemporaryDirectory(prefix="ral-trace-") as folder:
        path = Path(folder) / f"recorded{TRACE_ENDING}"
        events = assemble(snapshot, path)
        with open_trace(path) as trace:
            exporters.export(trace, output)
    return events


def _exit_code(run: _Run, failure: RalTraceError | None, console: Console) -> int:
    """The command's own non-zero code wins (128 + signal); then ours."""
    own = run.child.wait() if run.child is not None else 0
    if own == 0 and failure is not None:
        raise failure
    if failure is not None:
        _say(console, f"ral-trace: {failure}")
    return 128 - own if own < 0 else own


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _say_what_came_of_it(run: _Run, totals: Totals, console: Console) -> None:
    output = run.options.output
    said = f"{totals.events:,} events of {_programs(totals)}, {totals.dropped:,} dropped, {totals.lost:,} lost"
    _say(console, f"{output}: {said}")
    if output.suffix == TRACE_ENDING:
        _say(console, f"read it with: ral-trace --report {output}")


def _programs(totals: Totals) -> str:
    return f"{totals.processes} program{'s' if totals.processes != 1 else ''}"


def _why_nothing(run: _Run) -> str:
    recording, options = run.recording, run.options
    if run.interrupts:
        why = "the recording was interrupted before there was an event; let it run longer"
    elif recording.snapshot().attach_failures:
        why = f"programs could not make their rings in {recording.root}; make room there, or set RAL_TRACE_DIR"
    elif recording.processes:
        notes = {process.reader.note for process in recording.processes.values() if process.reader.note}
        said = f" ({'; '.join(sorted(notes))})" if notes else ""
        joined = len(recording.processes)
        why = f"{joined} program(s) joined, but none ran an op in that time{said}; record for longer"
    elif options.command:
        why = f"'{options.command[0]}' never imported torch with ral-trace installed beside it; " + INSTALL
    elif options.pid is not None:
        why = f"process {options.pid} has no ral-trace loaded; {INSTALL}, and start it again"
    else:
        why = "no program of yours that imported torch with ral-trace installed was running; start one, or: " + COMMAND
    return f"nothing was recorded: {why}"


@contextmanager
def _stop_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    previous = {number: signal.signal(number, handler) for number in STOPS}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


def _stdin_speaks() -> bool:
    """A word or the end of stdin: the end alone would not do, since a forked child of our program keeps it open."""
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable)


def _terminal_signals_child() -> bool:
    """Whether a Ctrl-C at the terminal reached the child as well as us: then passing it on would deliver it twice."""
    with suppress(OSError), Path("/dev/tty").open() as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False
