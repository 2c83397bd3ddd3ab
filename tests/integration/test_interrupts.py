"""Ctrl-C ends whatever asks the database, at any moment: with 130, at once, and nothing is left behind."""

import os
import signal
import subprocess
import time
from pathlib import Path

import duckdb
import pytest

from ral_trace.tracer.exporters import export
from ral_trace.tracer.reading import open_trace
from tests.integration.programs import TRACE_COMMAND, python, running, wait_for
from tests.synthetic import training

ENDLESS = [
    "SELECT count(*) FROM range(1000000000) a, range(1000000000) b",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t",
]
AGAIN_AND_AGAIN = """
import sys
from ral_trace.tracer import cli
for _ in range(10):
    print("asking", flush=True)
    try:
        cli.main(sys.argv[1:])
    except SystemExit as end:
        print(end.code, flush=True)
"""


@pytest.fixture
def spill(tmp_path: Path) -> Path:
    """Where a command that has opened a trace has a folder."""
    (tmp_path / "spill").mkdir()
    return tmp_path / "spill"


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A trace whose events nobody lives to see."""
    path = training(tmp_path / "endless.duckdb", launches=10, steps=1)
    with duckdb.connect(path) as connection:
        connection.execute("ALTER TABLE event RENAME TO real; CREATE VIEW event AS SELECT r.* FROM real r, "
                           "range(1000000000) a, range(1000000000) b WHERE a.range + b.range = -1")  # fmt: skip
    return path


@pytest.mark.parametrize("query", ENDLESS)
def test_a_query_ends_ten_times_of_ten(tmp_path: Path, spill: Path, query: str) -> None:
    path = training(tmp_path / "run.duckdb", launches=10, steps=1)
    words = python(AGAIN_AND_AGAIN, "query", path, query)
    environment = {**os.environ, "TMPDIR": str(spill)}
    with running(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as asking:
        assert asking.stdout is not None
        for attempt in range(10):
            assert asking.stdout.readline() == "asking\n"
            wait_for(lambda: any(spill.iterdir()), "no trace was opened")
            time.sleep(attempt * 0.03)  # at any moment
            asking.send_signal(signal.SIGINT)
            sent = time.monotonic()
            assert asking.stdout.readline() == "130\n"
            assert time.monotonic() - sent < 30
    assert not [*spill.iterdir()]


@pytest.mark.parametrize(
    "words",
    [
        ["--report", "endless.duckdb"],
        ["export", "endless.duckdb", "-o", "out.pftrace"],
        ["export", "endless.duckdb", "-o", "out.json"],
        ["export", "endless.duckdb", "-o", "out.csv"],
        ["export", "endless.duckdb", "-o", "folder"],
    ],
)
def test_every_command_ends(endless: Path, spill: Path, words: list[str]) -> None:
    environment = {**os.environ, "TMPDIR": str(spill)}
    before = sorted(endless.parent.iterdir())
    with running(
        [*TRACE_COMMAND, *words], cwd=endless.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as command:
        wait_for(lambda: any(spill.iterdir()), "no trace was opened")
        time.sleep(0.3)
        command.send_signal(signal.SIGINT)
        out, error = command.communicate(timeout=60)
    assert (command.returncode, out, error.strip()) == (130, "", "")
    assert sorted(endless.parent.iterdir()) == before
    assert not [*spill.iterdir()]


def test_an_import_ends_while_the_database_works(tmp_path: Path, spill: Path) -> None:
    """A data set of a thousand million flows."""
    with open_trace(training(tmp_path / "run.duckdb", launches=10, steps=1)) as trace:
        export(trace, tmp_path / "runs")
    [flows] = (tmp_path / "runs" / "flow").rglob("*.parquet")
    rows = "SELECT 'launch' AS kind, (1e9 * random())::BIGINT AS from_event, (1e9 * random())::BIGINT AS to_event"
    with duckdb.connect() as connection:
        connection.execute(f"COPY ({rows} FROM range(1000000)) TO '{flows}'")
    for number in range(1000):
        flows.with_name(f"part-{number + 1}.parquet").hardlink_to(flows)
    before = sorted(tmp_path.iterdir())
    with running(
        [*TRACE_COMMAND, "import", "runs", "-o", "out.duckdb"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(spill)},
    ) as command:
        wait_for(
            lambda: any(path.stat().st_size > 4 << 20 for path in tmp_path.glob(".out.duckdb.partial-*")),
            "no flow is written",
        )
        command.send_signal(signal.SIGINT)
        _, error = command.communicate(timeout=60)
    assert (command.returncode, error.strip()) == (130, "")
    assert sorted(tmp_path.iterdir()) == before
    assert not [*spill.iterdir()]
