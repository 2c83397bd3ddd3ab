"""`ral-trace --salvage`: writes out what collectors left that died."""

from pathlib import Path

from rich.console import Console

from ral_trace.tracer import _native, salvage
from ral_trace.tracer.errors import NothingRecorded, RalTraceError
from ral_trace.tracer.finish import check_output, write_snapshot
from ral_trace.tracer.flight_command import numbered
from ral_trace.tracer.run import say


def write_left(output: Path, console: Console) -> int:
    """Writes a trace for each session whose collector died, and gives its memory back. Returns the exit code.

    Raises NothingRecorded where there is none, or none that can be read.
    """
    check_output(output)
    try:
        folders = salvage.stale_sessions(_native.Sessions())
    except RuntimeError as error:
        raise RalTraceError(f"{error}") from error
    written = 0
    for folder in folders:
        left = salvage.left_by(folder)
        with salvage.salvaged(left) as snapshot:
            if snapshot is None:
                say(console, f"{folder}: nothing there can be read any more; give its memory back with: rm -r {folder}")
                continue
            target = numbered(output, written + 1)
            events = write_snapshot(snapshot, target)
        written += 1
        say(console, f"{target}: {events:,} events of {len(snapshot.processes)} programs, whose collector died")
        left.remove()
    if written == 0:
        raise NothingRecorded("there is nothing to salvage: no recording was left by a collector that died")
    return 0
