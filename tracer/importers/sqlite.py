"""SQLite databases of other tools, opened so that nothing is ever written beside them, and read as untrusted input.

Only real tables are read, column by column; a view, a trigger, a virtual table or a generated column of a database
could run for ever or do things. https://www.sqlite.org/security.html
"""

import contextlib
import itertools
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.rows import NOT_UTF8

SQLITE_MAGIC = b"SQLite format 3\0"
LOGS = ("-wal", "-journal")
"""What SQLite keeps beside a database while somebody writes it; a reader has to take them into account."""
CUT_OFF = "the database is cut off or damaged: what can still be read of it was taken"
LONGEST_CELL_BYTES = 16 << 20
BATCH_ROWS = 20_000


@contextmanager
def opened_database(
    path: Path, said: Callable[[str, str], None] = lambda what, example: None
) -> Iterator[sqlite3.Connection]:
    """A read-only connection; text that is not UTF-8 is decoded with replacement. Raises InputRefused.

    A database in WAL mode makes SQLite write beside it, unless it is told that nobody does (`immutable`), which then
    leaves out what is still in its log. So one with a log is read from a private copy. One that is cut off is read as
    far as it goes, which `said` is told.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="ral-trace-") as folder:
            place = _place_without_logs(path, Path(folder))
            mode = "immutable=1" if place == path else "mode=rw"
            connection = sqlite3.connect(f"{place.absolute().as_uri()}?{mode}", uri=True)
            try:
                _distrust(connection, said)
                if not _readable(connection):
                    # The header promises more pages than there are; SQLite then refuses all, unless it is to repair.
                    connection.execute("PRAGMA writable_schema = ON")
                    ask(connection, "SELECT count(*) FROM sqlite_master").fetchone()
                    said(CUT_OFF, path.name)
                yield connection
            finally:
                connection.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        packed = not _begins_so(path, SQLITE_MAGIC)
        remedy = "unpack it, if it is packed" if packed else "export it again"
        raise InputRefused(path, f"is not a readable SQLite database ({error})", remedy) from error
    except OSError as error:
        raise InputRefused(path, f"cannot be read ({error.strerror})", "check the file and its rights") from error


def _begins_so(path: Path, magic: bytes) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(len(magic)) == magic
    return False


def _place_without_logs(path: Path, folder: Path) -> Path:
    """The file itself, or a private copy of it and its logs where it has any."""
    logs = [log for log in (path.with_name(path.name + ending) for ending in LOGS) if log.exists()]
    logs = [log for log in logs if log.stat().st_size > 0]
    if not logs:
        return path
    for file in (path, *logs):
        Path(shutil.copyfile(file, folder / file.name)).chmod(0o600)
    return folder / path.name


def _distrust(connection: sqlite3.Connection, said: Callable[[str, str], None]) -> None:
    connection.text_factory = partial(_decoded, said)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_CELL_BYTES)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def _decoded(said: Callable[[str, str], None], data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        said(NOT_UTF8, text)
        return text


def _readable(connection: sqlite3.Connection) -> bool:
    try:
        ask(connection, "SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError:
        return False
    return True


def table_names(path: Path) -> frozenset[str]:
    """Tables of a database. Raises InputRefused."""
    with opened_database(path) as connection:
        return frozenset(tables(connection))


def ask(connection: sqlite3.Connection, query: str) -> sqlite3.Cursor:
    """Runs a query. Raises sqlite3.Error, also where its message cannot be decoded because it quotes a damaged name."""
    try:
        return connection.execute(query)
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError("its schema is damaged") from error


def tables(connection: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Name and stored columns of each table that holds its own rows."""
    names = ask(
        connection,
        """SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0
           AND typeof(name) = 'text' AND name NOT LIKE 'sqlite@_%' ESCAPE '@'""",
    ).fetchall()
    return {name: tuple(_columns(connection, name)) for (name,) in names}


def _columns(connection: sqlite3.Connection, table: str) -> Iterable[str]:
    """Generated columns are not among them."""
    try:
        return [row[1] for row in ask(connection, f"PRAGMA table_info({quoted(table)})")]
    except sqlite3.DatabaseError:
        return []


def quoted(name: str) -> str:
    """A name as SQL (of SQLite and DuckDB alike) takes it, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


_SELECTED = {
    "int": "{0}",
    "real": """CASE typeof({0}) WHEN 'real' THEN {0} WHEN 'integer' THEN CAST({0} AS REAL)
        WHEN 'text' THEN CASE WHEN {0} GLOB '[-0-9.]*' THEN CAST({0} AS REAL) END END""",
    "text": "CASE typeof({0}) WHEN 'text' THEN {0} WHEN 'integer' THEN CAST({0} AS TEXT) END",
}


def batches(
    connection: sqlite3.Connection, table: str, columns: Mapping[str, str], *, at_most: int
) -> Iterator[list[tuple[object, ...]]]:
    """The rows of a table's columns, which maps names to int, real or text, BATCH_ROWS at a time.

    Integers come as they are stored, of whatever type. Raises sqlite3.DatabaseError where the table is damaged, after
    all that came before, and when there are more rows than `at_most`, which pages that point in circles would give.
    """
    values = ", ".join(_SELECTED[kind].format(quoted(column)) for column, kind in columns.items())
    cursor = ask(connection, f"SELECT {values} FROM {quoted(table)} NOT INDEXED")
    left = at_most
    while True:
        rows: list[tuple[object, ...]] = []
        try:
            rows.extend(itertools.islice(cursor, BATCH_ROWS))  # keeps what came before an error, unlike fetchmany
        except sqlite3.DatabaseError:
            yield rows
            raise
        if not rows:
            return
        left -= len(rows)
        if left < 0:
            raise sqlite3.DatabaseError("it holds more rows than the file has room for")
        yield rows
