"""Builds a trace file: rows come in, what follows from them is derived once, and the file appears under its name only
when it is whole.

Live recordings and importers use the same `TraceBuilder`, so that both get parents, steps, flows and allocations by
the same rules.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import duckdb

from ral_trace.tracer import derive, schema
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.interrupts import interruptible
from ral_trace.tracer.text import sql_text

OUTPUT = "output"
"""Catalog of the file that grows. What is staged on the way there are temporary tables, which spill to a private
folder.
"""

ROWS_A_GROUP = 40_960
"""Rows that DuckDB compresses at once: few enough that most of a trace is written while it comes in. Batches of as many
rows are compressed by several threads, and never put together again.
"""
ROWS_A_STATEMENT = 200

WRITTEN_BY_FINISH = ("schema_version", "tool_version")
"""Facts of trace_info that every trace file gets anew."""

TABLES = {table.name: table for table in schema.TABLES}


class TraceBuilder:
    """Collects the rows of one trace in a file beside `output` (a .duckdb path), which gets that name with `finish`.

    Raises RalTraceError when the output cannot be written. Use it as a context manager: it removes what is unfinished.
    With `wait=False` the file is opened in a thread meanwhile, and the first use of `connection` raises what is wrong
    with it. `most_memory` is DuckDB's memory_limit; what is more spills to a private folder.
    """

    def __init__(self, output: Path, *, wait: bool = True, most_memory: str | None = None) -> None:
        self.output = output
        self._most_memory = most_memory
        self.partial = output.absolute().with_name(f".{output.name}.partial-{os.getpid()}-{threading.get_native_id()}")
        self._spill = tempfile.TemporaryDirectory(prefix="ral-trace-")
        self._closing = contextlib.ExitStack()
        opener = ThreadPoolExecutor(1, "trace opener")
        self._opening = opener.submit(self._open)
        opener.shutdown(wait=False)
        with contextlib.ExitStack() as unless_made:
            unless_made.callback(self.close)
            if wait:
                self._opening.result()
            unless_made.pop_all()
        self._next_id = dict.fromkeys(TABLES, 0)
        self.derived = False
        """The rows come from a finished trace, and hold all that `derive` would add.

        Set by an importer of whole traces.
        """
        self.complete_processes: set[int] = set()
        """Processes whose rows came with all that is derived from them: parents, steps, flows of launches."""
        self.step_sources: set[str] = set()
        """What stated their steps, of derive.STEP_SOURCES."""

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """To a database in memory, with the file that grows as its current one."""
        return self._opening.result()

    @property
    def spill_folder(self) -> Path:
        """Where what does not fit into memory goes; private, and gone with `close`."""
        return Path(self._spill.name)

    def _open(self) -> duckdb.DuckDBPyConnection:
        with contextlib.ExitStack() as unless_made, self.saying_where():
            limits = {} if self._most_memory is None else {"memory_limit": self._most_memory}
            spilling = duckdb.connect(":memory:", config={"temp_directory": self._spill.name, **limits})
            connection = unless_made.enter_context(interruptible(spilling))
            self._attach(connection)
            self._closing = unless_made.pop_all()
        return connection

    def _attach(self, connection: duckdb.DuckDBPyConnection) -> None:
        # 0600 before the first byte: a trace holds paths, command lines and source lines of its user.
        previous = os.umask(0o077)
        try:
            connection.execute(
                f"ATTACH {sql_text(self.partial)} AS {OUTPUT} (TYPE duckdb, ROW_GROUP_SIZE {ROWS_A_GROUP})"
            )
        finally:
            os.umask(previous)
        # In one transaction: each would wait for the disk else.
        connection.execute("BEGIN")
        schema.create(connection, OUTPUT)
        connection.execute(f"COMMIT; {derive.MEMORY_CHANGE}; {derive.ACCESS_SEEN}; BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Forgets all rows and removes the temporary files. What `finish` wrote stays."""
        self._opening.exception()  # it may still be opening
        self._closing.close()
        self._spill.cleanup()
        for left in (self.partial, self.partial.with_name(f"{self.partial.name}.wal")):
            left.unlink(missing_ok=True)

    @contextmanager
    def saying_where(self) -> Iterator[None]:
        """Whatever of DuckDB or the disk fails in it is an error of the output."""
        try:
            yield
        except (duckdb.Error, OSError) as error:
            raise RalTraceError(
                f"{self.output}: the trace could not be written ({error}); choose another place with --output"
            ) from error

    def add(self, table: str, **row: Any) -> int:
        """Adds one row and returns its id (given out here, dense from 0, where the table has one)."""
        return self.add_rows(table, [row])

    def add_rows(self, table: str, rows: Sequence[Mapping[str, Any]]) -> int:
        """Adds rows that have the same columns; the rest is NULL. Returns the id of the first."""
        first = self._next_id[table]
        if not rows:
            return first
        if "id" in TABLES[table].columns and "id" not in rows[0]:
            rows = [{**row, "id": first + offset} for offset, row in enumerate(rows)]
        self._next_id[table] = first + len(rows)
        self.add_numbered(table, rows)
        return first

    def add_numbered(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows that have the same columns, and ids from `new_ids` where the table has some."""
        columns = list(rows[0])
        names = ", ".join(f'"{column}"' for column in columns)
        places = f"({', '.join('?' * len(columns))})"
        for begin in range(0, len(rows), ROWS_A_STATEMENT):
            some = rows[begin : begin + ROWS_A_STATEMENT]
            self.connection.execute(
                f"INSERT INTO {table} ({names}) VALUES {', '.join([places] * len(some))}",
                [row[column] for row in some for column in columns],
            )

    def new_ids(self, table: str, count: int) -> int:
        """Sets ids of a table aside for rows that come by `insert`. Returns the first; they are dense."""
        first = self._next_id[table]
        self._next_id[table] = first + count
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
        """Derives what follows from the events, and gives the file its final name."""
        with self.saying_where():
            if not self.derived:
                derive.derive(self.connection, self.complete_processes, self.step_sources)
            self.info(**dict(zip(WRITTEN_BY_FINISH, (schema.SCHEMA_VERSION, version("ral-trace")), strict=True)))
            # Straight into the file, without a log beside it.
            self.connection.execute(f"SET checkpoint_threshold = '1B'; COMMIT; USE memory; DETACH {OUTPUT}")
            self.partial.replace(self.output)
        return self.output
