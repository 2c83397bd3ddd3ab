"""The same answers from a Parquet data set of several ranks as from the database that it was made of."""

from pathlib import Path

import pytest

from ral_trace.analysis import ANALYSES
from ral_trace.tracer.exporters import export
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import open_trace
from tests.shared import TRACES, needs_shared
from tests.synthetic import training

ABOUT_THE_FILE = {"summary": {"tool_version", "command_line"}, "sources": {"source", "format"}}
"""Columns that say where a trace comes from, which is another place."""


def compare(path: Path, folder: Path) -> None:
    with open_trace(path) as trace:
        export(trace, folder)
        expected = {analysis.name: analysis.run(trace) for analysis in ANALYSES}
    with open_trace(folder) as trace:
        for analysis in ANALYSES:
            apart = ABOUT_THE_FILE.get(analysis.name, set())
            found, wanted = (
                [{key: value for key, value in row.items() if key not in apart} for row in rows]
                for rows in (analysis.run(trace), expected[analysis.name])
            )
            assert found == wanted, analysis.name


def test_a_recording(tmp_path: Path):
    compare(training(tmp_path / "train.duckdb", launches=400, steps=8), tmp_path / "set")


@needs_shared
@pytest.mark.parametrize("family", ["kineto_128rank_sampled_rank{}.json.gz", "ascend_level1_rank{}"])
def test_several_ranks(tmp_path: Path, family: str):
    files = [TRACES / family.format(rank) for rank in (0, 1)]
    compare(import_files(files, tmp_path / "ranks.duckdb"), tmp_path / "set")
