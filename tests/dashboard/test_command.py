"""`ral-trace dashboard`, as a person runs it: the URL that it prints opens, Ctrl-C ends it, errors are one line."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ral_trace.dashboard.command import dashboard
from ral_trace.dashboard.server import PortTaken, bind
from ral_trace.tracer.errors import InputRefused, NothingRecorded
from tests.synthetic import training

COMMAND = [sys.executable, "-c", "from ral_trace.dashboard.command import dashboard; dashboard()"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return training(tmp_path / "run.duckdb", launches=200)


@pytest.fixture
def running(trace: Path) -> Iterator[subprocess.Popen[str]]:
    environment = os.environ | {"TMPDIR": str(trace.parent), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*COMMAND, "--no-browser"],
        cwd=trace.parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def printed_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    url = process.stdout.readline().split()[1]
    assert process.stdout.readline() == "Ctrl-C ends it.\n"
    return url


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_the_newest_trace_until_it_is_stopped(
    running: subprocess.Popen[str], trace: Path, number: int
) -> None:
    url = printed_url(running)
    assert url.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(url) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(url.partition("?")[0])
    running.send_signal(number)
    rest, _ = running.communicate(timeout=10)
    assert (running.returncode, rest) == (0, "")
    assert [path.name for path in trace.parent.iterdir()] == ["run.duckdb"]


def test_it_listens_on_this_machine_only(running: subprocess.Popen[str]) -> None:
    port = int(printed_url(running).partition("127.0.0.1:")[2].partition("/")[0])
    time.sleep(0.1)
    listening = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{running.pid}/net/{table}").read_text().splitlines()[1:]
    ]
    addresses = {row[1] for row in listening if row[3] == "0A"}
    assert [address for address in addresses if address.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


def test_a_port_in_use_is_one_line(trace: Path) -> None:
    from flask import Flask

    held = bind(Flask("held"), 0)
    try:
        with pytest.raises(PortTaken, match=f"^port {held.port}: address already in use; .*--port") as refused:
            CliRunner().invoke(
                dashboard, [str(trace), "--no-browser", "--port", str(held.port)], catch_exceptions=False
            )
        assert "\n" not in str(refused.value)
    finally:
        held.server_close()


def test_what_is_no_trace_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NothingRecorded):
        CliRunner().invoke(dashboard, [], catch_exceptions=False)
    with pytest.raises(InputRefused):
        CliRunner().invoke(dashboard, ["missing.duckdb"], catch_exceptions=False)


def test_importing_the_command_is_cheap() -> None:
    """`ral-trace --help` imports it."""
    assert {"dash", "flask", "plotly", "torch"} & loaded_by("ral_trace.dashboard.command") == set()


def test_the_dashboard_needs_no_torch() -> None:
    assert "torch" not in loaded_by("ral_trace.dashboard.app", "ral_trace.dashboard.server")


def loaded_by(*modules: str) -> set[str]:
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())
