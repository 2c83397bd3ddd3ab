"""The tables of an SQLite database on their way to where SQL can say what they mean."""

import sqlite3
from collections.abc import Mapping
from pathlib import Path

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import sqlite
from ral_trace.tracer.importers.staging import Staging

NOT_THERE = "tables that are read and that the file does not have, so that nothing is known of them"
COLUMNS_NOT_THERE = "columns without which nothing can be said of a table's rows, and which the file does not have"
NOT_READ = "tables that are not read"
AGAIN = "export it again"
DAMAGED = "tables that are damaged: read as far as that goes"


class Tables:
    """What an importer takes from a database. `tell` says what it did not."""

    def __init__(self, connection: sqlite3.Connection, path: Path, staging: Staging) -> None:
        self._connection = connection
        self._staging = staging
        self._rows = staging.rows
        self._bytes = path.stat().st_size
        self._there = {name.lower(): (name, columns) for name, columns in sqlite.tables(connection).items()}
        self._unread = dict(self._there)
        self._longest = {name: self._last_rowid(table) for name, (table, _) in self._there.items()}
        self._missing: list[str] = []
        self._path = path
        self._damaged: str | None = None
        self._first_event = self._rows.builder.new_ids("event", 0)
        self._advanced = 0

    def __contains__(self, table: str) -> bool:
        return table.lower() in self._there

    def names(self) -> list[str]:
        """Of all tables, as the file writes them."""
        return [name for name, _ in self._there.values()]

    def columns(self, table: str) -> frozenset[str]:
        """In lower case; none when there is no such table."""
        _, columns = self._there.get(table.lower(), ("", ()))
        return frozenset(column.lower() for column in columns)

    def stage(
        self,
        table: str,
        as_table: str,
        columns: Mapping[str, str],
        *,
        needs: tuple[str, ...] = (),
        expected: bool = False,
    ) -> None:
        """Makes `as_table` with these columns of a table, NULL where it lacks them, empty where there is none.

        It stays empty, and `quality` says so, when a column that the table `needs` is missing. `expected`: that there
        is no such table is worth saying.
        """
        self._staging.table(as_table, columns)
        self.append(table, as_table, columns, needs=needs, expected=expected)

    def append(
        self,
        table: str,
        as_table: str,
        columns: Mapping[str, str],
        *,
        needs: tuple[str, ...] = (),
        expected: bool = False,
    ) -> None:
        """Adds to a table that is there already."""
        if table not in self:
            if expected:
                self._missing.append(table)
            return
        self._unread.pop(table.lower(), None)
        name, stored = self._there[table.lower()]
        spelt = {column.lower(): column for column in stored}
        lacking = [column for column in needs if column.lower() not in spelt]
        if lacking:
            self._rows.bad(COLUMNS_NOT_THERE, f"{name}: {', '.join(lacking)}", count=len(lacking))
            return
        there = {column: kind for column, kind in columns.items() if column.lower() in spelt}
        if there:
            self._copy(name, as_table, there, {column: spelt[column.lower()] for column in there})

    def _copy(self, table: str, as_table: str, columns: Mapping[str, str], spelt: Mapping[str, str]) -> None:
        wanted = {spelt[column]: kind for column, kind in columns.items()}
        try:
            for batch in sqlite.batches(self._connection, table, wanted, at_most=self._bytes):
                self._staging.append(as_table, list(columns), batch)
                self._advance(len(batch))
        except sqlite3.DatabaseError as error:
            self._damaged = f"{table}: {error}"
            self._rows.bad(DAMAGED, self._damaged)

    def _advance(self, rows: int) -> None:
        all_rows = sum(self._longest.values()) or 1
        size = min(self._bytes * rows // all_rows, self._bytes - self._advanced)
        self._advanced += size
        self._rows.advance(size)

    def _last_rowid(self, table: str) -> int:
        """About how long a table is, without reading it."""
        try:
            [(last,)] = sqlite.ask(self._connection, f"SELECT max(rowid) FROM {sqlite.quoted(table)}").fetchall()
        except sqlite3.DatabaseError:
            return 0
        return last if isinstance(last, int) and 0 < last <= self._bytes else 0

    def tell(self) -> None:
        """Says in `quality` what is not in the file, and what was not read of it.

        Raises InputRefused where damage left nothing at all.
        """
        if self._damaged and self._rows.builder.new_ids("event", 0) == self._first_event:
            raise InputRefused(self._path, f"is damaged, and holds no event that can be read ({self._damaged})", AGAIN)
        self._rows.advance(self._bytes - self._advanced)
        if self._missing:
            self._rows.bad(NOT_THERE, ", ".join(self._missing), count=len(self._missing))
        unread = [table for table, _ in self._unread.values() if self._last_rowid(table)]
        if unread:
            self._rows.bad(NOT_READ, ", ".join(unread), count=len(unread))
