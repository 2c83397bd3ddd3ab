"""A bare virtual environment: no torch, the package from a wheel. Everything that reads a trace works."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.synthetic import training

ROOT = Path(__file__).resolve().parent.parent.parent


def copy_of_the_checkout(to: Path) -> None:
    """What git has or would add, as it lies there now: nothing that was built here, with torch, gets into the wheel."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, with_pip=True)
    source = tmp_path_factory.mktemp("source")
    copy_of_the_checkout(source)
    subprocess.run(
        [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", source],
        check=True,
        env={**os.environ, "MAX_JOBS": "2"},
        timeout=600,
    )
    return folder / "bin"


def run(bare: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [bare / words[0], *words[1:]],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_report_export_query_and_dashboard_work(bare: Path, tmp_path: Path) -> None:
    assert run(bare, "python", "-c", "import torch", cwd=tmp_path).returncode != 0
    training(tmp_path / "run.duckdb", launches=100, steps=4)
    for words in [
        ("ral-trace", "--report"),
        ("ral-trace", "--report", "run.duckdb", "--html", "run.html"),
        ("ral-trace", "--report", "run.duckdb", "--json"),
        ("ral-trace", "export", "run.duckdb", "-o", "run.pftrace"),
        ("ral-trace", "export", "run.duckdb", "-o", "run.json.gz"),
        ("ral-trace", "export", "run.duckdb", "-o", "folder"),
        ("ral-trace", "query", "run.duckdb", "SELECT count(*) FROM event"),
        ("ralctl", "list-devices"),
    ]:
        done = run(bare, *words, cwd=tmp_path)
        assert done.returncode == 0, (words, done.stderr)
    assert (tmp_path / "run.html").stat().st_size > 1_000_000
    done = run(bare, "ral-trace", "import", "folder", "-o", "back.duckdb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "folder/event").glob("run=*/rank=*/*.parquet"))) == 1


def test_the_dashboard_answers(bare: Path, tmp_path: Path) -> None:
    import re
    import urllib.request

    training(tmp_path / "run.duckdb", launches=100, steps=4)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        [bare / "ral-trace", "dashboard", "run.duckdb", "--no-browser"],
        cwd=tmp_path,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            found = None
            said = ""
            while found is None:
                line = server.stdout.readline()
                assert line, said
                said += line
                found = re.search(r"http://127\.0\.0\.1:\d+/\S*", line)
            with urllib.request.urlopen(found.group(0), timeout=60) as answer:
                assert answer.status == 200
        finally:
            server.terminate()


def test_recording_without_torch_says_why_there_is_nothing(bare: Path, tmp_path: Path) -> None:
    done = run(bare, "ral-trace", "--", str(bare / "python"), "-c", "pass", cwd=tmp_path)
    assert done.returncode == 3
    assert "never imported torch" in done.stderr
    assert sys.executable not in done.stderr
