"""Tables as text: what Python's own reader gets is what the database holds, and no cell is a formula."""

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.exporters import Window, export
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.schema import TABLES, VIEWS
from ral_trace.tracer.store import TraceBuilder
from tests.awkward import awkward
from tests.synthetic import training


def cells(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True))


def as_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    shown = str(value)
    return f"'{shown}" if isinstance(value, str) and shown[:1] in tuple("=+-@\t\r") else shown


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
@pytest.mark.parametrize("name", [*(table.name for table in TABLES), *(view.name for view in VIEWS)])
def test_every_table_and_view(awkward_trace: Trace, tmp_path: Path, name: str, ending: str) -> None:
    header, *rows = cells(export(awkward_trace, tmp_path / f"out{ending}", window=Window(table=name)))
    found = awkward_trace.sql(f"FROM {name}")
    assert header == found.columns
    assert sorted(rows) == sorted([as_text(value) for value in row] for row in found.fetchall())


@pytest.fixture(scope="module")
def awkward_trace(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_trace(awkward(tmp_path_factory.mktemp("awkward") / "run.duckdb")) as trace:
        yield trace


def test_the_default_is_the_view_of_events_by_time(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb", launches=50)) as trace:
        header, *rows = cells(export(trace, tmp_path / "out.csv"))
        [(events,)] = trace.sql("SELECT count(*) FROM event").fetchall()
    assert len(rows) == events
    times = [int(row[header.index("ts_ns")]) for row in rows]
    assert times == sorted(times)


def test_a_query(awkward_trace: Trace, tmp_path: Path) -> None:
    query = "SELECT 1 AS one, 'a,\"b\"' AS text, NULL AS none, '' AS empty, 0.1 AS real, -3 AS less, '-3' AS words"
    out = export(awkward_trace, tmp_path / "out.csv", window=Window(query=query))
    assert out.read_bytes() == b'one,text,none,empty,real,less,words\r\n1,"a,""b""",,"",0.1,-3,\'-3\r\n'


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_what_a_spreadsheet_would_run_is_text(tmp_path: Path, begin: str) -> None:
    formula = begin + 'HYPERLINK("http://x","y")'
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        process = builder.add("process", source=builder.add("source", format="live"), name=formula)
        builder.add("event", kind="op", name=formula, ts_ns=-5, dur_ns=1, process=process, flags=0)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        header, row = cells(export(trace, tmp_path / "out.csv"))
    assert row[header.index("name")] == row[header.index("process_name")] == f"'{formula}"
    assert row[header.index("ts_ns")] == "-5"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_any_text_comes_back(awkward_trace: Trace, tmp_path: Path, texts: list[str]) -> None:
    values = ", ".join("('" + text.replace("'", "''") + "')" for text in ["x", *texts])
    for ending in (".csv", ".tsv"):
        out = export(awkward_trace, tmp_path / f"out{ending}", window=Window(query=f"FROM (VALUES {values})"))
        assert [row for [row] in cells(out)[1:]] == [as_text(text) for text in ["x", *texts]]


@pytest.mark.parametrize(
    "text", ["", "SELECT", "DROP TABLE event", "SELECT 1; SELECT 2", "SELECT * FROM 'other.csv'", "COPY event TO 'x'"]
)
def test_a_query_that_is_refused_leaves_nothing(awkward_trace: Trace, tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        export(awkward_trace, tmp_path / "out.csv", window=Window(query=text))
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_go_together_is_refused(awkward_trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        export(awkward_trace, tmp_path / "out.csv", window=Window(table="event", query="SELECT 1"))
    with pytest.raises(UsageError, match="there is no table evnt; choose one of: trace_info"):
        export(awkward_trace, tmp_path / "out.csv", window=Window(table="evnt"))
    with pytest.raises(UsageError, match="are for tables"):
        export(awkward_trace, tmp_path / "out.pftrace", window=Window(table="event"))
    with pytest.raises(UsageError, match="which rows it wants"):
        export(awkward_trace, tmp_path / "out.csv", Window(to_ns=5, query="SELECT 1"))
    assert list(tmp_path.iterdir()) == []


def test_a_window_is_a_part(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        for name in ("event", "events", "kernels", "memory_curve", "allocation"):
            whole = cells(export(trace, tmp_path / "out.csv", window=Window(table=name)))
            part = cells(export(trace, tmp_path / "out.csv", Window(to_ns=3_000_000, table=name)))
            assert 1 < len(part) < len(whole)


CURVE = "SELECT count(*) FROM memory_curve WHERE device = 1 AND ts_ns < (SELECT min(ts_ns) FROM event) + 12000000"
PARTS = [
    ("memory_curve", Window(devices=("ral:1",)), "SELECT count(*) FROM memory_curve WHERE device = 1"),
    ("memory_curve", Window(devices=("ral:1",), to_ns=12_000_000, kinds=("alloc",)), CURVE),
    ("memory_curve", Window(kinds=("kernel",)), "SELECT 0"),
    ("reserved_curve", Window(devices=("ral:0",)), "SELECT count(*) FROM reserved_curve WHERE device = 0"),
    ("reserved_curve", Window(kinds=("alloc",)), "SELECT 0"),
    ("reserved_curve", Window(kinds=("region",)), "SELECT count(*) FROM reserved_curve"),
    ("device_label", Window(devices=("ral:1",)), "SELECT 1"),
    ("device", Window(devices=("ral:1",)), "SELECT 1"),
    ("stream", Window(devices=("ral",)), "SELECT 2"),
    ("kernels", Window(devices=("ral:1",)), "SELECT count(*) FROM kernels WHERE device = 1"),
    ("launches", Window(kinds=("kernel",)), "SELECT 0"),
    ("steps", Window(to_ns=5_000_000), "SELECT count(*) FROM steps WHERE ts_ns < 5000000 + "
                                       "(SELECT min(ts_ns) FROM event)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "window", "wanted"), PARTS)
def test_a_part_of_a_table_or_view(tmp_path: Path, name: str, window: Window, wanted: str) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        [(rows,)] = trace.sql(wanted).fetchall()
        assert len(cells(export(trace, tmp_path / "out.csv", replace(window, table=name)))) == 1 + rows


@pytest.mark.parametrize(
    ("name", "window", "option"),
    [
        ("steps", Window(devices=("ral:1",)), "--device has"),
        ("steps", Window(kinds=("annotation",)), "--kind has"),
        ("device_label", Window(kinds=("kernel",)), "--kind has"),
        ("device", Window(to_ns=5), "--from and --to have"),
        ("quality", Window(devices=("ral:1",)), "--device has"),
    ],
)
def test_an_option_without_a_meaning_is_refused(
    awkward_trace: Trace, tmp_path: Path, name: str, window: Window, option: str
) -> None:
    with pytest.raises(UsageError) as refused:
        export(awkward_trace, tmp_path / "out.csv", replace(window, table=name))
    assert str(refused.value) == f"{option} no meaning for {name}; leave that out, or choose another --table"
    assert list(tmp_path.iterdir()) == []


def test_the_command(tmp_path: Path) -> None:
    training(tmp_path / "run.duckdb", launches=20)
    words = [
        "export",
        "run.duckdb",
        "-o",
        "out.tsv",
        "--query",
        "SELECT kind, count(*) AS n FROM event WHERE kind = 'op' GROUP BY 1",
    ]
    line = [sys.executable, "-m", "ral_trace.tracer", *words]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert cells(tmp_path / "out.tsv") == [["kind", "n"], ["op", "20"]]
