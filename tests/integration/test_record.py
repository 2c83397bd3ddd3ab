"""Recording real programs from outside: as a command, while they run, killed, interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ral_trace.tracer import open_trace
from tests.integration.programs import COUNTING, CPU_LOOP, CountPage, python, ral_trace, start, wait_for


def launches(trace: Path, name: str = "aten::mul_.Tensor") -> int:
    with open_trace(trace) as opened:
        return len(opened.rows("SELECT id FROM launches WHERE name = ?", [name]))


def assert_balanced(trace: Path) -> None:
    """written = received + dropped + lost, and every event that was received is a row (device facts aside)."""
    with open_trace(trace) as opened:
        for row in opened.rows("FROM ledger"):
            assert row["written"] == row["received"] + row["dropped"] + row["lost"]
        assert opened.rows("SELECT sum(dropped) + sum(lost) AS missing FROM ledger")[0]["missing"] == 0


def test_a_killed_program_leaves_all_that_it_did(tmp_path: Path) -> None:
    page = CountPage(tmp_path / "count")
    recording = start("-o", "killed.duckdb", "--", *python(COUNTING, page.path), cwd=tmp_path)
    wait_for(lambda: page.count() > 3000, "the program works")
    child = int(subprocess.run(["pgrep", "-P", str(recording.pid)], capture_output=True, text=True, check=True).stdout)
    os.kill(child, signal.SIGKILL)
    _, errors = recording.communicate(timeout=120)
    assert recording.returncode == 128 + signal.SIGKILL
    assert "killed.duckdb" in errors
    # The launch that was under way may have been written before it could be counted, so one more is right too.
    assert launches(tmp_path / "killed.duckdb") - page.count() in (0, 1)
    assert_balanced(tmp_path / "killed.duckdb")
    with open_trace(tmp_path / "killed.duckdb") as trace:
        assert trace.rows("SELECT ended_how FROM process")[0]["ended_how"] == "killed by SIGKILL"
        assert any("SIGKILL" in row["what"] for row in trace.rows("SELECT what FROM quality"))


def test_ctrl_c_on_ral_trace_stops_both_and_keeps_everything(tmp_path: Path) -> None:
    page = CountPage(tmp_path / "count")
    recording = start("-o", "interrupted.duckdb", "--", *python(COUNTING, page.path), cwd=tmp_path)
    wait_for(lambda: page.count() > 1000, "the program works")
    recording.send_signal(signal.SIGINT)
    _, errors = recording.communicate(timeout=120)
    assert recording.returncode == 128 + signal.SIGINT, errors
    assert launches(tmp_path / "interrupted.duckdb") - page.count() in (0, 1)
    assert_balanced(tmp_path / "interrupted.duckdb")


def test_running_programs_and_those_that_start_meanwhile_are_recorded(tmp_path: Path) -> None:
    with subprocess.Popen(python(CPU_LOOP, "30"), stdout=subprocess.PIPE, text=True) as early:
        assert early.stdout is not None
        assert early.stdout.readline() == "running\n"
        recording = start("--duration", "12s", "-o", "all.duckdb", cwd=tmp_path)
        time.sleep(1)
        with subprocess.Popen(python(CPU_LOOP, "30"), stdout=subprocess.PIPE, text=True) as late:
            _, errors = recording.communicate(timeout=120)
            late.kill()
        early.kill()
    assert recording.returncode == 0, errors
    with open_trace(tmp_path / "all.duckdb") as trace:
        adds = trace.rows(
            "SELECT pid, count(*) AS adds FROM events WHERE kind = 'op' AND name = 'aten::add.Tensor' GROUP BY pid"
        )
        assert {row["pid"] for row in adds} == {early.pid, late.pid}
        assert all(row["adds"] > 50 for row in adds)
        assert {row["ended_how"] for row in trace.rows("SELECT ended_how FROM process")} == {"still running"}
        assert not trace.rows("FROM device")


def test_ctrl_c_without_a_command_ends_the_recording_well(tmp_path: Path) -> None:
    with subprocess.Popen(python(CPU_LOOP, "60"), stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "running\n"
        recording = start("--duration", "60s", "-o", "early.duckdb", cwd=tmp_path)
        time.sleep(3)
        recording.send_signal(signal.SIGINT)
        _, errors = recording.communicate(timeout=60)
        assert program.poll() is None
        program.kill()
    assert recording.returncode == 0, errors
    assert_balanced(tmp_path / "early.duckdb")


def test_duration_with_a_command_counts_from_the_first_event_and_waits(tmp_path: Path) -> None:
    begun = time.monotonic()
    done = ral_trace("--duration", "500ms", "-o", "part.duckdb", "--", *python(CPU_LOOP, "3"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun >= 3
    with open_trace(tmp_path / "part.duckdb") as trace:
        span = trace.rows(
            "SELECT (max(ts_ns) - min(ts_ns)) / 1e9 AS seconds FROM event WHERE name = 'aten::add.Tensor'"
        )[0]["seconds"]
        assert 0.2 < span < 2.5
        assert trace.rows("SELECT ended_how FROM process")[0]["ended_how"] == "still running"


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_of_the_command_wins(tmp_path: Path, code: int) -> None:
    program = f"import torch, sys; torch.ones(2) + 1; sys.exit({code})"
    done = ral_trace("-o", "code.duckdb", "--", sys.executable, "-c", program, cwd=tmp_path)
    assert done.returncode == code
    assert (tmp_path / "code.duckdb").exists()


def test_children_of_the_command_are_recorded(tmp_path: Path) -> None:
    child = "import torch; torch.ones(3) * 2"
    program = f"import subprocess, sys, torch; torch.ones(2) + 1; subprocess.run([sys.executable, '-c', {child!r}])"
    done = ral_trace("-o", "family.duckdb", "--", sys.executable, "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "family.duckdb") as trace:
        assert len(trace.rows("FROM process")) == 2
        assert len(trace.rows("SELECT DISTINCT process FROM event WHERE name = 'aten::mul.Tensor'")) == 1


def test_a_forked_child_has_rings_of_its_own(tmp_path: Path) -> None:
    program = """
import os, torch
torch.ones(2) + 1
if os.fork() == 0:
    for _ in range(7): torch.ones(2) * 3
    os._exit(0)
os.wait()
for _ in range(5): torch.ones(2) * 3
"""
    done = ral_trace("-o", "fork.duckdb", "--", sys.executable, "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "fork.duckdb") as trace:
        rows = trace.rows("SELECT process, count(*) AS n FROM event WHERE name = 'aten::mul.Tensor' GROUP BY 1")
        assert sorted(row["n"] for row in rows) == [5, 7]
    assert_balanced(tmp_path / "fork.duckdb")


def test_two_sessions_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    program = "import torch\nfor _ in range(3000): torch.ones(2) * 3"
    outer = start("--duration", "20s", "-o", "outer.duckdb", cwd=tmp_path)
    time.sleep(1)
    done = ral_trace("-o", "inner.duckdb", "--", sys.executable, "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    outer.send_signal(signal.SIGINT)
    _, errors = outer.communicate(timeout=60)
    assert outer.returncode == 0, errors
    for name in ("inner.duckdb", "outer.duckdb"):
        with open_trace(tmp_path / name) as trace:
            assert trace.rows("SELECT count(*) AS n FROM event WHERE name = 'aten::mul.Tensor'")[0]["n"] == 3000


def test_nothing_is_left_in_shared_memory(tmp_path: Path, rendezvous: Path) -> None:
    program = "import torch; torch.ones(2) * 3"
    assert ral_trace("-o", "clean.duckdb", "--", sys.executable, "-c", program, cwd=tmp_path).returncode == 0
    assert [path.name for path in rendezvous.iterdir()] == ["page"]


def test_a_recording_whose_collector_died_is_announced(tmp_path: Path, rendezvous: Path) -> None:
    first = start("--duration", "60s", "-o", "dead.duckdb", cwd=tmp_path)
    wait_for(lambda: any(rendezvous.glob("session-*")) if rendezvous.exists() else False, "the session begins")
    time.sleep(0.5)
    first.kill()
    first.wait()
    done = ral_trace("-o", "next.duckdb", "--", sys.executable, "-c", "import torch; torch.ones(2) * 3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "collector died" in done.stderr
    with open_trace(tmp_path / "next.duckdb") as trace:
        assert len(trace.rows("FROM process")) == 1
