"""Events of Chrome's trace format in JSON, on their way into the trace: from the file to tables, with nothing said yet
about what they mean. Importers of formats that are written so stand on it.
"""

import json
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from ral_trace.tracer import _native
from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.opening import CutOff, pieces
from ral_trace.tracer.importers.rows import BYTES_BEYOND, Rows

ROWS_AT_ONCE = 50_000
TEXT_BYTES_AT_ONCE = 64 << 20
BATCHES_AHEAD = 2
INTEGERS = range(-(2**63), 2**63)
AGAIN = "record or export it again"

LATEST_NS = 2**61
"""The scanner gives no time from here on, nor a duration."""
RAW_COLUMNS = {
    "n": "BIGINT", "grp": "BIGINT", "name": "VARCHAR", "ts_ns": "BIGINT", "dur_ns": "BIGINT", "id": "VARCHAR",
    "bp": "VARCHAR", "args": "JSON",
}  # fmt: skip
ALWAYS = ("n", "grp", "ts_ns")
FORGET = """DROP VIEW IF EXISTS full_row; DROP VIEW IF EXISTS raw_event; DROP VIEW IF EXISTS raw_row;
DROP TABLE IF EXISTS stored_row; DROP TABLE IF EXISTS raw_group"""
FIELD_TYPES = {"int": "BIGINT", "uint": "UBIGINT", "text": "VARCHAR"}

Field = tuple[str, str, str]
"""A member of args with a column of its own: (key, column, 'int', 'uint' or 'text')."""


@dataclass(frozen=True)
class Group:
    """What many events have in common."""

    number: int
    track: int
    ph: str
    cat: str | None
    pid: str | None
    tid: str | None
    rows: int
    skipped: bool
    """Arrows that became no rows."""


@dataclass
class Scan:
    """A scanned file. Its events are in the temporary view `raw_event`, in the order of the file:

    n (from 0), grp, ph, cat, track (one a pid and tid), pid, tid (text), name, ts_ns, dur_ns (may be negative), id, bp,
    args (JSON text without the fields), and a column a field.
    """

    groups: list[Group]
    metadata: dict[str, Any]
    """Members of the file besides traceEvents."""
    whole_microseconds: bool
    """No time has a part below a microsecond: ends may be off by one."""
    cut_off: bool
    rows: int
    """Numbers of rows are below it."""


def integer(text: str | None) -> int | None:
    """The number that a pid, a tid or an id is; None where it is text, or beyond 64 bits."""
    if text is None or not text.lstrip("-").isascii() or not text.lstrip("-").isdigit() or len(text) > 20:
        return None
    number = int(text)
    return number if number in INTEGERS else None


def _whole(digits: str) -> int | str:
    """Python refuses to read thousands of digits."""
    return int(digits) if len(digits) < 1000 else digits


def parsed(text: str) -> Any:
    """What the scanner left as JSON: args, members of the file. An integer of a thousand digits is text."""
    return json.loads(text, parse_int=_whole)


@contextmanager
def scanned(
    path: Path,
    rows: Rows,
    *,
    fields: Sequence[Field] = (),
    leave_out: Sequence[str] = (),
    skip_arrows: Sequence[str] = (),
    nanoseconds_exponent: int = 3,
) -> Iterator[Scan]:
    """Reads a file into `raw_event`, which goes at the end. A unit of ts and dur is 10^nanoseconds_exponent ns.

    Arrows of the categories `skip_arrows` are counted in the groups only.
    What is wrong with single events, and that a file is cut off, is counted in `rows`. Raises InputRefused.
    """
    scanner = _native.TraceJsonScanner(
        fields=fields, leave_out=leave_out, skip_arrows=skip_arrows, nanoseconds_exponent=nanoseconds_exponent
    )
    connection = rows.builder.connection
    # A file before this one that was refused may have left its own.
    connection.execute(FORGET)
    with outside_transaction(connection):
        stored = _load(
            path, rows, scanner, {**RAW_COLUMNS, **{column: FIELD_TYPES[kind] for _, column, kind in fields}}
        )
    groups = [Group(number, *group) for number, group in enumerate(scanner.groups())]
    _add_groups(rows, groups)
    if scanner.first_row > 0:
        rows.bad("events of a list traceEvents that a second one supersedes: left out", count=scanner.first_row)
        connection.execute("DELETE FROM stored_row WHERE n < ?", [scanner.first_row])
    for what, count, example in scanner.faults():
        rows.bad(what, example or None, count=count)
    _bound(rows, [column for column in stored if column.endswith("bytes")])
    [(stored, last)] = connection.execute("SELECT count(*), max(n) FROM raw_row").fetchall()
    metadata = {key: parsed(text) for key, text in scanner.metadata()}
    scan = Scan(groups, metadata, scanner.whole_microseconds, scanner.cut_off, stored)
    if stored == 0:
        raise InputRefused(path, "is cut off before its first event" if scan.cut_off else "holds no events", AGAIN)
    scan.rows = last + 1
    if scan.cut_off:
        rows.bad("the file is cut off: what follows is missing", f"after event {last}")
    yield scan
    connection.execute(FORGET)


@contextmanager
def outside_transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """What it adds to temporary tables can be spilled: rows that an open transaction adds stay in memory.

    The trace grows under another name until it is whole, so that nobody sees what is committed in between.
    """
    connection.execute("COMMIT")
    try:
        yield
    finally:
        connection.execute("BEGIN")


def _bound(rows: Rows, sizes: Iterable[str]) -> None:
    """Makes sizes that cannot be unknown. A free has a negative one."""
    connection = rows.builder.connection
    for column in dict.fromkeys(sizes):
        beyond = f"{column} NOT BETWEEN {1 - LATEST_NS} AND {LATEST_NS - 1}"
        [(count, example)] = connection.execute(
            f"SELECT count(*), min(concat_ws(': ', name, {column})) FROM stored_row WHERE {beyond}"
        ).fetchall()
        if count:
            connection.execute(f"UPDATE stored_row SET {column} = NULL WHERE {beyond}")
            rows.bad(BYTES_BEYOND, example, count=count)


def _load(path: Path, rows: Rows, scanner: _native.TraceJsonScanner, types: Mapping[str, str]) -> list[str]:
    """Fills `raw_row`, and returns its columns that have values. A thread of its own reads and scans meanwhile.

    It is a view of `stored_row`, which has no more columns than the file has values for: most files lack half of them,
    and each costs as much when it is empty.
    """
    reader = _Reader(path, rows, scanner)
    connection = rows.builder.connection
    stored = list(ALWAYS)
    connection.execute(f"CREATE TEMP TABLE stored_row ({', '.join(f'{column} {types[column]}' for column in ALWAYS)})")
    for batch in reader.batches():
        filled = batch.filled
        for column in filled:
            if column not in stored:
                stored.append(column)
                connection.execute(f"ALTER TABLE stored_row ADD COLUMN {column} {types[column]}")
        if filled:
            connection.register("batch", batch)
            connection.execute(f"INSERT INTO stored_row BY NAME SELECT {', '.join(filled)} FROM batch")
            connection.unregister("batch")
    columns = ", ".join(column if column in stored else f"NULL::{kind} AS {column}" for column, kind in types.items())
    connection.execute(f"CREATE TEMP VIEW raw_row AS SELECT {columns} FROM stored_row")
    return stored


def _add_groups(rows: Rows, groups: list[Group]) -> None:
    connection = rows.builder.connection
    connection.execute(
        "CREATE TEMP TABLE raw_group (grp BIGINT, track BIGINT, ph VARCHAR, cat VARCHAR, pid VARCHAR, tid VARCHAR)"
    )
    if groups:
        columns = {name: [getattr(group, name) for group in groups] for name in ("track", "ph", "cat", "pid", "tid")}
        connection.execute(
            """INSERT INTO raw_group SELECT unnest(range(?)), unnest(?::BIGINT[]), unnest(?::VARCHAR[]),
               unnest(?::VARCHAR[]), unnest(?::VARCHAR[]), unnest(?::VARCHAR[])""",
            [len(groups), *columns.values()],
        )
    count_from(rows, 0)


def count_from(rows: Rows, zero_ns: int) -> None:
    """Adds the base of a file's times, which is below LATEST_NS too, to all of them, in `raw_event`."""
    moved = f"ts_ns + {zero_ns}" if zero_ns else "ts_ns"
    rows.builder.connection.execute(
        f"CREATE OR REPLACE TEMP VIEW raw_event AS "
        f"SELECT * REPLACE ({moved} AS ts_ns) FROM raw_row JOIN raw_group USING (grp)"
    )


class _Reader:
    """Decompresses and scans, in a thread, a few batches ahead of whoever takes them."""

    def __init__(self, path: Path, rows: Rows, scanner: _native.TraceJsonScanner) -> None:
        self._path = path
        self._rows = rows
        self._scanner = scanner
        self._queue: queue.Queue[_native.TraceBatch | BaseException | None] = queue.Queue(BATCHES_AHEAD)
        self._stop = threading.Event()

    def batches(self) -> Iterator[_native.TraceBatch]:
        """Raises InputRefused."""
        thread = threading.Thread(target=self._work, name="trace scanner")
        thread.start()
        try:
            while (item := self._queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self._stop.set()
            while thread.is_alive():
                self._take_away()
                thread.join(0.01)

    def _take_away(self) -> None:
        while not self._queue.empty():
            self._queue.get_nowait()

    def _work(self) -> None:
        try:
            self._scan()
            self._queue.put(self._scanner.take())
            self._queue.put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that reads the batches
            self._queue.put(error)

    def _scan(self) -> None:
        try:
            self._feed()
            self._scanner.finish()
        except _native.NotATrace as error:
            raise InputRefused(self._path, str(error), AGAIN) from error

    def _feed(self) -> None:
        try:
            for piece in pieces(self._path, self._rows.advance):
                if self._stop.is_set():
                    return
                self._scanner.feed(piece)
                if self._scanner.rows >= ROWS_AT_ONCE or self._scanner.text_bytes >= TEXT_BYTES_AT_ONCE:
                    self._queue.put(self._scanner.take())
        except CutOff as error:
            self._rows.bad(error.what, count=error.count)
