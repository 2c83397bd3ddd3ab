"""Writes a trace in the format that the output's ending names. Of a recording not while it goes on: the recorded
programs want the cores.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ral_trace.tracer import exporters
from ral_trace.tracer.assemble import assemble
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.outputs import output_file
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.recording import Snapshot

TRACE_ENDING = ".duckdb"
Made = TypeVar("Made")


def check_output(output: Path) -> None:
    """Raises RalTraceError where nothing can be written under that name."""
    if output.suffix == TRACE_ENDING:
        output_file(output)
    else:
        exporters.checked_output(output)
    folder = output.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise RalTraceError(f"{folder}: cannot be written; choose another place with --output")


def write_snapshot(snapshot: Snapshot, output: Path, *, refuse_nothing: bool = False) -> int:
    """Writes what a recording holds; as `assemble`."""
    return write_trace(output, lambda path: assemble(snapshot, path, refuse_nothing=refuse_nothing))


def write_trace(output: Path, make: Callable[[Path], Made]) -> Made:
    """Lets `make` write a .duckdb trace, and brings it into the format of `output`. Returns what `make` does."""
    if output.suffix == TRACE_ENDING:
        return make(output_file(output))
    with temporary_folder() as folder:
        path = folder / f"whole{TRACE_ENDING}"
        made = make(path)
        with open_trace(path) as trace:
            exporters.export(trace, output, exporters.Window(run=exporters.parquet.free_run(output)))
    return made


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Raises RalTraceError where there is no room for one."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="ral-trace-")
    except OSError as error:
        raise RalTraceError(f"there is no room for temporary files ({error}); make some, or set TMPDIR") from error
    with folder:
        yield Path(folder.name)
