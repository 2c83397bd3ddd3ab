"""`.csv` and `.tsv`: one table or view, or the rows of one SELECT, for spreadsheets and other tools.

Quoting is that of RFC 4180 (https://www.rfc-editor.org/rfc/rfc4180), tabs in place of commas in a .tsv. NULL is an
empty cell, empty text is `""`. A text that a spreadsheet would take for a formula (it begins with = + - @, a tab or a
carriage return) is led by an apostrophe, as https://owasp.org/www-community/attacks/CSV_Injection says; numbers are
left alone.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import duckdb

from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.exporters.output import COUNTED_KINDS, Selection, Window, create_private, select
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.schema import TABLES, VIEWS

FORMAT = "table"
ENDINGS: tuple[str, ...] = (".csv", ".tsv")

DEFAULT_TABLE = "events"
ROWS_AT_ONCE = 10_000
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write(trace: Trace, out: Path, window: Window) -> None:
    """Streams the rows of the table or query that `window` names, else of the view `events`, to `out`.

    Raises UsageError, duckdb.Error, OSError.
    """
    query = _query(trace, window)
    separator = "\t" if out.name.endswith(".tsv") else ","
    with create_private(out) as file, trace.cursor() as connection:
        try:
            found = connection.execute(query)
        except duckdb.Error as error:
            raise UsageError(f"the query was refused: {str(error).strip().splitlines()[0]}") from error
        with io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="") as text:
            text.write(_line((name for name, *_ in found.description or []), separator))
            _write_rows(text, found, separator)


def _write_rows(text: IO[str], found: duckdb.DuckDBPyConnection, separator: str) -> None:
    while rows := found.fetchmany(ROWS_AT_ONCE):
        text.write("".join(_line(row, separator) for row in rows))


def _query(trace: Trace, window: Window) -> str:
    if window.table is not None and window.query is not None:
        raise UsageError("--table and --query exclude each other")
    if window.query is not None:
        if window != Window(query=window.query):
            raise UsageError("a query says itself which rows it wants; leave out the window")
        try:
            statements = duckdb.extract_statements(window.query)
        except duckdb.Error as error:
            raise UsageError(f"the query was refused: {str(error).strip().splitlines()[0]}") from error
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError("a query is one SELECT statement; a trace is read-only")
        return window.query
    return _table_query(trace, window, window.table or DEFAULT_TABLE)


def _table_query(trace: Trace, window: Window, table: str) -> str:
    """All rows of a table or view; of a window those that belong to it."""
    sorts = {one.name: one.sort for one in TABLES}
    known = [*sorts, *(view.name for view in VIEWS)]
    if table not in known:
        raise UsageError(f"there is no table {table}; choose one of: {', '.join(known)}")
    condition = _condition(select(trace, window), table)
    order = sorts.get(table, "") or ("ts_ns, id" if table in EVENT_VIEWS else "")
    return f"SELECT * FROM {table} WHERE {condition}" + (f" ORDER BY {order}" if order else "")


def _condition(selection: Selection, table: str) -> str:
    """SQL: whether a row of a table or view is in the part. Raises UsageError for what has no meaning there."""
    conditions = selection.tables()
    if table in EVENT_VIEWS and conditions:
        return f"id IN (SELECT id FROM event WHERE {conditions['event']})"
    if table in conditions or not conditions:
        return conditions.get(table, "true")
    part, window = PARTS.get(table, Part()), selection.window
    for options, given, meant in (
        ("--from and --to have", window.from_ns is not None or window.to_ns is not None, part.time),
        ("--device has", window.devices, part.device),
        ("--kind has", window.kinds, part.kinds),
    ):
        if given and not meant:
            raise UsageError(f"{options} no meaning for {table}; leave that out, or choose another --table")
    if not selection.has(*part.kinds):
        return "false"
    at = selection.at(part.time) if part.time else "true"
    return f"{at} AND {selection.on(part.device, or_none=table == 'counter')}" if part.device else at


@dataclass(frozen=True)
class Part:
    """What a window has to do with rows that are no events: their columns of time and device; what they count."""

    time: str | None = None
    device: str | None = None
    kinds: tuple[str, ...] = ()


PARTS = {
    "memory_curve": Part("ts_ns", "device", COUNTED_KINDS["allocation"]),
    "reserved_curve": Part("ts_ns", "device", COUNTED_KINDS["region"]),
    "steps": Part(time="ts_ns"),
    "device_label": Part(device="device"),
    "device": Part(device="id"),
    "stream": Part(device="device"),
    "counter": Part(device="device"),
}
"""Tables and views beside those of events and of `Selection.tables`; the rest knows no time, device or kind."""
EVENT_VIEWS = ("events", "launches", "kernels", "transfers", "syncs", "fallbacks")


def _line(cells: Iterator[Any] | tuple[Any, ...], separator: str) -> str:
    return separator.join(_cell(value, separator) for value in cells) + "\r\n"


def _cell(value: Any, separator: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    shown = str(value)
    if isinstance(value, int | float):
        return shown
    if shown.startswith(FORMULA):
        shown = f"'{shown}"
    if shown == "" or any(mark in shown for mark in (separator, '"', "\r", "\n")):
        return '"' + shown.replace('"', '""') + '"'
    return shown
