"""Readers of files that are not a trace yet. One file an importer, chosen by content, never by name.

To add one: copy the shape of a neighbour, and add it to IMPORTERS.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import own_json
from ral_trace.tracer.importers.opening import read_head
from ral_trace.tracer.store import TraceBuilder

HEAD_BYTES = 64 * 1024
DUCKDB_MAGIC = slice(8, 12)


class Importer(Protocol):
    """What a module in this folder offers."""

    FORMAT: str

    def sniff(self, head: bytes) -> float:
        """How sure it is, 0 to 1, that a file which begins with `head` (decompressed, HEAD_BYTES) is its own."""

    def read(self, path: Path, builder: TraceBuilder) -> None:
        """Adds the file's rows to `builder`; what is wrong with single events goes to quality. Raises InputRefused."""


IMPORTERS: Sequence[Importer] = [own_json]


def is_trace_file(path: Path) -> bool:
    """Whether a file is a DuckDB database, by its content."""
    with path.open("rb") as file:
        return file.read(12)[DUCKDB_MAGIC] == b"DUCK"


def import_files(files: Sequence[Path], out: Path) -> Path:
    """Reads files of any known format into one new trace at `out`. Raises InputRefused when a file is of none.

    A whole trace of ours (`builder.derived`) stands alone: its ids and what was derived from it would not fit others.
    """
    with TraceBuilder(out) as builder:
        for path in files:
            if builder.derived:
                raise InputRefused(path, "cannot be merged with a whole trace", "import the files one by one")
            _importer_of(path).read(path, builder)
        return builder.finish()


@contextlib.contextmanager
def as_trace_file(path: Path) -> Iterator[Path]:
    """The file itself when it is a trace, else a temporary trace with its content, to be unlinked once it is open."""
    if path.is_dir() or path.stat().st_size == 0 or is_trace_file(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="ral-trace-") as folder:
        yield import_files([path], Path(folder) / "imported.duckdb")


def _importer_of(path: Path) -> Importer:
    head = read_head(path, HEAD_BYTES)
    best = max(IMPORTERS, key=lambda importer: importer.sniff(head))
    if best.sniff(head) == 0:
        known = ", ".join(importer.FORMAT for importer in IMPORTERS)
        raise InputRefused(path, "is of no format that is known here", f"give a .duckdb trace, or one of: {known}")
    return best
