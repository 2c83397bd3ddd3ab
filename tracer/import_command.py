"""`ral-trace import FILE… -o trace.duckdb`: other tools' files become one trace."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ral_trace.tracer.finish import check_output, write_trace
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.run import say
from ral_trace.tracer.text import plain


def run(files: Sequence[Path], output: Path, console: Console) -> None:
    """Imports files into a trace at `output`, in the format of its ending, and says what came of it."""
    check_output(output)
    bar = Progress(
        TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task("reading", total=sum(map(size_bytes, files)))
        write_trace(output, lambda path: import_files(files, path, advance=lambda size: bar.advance(task, size)))
    with open_trace(output) as trace:
        [(events,)] = trace.sql("SELECT count(*) FROM event").fetchall()
        noted = trace.rows("SELECT s.path, q.* FROM quality q LEFT JOIN source s ON s.id = q.source ORDER BY ALL")
    say(console, f"{output}: {events:,} events of {len(files)} file{'s' if len(files) != 1 else ''}")
    for row in noted:
        count = "" if row["count"] is None else f"{row['count']:,} "
        example = "" if row["example"] is None else f" (such as {plain(row['example'])})"
        say(console, f"  {plain(row['path'] or '')}: {count}{row['what']}{example}")


def size_bytes(path: Path) -> int:
    """Of a file, or of all files in a folder; 0: it is not there."""
    if path.is_dir():
        return sum(size_bytes(entry) for entry in path.iterdir())
    return path.stat().st_size if path.exists() else 0
