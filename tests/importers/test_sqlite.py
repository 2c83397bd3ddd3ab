"""Databases of others are read without a trace beside them, as far as they can be read, and never believed."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer import _native
from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import sqlite
from tests.importers.databases import Tables, counts, database, imported, quality, rows
from tests.integration.programs import ral_trace
from tests.shared import CASES, needs_shared

STRINGS: tuple[str, list[tuple[Any, ...]]] = ("id INTEGER PRIMARY KEY, value TEXT", [(1, "cudaLaunchKernel"), (2, "k")])
KERNELS = "start, end, deviceId, streamId, correlationId, demangledName"
NULL = -(2**63)


def one_kernel(folder: Path, name: str) -> Path:
    tables: Tables = {
        "StringIds": ("id, value", [(2, name)]),
        "CUPTI_ACTIVITY_KIND_KERNEL": (KERNELS, [(1, 2, 0, 7, 1, 2)]),
    }
    return database(folder / "one.sqlite", tables)


def test_wal_with_content_is_read_and_nothing_is_written(tmp_path: Path) -> None:
    """Rows that are still in the log count; the folder, which cannot be written, stays as it is."""
    folder = tmp_path / "given"
    folder.mkdir()
    source = tmp_path / "live.sqlite"
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"CREATE TABLE StringIds ({STRINGS[0]})")
        connection.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({KERNELS})")
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 200, 0, 7, 1, 2)")
        connection.execute("INSERT INTO StringIds VALUES (2, 'from the log')")
        connection.commit()
        for name in ("live.sqlite", "live.sqlite-wal"):
            shutil.copy(tmp_path / name, folder)
    assert (folder / "live.sqlite-wal").stat().st_size > 0
    folder.chmod(0o500)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with imported(folder / "live.sqlite", tmp_path) as trace:
        assert rows(trace, "SELECT name, ts_ns, dur_ns FROM event WHERE kind = 'kernel'") == [
            ("from the log", 100, 100)
        ]
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


@needs_shared
def test_wal_mode_in_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """R1: the header says WAL, and there is no log."""
    folder = tmp_path / "given"
    folder.mkdir()
    file = Path(shutil.copy(CASES / "sqlite/wal_mode.sqlite", folder))
    file.chmod(0o400)
    folder.chmod(0o500)
    with sqlite.opened_database(file) as connection:
        assert connection.execute("SELECT startNs, endNs FROM TASK").fetchall() == [(100, 200)]
    assert [entry.name for entry in folder.iterdir()] == ["wal_mode.sqlite"]


def test_half_written_transaction_is_rolled_back(tmp_path: Path) -> None:
    """A journal beside the file means that its writer died: what it had not committed does not count."""
    source = tmp_path / "live.sqlite"
    database(source, {"StringIds": STRINGS, "CUPTI_ACTIVITY_KIND_KERNEL": (KERNELS, [(100, 200, 0, 7, 1, 2)])})
    with closing(sqlite3.connect(source, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN")
        rows_to_spill = [(n, n + 1, 0, 7, n, 2) for n in range(20_000)]
        connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?)", rows_to_spill)
        folder = tmp_path / "given"
        folder.mkdir()
        for name in ("live.sqlite", "live.sqlite-journal"):
            shutil.copy(tmp_path / name, folder)
        connection.execute("ROLLBACK")
    with imported(folder / "live.sqlite", tmp_path) as trace:
        assert counts(trace) == {"kernel": 1}


def test_empty_file(tmp_path: Path) -> None:
    """C8, as the command says it: one line, exit code 4."""
    file = tmp_path / "zero_bytes.sqlite"
    file.touch()
    done = ral_trace("import", str(file), "-o", "out.duckdb", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr == f"ral-trace: {file}: the file is empty; record or export it again\n"
    assert not (tmp_path / "out.duckdb").exists()


@pytest.mark.parametrize("rest", [b"", b"\0" * 4096, b"\xff" * 9000])
def test_header_alone_is_refused(tmp_path: Path, rest: bytes) -> None:
    file = tmp_path / "broken.sqlite"
    file.write_bytes(sqlite.SQLITE_MAGIC + rest)
    with pytest.raises(InputRefused, match=r"broken\.sqlite: "), imported(file, tmp_path):
        pass


def test_cut_off_database_gives_what_is_whole(tmp_path: Path) -> None:
    """The header promises more pages than there are: the rows on the pages that are there count, and that is said."""
    many = [(n * 1000, n * 1000 + 900, 0, 7, n + 1, 2) for n in range(5_000)]
    file = database(tmp_path / "cut.sqlite", {"StringIds": STRINGS, "CUPTI_ACTIVITY_KIND_KERNEL": (KERNELS, many)})
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with imported(file, tmp_path) as trace:
        starts = [start for (start,) in rows(trace, "SELECT ts_ns FROM event WHERE kind = 'kernel' ORDER BY ALL")]
        assert 1_000 < len(starts) < 5_000
        assert starts == [n * 1000 for n in range(len(starts))]
        assert any("cut off" in what for what in quality(trace))


def test_nothing_readable_is_refused(tmp_path: Path) -> None:
    """The schema is there, and every page of the tables is broken: no empty trace, but a reason."""
    file = database(
        tmp_path / "gone.sqlite", {"StringIds": STRINGS, "CUPTI_ACTIVITY_KIND_KERNEL": (KERNELS, [(1,) * 6])}
    )
    file.write_bytes(file.read_bytes()[:4096] + b"\xff" * 8192)
    with pytest.raises(InputRefused, match="damaged, and holds no event"), imported(file, tmp_path):
        pass


def test_views_triggers_and_virtual_tables_are_not_touched(tmp_path: Path) -> None:
    """A view of the right name that never ends does not hang the import; it is as if it were not there."""
    file = database(tmp_path / "evil.sqlite", {"StringIds": STRINGS, "OSRT_API": ("start, end, nameId, globalTid", [])})
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("""
            CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS
            WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n)
            SELECT start, start AS end FROM n""")
        connection.execute("CREATE VIRTUAL TABLE NVTX_EVENTS USING fts5(start)")
        connection.execute("""
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (
                start INTEGER, end INTEGER, bytes INTEGER GENERATED ALWAYS AS (length(hex(zeroblob(100000000)))))""")
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (10, 20)")
        connection.commit()
    with imported(file, tmp_path) as trace:
        assert rows(trace, "SELECT kind, bytes FROM event") == [("transfer", None)]
        [(count, names)] = [said for what, said in quality(trace).items() if "does not have" in what]
        assert count == 3
        assert names == "CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_KERNEL, NVTX_EVENTS"


def test_rows_beyond_the_size_of_the_file_end_the_table(tmp_path: Path) -> None:
    """Pages that point in circles give rows without end; no table has more rows than its file has bytes."""
    file = database(tmp_path / "some.sqlite", {"t": ("x", [(n,) for n in range(100)])})
    with sqlite.opened_database(file) as connection:
        assert sum(map(len, sqlite.batches(connection, "t", {"x": "int"}, at_most=100))) == 100
        with pytest.raises(sqlite3.DatabaseError, match="more rows"):
            list(sqlite.batches(connection, "t", {"x": "int"}, at_most=99))


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (5, 5), (-(2**63) + 1, -(2**63) + 1), (2**63 - 1, 2**63 - 1), (None, None), ("", None), ("123", 123),
        ("-7", -7), ("12x", None), (" 12", None), ("1e3", None), ("99999999999999999999", None), (4.0, 4), (4.5, None),
        (2.0**53, None), (2**63, None), (-(2**63), None), (float("nan"), None), (float("inf"), None), (b"12", None),
        (True, None), ([1], None), ("\ud800", None),
    ],
)  # fmt: skip
def test_integers_out_of_any_value(value: object, known: int | None) -> None:
    """Exact integers of 64 bits, in whatever type they come; all else is unknown, and counted unless it is missing."""
    array, wrong, example = _native.integer_column([(0, value)], 1)
    assert array.tolist() == [NULL if known is None else known]
    missing = known is None and value not in (None, "")
    assert wrong == missing
    assert example is (value if missing else None)


def test_integer_column_checks_its_rows() -> None:
    with pytest.raises(IndexError):
        _native.integer_column([(1,)], 1)
    with pytest.raises(IndexError):
        _native.integer_column([[1, 2]], 1)  # type: ignore[list-item]


def test_values_of_other_types_are_unknown_and_counted(tmp_path: Path) -> None:
    """Text, blobs and floats where numbers belong cost their own cell or, where the start is gone, their event."""
    values = [
        ("100", 200, 0, 7, 1, 2), ("soon", 200, 0, 7, 1, 2), (100, b"\x01\x02", 0, 7, 1, 2), (100.0, 200.0, 0, 7, 1, 2),
        (100.5, 200, 0, 7, 1, 2), (100, 200, "zero", 7, 1, 2), (100, 200, 0, 7, 1, "two"),
        (2**62 + 1, 2**62 + 2, 0, 7, 1, 2), (None, 200, 0, 7, 1, 2),
    ]  # fmt: skip
    file = database(tmp_path / "types.sqlite", {"StringIds": STRINGS, "CUPTI_ACTIVITY_KIND_KERNEL": (KERNELS, values)})
    with imported(file, tmp_path) as trace:
        found = rows(trace, "SELECT ts_ns, dur_ns, name FROM event WHERE kind = 'kernel' ORDER BY id")
        assert found == [(100, 100, "k"), (100, None, "k"), (100, 100, "k"), (100, 100, "k"), (100, 100, None)]
        said = quality(trace)
        assert said["values of a wrong type, such as text where a number belongs: taken as unknown"][0] == 5
        assert said["events without a start: left out"][0] == 3
        assert said["events at a time that no clock counts: left out"][0] == 1
        assert said["events whose name the file does not have"][0] == 1


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    file = one_kernel(tmp_path, "k")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE StringIds SET value = CAST(x'6b61fc00' AS TEXT)")
        connection.commit()
    with imported(file, tmp_path) as trace:
        assert rows(trace, "SELECT name FROM event") == [("ka\ufffd\ufffd",)]
        assert quality(trace)["parts of the text are not UTF-8: replaced"][0] >= 1


def test_long_names_stay_whole(tmp_path: Path) -> None:
    name = "void kernel<" + "int, " * 1_000 + ">()"
    with imported(one_kernel(tmp_path, name), tmp_path) as trace:
        assert rows(trace, "SELECT name FROM event") == [(name,)]
