"""What a person sees while a recording runs."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ral_trace.tracer import open_trace
from ral_trace.tracer.recording import Totals
from ral_trace.tracer.run import RecordOptions, Run

PROGRAM = """
import time
from ral_trace.tracer import _native, annotate
assert _native.start("", "") is None
until = time.monotonic() + 2.5
while time.monotonic() < until:
    with annotate("work"):
        time.sleep(0.001)
"""
"""Makes events for some seconds, without torch."""

LINE = re.compile(r"recording · ([\d.]+) s left · ([\d,]+) events · (\d+) programs? · ([\d,]+) dropped")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def line(totals: Totals, duration_ns: int | None, counted_from: int | None) -> str:
    recording: Any = None  # the line is made of the totals alone
    run = Run(
        RecordOptions(Path("run.duckdb"), duration_ns), recording, Console(), answer=recording, each_turn=recording
    )
    run.totals = totals
    return run._line(counted_from)


def test_the_line_has_events_programs_and_drops() -> None:
    totals = Totals(events=1_234_567, dropped=8_900, processes=2)
    assert line(totals, None, None) == "recording · 1,234,567 events · 2 programs · 8,900 dropped"
    assert line(Totals(processes=1), None, time.monotonic_ns()) == "recording · 0 events · 1 program · 0 dropped"


@pytest.mark.parametrize(("spent_s", "at_most"), [(None, 10.0), (4, 6.0), (60, 0.0)])
def test_the_line_has_the_time_left(spent_s: int | None, at_most: float) -> None:
    """Before the first event all of it, and never less than none."""
    counted_from = None if spent_s is None else time.monotonic_ns() - spent_s * 10**9
    found = LINE.fullmatch(line(Totals(), 10 * 10**9, counted_from))
    assert found is not None
    assert max(0.0, at_most - 0.5) <= float(found[1]) <= at_most


def seen_in_a_terminal(words: list[str], cwd: Path, **environment: str) -> tuple[int, str]:
    """Runs a command in a terminal of its own: its exit code, and all that it wrote there."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TTY_COMPATIBLE", "CI")}
    with subprocess.Popen(
        words, cwd=cwd, env={**plain, "TERM": "xterm-256color", **environment}, stdin=its, stdout=its, stderr=its
    ) as program:
        os.close(its)
        written = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # how Linux says that nobody has the other end open any more
                break
            if not piece:
                break
            written += piece
    os.close(ours)
    return program.returncode, written.decode(errors="replace")


def test_the_line_appears_in_a_terminal_and_is_updated(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "ral_trace.tracer.cli", "--duration", "30s", "-o", "run.duckdb", "--"]
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as rendezvous:
        code, written = seen_in_a_terminal(
            [*words, sys.executable, "-c", PROGRAM], tmp_path, RAL_TRACE_DIR=f"{rendezvous}/rendezvous"
        )
    assert code == 0, written
    assert CONTROL.search(written), "the line is drawn over itself"
    shown = [match.groups() for match in LINE.finditer(CONTROL.sub("", written))]
    left = [float(seconds) for seconds, *_ in shown]
    events = [int(count.replace(",", "")) for _, count, *_ in shown]
    assert left == sorted(left, reverse=True)
    assert events == sorted(events)
    assert len(set(events)) >= 4
    assert len(set(left)) >= 4
    assert 26 < left[-1] < 29
    assert shown[-1][2:] == ("1", "0")
    assert "read it with: ral-trace --report run.duckdb" in written


def test_elsewhere_there_is_no_live_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "ral_trace.tracer.cli", "-o", "run.duckdb", "--", sys.executable, "-c", PROGRAM]
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as rendezvous:
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env={**os.environ, "RAL_TRACE_DIR": f"{rendezvous}/rendezvous"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stderr
    assert "recording ·" not in done.stderr


def test_a_terminal_that_is_closed_costs_nothing(tmp_path: Path) -> None:
    """The recording ends, and is written, though nobody can be told."""
    ours, its = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TTY_COMPATIBLE", "CI")}
    words = [sys.executable, "-m", "ral_trace.tracer.cli", "--duration", "60s", "-o", "run.duckdb"]
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as folder:
        environment = {**plain, "TERM": "xterm-256color", "RAL_TRACE_DIR": f"{folder}/rendezvous"}
        with (
            subprocess.Popen(words, cwd=tmp_path, env=environment, stdin=its, stdout=its, stderr=its) as recording,
            subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment) as program,
        ):
            os.close(its)
            written = b""
            while b" events" not in written or b" 0 events" in written[-400:]:
                written += os.read(ours, 65536)
            os.close(ours)
            recording.send_signal(signal.SIGHUP)
            assert recording.wait(60) == 0
            program.wait()
    with open_trace(tmp_path / "run.duckdb") as trace:
        assert trace.rows("FROM event WHERE name = 'work'")
