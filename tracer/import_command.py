"""`ral-trace import FILE… -o trace.duckdb`: other tools' files become one trace."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.finish import check_output, write_trace
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.run import say
from ral_trace.tracer.text import plain


def run(files: Sequence[Path], output: Path, console: Console) -> int:
    """Imports files into a trace at `output`, in the format of its ending, and says what came of it.

    Returns the exit code: that of a refused input where only some could be read. Raises InputRefused where none could.
    """
    check_output(output)
    refused: list[InputRefused] = []
    bar = Progress(
        TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip

    def make(path: Path) -> str:
        task = bar.add_task("reading", total=sum(map(_size_bytes, files)))
        import_files(files, path, advance=lambda size: bar.advance(task, size), refused=refused.append)
        with open_trace(path) as trace:
            return _said(trace)

    with bar:
        said = write_trace(output, make)
    say(console, f"{output}: {said}")
    for error in refused:
        say(console, f"ral-trace: {error}")
    return refused[0].exit_code if refused else 0


def _said(trace: Trace) -> str:
    """How much there is, and all that there is to know of it, a line each."""
    [(events, sources)] = trace.sql("SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM source)").fetchall()
    lines = [f"{events:,} events of {sources} file{'s' if sources != 1 else ''}"]
    for row in trace.rows("""
        SELECT s.path, q.what, sum(q.count) AS count, min(q.example) AS example
        FROM quality q LEFT JOIN source s ON s.id = q.source GROUP BY ALL ORDER BY ALL"""):
        where = "" if row["path"] is None else f"{plain(row['path'])}: "
        notes = [] if row["count"] is None else [f"{row['count']:,}"]
        notes += [] if row["example"] is None else [f"such as {plain(row['example'])}"]
        lines.append(f"  {where}{plain(row['what'])}" + (f" ({', '.join(notes)})" if notes else ""))
    return "\n".join(lines)


def _size_bytes(path: Path) -> int:
    """Of a file, or of all files in a folder, whose links are not followed; 0: it is not there."""
    size, waiting = 0, [path]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):  # whoever reads it says so
            if one.is_dir():
                waiting += [entry for entry in one.iterdir() if not entry.is_symlink()]
            else:
                size += one.stat().st_size
    return size
