"""`ral-trace [--duration 10s] [-- COMMAND …]`: runs a recording, and says what came of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from ral_trace.tracer import _native, salvage
from ral_trace.tracer.answering import Answers
from ral_trace.tracer.errors import EventsLost, NothingRecorded, RalTraceError, UsageError
from ral_trace.tracer.finish import TRACE_ENDING, check_output, write_snapshot
from ral_trace.tracer.governor import governed
from ral_trace.tracer.recording import Recording, Totals, Wanted, is_running
from ral_trace.tracer.run import RecordOptions, Run, programs, say, stop_signals, stops_held

INSTALL = "install ral-trace in the Python that runs it"
COMMAND = "ral-trace -- COMMAND"
LEAST_RING_BYTES, MOST_RING_BYTES = 64 << 10, 4 << 30


def default_output() -> Path:
    """`ral-trace-<UTC time>.duckdb` in the current folder."""
    return Path(f"ral-trace-{datetime.now(UTC):%Y%m%d-%H%M%S}.duckdb")


def record(options: RecordOptions, console: Console) -> int:
    """Records, writes the trace in the format that the output's ending names, and returns the exit code.

    Raises RalTraceError; NothingRecorded when there was not one event.
    """
    check(options)
    with stops_held() as let_go, Recording(wanted(options)) as recording:
        announce_stale(console)
        govern = governed(recording, options.max_overhead)
        run = Run(options, recording, console, answer=Answers(recording).prepare, each_turn=govern)
        with stop_signals(run.interrupt):
            let_go()
            with kept_where_it_fails(recording, "the recording"):
                run.until_done()
                recording.end()
            return exit_code(run, _write(run, console), console)


@contextmanager
def kept_where_it_fails(recording: Recording, who: str) -> Iterator[None]:
    """Leaves for --salvage what a disk has no room for."""
    try:
        yield
    except OSError as error:
        recording.keep = True
        cause = f"{who} failed ({error.strerror})"
        raise RalTraceError(f"{cause}; make room in $TMPDIR, then: ral-trace --salvage") from error


def announce_stale(console: Console) -> None:
    """Says which recordings were left by collectors that died."""
    for folder in salvage.stale_sessions(_native.Sessions()):
        say(console, f"an earlier recording's collector died; {salvage.left_by(folder).remedy()}")


def wanted(options: RecordOptions) -> Wanted:
    # A command and its children are our descendants.
    target = os.getpid() if options.command else options.pid or 0
    return Wanted(target, options.ring_bytes, options.details, options.overwrite, options.flight_ns)


def check(options: RecordOptions) -> None:
    check_output(options.output)
    if not LEAST_RING_BYTES <= options.ring_bytes <= MOST_RING_BYTES:
        raise UsageError("--buffer must lie between 64k and 4g: it is the ring of one thread")
    if options.pid is not None and options.command:
        raise UsageError("--pid and a command do not go together; record one of them")
    if options.pid is not None and not is_running(options.pid):
        raise UsageError(f"there is no process {options.pid}; see what runs with: ps")


def _write(run: Run, console: Console) -> RalTraceError | None:
    """Writes the trace. Returns what the exit code must say, after the command has ended."""
    recording, options, totals = run.recording, run.options, run.recording.totals()
    if totals.events == 0:
        return NothingRecorded(_why_nothing(run))
    try:
        write_snapshot(recording.snapshot(), options.output, refuse_nothing=True)
    except NothingRecorded:
        return NothingRecorded(_why_nothing(run))
    except RalTraceError as error:
        recording.keep = True
        return RalTraceError(f"{error}; what was recorded is kept: ral-trace --salvage --output ELSEWHERE")
    _say_what_came_of_it(run, totals, console)
    if options.strict and totals.dropped + totals.lost:
        missing = f"{totals.dropped:,} events dropped and {totals.lost:,} lost"
        return EventsLost(f"{options.output}: {missing}; give the rings more room with --buffer")
    return None


def exit_code(run: Run, failure: RalTraceError | None, console: Console) -> int:
    """The command's own non-zero code wins (128 + signal); then ours."""
    own = run.child.wait() if run.child is not None else 0
    if own == 0 and failure is not None:
        raise failure
    if failure is not None:
        say(console, f"ral-trace: {failure}")
    return 128 - own if own < 0 else own


def _say_what_came_of_it(run: Run, totals: Totals, console: Console) -> None:
    output = run.options.output
    said = f"{totals.events:,} events of {programs(totals)}, {totals.dropped:,} dropped, {totals.lost:,} lost"
    say(console, f"{output}: {said}")
    if output.suffix == TRACE_ENDING:
        say(console, f"read it with: ral-trace --report {output}")


def _why_nothing(run: Run) -> str:
    recording, options = run.recording, run.options
    if run.child is not None and run.child.returncode:
        why = f"'{options.command[0]}' ended with {run.child.returncode} before it ran an op"
    elif run.interrupts:
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
