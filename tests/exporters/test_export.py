"""Outputs are private, appear whole or not at all, and errors are one line."""

import stat
from pathlib import Path

import duckdb
import pytest

from ral_trace.tracer.errors import RalTraceError, UsageError
from ral_trace.tracer.exporters import (
    Window,
    collapsed,
    export,
    exporter_for,
    own_json,
    parquet,
    perfetto,
    snapshot,
    speedscope,
    table,
)
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.schema import TABLES
from tests.awkward import awkward
from tests.synthetic import training

NAMES = ["run.pftrace", "run.json", "run.json.gz", "run"]
OTHERS = ["run.speedscope.json", "run.pickle", "run.collapsed", "run.folded", "run.csv", "run.tsv"]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_ending_chooses() -> None:
    assert [exporter_for(Path(name)) for name in NAMES] == [perfetto, own_json, own_json, parquet]
    assert [exporter_for(Path(name)) for name in OTHERS] == [speedscope, snapshot, collapsed, collapsed, table, table]
    with pytest.raises(UsageError, match=r"no exporter writes '\.txt'; choose one of: \.pftrace, \.speedscope\.json"):
        exporter_for(Path("run.txt"))


@pytest.mark.parametrize("name", NAMES + OTHERS)
def test_outputs_are_private_and_nothing_else_is_left(tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    with open_trace(training(tmp_path / "run.duckdb", launches=100)) as trace:
        out = export(trace, tmp_path / "out" / name)
    assert list(out.parent.iterdir()) == [out]
    assert mode(out) == (0o700 if out.is_dir() else 0o600)
    assert all(mode(path) == 0o600 for path in out.glob("*.parquet"))


@pytest.mark.parametrize("name", NAMES + OTHERS)
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, name: str) -> None:
    with open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace:
        out = tmp_path / "missing" / name
        with pytest.raises(RalTraceError) as refused:
            export(trace, out)
    assert str(refused.value).startswith(f"{out}: could not be written (")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["run.pftrace", "run"])
def test_a_folder_in_the_way_stays(tmp_path: Path, name: str) -> None:
    kept = tmp_path / name / "kept"
    kept.mkdir(parents=True)
    with (
        open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace,
        pytest.raises(UsageError, match="there is a folder of that name"),
    ):
        export(trace, tmp_path / name)
    assert kept.exists()
    assert not list(tmp_path.glob(".partial*"))


def test_a_file_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    out.write_text("old")
    with open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace:
        export(trace, out)
    assert out.read_bytes().startswith(b'{"ralTrace":')


@pytest.mark.parametrize("make", [training, awkward])
def test_parquet_holds_every_table(tmp_path: Path, make: object) -> None:
    assert callable(make)
    with open_trace(make(tmp_path / "run.duckdb")) as trace:
        out = export(trace, tmp_path / "it's a folder")
        for table in TABLES:
            file = str(out / f"{table.name}.parquet").replace("'", "''")
            kinds = ", ".join(f'"{column}"::VARCHAR' for column in table.columns)
            expected = trace.sql(f"SELECT {kinds} FROM {table.name} ORDER BY ALL").fetchall()
            assert duckdb.connect().sql(f"SELECT {kinds} FROM '{file}' ORDER BY ALL").fetchall() == expected


def test_a_part_says_so(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        out = export(trace, tmp_path / "part", Window(to_ns=5_000_000))
    rows = duckdb.connect().sql(f"SELECT what FROM '{out}/quality.parquet' WHERE process IS NULL").fetchall()
    what = "from its begin to 5000000 ns after its first event: rows that were left out"
    assert rows == [(f"only a part of the recording was exported, {what}",)]
