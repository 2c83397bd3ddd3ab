"""Writes a recording in the format that the output's ending names; as far as it can, while it is still recorded."""

import contextlib
import os
import queue
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ral_trace.tracer import exporters
from ral_trace.tracer.assemble import Assembly, assemble
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.outputs import output_file
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.recording import Recording, Snapshot

TRACE_ENDING = ".duckdb"
KEEP_UP_BYTES = 2 << 20
"""Of the spool: 32 Ki events."""
KEEP_BYTES = 8 << 20
"""128 Ki events, a row group of the trace: as many are compressed at a time."""
LOWEST_PRIORITY = 19


def check_output(output: Path) -> None:
    """Raises RalTraceError where nothing can be written under that name."""
    if output.suffix == TRACE_ENDING:
        output_file(output)
    else:
        exporters.checked_output(output)
    folder = output.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise RalTraceError(f"{folder}: cannot be written; choose another place with --output")


def write_snapshot(
    snapshot: Snapshot, output: Path, *, since_ticks: int = 0, facts: dict[str, object] | None = None
) -> int:
    """Writes what a recording holds. Returns how many events. Raises RalTraceError."""
    if output.suffix == TRACE_ENDING:
        return assemble(snapshot, output_file(output), since_ticks=since_ticks, facts=facts)
    with tempfile.TemporaryDirectory(prefix="ral-trace-") as folder:
        path = Path(folder) / f"recorded{TRACE_ENDING}"
        events = assemble(snapshot, path, since_ticks=since_ticks, facts=facts)
        with open_trace(path) as trace:
            exporters.export(trace, output)
    return events


class TraceInTheMaking:
    """Makes the trace of a recording while it goes on, so that little is left to do at its end: in a thread of the
    lowest priority, because the programs that are recorded want the cores. Its errors come out of `finish`.
    """

    def __init__(self, recording: Recording, trace: Path, output: Path) -> None:
        self.recording = recording
        self.output = output
        self._trace = trace
        self._spool = recording.snapshot().spool
        self._work: queue.Queue[Snapshot | None] = queue.Queue()
        self._taken_bytes = 0
        self._busy = threading.Event()
        self._failure: RalTraceError | None = None
        self._assembly: Assembly | None = None
        self._thread = threading.Thread(target=self._run, name="ral-trace-writer", daemon=True)
        self._thread.start()

    def keep_up(self) -> None:
        """Hands over what has been drained, when it is worth it. Never waits."""
        fresh_bytes = self.recording.spool.bytes - self._taken_bytes
        if fresh_bytes >= KEEP_UP_BYTES and not self._busy.is_set() and self._failure is None:
            self._taken_bytes = self.recording.spool.bytes
            self._busy.set()
            self._work.put(self.recording.snapshot())

    def finish(self) -> int:
        """Writes the trace of all that there is, after the recording's end. Returns how many events it holds."""
        self._stop()
        if self._failure is not None or self._assembly is None:
            raise self._failure or RalTraceError(f"{self.output}: the trace could not be begun")
        self._assembly.advance(self.recording.snapshot())
        events = self._assembly.finish()
        if self._trace != self.output:
            with open_trace(self._trace) as trace:
                exporters.export(trace, self.output)
        return events

    def close(self) -> None:
        """Removes what is unfinished."""
        self._stop()
        if self._assembly is not None:
            self._assembly.builder.close()

    def _stop(self) -> None:
        if self._thread.is_alive():
            self._work.put(None)
            self._thread.join()

    def _run(self) -> None:
        # Linux: of this thread, and of DuckDB's, which it is about to start.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        try:
            self._assembly = Assembly(self._spool, self._trace)
            self.recording.notes.partial(self._assembly.builder.partial)
            kept_bytes = 0
            while snapshot := self._work.get():
                self._assembly.advance(snapshot)
                if self._taken_bytes - kept_bytes >= KEEP_BYTES:
                    kept_bytes = self._taken_bytes
                    self._assembly.builder.keep()
                self._busy.clear()
        except RalTraceError as error:
            self._failure = error


@contextmanager
def in_the_making(recording: Recording, output: Path) -> Iterator[TraceInTheMaking]:
    """The trace of a recording that has begun."""
    with contextlib.ExitStack() as stack:
        if output.suffix == TRACE_ENDING:
            trace = output_file(output)
        else:
            trace = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ral-trace-"))) / "recorded.duckdb"
        making = TraceInTheMaking(recording, trace, output)
        stack.callback(making.close)
        yield making
