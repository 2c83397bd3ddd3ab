"""Builds a trace file: rows come in, what follows from them is derived once, and the file appears under its name only
when it is whole.

Live recordings and importers use the same `TraceBuilder`, so that both get parents, steps, flows and allocations by
the same rules.
"""

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb

from ral_trace.tracer import derive, schema
from ral_trace.tracer.errors import RalTraceError

STAGING = "memory"
"""The in-memory database in which a trace grows. It spills to a private temporary folder, never beside the output."""

TABLES = {table.name: table for table in schema.TABLES}


class TraceBuilder:
    """Collects the rows of one trace and writes them to `output` (a .duckdb path) with `finish`.

    Raises RalTraceError when the output cannot be written. Use it as a context manager: it removes its temporary files.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self._spill = tempfile.TemporaryDirectory(prefix="ral-trace-")
        self.connection = duckdb.connect(
            ":memory:", config={"temp_directory": self._spill.name, "preserve_insertion_order": "true"}
        )
        schema.create(self.connection, STAGING)
        self.connection.execute(derive.MEMORY_CHANGE)
        self.connection.execute(derive.ACCESS_SEEN)
        self._next_id = dict.fromkeys(TABLES, 0)
        self._complete = False
        self.derived = False
        """The rows come from a finished trace, and hold all that `derive` would add.

        Set by an importer of whole traces.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forgets all rows and removes the temporary files. What `finish` wrote stays."""
        self.connection.close()
        self._spill.cleanup()

    def add(self, table: str, **row: Any) -> int:
        """Adds one row and returns its id (given out here, dense from 0, where the table has one)."""
        return self.add_rows(table, [row])

    def add_rows(self, table: str, rows: Sequence[Mapping[str, Any]]) -> int:
        """Adds rows that have the same columns; the rest is NULL. Returns the id of the first."""
        first = self._next_id[table]
        if not rows:
            return first
        columns = list(rows[0])
        values = [[row[column] for column in columns] for row in rows]
        if "id" in TABLES[table].columns and "id" not in columns:
            columns.append("id")
            for offset, value in enumerate(values):
                value.append(first + offset)
        self._next_id[table] = first + len(rows)
        names = ", ".join(f'"{column}"' for column in columns)
        self.connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(columns))})", values)
        return first

    def info(self, **facts: object) -> None:
        """Adds facts to `trace_info`."""
        self.add_rows("trace_info", [{"key": key, "value": str(value)} for key, value in facts.items()])

    def insert(self, table: str, columns: Iterable[str], query: str) -> int:
        """Adds the rows of a query over the staging database (registered Arrow streams included). Returns how many."""
        names = ", ".join(f'"{column}"' for column in columns)
        row = self.connection.execute(f"INSERT INTO {table} ({names}) {query}").fetchone()
        return int(row[0]) if row else 0

    def finish(self) -> Path:
        """Derives what follows from the events, writes the file, and gives it its final name.

        When that fails it may be called again, with another `output`.
        """
        if not self._complete:
            if not self.derived:
                derive.derive(self.connection)
            self.info(schema_version=schema.SCHEMA_VERSION, tool_version=version("ral-trace"))
            self._complete = True
        partial = self.output.with_name(f".{self.output.name}.partial-{os.getpid()}")
        try:
            self._write(partial)
            partial.replace(self.output)
        except (duckdb.Error, OSError) as error:
            raise RalTraceError(
                f"{self.output}: the trace could not be written ({error}); choose another place with --output"
            ) from error
        finally:
            partial.unlink(missing_ok=True)
        return self.output

    def _write(self, partial: Path) -> None:
        # 0600 before the first byte: a trace holds paths, command lines and source lines of its user.
        previous = os.umask(0o077)
        try:
            partial.unlink(missing_ok=True)
            quoted = str(partial).replace("'", "''")
            self.connection.execute(f"ATTACH '{quoted}' AS output (TYPE duckdb)")
        finally:
            os.umask(previous)
        try:
            schema.create(self.connection, "output")
            for table in schema.TABLES:
                order = f" ORDER BY {table.sort}" if table.sort else ""
                self.connection.execute(f"INSERT INTO output.{table.name} SELECT * FROM {STAGING}.{table.name}{order}")
        finally:
            self.connection.execute(f"USE {STAGING}")
            self.connection.execute("DETACH output")
