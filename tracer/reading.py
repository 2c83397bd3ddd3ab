"""The one way of opening a trace. Report, query, dashboard and exporters all go through `open_trace`.

A .duckdb file from somebody else is untrusted: a view stored in it could read or write any file of the reader. So the
file is attached read-only to an
in-memory database that may touch no other file, and that cannot be talked out of it.
"""

import contextlib
import importlib.util
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb

from ral_trace.tracer.errors import InputRefused, NothingRecorded, UsageError
from ral_trace.tracer.interrupts import interruptible
from ral_trace.tracer.schema import SCHEMA_VERSION
from ral_trace.tracer.text import sql_text

MEMORY_LIMIT = "4GB"
DUCKDB_MAGIC = slice(8, 12)
OTHER = "other"
"""Catalog of the second trace, where two are compared. The first is the current database, `trace`."""


class Rows(list[dict[str, Any]]):
    """Rows of an answer, a dictionary each."""

    def df(self) -> Any:
        """The rows as a pandas.DataFrame; whole numbers with unknown ones among them stay whole (Int64).

        Raises UsageError where pandas is not installed.
        """
        if importlib.util.find_spec("pandas") is None:
            raise UsageError("df() needs pandas; install it with: python -m pip install pandas")
        import pandas

        def column(values: list[Any]) -> Any:
            known = [value for value in values if value is not None]
            whole = known and all(type(value) is int and abs(value) < 1 << 63 for value in known)
            # Left to itself pandas takes whole numbers with a gap among them through floats.
            return pandas.array(values, dtype="Int64") if whole else values

        return pandas.DataFrame({name: column([row[name] for row in self]) for name in (self[0] if self else ())})


class Trace:
    """An open trace: read-only SQL over its tables and views.

    `connection` is locked: no other files, no settings. `export_folder`, private to this trace and empty, is the only
    place where COPY may write:
    a view of an untrusted trace could read whatever else were allowed.
    """

    def __init__(
        self,
        path: Path,
        *,
        other: Path | None = None,
        show_as: Path | None = None,
        show_other_as: Path | None = None,
    ) -> None:
        self.path = show_as or path
        self._other_path = show_other_as or other
        self._spill = tempfile.TemporaryDirectory(prefix="ral-trace-")
        self.export_folder = Path(self._spill.name) / "export"
        self.export_folder.mkdir(mode=0o700)
        self._closing = contextlib.ExitStack()
        self.connection = self._closing.enter_context(interruptible(duckdb.connect(":memory:")))
        with contextlib.ExitStack() as unless_opened:
            unless_opened.callback(self.close)
            self._attach(path, "trace", self.path)
            if other is not None and self._other_path is not None:
                self._attach(other, OTHER, self._other_path)
            self._lock()
            self._check_version("trace", self.path)
            if self._other_path is not None:
                self._check_version(OTHER, self._other_path)
            unless_opened.pop_all()

    def _attach(self, path: Path, catalog: str, name: Path) -> None:
        try:
            self.connection.execute(f"ATTACH {sql_text(str(path.resolve()))} AS {catalog} (READ_ONLY, TYPE duckdb)")
        except (duckdb.Error, OSError) as error:
            raise InputRefused(name, _cause(path, error), "record a new trace, or give another file") from error

    def _check_version(self, catalog: str, name: Path) -> None:
        """Only once everything is locked: `trace_info` may be a view that somebody else wrote."""
        try:
            rows = self.connection.sql(
                f"SELECT value FROM {catalog}.trace_info WHERE key = 'schema_version'"
            ).fetchall()
        except duckdb.Error as error:
            remedy = "record one with: ral-trace --duration 10s"
            raise InputRefused(name, "is a DuckDB file but not a trace", remedy) from error
        found = int(rows[0][0]) if rows and str(rows[0][0]).isdigit() else None
        if found != SCHEMA_VERSION:
            newer = found is None or found > SCHEMA_VERSION
            remedy = "install the ral-trace that wrote it" if newer else "record it again"
            raise InputRefused(name, f"has schema version {found}, and this ral-trace reads {SCHEMA_VERSION}", remedy)

    def _lock(self) -> None:
        for setting in [
            "USE trace",
            f"SET memory_limit = '{MEMORY_LIMIT}'",
            f"SET temp_directory = {sql_text(self._spill.name)}",
            f"SET allowed_directories = [{sql_text(str(self.export_folder.resolve()))}]",
            "SET enable_external_access = false",
            "SET lock_configuration = true",
        ]:
            self.connection.execute(setting)

    def other(self) -> "Trace":
        """The second trace, as one that the same questions can be asked of. Raises UsageError where one is open only.

        It lives as long as this one, and shares its connection's locks and its folder.
        """
        if self._other_path is None:
            raise UsageError(f"{self.path}: is open alone; to compare it open another one beside it")
        return _OtherTrace(self, self._other_path)

    @contextlib.contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A further connection to the same trace, because one has only one open result at a time."""
        with interruptible(self.connection.cursor()) as connection:
            connection.execute("USE trace")
            yield connection

    def sql(self, query: str, parameters: Sequence[Any] | None = None) -> duckdb.DuckDBPyRelation:
        """A relation over the trace, for our own queries; `.fetchall()`, `.fetchnumpy()`, `.columns` give what it
        holds.
        """
        return self.connection.sql(query, params=parameters)

    def rows(self, query: str, parameters: Sequence[Any] | None = None) -> Rows:
        """The rows of one of our own queries."""
        relation = self.sql(query, parameters)
        return Rows(dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall())

    def query(self, text: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns and rows of a person's own SQL: one SELECT.

        Raises UsageError for anything else, with DuckDB's words.
        """
        try:
            statements = duckdb.extract_statements(text)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise UsageError("a query is one SELECT statement; a trace is read-only")
            relation = self.connection.sql(text)
            return relation.columns, relation.fetchall()
        except duckdb.Error as error:
            raise UsageError(f"the query was refused: {_first_line(error)}") from error

    def close(self) -> None:
        """Closes the connection and removes the spill folder."""
        self._closing.close()
        self._spill.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _OtherTrace(Trace):
    """The second of two open traces. Its connection is a cursor of the first one's, on the other catalog."""

    def __init__(self, first: Trace, path: Path) -> None:
        self.path = path
        self._other_path = None
        self.export_folder = first.export_folder
        self.connection = first.connection.cursor()
        self.connection.execute(f"USE {OTHER}")

    def close(self) -> None:
        """Closes this view of it; the first trace keeps what it has open."""
        self.connection.close()


def open_trace(path: Path | str, *, other: Path | str | None = None) -> Trace:
    """Opens a trace (and, to compare, a second one as catalog `other`).

    Takes a .duckdb file; any other format that an importer knows is imported into a temporary trace first. Raises
    InputRefused with the file, the
    cause and the remedy.
    """
    path = Path(path)
    with contextlib.ExitStack() as until_open:
        first = _as_trace_file(path, until_open)
        if other is None:
            return Trace(first, show_as=path)
        second = _as_trace_file(Path(other), until_open)
        if first.samefile(second):
            raise UsageError(f"{path}: is compared with itself; name two traces")
        return Trace(first, other=second, show_as=path, show_other_as=Path(other))


def is_trace_file(path: Path) -> bool:
    """Whether a file is a DuckDB database, by its content."""
    with path.open("rb") as file:
        return file.read(12)[DUCKDB_MAGIC] == b"DUCK"


def _as_trace_file(path: Path, until_open: contextlib.ExitStack) -> Path:
    """The file itself, or a temporary trace with its content. Raises InputRefused."""
    try:
        if not path.exists():
            raise InputRefused(path, "there is no such file", "see what is here with: ls *.duckdb")
        if path.is_file() and is_trace_file(path):
            return path
        from ral_trace.tracer import importers  # a fifth of a second that a trace need not wait for

        return until_open.enter_context(importers.as_trace_file(path))
    except OSError as error:
        raise InputRefused(path, f"cannot be read ({error.strerror})", "see who may read it with: ls -l") from error


def newest_trace(folder: Path) -> Path:
    """The newest *.duckdb in `folder` that is a trace. Raises NothingRecorded when there is none."""
    found = [path for path in folder.glob("*.duckdb") if path.is_file()]
    for path in sorted(found, key=lambda each: each.stat().st_mtime_ns, reverse=True):
        try:
            Trace(path).close()
        except InputRefused:
            continue
        return path
    raise NothingRecorded(f"{folder.resolve()}: no trace here; record one with: ral-trace --duration 10s")


def _cause(path: Path, error: Exception) -> str:
    if path.is_dir():
        return "is a folder"
    if path.stat().st_size == 0:
        return "the file is empty"
    if "could not set lock" in str(error).lower():
        return "is being written by another process"
    return f"is not a readable DuckDB file ({_first_line(error)})"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
