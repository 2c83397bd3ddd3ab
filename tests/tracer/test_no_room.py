"""Where the database has no room, a command says where room is needed, in one line; nobody's trace is to blame."""

from pathlib import Path

import pytest

from ral_trace.tracer import cli, reading
from tests.synthetic import training

MUCH = "SELECT count(*) FROM (SELECT DISTINCT md5(range::VARCHAR) || repeat('y', 200) AS x FROM range(600000))"
COMMANDS = [["query", "run.duckdb", MUCH], ["report", "run.duckdb"], ["export", "run.duckdb", "-o", "out.json"],
            ["export", "run.duckdb", "-o", "out.pftrace"]]  # fmt: skip


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int | str | None, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    return end.value.code, capsys.readouterr().err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    training(tmp_path / "run.duckdb", launches=20_000, steps=10)
    return tmp_path


def test_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A disk of a megabyte, as far as the database knows."""
    lock = reading.Trace._lock

    def small(trace: reading.Trace) -> None:
        trace.connection.execute("SET max_temp_directory_size = '1MB'")
        lock(trace)

    monkeypatch.setattr(reading.Trace, "_lock", small)
    monkeypatch.setattr(reading, "MEMORY_LIMIT", "60MB")
    code, error = said(COMMANDS[0], capsys)
    assert code == 1
    assert error.startswith("ral-trace: there is no room for temporary files in ")
    assert error.endswith("; make some, or set TMPDIR\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", COMMANDS)
def test_too_little_memory(
    folder: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reading, "MEMORY_LIMIT", "8MB")
    code, error = said(words, capsys)
    assert code == 1
    assert error.startswith(("ral-trace: that takes more memory than may be used (", "ral-trace: there is no room for"))
    assert error.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == ["run.duckdb"]
