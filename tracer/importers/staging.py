"""Another tool's tables, brought into DuckDB as they are, so that what they mean is said in SQL; and the way from there
into the trace.

An importer fills tables of its own with `append`, says with `add` which of their rows are events, and lets `place` give
these their process, thread, device and stream. The tables are temporary: they spill to disk, however long they are.
"""

import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np

from ral_trace.tracer import _native
from ral_trace.tracer.importers.calls import waits
from ral_trace.tracer.importers.placing import Places, Placing
from ral_trace.tracer.importers.rows import BYTES_BEYOND, DURATION_BEYOND, LIMIT, NULL, TIME_BEYOND, Rows, text
from ral_trace.tracer.schema import FLAGS

TYPES = {"int": "BIGINT", "real": "DOUBLE", "text": "VARCHAR"}
KNOWN = {
    "int": f"nullif({{0}}, {NULL})",
    "real": "CASE WHEN isfinite({0}) THEN {0} END",
    "text": "{0}::VARCHAR",
}
"""SQL: a column as it comes, with NULL for what is unknown."""
WRONG_TYPES = "values of a wrong type, such as text where a number belongs: taken as unknown"

RAW = {
    "kind": "VARCHAR",  # host calls are `runtime`; `place` finds out which of them are launches and syncs
    "category": "VARCHAR",
    "name": "VARCHAR",
    "start_ns": "BIGINT",
    "end_ns": "BIGINT",  # NULL: its end was never seen
    "process": "VARCHAR",  # the importer's own key
    "tid": "BIGINT",
    "device": "BIGINT",
    "stream": "BIGINT",
    "correlation": "BIGINT",
    "bytes": "BIGINT",
    "address": "UBIGINT",  # alloc, free
    "args": "VARCHAR",
    "flags": "UTINYINT",
}
"""An event before it is placed."""

ON_DEVICE = "(kind IN ('kernel', 'transfer', 'wait') OR device IS NOT NULL)"
POINTS = "('instant', 'alloc', 'free')"
"""Kinds that need no end."""


class Staging:
    """Use it as a context manager: it drops its tables."""

    def __init__(self, rows: Rows, places: Places) -> None:
        self.rows = rows
        self.places = places
        self.placing = Placing(self, places)
        self.connection = rows.builder.connection
        self._tables: dict[str, Mapping[str, str]] = {}
        self.made("raw", "SELECT " + ", ".join(f"NULL::{kind} AS {name}" for name, kind in RAW.items()) + " LIMIT 0")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for table in self._tables if error is None else ():  # after an error the whole trace is given up
            self.connection.execute(f"DROP TABLE IF EXISTS temp.{table}")

    def table(self, name: str, columns: Mapping[str, str]) -> None:
        """Makes an empty table; `columns` maps names to int, real or text. Columns that nobody fills stay NULL."""
        self._tables[name] = columns
        body = ", ".join(f'"{column}" {TYPES[kind]}' for column, kind in columns.items())
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} ({body})")

    def made(self, name: str, query: str) -> None:
        """Makes a table of a query."""
        self._tables[name] = {}
        self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    def drop(self, table: str) -> None:
        """Forgets the rows of a table."""
        self.connection.execute(f"DROP TABLE {table}")

    def unique(self, table: str, key: str) -> None:
        """Leaves one row, the first, of those with the same key, so that joins on it double nothing."""
        self.made(table, f"SELECT DISTINCT ON ({key}) * FROM {table} ORDER BY {key}, rowid")

    def append(self, table: str, columns: Sequence[str], rows: list[tuple[Any, ...]]) -> None:
        """Adds rows with the values of some columns. What is no integer where one belongs is unknown, and counted."""
        if not rows:
            return
        arrays: dict[str, np.ndarray] = {}
        values = []
        for index, column in enumerate(columns):
            kind = self._tables[table][column]
            arrays[column] = self._array(rows, index, kind)
            values.append(KNOWN[kind].format(f'"{column}"'))
        self.connection.register("batch", arrays)
        names = ", ".join(f'"{column}"' for column in columns)
        self.connection.execute(f"INSERT INTO {table} ({names}) SELECT {', '.join(values)} FROM batch")
        self.connection.unregister("batch")

    def _array(self, rows: list[tuple[Any, ...]], index: int, kind: str) -> np.ndarray:
        if kind == "int":
            array, wrong, example = _native.integer_column(rows, index)
            if wrong:
                self.rows.bad(WRONG_TYPES, example, count=wrong)
            return array
        if kind == "real":
            return np.array([self._float(row[index]) for row in rows], np.float64)
        values = [row[index] for row in rows]
        clean = [
            value if type(value) is str and value.isascii() and "\0" not in value else _text(value) for value in values
        ]
        return np.array(clean, object)

    def _float(self, value: object) -> float:
        if value is None or value == "":
            return np.nan
        if isinstance(value, (int, float, str)):
            with contextlib.suppress(ValueError, OverflowError):
                return float(value)
        self.rows.bad(WRONG_TYPES, value)
        return np.nan

    def sql(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        return self.connection.execute(query, list(values)).fetchall()

    def tell(self, what: str, of: str, example: str) -> int:
        """Counts the rows `of` (FROM ... WHERE ...) as something to know. Returns how many there are."""
        [(count, shown)] = self.sql(f"SELECT count(*), min({example}) {of}")
        if count:
            self.rows.bad(what, shown, count=count)
        return int(count)

    def add(self, query: str) -> None:
        """Adds events: the query's columns are some of RAW."""
        self.connection.execute(f"INSERT INTO raw BY NAME {query}")

    def place(self, *, offset_ns: int = 0) -> None:
        """Hands all events over to the trace, `offset_ns` later than the source says."""
        self._leave_out_impossible(offset_ns)
        self._tell_of_odd_rows()
        self._make_places()
        self._find_launches()
        [(first_row, count)] = self.sql(
            "SELECT coalesce(min(rowid), 0), coalesce(max(rowid) - min(rowid) + 1, 0) FROM raw"
        )
        first = self.rows.builder.new_ids("event", count)
        self._insert(offset_ns, f"r.rowid - {first_row} + {first}")

    def _leave_out_impossible(self, offset_ns: int) -> None:
        low, high = _bounds(offset_ns)
        for what, condition in [
            ("events without a start: left out", "start_ns IS NULL"),
            (TIME_BEYOND,
             f"start_ns NOT BETWEEN {low} AND {high} OR end_ns NOT BETWEEN {low} AND {high}"),
        ]:  # fmt: skip
            if self.tell(what, f"FROM raw WHERE {condition}", "coalesce(name, kind)"):
                self.connection.execute(f"DELETE FROM raw WHERE {condition}")

    def _tell_of_odd_rows(self) -> None:
        for what, condition in [
            ("events with a negative duration: kept without it, and out of all sums", "end_ns < start_ns"),
            (DURATION_BEYOND, f"end_ns - start_ns >= {LIMIT}"),
            (BYTES_BEYOND, f"bytes NOT BETWEEN 0 AND {LIMIT - 1}"),
            ("events whose name the file does not have", "name IS NULL"),
        ]:
            self.tell(what, f"FROM raw WHERE {condition}", "concat_ws(' ', coalesce(name, kind), 'at', start_ns)")

    def _make_places(self) -> None:
        """Fills `placed`: the ids of each combination of process, thread, device and stream that there is."""
        key = ("process", "tid", "on_device", "number", "stream")
        ids = ("process_id", "thread_id", "device_id", "stream_id")
        self.table("placed", {"process": "text", **dict.fromkeys((*key[1:], *ids), "int")})
        found = self.sql(f"""
            SELECT DISTINCT process, tid, {ON_DEVICE}::BIGINT, device, stream FROM raw ORDER BY ALL""")
        placed = zip(found, self.placing.ids(found), strict=True)
        self.append("placed", (*key, *ids), [(*names, *numbers) for names, numbers in placed])

    def _find_launches(self) -> None:
        """Fills `launching`: of the host calls with the correlation of device work, the outermost one each."""
        self.made(
            "launching",
            """
            SELECT process, correlation, arg_min(rowid, (start_ns, -coalesce(end_ns, start_ns)::HUGEINT)) AS call
            FROM raw WHERE kind = 'runtime' AND (process, correlation) IN (
                SELECT (process, correlation) FROM raw WHERE correlation IS NOT NULL AND kind IN ('kernel', 'transfer'))
            GROUP BY ALL""",
        )

    def _insert(self, offset_ns: int, id: str) -> None:
        wrong = f"(end_ns < start_ns OR end_ns - start_ns >= {LIMIT})"
        invalid, unfinished = FLAGS["INVALID"], FLAGS["UNFINISHED"]
        in_place = f"""(
            SELECT {id} AS id, r.* REPLACE (CASE WHEN bytes BETWEEN 0 AND {LIMIT - 1} THEN bytes END AS bytes),
                   p.process_id, p.thread_id, p.device_id, p.stream_id,
                   CASE WHEN r.kind <> 'runtime' THEN r.kind WHEN l.call = r.rowid THEN 'launch'
                        WHEN {waits("r.name")} THEN 'sync' ELSE r.kind END AS is_a,
                   CASE WHEN r.kind <> 'runtime' OR l.call IS NULL OR l.call = r.rowid THEN r.correlation END AS ties
            FROM raw r
            JOIN placed p ON r.process IS NOT DISTINCT FROM p.process AND r.tid IS NOT DISTINCT FROM p.tid
                 AND {ON_DEVICE}::BIGINT = p.on_device AND r.device IS NOT DISTINCT FROM p.number
                 AND r.stream IS NOT DISTINCT FROM p.stream
            LEFT JOIN launching l ON r.process IS NOT DISTINCT FROM l.process AND r.correlation = l.correlation
                 AND r.kind = 'runtime')"""
        self.rows.builder.insert(
            "event",
            ("id", "kind", "category", "name", "ts_ns", "dur_ns", "process", "thread", "device", "stream",
             "correlation", "bytes", "args", "flags"),
            f"""SELECT id, is_a, category, name, start_ns + {offset_ns},
                       CASE WHEN NOT {wrong} THEN end_ns - start_ns WHEN kind IN {POINTS} THEN 0 END,
                       process_id, thread_id, device_id, stream_id, ties, bytes, args,
                       coalesce(flags, 0) | CASE WHEN {wrong} THEN {invalid}
                                                 WHEN end_ns IS NULL AND kind NOT IN {POINTS} THEN {unfinished}
                                                 ELSE 0 END
                FROM {in_place}""",
        )  # fmt: skip
        self.connection.execute(f"""
            INSERT INTO memory_change BY NAME
            SELECT kind AS action, id AS event, start_ns + {offset_ns} AS ts_ns, device_id AS device, address,
                   bytes AS size_bytes, false AS before_trace
            FROM {in_place} WHERE kind IN ('alloc', 'free') AND device_id IS NOT NULL AND address IS NOT NULL
            ORDER BY id""")

    def counters(self, query: str, *, offset_ns: int = 0) -> None:
        """Adds the values of counters: the query's columns are process, device, series, unit, ts_ns, value.

        A device without a process is one that several may use: its series then belongs to the whole source.
        """
        self.made("sample", query)
        self.table("series", {"process": "text", "device": "int", "series": "text", "unit": "text", "counter": "int"})
        found = self.sql("SELECT DISTINCT process, device, series, unit FROM sample ORDER BY ALL")
        self.append("series", ("process", "device", "series", "unit", "counter"),
                    [(*key, self._counter(*key)) for key in found])  # fmt: skip
        low, high = _bounds(offset_ns)
        self.rows.builder.insert(
            "counter_value",
            ("counter", "ts_ns", "value"),
            f"""
            SELECT counter, ts_ns + {offset_ns}, value FROM sample v JOIN series s
                ON s.process IS NOT DISTINCT FROM v.process AND s.device IS NOT DISTINCT FROM v.device
                AND s.series IS NOT DISTINCT FROM v.series AND s.unit IS NOT DISTINCT FROM v.unit
            WHERE ts_ns BETWEEN {low} AND {high}""",
        )

    def _counter(self, process: str | None, device: int | None, series: str | None, unit: str | None) -> int:
        name = series or "unnamed"
        if process is None:
            return self.rows.counter(name if device is None else f"{name} (device {device})", unit)
        if device is None:
            return self.rows.counter(name, unit, process=self.placing.process(process))
        return self.rows.counter(
            name, unit, process=self.placing.process(process), device=self.placing.device(process, device)
        )


def _bounds(offset_ns: int) -> tuple[int, int]:
    """Of times that can be, before and after `offset_ns` is added to them."""
    return 1 - LIMIT - min(offset_ns, 0), LIMIT - 1 - max(offset_ns, 0)


def _text(value: object) -> str | None:
    return text(value) if isinstance(value, str) else None if value is None else text(str(value))


def arguments(**values: str) -> str:
    """SQL: a JSON object of those of the named expressions that are not NULL, as text; NULL when all are."""
    pairs = ", ".join(f"'{name}', {value}" for name, value in values.items())
    return f"nullif(json_merge_patch('{{}}', json_object({pairs}))::VARCHAR, '{{}}')"


def triple(x: str, y: str, z: str) -> str:
    """SQL: a list of three columns, NULL when the first is."""
    return f"CASE WHEN {x} IS NOT NULL THEN [{x}, {y}, {z}] END"


def address(column: str) -> str:
    """SQL: an address, which a signed column holds as a negative number when it has its highest bit."""
    return f"(CASE WHEN {column} < 0 THEN {column}::HUGEINT + 18446744073709551616 ELSE {column} END)::UBIGINT"
