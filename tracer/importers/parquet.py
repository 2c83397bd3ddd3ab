"""Our own Parquet folders: reads back the whole trace that `exporters/parquet.py` wrote.

    folder/TABLE/run=RUN/rank=RANK/part-0.parquet, ...     one folder a table; a run is whole when trace_info has it
    folder/TABLE.parquet                                    an older shape, of one run

Ids are unique over all runs of a folder, so that several come back as one trace. Columns called `rank` are in the
path alone. Only regular files inside the folder are read: a link could lead anywhere.
"""

import re
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import duckdb

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.opening import Head
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.schema import SCHEMA_VERSION, TABLES, Table
from ral_trace.tracer.store import OUTPUT, WRITTEN_BY_FINISH, TraceBuilder

FORMAT = "ral-trace Parquet"

MAGIC = b"PAR1"
RUN = re.compile(r"run=(.+)\Z", re.DOTALL)
RANK = re.compile(r"rank=(-?[0-9]{1,10}|__HIVE_DEFAULT_PARTITION__)\Z")
NO_RANK = "__HIVE_DEFAULT_PARTITION__"
AGAIN = "export the trace again"


@dataclass(frozen=True)
class Part:
    """A file of a table."""

    path: Path
    run: str | None
    rank: int | None
    partitioned: bool


def sniff(head: Head) -> float:
    """1 for a folder with our tables; a single Parquet file is known, to be refused in words."""
    if not head.names:
        return 0.3 if head.data.startswith(MAGIC) else 0.0
    if {"trace_info.parquet", "event.parquet"} <= head.names:
        return 1.0
    return 1.0 if "trace_info" in head.names and _runs(head.path) else 0.0


def read(path: Path, rows: Rows) -> None:
    """Adds all tables to the trace, which must be empty. Raises InputRefused."""
    builder = rows.builder
    if not path.is_dir():
        raise InputRefused(path, "is one Parquet file, and a trace is a folder of them", "give the folder")
    [(sources,)] = builder.connection.sql("SELECT count(*) FROM source").fetchall()
    if sources or builder.derived:
        raise InputRefused(path, "holds a whole trace, which cannot be merged with others", "import it alone")
    try:
        parts = _parts(path)
    except OSError as error:
        raise InputRefused(path, f"cannot be read ({error.strerror})", "check the folder and its rights") from error
    with tempfile.TemporaryDirectory(prefix="ral-trace-") as folder:
        loader = _Loader(path, builder, Path(folder), rows)
        loader.check_versions(parts["trace_info"])
        for table in TABLES:
            loader.load(table, parts[table.name])
    builder.derived = True


def _runs(folder: Path) -> set[str]:
    """The runs that are whole."""
    return {entry.name for entry in _folders(folder / "trace_info") if RUN.match(entry.name)}


def _folders(folder: Path) -> list[Path]:
    if folder.is_symlink() or not folder.is_dir():
        return []
    return [entry for entry in sorted(folder.iterdir()) if entry.is_dir() and not entry.is_symlink()]


def _files(folder: Path, pattern: str) -> list[Path]:
    return [entry for entry in sorted(folder.glob(pattern)) if stat.S_ISREG(entry.lstat().st_mode)]


def _parts(folder: Path) -> dict[str, list[Part]]:
    """The files of every table. Raises InputRefused where one has none, OSError."""
    runs = _runs(folder)
    found: dict[str, list[Part]] = {}
    for table in TABLES:
        if runs:
            found[table.name] = [part for name in sorted(runs) for part in _parts_of_run(folder / table.name / name)]
            missing = next((run for run in sorted(runs) if not _has(found[table.name], run)), None)
        else:
            paths = _files(folder, f"{table.name}.parquet")
            found[table.name] = [Part(path, None, None, False) for path in paths]
            missing = None if paths else ""
        if missing is not None:
            where = f" of {unquote(missing)}" if missing else ""
            raise InputRefused(folder, f"is damaged (table {table.name}{where} has no file)", AGAIN)
    return found


def _has(parts: list[Part], run: str) -> bool:
    return any(f"run={part.run}" == run for part in parts)


def _parts_of_run(folder: Path) -> Iterator[Part]:
    if folder.parent.is_symlink() or folder.is_symlink():
        return
    for entry in _folders(folder):
        rank = RANK.match(entry.name)
        if rank:
            number = None if rank[1] == NO_RANK else int(rank[1])
            for path in _files(entry, "part-*.parquet"):
                yield Part(path, folder.name.removeprefix("run="), number, True)


class _Loader:
    """Takes files into tables. Under names of their own: DuckDB would take a `*` or `[` in a path for a pattern."""

    def __init__(self, path: Path, builder: TraceBuilder, links: Path, rows: Rows) -> None:
        self._path = path
        self._builder = builder
        self._links = links
        self._rows = rows
        self._given = 0

    def _linked(self, parts: list[Part]) -> str:
        """SQL: the list of the files."""
        names = []
        for part in parts:
            link = self._links / f"{self._given}.parquet"
            link.symlink_to(part.path.absolute())
            self._given += 1
            names.append(f"'{link}'")
        return f"[{', '.join(names)}]"

    def check_versions(self, parts: list[Part]) -> None:
        """Raises InputRefused where another version wrote a run."""
        for part in parts:
            query = f"SELECT value FROM read_parquet({self._linked([part])}) WHERE key = 'schema_version'"
            try:
                values = self._builder.connection.sql(query).fetchall()
            except (duckdb.Error, UnicodeDecodeError) as error:
                raise self._damaged("trace_info", error) from error
            for (value,) in values:
                if value != str(SCHEMA_VERSION):
                    cause = f"has schema version {value}, and this ral-trace reads {SCHEMA_VERSION}"
                    raise InputRefused(self._path, cause, "install the ral-trace that wrote it, or export it again")

    def load(self, table: Table, parts: list[Part]) -> None:
        """Adds the rows of a table. Raises InputRefused."""
        from_path = "rank" in table.columns and parts[0].partitioned
        columns = [column for column in table.columns if not (from_path and column == "rank")]
        groups = [[part] for part in parts] if from_path else [parts]
        for group in groups:
            listed = self._linked(group)
            names = ", ".join(f'"{column}"' for column in columns)
            query = f"SELECT {names} FROM read_parquet({listed}, hive_partitioning = false)"
            if table.name == "trace_info":
                query = _agreed(query)
            elif table.sort:
                query += f" ORDER BY {table.sort}"
            if from_path:
                rank = "NULL" if group[0].rank is None else group[0].rank
                query = f"SELECT *, {rank}::INTEGER FROM ({query})"
            try:
                self._check_types(table, columns, listed)
                self._builder.insert(table.name, [*columns, "rank"] if from_path else columns, query)
            except (duckdb.Error, UnicodeDecodeError) as error:
                raise self._damaged(table.name, error) from error
            self._rows.advance(sum(part.path.stat().st_size for part in group))

    def _check_types(self, table: Table, columns: list[str], listed: str) -> None:
        """DuckDB would cast what has another type, and round it."""
        expected = self._types(f"FROM {OUTPUT}.{table.name}")
        found = self._types(f"FROM read_parquet({listed}, hive_partitioning = false, union_by_name = true)")
        for column in columns:
            if column in found and found[column] != expected[column]:
                raise InputRefused(
                    self._path,
                    f"is damaged (table {table.name}: {column} is {found[column]}, not {expected[column]})",
                    AGAIN,
                )

    def _types(self, query: str) -> dict[str, str]:
        rows = self._builder.connection.execute(f"DESCRIBE {query}").fetchall()
        return {name: "VARCHAR" if kind == "JSON" or kind.startswith("ENUM") else kind for name, kind, *_ in rows}

    def _damaged(self, table: str, error: Exception) -> InputRefused:
        why = re.sub(rf"{re.escape(str(self._links))}/\d+\.parquet", "a file", str(error).strip().splitlines()[0])
        return InputRefused(self._path, f"is damaged (table {table}: {why})", AGAIN)


def _agreed(query: str) -> str:
    """SQL: the facts of trace_info on which all runs agree."""
    return f"""SELECT key, any_value(value) FROM ({query}) WHERE key NOT IN {WRITTEN_BY_FINISH}
               GROUP BY key HAVING count(DISTINCT value) = 1"""
