"""What the tests of importers of databases share: making one, importing it, and damaging it."""

import random
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import import_files, importer_of
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.store import TraceBuilder

Tables = Mapping[str, tuple[str, Sequence[Sequence[Any]]]]
"""Columns as SQL, and rows."""


def database(path: Path, tables: Tables) -> Path:
    """Writes an SQLite database."""
    with closing(sqlite3.connect(path)) as connection:
        for table, (columns, rows) in tables.items():
            connection.execute(f'CREATE TABLE "{table}" ({columns})')
            if rows:
                marks = ", ".join("?" * len(rows[0]))
                connection.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)
        connection.commit()
    return path


@contextmanager
def imported(path: Path, folder: Path) -> Iterator[Trace]:
    """The trace that a file becomes."""
    out = folder / "imported.duckdb"
    out.unlink(missing_ok=True)
    import_files([path], out)
    with open_trace(out) as trace:
        yield trace


def rows(trace: Trace, query: str) -> list[tuple[Any, ...]]:
    return trace.sql(query).fetchall()


def counts(trace: Trace) -> dict[str, int]:
    """Events by kind."""
    return dict(rows(trace, "SELECT kind::VARCHAR, count(*) FROM event GROUP BY ALL"))


def quality(trace: Trace) -> dict[str, tuple[int, str | None]]:
    """What is to be known: how often, and an example."""
    return {what: (count, example) for what, count, example in rows(trace, "SELECT what, count, example FROM quality")}


def busy_ns(trace: Trace) -> int:
    """Union of the work of all devices together."""
    work = "kind IN ('kernel', 'transfer') AND dur_ns IS NOT NULL"
    return union_ns(rows(trace, f"SELECT ts_ns, ts_ns + dur_ns FROM event WHERE {work}"))


def union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """How long at least one of them lasts."""
    total, reached = 0, -(2**63)
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def asked(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Rows of a query over the database itself, independent of any importer."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as connection:
        return connection.execute(query).fetchall()


def damaged(data: bytes, dice: random.Random) -> bytes:
    """A copy with bytes changed, cut off, or with a part that repeats or is missing."""
    copy = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8, 64))):
        at = dice.randrange(len(copy))
        copy[at] = dice.choice((0, 255, copy[at] ^ (1 << dice.randrange(8)), dice.randrange(256)))
    if dice.random() < 0.3:
        del copy[dice.randrange(len(copy)) :]
    if dice.random() < 0.1 and len(copy) > 8192:
        at = dice.randrange(len(copy) - 4096)
        del copy[at : at + dice.choice((1, 512, 4096))]
    return bytes(copy)


def survivors(folder: Path, name: str, contents: Iterable[bytes]) -> int:
    """How many of a file's damaged copies are taken, all into one trace, which has to become whole in the end.

    A refusal has to be one line that names the file. Anything else passes through.
    """
    taken = 0
    path = folder / name
    out = folder / "survivors.duckdb"
    out.unlink(missing_ok=True)
    with TraceBuilder(out) as builder:
        for content in contents:
            path.write_bytes(content)
            taken += _survives(builder, path)
        builder.finish()
    with open_trace(out) as trace:
        assert rows(trace, "SELECT count(*) FROM source") == [(taken,)]
        assert rows(trace, "SELECT count(*) FROM event WHERE dur_ns < 0 OR ts_ns IS NULL") == [(0,)]
    return taken


def _survives(builder: TraceBuilder, path: Path) -> bool:
    found = None
    try:
        importer = importer_of(path)
        if importer is None:
            return False
        found = Rows(builder, path, importer.FORMAT)
        importer.read(path, found)
        found.finish()
    except InputRefused as refusal:
        assert found is None or found.discard()
        told = str(refusal)
    else:
        return True
    assert told.startswith(f"{path}: ")
    assert "\n" not in told
    return False
