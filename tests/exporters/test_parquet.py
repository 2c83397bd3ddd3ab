"""The Parquet folder: every table, partitioned by run and rank, one data set however many runs are exported into it."""

import stat
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import duckdb
import pytest

from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.exporters import Window, export
from ral_trace.tracer.finish import write_trace
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.schema import TABLES, Table
from tests.awkward import awkward
from tests.synthetic import training

TYPES = "hive_partitioning = true, hive_types = {'run': VARCHAR, 'rank': INTEGER}"
RANK = "(SELECT rank FROM process p WHERE p.id = t.process)"


def files_of(folder: Path, table: str) -> str:
    """SQL: the rows of a table, as another tool reads them."""
    pattern = str(folder / table / "*" / "*" / "*.parquet").replace("'", "''")
    return f"read_parquet('{pattern}', {TYPES})"


def columns_of(table: Table) -> str:
    return ", ".join(f'"{column}"::VARCHAR' for column in table.columns)


def runs_in(folder: Path) -> list[str]:
    return sorted(unquote(path.name.removeprefix("run=")) for path in (folder / "trace_info").iterdir())


@pytest.mark.parametrize("make", [training, awkward])
def test_it_holds_every_table(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with open_trace(make(tmp_path / "run.duckdb")) as trace:
        out = export(trace, tmp_path / "it's a folder")
        for table in TABLES:
            query = f"SELECT {columns_of(table)} FROM"
            expected = trace.sql(f"{query} {table.name} ORDER BY ALL").fetchall()
            assert duckdb.sql(f"{query} {files_of(out, table.name)} ORDER BY ALL").fetchall() == expected
    assert {path.name for path in out.iterdir()} == {table.name for table in TABLES}


def test_rows_are_where_their_ranks_are(tmp_path: Path) -> None:
    with open_trace(awkward(tmp_path / "run.duckdb")) as trace:
        out = export(trace, tmp_path / "out")
        for table in ("event", "thread", "device"):
            expected = trace.sql(f"SELECT id, {RANK} FROM {table} t ORDER BY id").fetchall()
            assert duckdb.sql(f"SELECT id, rank FROM {files_of(out, table)} ORDER BY id").fetchall() == expected
        for table, process in [
            ("flow", "(SELECT e.process FROM event e WHERE e.id = from_event)"),
            ("counter_value", "(SELECT c.process FROM counter c WHERE c.id = counter_value.counter)"),
            ("region", "(SELECT d.process FROM device d WHERE d.id = {table}.device)"),
            ("allocation", "(SELECT d.process FROM device d WHERE d.id = {table}.device)"),
            (
                "allocation_piece",
                "(SELECT d.process FROM device d JOIN region r ON r.device = d.id WHERE r.id = {table}.region)",
            ),
        ]:
            process = process.format(table=table)
            expected = trace.sql(f"""
                SELECT {RANK} AS rank, count(*) FROM (SELECT {process} AS process FROM {table}) t
                GROUP BY ALL ORDER BY ALL""").fetchall()
            assert (
                duckdb.sql(f"""
                SELECT rank, count(*) FROM {files_of(out, table)} GROUP BY ALL ORDER BY ALL""").fetchall()
                == expected
            )
            assert len(expected) == 5
    assert sorted(path.name for path in (out / "event" / "run=run").iterdir()) == [f"rank={n}" for n in range(5)]
    for nowhere in ("trace_info", "stack"):
        assert [path.name for path in (out / nowhere / "run=run").iterdir()] == ["rank=__HIVE_DEFAULT_PARTITION__"]


def test_an_empty_table_has_its_columns(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace:
        out = export(trace, tmp_path / "out")
    [part] = (out / "access").rglob("*.parquet")
    assert duckdb.sql(f"FROM '{part}'").columns[:3] == ["event", "allocation", "mode"]
    assert duckdb.sql(f"FROM '{part}'").fetchall() == []


def test_it_is_private(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace:
        out = export(trace, tmp_path / "out")
        export(trace, out, Window(run="again"))
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in [out, *out.rglob("*")]}
    assert modes == {True: 0o700, False: 0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.rglob("*.parquet")} == {0o600}


def test_several_runs_are_one_data_set_with_ids_of_their_own(tmp_path: Path) -> None:
    """Joins over the whole folder give for each run what they give in its trace."""
    joined = """
        SELECT e.kind::VARCHAR, e.name, p.name, t.tid, d.type, s.number, o.name, l.ts_ns, a.size_bytes
        FROM {event} e JOIN {process} p ON p.id = e.process LEFT JOIN {thread} t ON t.id = e.thread
        LEFT JOIN {device} d ON d.id = e.device LEFT JOIN {stream} s ON s.id = e.stream
        LEFT JOIN {event} o ON o.id = e.parent LEFT JOIN {flow} f ON f.to_event = e.id
        LEFT JOIN {event} l ON l.id = f.from_event LEFT JOIN {allocation} a ON a.alloc_event = e.id"""
    out, expected = tmp_path / "out", []
    names = ("event", "process", "thread", "device", "stream", "flow", "allocation")
    for name, make in [("one", training), ("two", awkward), ("three", training)]:
        with open_trace(make(tmp_path / f"{name}.duckdb")) as trace:
            expected += trace.sql(joined.format(**dict(zip(names, names, strict=True)))).fetchall()
            export(trace, out)
    assert runs_in(out) == ["one", "three", "two"]
    found = duckdb.sql(joined.format(**{name: files_of(out, name) for name in names})).fetchall()
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    for table in TABLES:
        if "id" in table.columns:
            query = f"SELECT count(*), count(DISTINCT id) FROM {files_of(out, table.name)}"
            [(rows, ids)] = duckdb.sql(query).fetchall()
            assert rows == ids


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace:
        for run in ("first", "second"):
            out = export(trace, tmp_path / "[a] *'?{b}", Window(run=run))
    assert runs_in(out) == ["first", "second"]


def test_a_run_that_is_there_is_refused_and_kept(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace:
        out = export(trace, tmp_path / "out")
        before = sorted(out.rglob("*"))
        with pytest.raises(UsageError, match="run=run is in it already; name this one with --run"):
            export(trace, out)
    assert sorted(out.rglob("*")) == before
    assert not list(tmp_path.glob(".partial*"))


def test_what_a_killed_export_left_is_replaced(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace:
        out = export(trace, tmp_path / "out", Window(run="first"))
        (out / "event" / "run=second" / "rank=0").mkdir(parents=True)
        export(trace, out, Window(run="second"))
        [(events,)] = trace.sql("SELECT count(*) FROM event").fetchall()
    runs = f"SELECT run, count(*) FROM {files_of(out, 'event')} GROUP BY ALL ORDER BY ALL"
    assert duckdb.sql(runs).fetchall() == [("first", events), ("second", events)]


@pytest.mark.parametrize(
    "name", ["a/b", "..", "a b%20=c", "naïve \U0001f600", "1", "'quoted'", "x" * 500, "ü" * 300, "\n", "*", "\ud800"]
)
def test_any_name_makes_a_run(tmp_path: Path, name: str) -> None:
    with open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace:
        out = export(trace, tmp_path / "out", Window(run=name))
        export(trace, out, Window(run=name + "2"))
    assert {path.name for path in out.iterdir()} == {table.name for table in TABLES}
    first, second = runs_in(out)
    if len(name) < 100:
        assert {first, second} == {name.encode(errors="replace").decode(), name.encode(errors="replace").decode() + "2"}
    found = duckdb.sql(f"SELECT DISTINCT run FROM {files_of(out, 'event')} ORDER BY ALL").fetchall()
    assert sorted(found) == [(first,), (second,)]


def test_the_run_is_named_after_the_file(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.v2.duckdb", launches=20)) as trace:
        packed = export(trace, tmp_path / "packed.json.gz")
        export(trace, tmp_path / "out")
    with open_trace(packed) as trace:
        export(trace, tmp_path / "out")
    assert runs_in(tmp_path / "out") == ["packed", "run.v2"]


def test_what_is_recorded_into_a_data_set_gets_a_name_that_is_free(tmp_path: Path) -> None:
    """A recording must not be lost because of a name."""
    for _ in range(3):
        write_trace(tmp_path / "runs", lambda path: training(path, launches=20))
    assert runs_in(tmp_path / "runs") == ["runs", "runs-2", "runs-3"]


def test_a_part_says_so(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        out = export(trace, tmp_path / "part", Window(to_ns=5_000_000))
    rows = duckdb.sql(f"SELECT what FROM {files_of(out, 'quality')} WHERE process IS NULL").fetchall()
    what = "from its begin to 5000000 ns after its first event: rows that were left out"
    assert rows == [(f"only a part of the recording was exported, {what}",)]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out" / "trace_info" / "run=x" / "rank=0").mkdir(parents=True)
    (tmp_path / "out" / "trace_info" / "run=x" / "rank=0" / "part-0.parquet").write_bytes(b"not a parquet file")
    with (
        open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace,
        pytest.raises(Exception, match="could not"),
    ):
        export(trace, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["trace_info"]
