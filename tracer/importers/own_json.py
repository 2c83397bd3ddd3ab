"""Our own `.json[.gz]`: reads back the whole trace that `exporters/own_json.py` put beside the viewers' events.

A file as our exporter writes it has a row a line, and is read a line at a time into one file of rows a table, from
which DuckDB takes them. A file that another tool has laid out anew is read whole, then goes the same way."""

import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import duckdb

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.forms import JSON_VERSION
from ral_trace.tracer.importers.opening import Head, opened
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.schema import SCHEMA_VERSION, TABLES, Table
from ral_trace.tracer.store import WRITTEN_BY_FINISH, TraceBuilder
from ral_trace.tracer.text import sql_text

FORMAT = "ral-trace JSON"

HEAD = re.compile(rb'^\{"ralTrace":(\{[^{}]*),"tables":\{\n$')
BEGIN = re.compile(rb'^"([a-z_]+)":\[\n$')
"""Of a table."""
END_OF_TABLES = b"]}},\n"
END_OF_FILE = b"]}\n"
AGAIN = "export the trace again"


def sniff(head: Head) -> float:
    """1 for the head of a file as our exporter writes it, less where only its key is to be seen."""
    if re.match(rb'\s*\{\s*"ralTrace"\s*:', head.data):
        return 1.0
    return 0.9 if re.search(rb'"ralTrace"\s*:\s*\{', head.data) else 0.0


def read(path: Path, rows: Rows) -> None:
    """Adds all tables to the trace, which must be empty. Raises InputRefused."""
    builder = rows.builder
    [(sources,)] = builder.connection.sql("SELECT count(*) FROM source").fetchall()
    if sources or builder.derived:
        raise InputRefused(path, "holds a whole trace, which cannot be merged with others", "import it alone")
    with tempfile.TemporaryDirectory(prefix="ral-trace-") as folder:
        longest = _spill(path, rows, Path(folder))
        for table in TABLES:
            _load(path, builder, table, Path(folder) / table.name, longest)
    builder.derived = True


def _spill(path: Path, rows: Rows, folder: Path) -> int:
    """Writes the rows of each table to a file of that name, a line each. Returns the length of the longest line."""
    with opened(path, rows.bad) as file:
        first = file.readline()
        head = HEAD.match(first)
        if head:
            _check_versions(path, _parsed(path, head[1] + b"}"))
            return _spill_lines(path, file, folder)
        return _spill_document(path, _parsed(path, first + file.read()), folder)


def _spill_lines(path: Path, file: IO[bytes], folder: Path) -> int:
    longest = 0
    while begin := BEGIN.match(file.readline()):
        name = begin[1].decode()
        if name not in TABLE_NAMES:
            raise _damaged(path, f"there is no table {name}")
        with (folder / name).open("wb") as rows:
            end = b""
            for line in file:
                if line.startswith(b"]"):
                    end = line
                    break
                longest = max(longest, len(line))
                rows.write(line[:-2] + b"\n" if line.endswith(b",\n") else line)
        if end == END_OF_TABLES:
            _check_end(path, file)
            return longest
    raise _cut_off(path)


TABLE_NAMES = {table.name for table in TABLES}


def _check_end(path: Path, file: IO[bytes]) -> None:
    """What follows the tables is for viewers only, but a file that ends early is not to be trusted."""
    last = b""
    while block := file.read(1 << 20):
        last = (last + block)[-len(END_OF_FILE) :]
    if last != END_OF_FILE:
        raise _cut_off(path)


def _spill_document(path: Path, document: Any, folder: Path) -> int:
    trace = document.get("ralTrace") if isinstance(document, dict) else None
    tables = trace.get("tables") if isinstance(trace, dict) else None
    if not isinstance(trace, dict) or not isinstance(tables, dict):
        raise _damaged(path, "its ralTrace object holds no tables")
    _check_versions(path, trace)
    longest = 0
    for name in TABLE_NAMES & tables.keys():
        with (folder / name).open("wb") as file:
            for line in _rows_as_lines(path, name, tables[name]):
                longest = max(longest, len(line))
                file.write(line)
    return longest


def _rows_as_lines(path: Path, name: str, rows: Any) -> Iterator[bytes]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _damaged(path, f"table {name} is not a list of rows")
    for row in rows:
        yield json.dumps(row).encode() + b"\n"


def _load(path: Path, builder: TraceBuilder, table: Table, rows: Path, longest: int) -> None:
    if not rows.exists():
        raise _damaged(path, f"table {table.name} is missing")
    if rows.stat().st_size <= 1:
        return
    # JSON and our enumeration are text in the file; DuckDB checks them as it inserts them.
    types = {
        column: "VARCHAR" if kind in ("JSON", "event_kind") else kind for column, (kind, _) in table.columns.items()
    }
    columns = ", ".join(f"'{column}': '{kind}'" for column, kind in types.items())
    names = ", ".join(f'"{column}"' for column in table.columns)
    query = f"""
        SELECT {names} FROM read_json({sql_text(rows)}, format = 'newline_delimited', columns = {{{columns}}},
                                      maximum_object_size = {max(longest + 1, 1 << 24)})"""
    if table.name == "trace_info":
        query += f" WHERE key NOT IN {WRITTEN_BY_FINISH}"
    try:
        builder.insert(table.name, table.columns, query)
    except (duckdb.Error, UnicodeDecodeError) as error:
        why = str(error).strip().splitlines()[0].replace(str(rows), "it")
        raise _damaged(path, f"table {table.name}: {why}") from error


def _parsed(path: Path, text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"is not whole JSON: {error}") from error


def _check_versions(path: Path, head: Any) -> None:
    found = (head.get("format"), head.get("schema_version"))
    if found != (JSON_VERSION, SCHEMA_VERSION):
        ours = f"this ral-trace reads {JSON_VERSION} and {SCHEMA_VERSION}"
        cause = f"has format {found[0]} and schema version {found[1]}, and {ours}"
        raise InputRefused(path, cause, "install the ral-trace that wrote it, or export it again")


def _damaged(path: Path, what: str) -> InputRefused:
    return InputRefused(path, f"is damaged ({what})", AGAIN)


def _cut_off(path: Path) -> InputRefused:
    return InputRefused(path, "is cut off", AGAIN)
