"""Opening a trace: what is refused, and what an evil trace cannot do."""

import os
import stat
from pathlib import Path

import duckdb
import pytest

from ral_trace.tracer.errors import InputRefused, NothingRecorded, RalTraceError, UsageError
from ral_trace.tracer.reading import newest_trace, open_trace
from ral_trace.tracer.schema import SCHEMA_VERSION, TABLES, VIEWS
from ral_trace.tracer.store import TraceBuilder
from tests.synthetic import training


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return training(tmp_path / "run.duckdb", launches=30, steps=3)


def test_every_table_and_view_is_there(trace: Path) -> None:
    with open_trace(trace) as opened:
        for thing in [*TABLES, *VIEWS]:
            opened.rows(f"SELECT * FROM {thing.name} LIMIT 1")


def test_a_trace_is_private_and_appears_whole(trace: Path) -> None:
    assert stat.S_IMODE(trace.stat().st_mode) == 0o600
    assert [path.name for path in trace.parent.iterdir()] == ["run.duckdb"]


def test_an_output_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken.duckdb").mkdir()
    with TraceBuilder(tmp_path / "taken.duckdb") as builder, pytest.raises(RalTraceError, match=r"taken\.duckdb"):
        builder.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["taken.duckdb"]


@pytest.mark.parametrize("content", [b"", b"text", b"\0" * 100, b"\0" * 8 + b"DUCK" + b"\0" * 5000])
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.duckdb").write_bytes(content)
    with pytest.raises(InputRefused) as refused:
        open_trace(tmp_path / "bad.duckdb")
    assert str(refused.value).startswith(f"{tmp_path / 'bad.duckdb'}: ")
    assert "\n" not in str(refused.value)


def test_a_duckdb_file_that_is_no_trace(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "other.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS x")
    with pytest.raises(InputRefused, match="not a trace"):
        open_trace(tmp_path / "other.duckdb")


@pytest.mark.parametrize(
    ("version", "words"), [(SCHEMA_VERSION + 1, "install"), (0, "record it again"), ("x", "install")]
)
def test_another_schema_version_is_refused_in_words(trace: Path, version: object, words: str) -> None:
    with duckdb.connect(str(trace)) as connection:
        connection.execute("UPDATE trace_info SET value = ? WHERE key = 'schema_version'", [str(version)])
    with pytest.raises(InputRefused, match=words):
        open_trace(trace)


def test_a_trace_that_is_being_written_says_so(trace: Path) -> None:
    import subprocess
    import sys

    program = f"import duckdb; c = duckdb.connect({str(trace)!r}); print('open', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdin is not None
        writer.stdout.readline()
        with pytest.raises(InputRefused, match="being written"):
            open_trace(trace)
        writer.stdin.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "COPY (SELECT 1) TO '/tmp/written-by-a-query.csv'",
        "ATTACH '/tmp/x.duckdb'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "DELETE FROM event",
        "SELECT 1; SELECT 2",
        "",
        "SELEKT",
    ],
)
def test_a_persons_sql_reads_this_trace_and_nothing_else(trace: Path, sql: str) -> None:
    with open_trace(trace) as opened, pytest.raises(UsageError):
        opened.query(sql)
    assert not Path("/tmp/written-by-a-query.csv").exists()


def test_a_view_in_an_evil_trace_cannot_read_files(trace: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    with duckdb.connect(str(trace)) as connection:
        connection.execute("DROP VIEW kernels")
        connection.execute(f"CREATE VIEW kernels AS SELECT content FROM read_text('{secret}')")
    with open_trace(trace) as opened, pytest.raises(UsageError):
        opened.query("SELECT * FROM kernels")


def test_two_traces_side_by_side(trace: Path, tmp_path: Path) -> None:
    second = training(tmp_path / "second.duckdb", launches=60, steps=3)
    with open_trace(trace, other=second) as opened:
        counts = opened.rows("SELECT (SELECT count(*) FROM kernels) AS a, (SELECT count(*) FROM other.kernels) AS b")[0]
        assert counts["b"] > counts["a"] > 0


def test_the_newest_trace_is_the_newest_that_is_one(trace: Path) -> None:
    newer = training(trace.parent / "newer.duckdb", launches=10, steps=1)
    os.utime(trace, (1, 1))
    (trace.parent / "newest.duckdb").write_text("no trace")
    assert newest_trace(trace.parent) == newer
    with pytest.raises(NothingRecorded):
        newest_trace(Path("/proc/self/fdinfo"))


def test_a_view_in_place_of_trace_info_cannot_read_files(trace: Path, tmp_path: Path) -> None:
    """The schema version is read too, and only under the lock."""
    (tmp_path / "secret.txt").write_text("1")
    with duckdb.connect(str(trace)) as connection:
        connection.execute("DROP TABLE trace_info")
        source = f"read_text('{tmp_path / 'secret.txt'}')"
        connection.execute(f"CREATE VIEW trace_info AS SELECT 'schema_version' AS key, content AS value FROM {source}")
    with pytest.raises(InputRefused):
        open_trace(trace)
