"""The command line's contract: exit codes, one-line errors, help."""

import sys
from pathlib import Path

import pytest

from tests.integration.programs import ral_trace
from tests.synthetic import training


def one_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


def test_nothing_recorded_is_an_error_that_says_why(tmp_path: Path) -> None:
    done = ral_trace("-o", "none.duckdb", "--", sys.executable, "-c", "pass", cwd=tmp_path)
    assert done.returncode == 3
    assert "never imported torch" in one_line(done.stderr)
    assert not list(tmp_path.iterdir())
    done = ral_trace("--duration", "200ms", cwd=tmp_path)
    assert done.returncode == 3
    assert "no program of yours" in one_line(done.stderr)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((), 2, "--duration 10s"),
        (("--duration", "ten"), 2, "'ten' is not a duration"),
        (("--duration", "0s"), 2, "no time at all"),
        (("--html",), 2, "--report"),
        (("--report", "missing.duckdb"), 4, "missing.duckdb: there is no such file"),
        (("--report",), 3, "no trace here"),
        (("--report", "empty.duckdb"), 4, "empty.duckdb: the file is empty"),
        (("--report", "text.duckdb"), 4, "text.duckdb"),
        (("export", "run.duckdb", "-o", "run.xyz"), 2, "no exporter writes '.xyz'"),
        (("query", "run.duckdb", "DROP TABLE event"), 2, "one SELECT"),
        (("query", "run.duckdb", "SELECT nothing FROM event"), 2, "refused"),
        (("query", "run.duckdb", "SELECT * FROM read_text('/etc/passwd')"), 2, "refused"),
        (("--pid", "4194305", "--duration", "1s"), 2, "no process"),
        (("--duration", "1s", "-o", "no/such/folder/x.duckdb"), 1, "cannot be written"),
        (("--", "no-such-program"), 2, "no-such-program"),
        (("nonsense",), 2, "nonsense"),
        (("--report", "run.duckdb", "--html", "/dev/full"), 2, "/dev/full: is not a file"),
        (("--report", "run.duckdb", "--html", "text.duckdb"), 2, "written over"),
        (("export", "run.duckdb", "-o", "."), 2, "there is a folder"),
        (("--duration", "1s", "-o", "/dev/full"), 2, "/dev/full"),
        (("--duration", "1s", "--buffer", "1"), 2, "--buffer must lie"),
        (("export", "run.duckdb", "-o", "x.json", "--from", "2ms", "--to", "1ms"), 2, "--from must lie before"),
        (("--nonsense",), 2, "--nonsense"),
        (("export", "run.duckdb"), 2, "--output"),
        (("--report", "run.duckdb", "--duration", "1s"), 2, "--report reads"),
        (("--pid", "1", "--", "true"), 2, "do not go together"),
        (("--report", "block.duckdb"), 4, "block.duckdb: is not a readable DuckDB file"),
    ],
)
def test_errors_are_one_line_with_the_remedy(tmp_path: Path, arguments: tuple[str, ...], code: int, words: str) -> None:
    (tmp_path / "empty.duckdb").touch()
    (tmp_path / "text.duckdb").write_text("not a database")
    (tmp_path / "block.duckdb").write_bytes(b"\0" * 8 + b"DUCK" + b"\0" * 9000)
    (tmp_path / "dangling.duckdb").symlink_to("nowhere")
    if "run.duckdb" in arguments:
        training(tmp_path / "run.duckdb", launches=20, steps=2)
    done = ral_trace(*arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in one_line(done.stderr)


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = ral_trace("--debug", "--report", "missing.duckdb", cwd=tmp_path)
    assert done.returncode == 4
    assert "Traceback" in done.stderr


def test_help_names_every_command_and_an_example(tmp_path: Path) -> None:
    done = ral_trace("--help", cwd=tmp_path)
    assert done.returncode == 0
    for word in (
        "--duration",
        "--report",
        "--html",
        "export",
        "query",
        "report",
        "dashboard",
        "ral-trace -- python train.py",
    ):
        assert word in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_report_takes_the_newest_trace_and_our_own_json(tmp_path: Path) -> None:
    training(tmp_path / "run.duckdb", launches=60, steps=3)
    (tmp_path / "newer-but-no-trace.duckdb").write_text("junk")
    newest = ral_trace("--report", cwd=tmp_path)
    assert newest.returncode == 0, newest.stderr
    assert "train.py" in newest.stdout
    assert ral_trace("export", "run.duckdb", "-o", "run.json.gz", cwd=tmp_path).returncode == 0
    from_json = ral_trace("--report", "run.json.gz", cwd=tmp_path)
    assert from_json.returncode == 0, from_json.stderr
    assert newest.stdout.replace("run.duckdb", "run.json.gz") == from_json.stdout
    html = ral_trace("--report", "run.duckdb", "--html", "out.html", cwd=tmp_path)
    assert html.returncode == 0, html.stderr
    assert (tmp_path / "out.html").stat().st_mode & 0o777 == 0o600


def test_strict_exits_with_5_when_events_were_dropped(tmp_path: Path) -> None:
    program = "import torch\nx = torch.ones(2)\nfor _ in range(200000): x + 1"
    done = ral_trace(
        "--strict", "--buffer", "64k", "-o", "lossy.duckdb", "--", sys.executable, "-c", program, cwd=tmp_path
    )
    assert done.returncode == 5, done.stderr
    assert "dropped" in done.stderr
    assert "--buffer" in done.stderr
    assert (tmp_path / "lossy.duckdb").exists()
