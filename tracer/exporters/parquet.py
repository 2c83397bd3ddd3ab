"""A folder of Parquet files, partitioned by run and rank, for DuckDB, pandas, Polars and other tools:

    folder/event/run=char_lm/rank=0/part-0.parquet        TABLE/run=RUN/rank=RANK/part-*.parquet, every table
    folder/trace_info/run=char_lm/rank=__HIVE_DEFAULT_PARTITION__/part-0.parquet        which is Hive's word for NULL

    SELECT run, rank, name, sum(dur_ns) FROM read_parquet('folder/event/*/*/*.parquet', hive_partitioning = true)
    WHERE kind = 'kernel' GROUP BY ALL

- A run is one exported trace; several exports into one folder make one data set. The ids of a later run, and all that
  refers to them, are moved above those that are there: an id is unique in the whole folder, and joins need no run.
- A row's rank is that of its process; a source has its own; facts of the trace and stacks have none. So the columns
  `rank` of `source` and `process` are in the path alone.
- A table without rows has a file without rows. A run is whole when it is in `trace_info`, where it comes last.
- Views are not written, because they follow from the tables."""

import fcntl
import glob
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import duckdb

from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.exporters.output import Window, cut_note, select
from ral_trace.tracer.interrupts import interruptible
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.schema import SCHEMA_VERSION, TABLES, Table
from ral_trace.tracer.text import sql_text

FORMAT = "Parquet"
ENDINGS: tuple[str, ...] = ()

NO_RANK = "__HIVE_DEFAULT_PARTITION__"
IN_ORDER = sorted(TABLES, key=lambda table: table.name == "trace_info")
"""The table that says that a run is whole comes last."""
LONGEST_NAME = 200
"""Of a folder, in bytes; file systems take 255."""

REFERENCES = {
    "process": {"source": "source"},
    "thread": {"process": "process"},
    "device": {"process": "process"},
    "stream": {"device": "device"},
    "event": {"process": "process", "thread": "thread", "device": "device", "stream": "stream", "parent": "event",
              "stack": "stack"},
    "flow": {"from_event": "event", "to_event": "event"},
    "counter": {"process": "process", "device": "device"},
    "counter_value": {"counter": "counter"},
    "region": {"device": "device"},
    "allocation": {"device": "device", "alloc_event": "event", "free_event": "event", "stack": "stack"},
    "allocation_piece": {"allocation": "allocation", "region": "region"},
    "access": {"event": "event", "allocation": "allocation"},
    "ledger": {"process": "process"},
    "quality": {"source": "source", "process": "process"},
}  # fmt: skip
"""Columns that hold ids, and of which table; besides each table's own `id`."""

RANKED_BY = {
    "thread": ("process",), "device": ("process",), "stream": ("device",), "event": ("process",),
    "flow": ("from_event",), "counter": ("process", "device"), "counter_value": ("counter",), "region": ("device",),
    "allocation": ("device",), "allocation_piece": ("allocation",), "access": ("event",), "ledger": ("process",),
    "quality": ("process", "source"),
}  # fmt: skip
"""The column that leads to a row's rank; where it is NULL, the next one."""

_OF_DEVICE = "device JOIN process p ON p.id = device.process"
RANKS = {
    "source": "source",
    "process": "process",
    "device": _OF_DEVICE,
    "event": "event JOIN process p ON p.id = event.process",
    "counter": f"counter LEFT JOIN (SELECT device.id, p.rank FROM {_OF_DEVICE}) d ON d.id = counter.device "
               "LEFT JOIN process p ON p.id = counter.process",
    "allocation": f"allocation JOIN (SELECT device.id, p.rank FROM {_OF_DEVICE}) d ON d.id = allocation.device",
}  # fmt: skip
_RANK = {
    "source": "source.rank",
    "process": "process.rank",
    "counter": "coalesce(p.rank, d.rank)",
    "allocation": "d.rank",
}


def write(trace: Trace, out: Path, window: Window) -> None:
    """Writes one run into the new folder `out`, its ids as they are in the trace. Raises duckdb.Error, OSError."""
    _write_run(trace, out, window, _run_name(trace, window), {})


def add(trace: Trace, data_set: Path, out: Path, window: Window) -> None:
    """Adds one run to a folder that is_data_set, by way of the new folder `out`.

    Raises UsageError when the run is there already or another ral-trace wrote the others, duckdb.Error, OSError.
    """
    run = _run_name(trace, window)
    with _locked(data_set):
        if (data_set / "trace_info" / run).exists():
            raise UsageError(f"{data_set}: {run} is in it already; name this one with --run, or choose another folder")
        _write_run(trace, out, window, run, _taken(data_set))
        for table in IN_ORDER:
            place = data_set / table.name / run
            place.parent.mkdir(mode=0o700, exist_ok=True)
            if place.exists():  # what an export left that was killed
                shutil.rmtree(place)
            (out / table.name / run).rename(place)


def is_data_set(folder: Path) -> bool:
    """Whether runs were exported into a folder."""
    return any(folder.glob("trace_info/run=*"))


def free_run(folder: Path) -> str:
    """A name for a run that is not in a folder yet: the folder's own, with a number where that is taken."""
    name, number = folder.name, 1
    while (folder / "trace_info" / _folder_of(name)).exists():
        number += 1
        name = f"{folder.name}-{number}"
    return name


def _write_run(trace: Trace, out: Path, window: Window, run: str, taken: Mapping[str, int]) -> None:
    """A locked trace may write to its private folder only. One table after the other moves from there to `out`."""
    selection = select(trace, window)
    conditions = selection.tables()
    out.mkdir(mode=0o700)
    for table in IN_ORDER:
        staged = trace.export_folder / table.name
        rows = f"SELECT * FROM {table.name} WHERE {conditions.get(table.name, 'true')}"
        if table.name == "quality":
            rows += cut_note(selection)
        options = "FORMAT parquet, PARTITION_BY (rank), FILENAME_PATTERN 'part-{i}'"
        trace.connection.execute(f"COPY ({_ranked(table, rows, taken)}) TO {sql_text(staged)} ({options})")
        if not any(staged.rglob("*.parquet")):
            _write_empty(trace, table, staged)
        _make_private(staged)
        (out / table.name).mkdir(mode=0o700)
        shutil.move(staged, out / table.name / run)


def _write_empty(trace: Trace, table: Table, staged: Path) -> None:
    folder = staged / f"rank={NO_RANK}"
    folder.mkdir(parents=True, exist_ok=True)
    columns = ", ".join(f'"{column}"' for column in table.columns if column != "rank")
    part = sql_text(folder / "part-0.parquet")
    trace.connection.execute(f"COPY (SELECT {columns} FROM {table.name} WHERE false) TO {part} (FORMAT parquet)")


def _ranked(table: Table, rows: str, taken: Mapping[str, int]) -> str:
    """SQL: rows of a table with their rank last, and with ids above those that are taken."""
    refers = {"id": table.name, **REFERENCES.get(table.name, {})}
    columns = []
    for column, (kind, _) in table.columns.items():
        if column != "rank":
            above = taken.get(refers.get(column, ""), 0)
            columns.append(f't."{column}"' if above == 0 else f'(t."{column}" + {above})::{kind} AS "{column}"')
    found, joins = [], ""
    for column in RANKED_BY.get(table.name, ()):
        of = refers[column]
        joins += f" LEFT JOIN ({_ranks_of(of)}) r_{column} ON r_{column}.id = t.{column}"
        found.append(f"r_{column}.rank")
    own = "t.rank" if "rank" in table.columns else "NULL::INTEGER"
    rank = f"coalesce({', '.join(found)})" if found else own
    order = f"ORDER BY {', '.join(f't.{column}' for column in table.sort.split(', '))}" if table.sort else ""
    return f"SELECT {', '.join(columns)}, {rank} AS rank FROM ({rows}) t{joins} {order}"


def _ranks_of(table: str) -> str:
    """SQL: id, rank; one row an id even in a trace from somebody else."""
    return f"SELECT {table}.id, any_value({_RANK.get(table, 'p.rank')}) AS rank FROM {RANKS[table]} GROUP BY ALL"


def _taken(data_set: Path) -> dict[str, int]:
    """For each table with ids the first that is free in a data set. Raises UsageError, duckdb.Error."""
    with interruptible(duckdb.connect()) as connection:

        def rows_of(table: str) -> str:
            files = sql_text(Path(glob.escape(str(data_set))) / table / "run=*" / "rank=*" / "*.parquet")
            return f"read_parquet({files}, hive_partitioning = false)"

        versions = connection.sql(f"SELECT value FROM {rows_of('trace_info')} WHERE key = 'schema_version'").fetchall()
        if set(versions) != {(str(SCHEMA_VERSION),)}:
            raise UsageError(f"{data_set}: another ral-trace wrote what is in it; choose another folder")
        taken = {}
        for table in TABLES:
            if "id" in table.columns:
                [(last,)] = connection.sql(f"SELECT max(id) FROM {rows_of(table.name)}").fetchall()
                taken[table.name] = 0 if last is None else int(last) + 1
        return taken


def _run_name(trace: Trace, window: Window) -> str:
    return _folder_of(window.run or Path(trace.path.name.removesuffix(".gz")).stem or "run")


def _folder_of(name: str) -> str:
    """run=NAME, percent-encoded as DuckDB, Arrow and Polars decode it; a long one is cut, and ends in its checksum."""
    kept, encoded = name, _encoded(name)
    while len(encoded) > LONGEST_NAME:
        kept = kept[: -max(1, (len(encoded) - LONGEST_NAME) // 12)]
        encoded = f"{_encoded(kept)}~{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"
    return f"run={encoded}"


def _encoded(name: str) -> str:
    return quote(name.encode("utf-8", "replace"), safe="")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One export into a folder at a time, or two would give out the same ids."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make_private(folder: Path) -> None:
    folder.chmod(0o700)
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
