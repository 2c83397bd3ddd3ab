"""Events of Chrome's trace format in JSON, as the native scanner holds them: nothing is said yet about what they mean.

Importers of formats that are written so stand on it.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
from numpy.typing import NDArray

from ral_trace.tracer import _native
from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.opening import CutOff, pieces
from ral_trace.tracer.importers.rows import BYTES_BEYOND, Rows

MOST_TEXT_BYTES = 256 << 20
"""Of args in memory; what is more goes to a private folder."""
LABELS_AT_ONCE = 10_000
INTEGERS = range(-(2**63), 2**63)
AGAIN = "record or export it again"

LATEST_NS = 2**61
"""The scanner gives no time from here on, nor a duration."""
RAW_COLUMNS = {
    "n": "BIGINT", "grp": "BIGINT", "name": "VARCHAR", "ts_ns": "BIGINT", "dur_ns": "BIGINT", "id": "VARCHAR",
    "bp": "VARCHAR", "args": "JSON",
}  # fmt: skip
FORGET = """DROP VIEW IF EXISTS full_row; DROP VIEW IF EXISTS raw_event; DROP VIEW IF EXISTS raw_row;
DROP TABLE IF EXISTS stored_row; DROP TABLE IF EXISTS raw_group"""
FIELD_TYPES = {"int": "BIGINT", "uint": "UBIGINT", "text": "VARCHAR", "label": "BIGINT"}

Field = tuple[str, str, str]
"""A member of args with a column of its own: (key, column, 'int', 'uint', 'text' or 'label').

A 'label' is an integer of which a file has few different ones.
"""


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


class Label(NamedTuple):
    """What many events have in common: their group, their name, and the fields 'label'."""

    group: Group
    name: str | None
    fields: dict[str, int | None]
    rows: int
    timed: int
    """Of them, rows with a time."""


@dataclass
class Scan:
    """A scanned file: its events are rows of `table`, numbered in the order of the file."""

    table: _native.TraceTable
    groups: list[Group]
    metadata: dict[str, Any]
    """Members of the file besides traceEvents."""
    whole_microseconds: bool
    """No time has a part below a microsecond: ends may be off by one."""
    cut_off: bool
    fields: Sequence[Field]
    staged: set[str] = field(default_factory=set)
    """Temporary tables of `stage` and of whoever needs it."""

    def labels(self) -> Iterator[Label]:
        """By their numbers."""
        names = list(dict.fromkeys(column for _, column, kind in self.fields if kind == "label"))
        fields: dict[tuple[int | None, ...], dict[str, int | None]] = {}
        for begin in range(0, len(self.table), LABELS_AT_ONCE):
            for group, name, values, rows, timed in self.table.labels(begin, begin + LABELS_AT_ONCE):
                if values not in fields:
                    fields[values] = dict(zip(names, values, strict=True))
                yield Label(self.groups[group], name, fields[values], rows, timed)


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
    """Reads a file; tables that are staged of it go at the end. A unit of ts and dur is 10^nanoseconds_exponent ns.

    Arrows of the categories `skip_arrows` are counted in the groups only.
    What is wrong with single events, and that a file is cut off, is counted in `rows`. Raises InputRefused.
    """
    scanner = _native.TraceJsonScanner(
        fields=fields,
        leave_out=leave_out,
        skip_arrows=skip_arrows,
        nanoseconds_exponent=nanoseconds_exponent,
        spill_folder=str(rows.builder.spill_folder),
        most_text=MOST_TEXT_BYTES,
    )
    _feed(path, rows, scanner)
    table = scanner.table
    groups = [Group(number, *group) for number, group in enumerate(scanner.groups())]
    metadata = {key: parsed(text) for key, text in scanner.metadata()}
    scan = Scan(table, groups, metadata, scanner.whole_microseconds, scanner.cut_off, fields)
    if table.first_row > 0:
        rows.bad("events of a list traceEvents that a second one supersedes: left out", count=table.first_row)
    for what, count, example in scanner.faults():
        rows.bad(what, example or None, count=count)
    if table.rows == table.first_row:
        raise InputRefused(path, "is cut off before its first event" if scan.cut_off else "holds no events", AGAIN)
    if scan.cut_off:
        rows.bad("the file is cut off: what follows is missing", f"after event {table.rows - 1}")
    yield scan
    if scan.staged:
        drops = "; ".join(f"DROP TABLE IF EXISTS {table}" for table in sorted(scan.staged))
        rows.builder.connection.execute(f"{FORGET}; {drops}")


def _feed(path: Path, rows: Rows, scanner: _native.TraceJsonScanner) -> None:
    try:
        try:
            for piece in pieces(path, rows.advance):
                scanner.feed(piece)
        except CutOff as error:
            rows.bad(error.what, count=error.count)
        scanner.finish()
    except _native.NotATrace as error:
        raise InputRefused(path, str(error), AGAIN) from error


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


def stage(rows: Rows, scan: Scan, groups: Collection[Group], leave_out: Collection[str] = ()) -> None:
    """Makes the temporary view `raw_event` of the events of some groups, for SQL over them:

    n, grp, ph, cat, track (one a pid and tid), pid, tid (text), name, ts_ns, dur_ns (may be negative), id, bp,
    args (JSON text without the fields), and a column a field. `raw_row` is the same without what `grp` says. Columns
    `leave_out` are NULL.
    """
    connection = rows.builder.connection
    types = {**RAW_COLUMNS, **{column: FIELD_TYPES[kind] for _, column, kind in scan.fields}}
    numbers = {group.number for group in groups}
    wanted = [column for column in types if column not in leave_out]
    stream = scan.table.raw([group.number in numbers for group in scan.groups], wanted)
    # A file before this one that was refused may have left its own.
    connection.execute(FORGET)
    scan.staged.add("stored_row")
    connection.register("raw_stream", stream)
    with outside_transaction(connection):
        connection.execute("CREATE TEMP TABLE stored_row AS FROM raw_stream")
    connection.unregister("raw_stream")
    columns = ", ".join(
        column if column in stream.columns else f"NULL::{kind} AS {column}" for column, kind in types.items()
    )
    connection.execute(f"CREATE TEMP VIEW raw_row AS SELECT {columns} FROM stored_row")
    _stage_groups(connection, scan.groups)


def bound_sizes(rows: Rows, columns: Iterable[str]) -> None:
    """Makes sizes in `stored_row` that cannot be unknown. A free has a negative one."""
    connection = rows.builder.connection
    for column in columns:
        beyond = f"{column} NOT BETWEEN {1 - LATEST_NS} AND {LATEST_NS - 1}"
        [(count, example)] = connection.execute(
            f"SELECT count(*), min(concat_ws(': ', name, {column})) FROM raw_row WHERE {beyond}"
        ).fetchall()
        if count:
            connection.execute(f"UPDATE stored_row SET {column} = NULL WHERE {beyond}")
            rows.bad(BYTES_BEYOND, example, count=count)


def _stage_groups(connection: duckdb.DuckDBPyConnection, groups: list[Group]) -> None:
    columns = {name: [getattr(group, name) for group in groups] for name in ("track", "ph", "cat", "pid", "tid")}
    connection.execute(
        """CREATE TEMP TABLE raw_group AS SELECT unnest(range(?)) AS grp, unnest(?::BIGINT[]) AS track,
           unnest(?::VARCHAR[]) AS ph, unnest(?::VARCHAR[]) AS cat, unnest(?::VARCHAR[]) AS pid,
           unnest(?::VARCHAR[]) AS tid""",
        [len(groups), *columns.values()],
    )
    connection.execute("CREATE TEMP VIEW raw_event AS FROM raw_row JOIN raw_group USING (grp)")


def rows_of(scan: Scan, labels: Sequence[bool]) -> dict[str, NDArray[np.int64]]:
    """The rows of some labels that have a time: n, label, ts_ns, dur_ns (-1: unknown)."""
    return dict(zip(("n", "label", "ts_ns", "dur_ns"), scan.table.rows_of(labels), strict=True))
