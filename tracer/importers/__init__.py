"""Readers of files that are not a trace yet. One file an importer, chosen by content, never by name.

To add one: copy the shape of a neighbour, and add it to IMPORTERS.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import chrome, kineto, own_json
from ral_trace.tracer.importers.opening import Head, head_of
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.store import TraceBuilder

MOST_MEMORY = "1GiB"
"""Of the database while files are imported; what is more spills to a private folder."""
DUCKDB_MAGIC = slice(8, 12)


class Importer(Protocol):
    """What a module in this folder offers."""

    FORMAT: str

    def sniff(self, head: Head) -> float:
        """How sure it is, 0 to 1, that an input which begins so is its own."""

    def read(self, path: Path, rows: Rows) -> None:
        """Adds the input's rows to `rows`; what is wrong with single events is counted there. Raises InputRefused."""


IMPORTERS: Sequence[Importer] = [own_json, kineto, chrome]


def is_trace_file(path: Path) -> bool:
    """Whether a file is a DuckDB database, by its content."""
    with path.open("rb") as file:
        return file.read(12)[DUCKDB_MAGIC] == b"DUCK"


def import_files(files: Sequence[Path], out: Path, *, advance: Callable[[int], None] = lambda size: None) -> Path:
    """Reads files (or folders) of any known format into one new trace at `out`, which must end in .duckdb.

    `advance` is called with the bytes read since the last call. Raises InputRefused when one is of no known format, is
    damaged as a whole, or cannot be merged with the others.
    """
    with TraceBuilder(out) as builder:
        builder.connection.execute(f"SET memory_limit = '{MOST_MEMORY}'")
        for path, importer in [(path, importer_of(path)) for path in files]:
            if builder.derived:
                raise InputRefused(path, "cannot be merged with a whole trace", "import the files one by one")
            rows = Rows(builder, path, importer.FORMAT, advance=advance)
            with builder.saying_where():
                importer.read(path, rows)
                rows.finish()
        return builder.finish()


@contextlib.contextmanager
def as_trace_file(path: Path) -> Iterator[Path]:
    """The file itself when it is a trace, else a temporary trace with its content, to be unlinked once it is open."""
    if not path.is_dir() and (path.stat().st_size == 0 or is_trace_file(path)):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="ral-trace-") as folder:
        yield import_files([path], Path(folder) / "imported.duckdb")


def importer_of(path: Path) -> Importer:
    """The importer that is most sure of an input. Raises InputRefused when none knows it."""
    if not path.exists():
        raise InputRefused(path, "there is no such file", "see what is here with: ls")
    if not path.is_dir() and path.stat().st_size == 0:
        raise InputRefused(path, "the file is empty", "record or export it again")
    head = head_of(path)
    best = max(IMPORTERS, key=lambda importer: importer.sniff(head))
    if best.sniff(head) == 0:
        known = ", ".join(importer.FORMAT for importer in IMPORTERS)
        raise InputRefused(path, "is of no format that is known here", f"give a .duckdb trace, or one of: {known}")
    return best
