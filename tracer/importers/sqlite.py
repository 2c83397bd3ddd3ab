"""SQLite databases of other tools, opened so that nothing is ever written beside them."""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ral_trace.tracer.errors import InputRefused

SQLITE_MAGIC = b"SQLite format 3\0"


@contextmanager
def opened_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection; text that is not UTF-8 is decoded with replacement. Raises InputRefused.

    A database in WAL mode makes SQLite write beside it, unless it is told that nobody does (`immutable`), which then
    leaves out what is still in its log. So one with a log is read from a private copy.
    """
    log = path.with_name(path.name + "-wal")
    try:
        with tempfile.TemporaryDirectory(prefix="ral-trace-") as folder:
            place = path
            if log.exists() and log.stat().st_size > 0:
                place = Path(shutil.copy(path, folder))
                shutil.copy(log, folder)
                place.chmod(0o600)
            mode = "immutable=1" if place == path else "mode=rw"
            connection = sqlite3.connect(f"{place.absolute().as_uri()}?{mode}", uri=True)
            try:
                connection.text_factory = lambda data: data.decode("utf-8", "replace")
                yield connection
            finally:
                connection.close()
    except sqlite3.Error as error:
        raise InputRefused(path, f"is not a readable SQLite database ({error})", "export it again") from error
    except OSError as error:
        raise InputRefused(path, f"cannot be read ({error.strerror})", "check the file and its rights") from error


def table_names(path: Path) -> frozenset[str]:
    """Tables and views of a database. Raises InputRefused."""
    with opened_database(path) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        return frozenset(name for (name,) in rows)
