"""Between the begin and the end of a recording: polls, answers, shows how it goes, and notices when to stop."""

import io
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, cast

from rich.console import Console

from ral_trace.tracer import _native
from ral_trace.tracer.control import ControlServer, Message, Work
from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.recording import DEFAULT_DETAILS, DEFAULT_RING_BYTES, Recording, Totals, details, is_running
from ral_trace.tracer.watch import SESSION_VARIABLE

POLL_S = 0.02
LIVE_LINE_S = 0.25
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
    flight_ns: int | None = None
    max_overhead: float | None = None
    """Share of the programs' CPU time, 0 to 1."""
    leash: bool = False
    """End when stdin speaks or closes, and say "ready" and the session's folder on stdout: the collector of a program
    that records itself.
    """


class Run:
    """The time between the begin and the end of a recording."""

    def __init__(
        self,
        options: RecordOptions,
        recording: Recording,
        console: Console,
        *,
        answer: Callable[[Message], Work],
        each_turn: Callable[[], None],
    ) -> None:
        self.options = options
        self.recording = recording
        self.console = console
        self._answer = answer
        self._each_turn = each_turn
        self.child: subprocess.Popen[bytes] | None = None
        self.interrupts = 0
        self.totals = Totals()
        self._pid_started = 0 if options.pid is None else _native.process_started(options.pid)

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
                self._each_turn()
                if self.totals.events and first_event_ns is None:
                    first_event_ns = time.monotonic_ns()
                if self.recording.full:
                    self.recording.notes.note("the disk was full: the recording ended early")
                    done = True
                if done:
                    # First: whoever waits for an answer must not make the rings run full.
                    self.recording.end()
                    self.control.close()
                    return
                if status is not None and time.monotonic() >= next_line:
                    status.update(self._line(first_event_ns if self.options.command else begun))
                    next_line = time.monotonic() + LIVE_LINE_S
                time.sleep(POLL_S)

    def _start(self) -> None:
        self.control = ControlServer(self.recording.folder, self._answer)
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
        if self.options.pid is not None and not is_running(self.options.pid, self._pid_started):
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
        parts.append(programs(self.totals))
        parts.append(f"{self.totals.dropped:,} dropped")
        return "recording · " + " · ".join(parts)


class _Lasting(io.TextIOBase):
    """A stream that may go away with its terminal, while a recording must not."""

    encoding = "utf-8"

    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        # The stream itself: while its live line is up, rich puts a proxy in the place of sys.stderr, which prints here.
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


def terminal() -> Console:
    """Where a recording talks to the person."""
    return Console(file=cast("IO[str]", _Lasting(sys.stderr)))


def say(console: Console, line: str) -> None:
    """One line for the person, whatever is in it."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def programs(totals: Totals) -> str:
    return f"{totals.processes} program{'s' if totals.processes != 1 else ''}"


@contextmanager
def stops_held() -> Iterator[Callable[[], None]]:
    """Ctrl-C and the like wait, until the end or a call of what it gives: who has begun a recording must first know how
    to end it.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)

    def let_go() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)

    try:
        yield let_go
    finally:
        let_go()


@contextmanager
def stop_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
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
