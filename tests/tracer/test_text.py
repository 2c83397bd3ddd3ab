"""Untrusted text in SQL: a literal is the text again, whatever it holds, and a path may have quotes."""

from pathlib import Path

import duckdb
import pytest

from ral_trace.tracer.exporters import export
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.text import sql_text
from tests.synthetic import training


@pytest.mark.parametrize(
    "text", ["", "'", "''", "it's", "'; DROP TABLE event; --", "a\\'b", "\\", '"', "$1 {x}", "naïve \U0001f600\n"]
)
def test_a_literal_is_the_text(text: str) -> None:
    assert duckdb.sql(f"SELECT {sql_text(text)}").fetchall() == [(text,)]


@pytest.mark.parametrize("name", ["out.json", "out"])
def test_paths_with_quotes(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "it's; 'here'"
    folder.mkdir()
    with open_trace(training(folder / "o'run.duckdb", launches=20)) as trace:
        out = export(trace, folder / name)
    with open_trace(import_files([out], folder / "b'ack.duckdb")) as back:
        assert back.sql("SELECT count(*) FROM event WHERE kind = 'op'").fetchall() == [(20,)]
