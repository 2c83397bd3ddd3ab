"""`ral-trace --flight 30s` and `ral-trace dump`: the last seconds, when somebody or something asks for them."""

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from ral_trace.tracer import _native
from ral_trace.tracer.control import Message, Work, ask
from ral_trace.tracer.errors import NothingRecorded, RalTraceError
from ral_trace.tracer.finish import check_output, write_snapshot
from ral_trace.tracer.flight import FlightRecording
from ral_trace.tracer.governor import governed
from ral_trace.tracer.record_command import announce_stale, check, exit_code, kept_where_it_fails, wanted
from ral_trace.tracer.run import RecordOptions, Run, say, stop_signals, stops_held

SETTLE_S = 0.3
"""After a program asked for a dump: its last events are worth waiting for."""
MOST_BY_THEMSELVES = 20
"""A program that fails in a loop must not fill the disk."""


def fly(options: RecordOptions, console: Console) -> int:
    """Keeps the last seconds until Ctrl-C or the end of the command. Returns the exit code."""
    check(options)
    assert options.flight_ns is not None
    with stops_held() as let_go, FlightRecording(wanted(options)) as recording:
        announce_stale(console)
        dumps = Dumps(recording, options.output, lambda line: say(console, line))
        govern = governed(recording, options.max_overhead)

        def each_turn() -> None:
            govern()
            dumps.write_due()

        run = Run(options, recording, console, answer=dumps.prepare, each_turn=each_turn)
        say(console, f"keeping the last {options.flight_ns / 1e9:g} s; write them out with: ral-trace dump")
        with stop_signals(run.interrupt):
            let_go()
            with kept_where_it_fails(recording, "the flight recorder"):
                run.until_done()
                recording.look_once_more()
                dumps.write_due(settled=True)
        return exit_code(run, dumps.failure, console)


class Dumps:
    """Writes what a flight recorder holds, each time to a file of its own."""

    def __init__(self, recording: FlightRecording, output: Path, tell: Callable[[str], None]) -> None:
        self.recording = recording
        self.output = output
        self.tell = tell
        self.failure: RalTraceError | None = None
        self._by_themselves = 0
        self._due_since: float | None = None

    def prepare(self, asked: Message) -> Work:
        """Answers `ral-trace dump`. In the collector's own thread: nothing is missed meanwhile, the rings go on."""
        match asked:
            case {"do": "dump", "output": str(output)}:
                answer = self._write(Path(output), "asked for")
                return lambda: answer
        raise RalTraceError(f"a flight recorder does not know how to {asked.get('do')}; it can dump")

    def write_due(self, *, settled: bool = False) -> None:
        """Writes a dump where a program asked for one, a moment later: all reasons of that moment are one dump's."""
        if not self.recording.due:
            return
        self._due_since = self._due_since or time.monotonic()
        if not settled and time.monotonic() - self._due_since < SETTLE_S:
            return
        reasons = "; ".join(dict.fromkeys(self.recording.due))
        self.recording.due.clear()
        self._due_since = None
        self._by_themselves += 1
        if self._by_themselves > MOST_BY_THEMSELVES:
            self.tell(f"{reasons}: not dumped, that would be more than {MOST_BY_THEMSELVES}")
            return
        try:
            output = numbered(self.output, self._by_themselves)
            answer = self._write(output, reasons)
        except NothingRecorded:
            return
        except RalTraceError as error:
            self.failure = error
            self.tell(f"ral-trace: {error}")
            return
        self.tell(f"{answer['output']}: {answer['events']:,} events ({reasons})")

    def _write(self, output: Path, reason: str) -> Message:
        check_output(output)
        try:
            with self.recording.dump(reason) as snapshot:
                if not snapshot.processes:
                    raise NothingRecorded("no program has joined the flight recorder yet")
                events = write_snapshot(snapshot, output)
        except (OSError, RuntimeError) as error:
            raise RalTraceError(f"{output}: there is no room for a dump ({error}); make some in $TMPDIR") from error
        return {"output": str(output), "events": events}


def numbered(output: Path, number: int) -> Path:
    """run.duckdb, then run-2.duckdb, and so on."""
    stem, dot, ending = output.name.partition(".")
    return output if number == 1 else output.with_name(f"{stem}-{number}{dot}{ending}")


def dump(output: Path, console: Console) -> None:
    """Asks every recording that runs to write out what it holds. Raises RalTraceError."""
    sessions = _native.Sessions()
    folders = [Path(sessions.folder) / session.folder for session in sessions.taken() if session.collector_alive]
    if not folders:
        raise NothingRecorded("nothing is being recorded; begin with: ral-trace --flight 30s")
    for number, folder in enumerate(folders, start=1):
        answer = ask(folder, do="dump", output=str(numbered(output.resolve(), number)))
        say(console, f"{answer['output']}: {answer['events']:,} events")
