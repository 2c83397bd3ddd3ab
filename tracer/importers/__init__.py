"""Readers of files that are not a trace yet. One file an importer, chosen by content, never by name.

To add one: copy the shape of a neighbour, and add it to IMPORTERS.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import duckdb

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import (
    ascend,
    chrome,
    clocks,
    kineto,
    memory_timeline,
    nsys,
    onnxruntime,
    own_json,
    parquet,
    perfetto,
    ranks,
    rocpd,
    rocprof_csv,
    rocprof_json,
    rpd,
    snapshot,
)
from ral_trace.tracer.importers.opening import Head, head_of, must_be_file, readable, refuse_other_forms
from ral_trace.tracer.importers.rows import Rows, text
from ral_trace.tracer.reading import is_trace_file
from ral_trace.tracer.store import TraceBuilder

MOST_MEMORY = "1GiB"
"""Of the database while files are imported; what is more spills to a private folder."""
MOST_LEVELS = 100
"""Of folders in a folder that is given."""


class Importer(Protocol):
    """What a module in this folder offers."""

    FORMAT: str

    def sniff(self, head: Head) -> float:
        """How sure it is, 0 to 1, that an input which begins so is its own."""

    def read(self, path: Path, rows: Rows) -> None:
        """Adds the input's rows to `rows`; what is wrong with single events is counted there. Raises InputRefused."""


IMPORTERS: Sequence[Importer] = [
    own_json, parquet, perfetto, kineto, ascend, onnxruntime, nsys, rpd, rocpd, rocprof_csv, rocprof_json,
    snapshot, memory_timeline, chrome,
]  # fmt: skip


def import_files(
    files: Sequence[Path],
    out: Path,
    *,
    advance: Callable[[int], None] = lambda size: None,
    refused: Callable[[InputRefused], None] = lambda error: None,
) -> Path:
    """Reads files (or folders) of any known format into one new trace at `out`, which must end in .duckdb.

    `advance` is called with the bytes read since the last call. One of several files that cannot be read costs the
    others nothing: `refused` is called with why, which `quality` says too. Raises InputRefused where none can be read.
    """
    with TraceBuilder(out, wait=False, most_memory=MOST_MEMORY) as builder:
        inputs = _Inputs(files)
        with builder.saying_where():
            read = list(_read_all(builder, inputs, advance))
            if not read:
                raise inputs.errors[0]
            for error in inputs.errors:
                refused(error)
                _note(builder, "files that could not be read: nothing of them is here", 1, str(error))
            if inputs.unknown:
                _note(
                    builder,
                    "files in a folder that are of no known format",
                    len(inputs.unknown),
                    inputs.unknown[0].name,
                )
            if inputs.repeated:
                _note(
                    builder,
                    "files that were given more than once: read once",
                    len(inputs.repeated),
                    str(inputs.repeated[0]),
                )
            if inputs.links:
                _note(builder, "links in a folder: not followed", len(inputs.links), inputs.links[0].name)
            if not builder.derived:
                ranks.settle(read)
                clocks.align(builder, read)
            for rows in read:
                rows.finish()
        return builder.finish()


class _Inputs:
    """What to read, and with which importer: of a folder that is no input itself, the files in it that are known."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.found: list[tuple[Path, Importer]] = []
        self.errors: list[InputRefused] = []
        self.unknown: list[Path] = []
        self.links: list[Path] = []
        self.repeated: list[Path] = []
        self._seen: set[tuple[int, int]] = set()
        known = ", ".join(importer.FORMAT for importer in IMPORTERS)
        for path in files:
            if self._add(path):
                continue
            if path.is_file() and is_trace_file(path):
                self.errors.append(InputRefused(path, "is a trace already", "read it with: ral-trace --report"))
            else:
                what = "is a folder without any file of a format" if path.is_dir() else "is of no format"
                self.errors.append(InputRefused(path, f"{what} that is known here", f"give one of: {known}"))

    def _add(self, path: Path, depth: int = 0) -> bool:
        """Whether somebody knows its format, or that of something in it, or it was refused."""
        try:
            if depth > MOST_LEVELS:
                raise InputRefused(path, f"lies {depth} folders deep", "give the folder that it is in")
            importer = importer_of(path)
            entries = _entries(path) if importer is None else []
        except InputRefused as error:
            self.errors.append(error)
            return True
        if importer is not None:
            where = path.stat()
            if (where.st_dev, where.st_ino) in self._seen:
                self.repeated.append(path)
                return True
            self._seen.add((where.st_dev, where.st_ino))
            self.found.append((path, importer))
            return True
        links = [entry for entry in entries if entry.is_symlink()]
        self.links += links
        unknown = [entry for entry in entries if entry not in links and not self._add(entry, depth + 1)]
        if len(unknown) + len(links) == len(entries):
            return False
        self.unknown += unknown
        return True


def _entries(path: Path) -> list[Path]:
    """What is in a folder. Raises InputRefused."""
    with readable(path):
        return sorted(path.iterdir()) if path.is_dir() else []


def _read_all(builder: TraceBuilder, inputs: _Inputs, advance: Callable[[int], None]) -> Iterator[Rows]:
    for path, importer in inputs.found:
        rows = Rows(builder, path, importer.FORMAT, advance=advance)
        try:
            with builder.saying_where(), _numbers_of(path):
                importer.read(path, rows)
                rows.flush()
        except InputRefused as error:
            if len(inputs.found) == 1 or not rows.discard():
                raise
            inputs.errors.append(error)
            continue
        if builder.derived and len(inputs.found) > 1:
            raise InputRefused(path, "holds a whole trace, which cannot be merged with others", "import it alone")
        yield rows


@contextlib.contextmanager
def _numbers_of(path: Path) -> Iterator[None]:
    """What the database cannot convert or count is a fault of the input that says it."""
    try:
        yield
    except (duckdb.ConversionException, duckdb.OutOfRangeException, duckdb.InvalidInputException) as error:
        cause = str(error).partition("\n")[0]
        raise InputRefused(path, f"holds numbers that nothing can count ({cause})", "export it again") from error


def _note(builder: TraceBuilder, what: str, count: int, example: str) -> None:
    builder.add("quality", what=what, count=count, example=text(example))


@contextlib.contextmanager
def as_trace_file(path: Path) -> Iterator[Path]:
    """The file itself when it is a trace, else a temporary trace with its content, to be unlinked once it is open."""
    if path.exists() and not path.is_dir():
        must_be_file(path)
    if not path.is_dir() and (path.stat().st_size == 0 or is_trace_file(path)):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="ral-trace-") as folder:
        yield import_files([path], Path(folder) / "imported.duckdb")


def importer_of(path: Path) -> Importer | None:
    """The importer that is most sure of an input; None: nobody knows it. Raises InputRefused: it cannot be read."""
    with readable(path):
        if not path.is_dir():
            must_be_file(path)
            if path.stat().st_size == 0:
                raise InputRefused(path, "the file is empty", "record or export it again")
        head = head_of(path)
        sure = [importer.sniff(head) for importer in IMPORTERS]
        if max(sure) > 0:
            return IMPORTERS[sure.index(max(sure))]
        refuse_other_forms(head)
        return None
