"""Our Parquet folders give back the trace that was exported, table by table; what is not one is refused in one line."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.exporters import export
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.schema import TABLES
from ral_trace.tracer.store import TraceBuilder
from tests.awkward import awkward
from tests.importers.test_own_json import differences
from tests.synthetic import training


def as_folder(duckdb_file: Path, out: Path) -> Path:
    with open_trace(duckdb_file) as trace:
        return export(trace, out)


def as_flat_folder(duckdb_file: Path, out: Path) -> Path:
    """The older shape: a file a table."""
    out.mkdir()
    with duckdb.connect(duckdb_file, read_only=True) as connection:
        for table in TABLES:
            connection.execute(f"COPY {table.name} TO '{out}/{table.name}.parquet'")
    return out


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    return as_folder(training(folder / "run.duckdb", launches=50), folder / "out")


def part(folder: Path, table: str) -> Path:
    """One file of a table that has rows."""
    return max(folder.glob(f"{table}/*/*/*.parquet"), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize("make", [training, awkward])
@pytest.mark.parametrize("shape", [as_folder, as_flat_folder])
def test_every_table_comes_back(
    tmp_path: Path, make: Callable[[Path], Path], shape: Callable[[Path, Path], Path]
) -> None:
    original = make(tmp_path / "run.duckdb")
    back = import_files([shape(original, tmp_path / "out")], tmp_path / "back.duckdb")
    assert differences(original, back) == {}


def test_a_folder_with_a_name_like_a_pattern_is_that_folder(tmp_path: Path) -> None:
    original = training(tmp_path / "run.duckdb", launches=20)
    place = tmp_path / "it's [a-z]*?{b}"
    place.mkdir()
    back = import_files([as_folder(original, place / "out")], tmp_path / "back.duckdb")
    assert differences(original, back) == {}


def test_two_runs_in_one_folder_come_back_together(tmp_path: Path) -> None:
    for name in ("one", "two"):
        as_folder(training(tmp_path / f"{name}.duckdb", launches=20), tmp_path / "out")
    with open_trace(import_files([tmp_path / "out"], tmp_path / "back.duckdb")) as trace:
        assert trace.sql("SELECT count(*), count(DISTINCT id) FROM process").fetchall() == [(2, 2)]
        [(events, numbered, processes)] = trace.sql(
            "SELECT count(*), count(DISTINCT id), count(DISTINCT process) FROM event"
        ).fetchall()
        assert events == numbered
        assert processes == 2


def test_what_a_broken_export_left_is_not_read(tmp_path: Path, whole: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "out")
    [run] = (folder / "event").iterdir()
    shutil.copytree(run, folder / "event" / "run=broken")
    with open_trace(import_files([folder], tmp_path / "back.duckdb")) as trace:
        [(events, numbered)] = trace.sql("SELECT count(*), count(DISTINCT id) FROM event").fetchall()
        assert events == numbered


def refusal(tmp_path: Path, path: Path) -> str:
    with pytest.raises(InputRefused) as refused:
        import_files([path], tmp_path / "back.duckdb")
    assert not (tmp_path / "back.duckdb").exists()
    said = str(refused.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    assert "; " in said
    return said.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("select", "says"),
    [
        ("SELECT * REPLACE (ts_ns::DOUBLE AS ts_ns) FROM old", "ts_ns is DOUBLE, not BIGINT"),
        ("SELECT * REPLACE ('soon' AS dur_ns) FROM old", "dur_ns is VARCHAR, not BIGINT"),
        ("SELECT * REPLACE ('no such kind' AS kind) FROM old", "no such kind"),
        ("SELECT * REPLACE ('{' AS args) FROM old", "table event"),
        ("SELECT * EXCLUDE (name) FROM old", "name"),
        ("SELECT 1 AS x", "table event"),
    ],
)
def test_a_table_of_another_shape_is_refused(tmp_path: Path, whole: Path, select: str, says: str) -> None:
    folder = shutil.copytree(whole, tmp_path / "out")
    file = part(folder, "event")
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE old AS FROM read_parquet('{file}', hive_partitioning = false)")
        connection.execute(f"COPY ({select}) TO '{file}'")
    said = refusal(tmp_path, folder)
    assert says in said
    assert str(file) not in said


def test_another_schema_version_is_refused(tmp_path: Path, whole: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "out")
    file = part(folder, "trace_info")
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE old AS FROM read_parquet('{file}', hive_partitioning = false)")
        connection.execute("UPDATE old SET value = '77' WHERE key = 'schema_version'")
        connection.execute(f"COPY old TO '{file}'")
    assert "schema version 77" in refusal(tmp_path, folder)


def test_a_missing_table_is_named(tmp_path: Path, whole: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "out")
    shutil.rmtree(folder / "flow")
    assert "table flow" in refusal(tmp_path, folder)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"not Parquet at all"])
def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path, whole: Path, content: bytes) -> None:
    folder = shutil.copytree(whole, tmp_path / "out")
    part(folder, "event").write_bytes(content)
    assert "table event" in refusal(tmp_path, folder)


def test_one_file_is_no_trace(tmp_path: Path, whole: Path) -> None:
    assert "a trace is a folder of them" in refusal(tmp_path, part(whole, "event"))


@pytest.mark.parametrize("depth", ["file", "rank", "run", "table"])
def test_nothing_outside_the_folder_is_read(tmp_path: Path, whole: Path, depth: str) -> None:
    """A folder from somebody else could link to any file of this user."""
    folder, outside = shutil.copytree(whole, tmp_path / "out"), tmp_path / "outside"
    inside = part(folder, "event")
    inside = {"file": inside, "rank": inside.parent, "run": inside.parents[1], "table": inside.parents[2]}[depth]
    inside.rename(outside)
    inside.symlink_to(outside)
    assert "table event" in refusal(tmp_path, folder)


def test_a_pipe_in_the_folder_does_not_block(tmp_path: Path, whole: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "out")
    file = part(folder, "event")
    file.unlink()
    os.mkfifo(file)
    assert "table event" in refusal(tmp_path, folder)


def test_it_is_not_merged_with_others(tmp_path: Path, whole: Path) -> None:
    other = shutil.copytree(whole, tmp_path / "other")
    with pytest.raises(InputRefused, match="cannot be merged"):
        import_files([whole, other], tmp_path / "back.duckdb")


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_said_in_words(tmp_path: Path, whole: Path, seed: int) -> None:
    check_mutated(tmp_path, whole, seed)


@pytest.mark.soak
def test_much_damage_is_said_in_words(tmp_path: Path, whole: Path) -> None:
    for seed in range(1_000, 6_000):
        check_mutated(tmp_path, whole, seed)


def check_mutated(tmp_path: Path, whole: Path, seed: int) -> None:
    """A file with bytes changed or cut off is refused in one line, or what is read is a trace."""
    chance = random.Random(seed)
    folder = shutil.copytree(whole, tmp_path / "out")
    file = chance.choice(sorted(folder.glob("*/*/*/*.parquet")))
    data = bytearray(file.read_bytes())
    for _ in range(chance.choice([1, 2, 8])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data[: chance.randrange(len(data))] if chance.random() < 0.3 else data)
    try:
        with open_trace(import_files([folder], tmp_path / "back.duckdb")) as trace:
            trace.sql("SELECT count(name), sum(dur_ns) FROM event").fetchall()
    except InputRefused as refused:
        assert "\n" not in str(refused).removeprefix(f"{folder}: ")  # noqa: PT017
    finally:
        (tmp_path / "back.duckdb").unlink(missing_ok=True)
        shutil.rmtree(folder)


def test_an_empty_trace_comes_back(tmp_path: Path) -> None:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        original = builder.finish()
    back = import_files([as_folder(original, tmp_path / "out")], tmp_path / "back.duckdb")
    assert differences(original, back) == {}
