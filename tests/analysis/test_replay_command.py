"""The command `replay`."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ral_trace.analysis.replay_command import replay
from ral_trace.tracer.errors import NothingRecorded, RalTraceError, UsageError
from tests.analysis.cases import Case
from tests.analysis.test_replay import holes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    holes().open(tmp_path).close()
    return tmp_path / "case.duckdb"


def said(*words: str | Path) -> str:
    result = CliRunner().invoke(replay, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0
    return " ".join(result.output.split())


def test_single_options_are_one_setting(path: Path):
    text = said(path, "--fit", "first", "--region-size", "2MiB", "--max-split-size", "64MiB")
    assert "region_size_mb:2, max_split_size_mb:64,fit:first" in text.replace("max_split", " max_split").replace(
        "  ", " "
    )
    assert "as recorded 8.00 MiB" in text


def test_several_settings(path: Path):
    text = said(path, "--setting", "fit:first", "--setting", "region_size_mb:1", "--capacity", "6MiB", "--regions", "1")
    assert "fit:first" in text
    assert "region_size_mb:1" in text
    assert "out of memory" in text


def test_without_settings_it_tries_some(path: Path):
    assert "garbage_collection_threshold:0.8" in said(path, "--device", "ral:0")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--setting", "nonsense:1"], "is no option"),
        (["--region-size", "1000"], "whole MiB"),
        (["--region-size", "0"], "whole MiB"),
        (["--capacity", "many"], "is not a size"),
        (["--device", "ral:7"], "no such device"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], reason: str, path: Path):
    with pytest.raises(UsageError, match=reason):
        said(path, *words)


def test_nothing_to_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Case().open(tmp_path).close()
    with pytest.raises(RalTraceError, match="nothing to replay: no allocation of a device"):
        said(tmp_path / "case.duckdb")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(NothingRecorded):
        said()
