"""Recording real programs from outside: as a command, while they run, killed, interrupted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ral_trace.tracer import open_trace
from tests.integration.programs import COUNTING, CPU_LOOP, CountPage, python, ral_trace, running, start, wait_for


def launches(trace: Path, name: str = "aten::mul_.Tensor") -> int:
    with open_trace(trace) as opened:
        return len(opened.rows("SELECT id FROM launches WHERE name = ?", [name]))


def assert_balanced(trace: Path) -> None:
    """Nothing is missing, and what was received is a row: an event, or a fact (a ral device and its three streams)."""
    with open_trace(trace) as opened:
        for ring in opened.rows("FROM ledger"):
            assert ring["written"] == ring["received"] + ring["dropped"] + ring["lost"]
            assert ring["dropped"] == ring["lost"] == 0
        for row in opened.rows("SELECT process, sum(received) AS received FROM ledger GROUP BY process"):
            [events] = opened.rows("SELECT count(*) AS n FROM event WHERE process = ?", [row["process"]])
            [devices] = opened.rows(
                "SELECT count(*) AS n FROM device WHERE process = ? AND type = 'ral'", [row["process"]]
            )
            assert row["received"] == events["n"] + devices["n"] * (1 + 3)


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


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_or_a_closed_terminal_stops_both_and_keeps_everything(tmp_path: Path, stop: signal.Signals) -> None:
    page = CountPage(tmp_path / "count")
    recording = start("-o", "interrupted.duckdb", "--", *python(COUNTING, page.path), cwd=tmp_path)
    wait_for(lambda: page.count() > 1000, "the program works")
    recording.send_signal(stop)
    _, errors = recording.communicate(timeout=120)
    assert recording.returncode == 128 + stop, errors
    assert launches(tmp_path / "interrupted.duckdb") - page.count() in (0, 1)
    assert_balanced(tmp_path / "interrupted.duckdb")


def test_running_programs_and_those_that_start_meanwhile_are_recorded(tmp_path: Path) -> None:
    with running(python(CPU_LOOP, "30"), stdout=subprocess.PIPE) as early:
        assert early.stdout is not None
        assert early.stdout.readline() == "running\n"
        recording = start("--duration", "12s", "-o", "all.duckdb", cwd=tmp_path)
        time.sleep(1)
        with running(python(CPU_LOOP, "30"), stdout=subprocess.PIPE) as late:
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
        assert {row["type"] for row in trace.rows("FROM device")} == {"cpu"}


def test_ctrl_c_without_a_command_ends_the_recording_well(tmp_path: Path) -> None:
    with running(python(CPU_LOOP, "60"), stdout=subprocess.PIPE) as program:
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
        assert (
            len(trace.rows("SELECT DISTINCT process FROM event WHERE kind = 'op' AND name = 'aten::mul.Tensor'")) == 1
        )


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
        rows = trace.rows(
            "SELECT process, count(*) AS n FROM event WHERE kind = 'op' AND name = 'aten::mul.Tensor' GROUP BY 1"
        )
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
            assert (
                trace.rows("SELECT count(*) AS n FROM event WHERE kind = 'op' AND name = 'aten::mul.Tensor'")[0]["n"]
                == 3000
            )


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


def test_the_ending_of_the_output_decides_the_format(tmp_path: Path) -> None:
    program = "import torch; torch.ones(2) * 3"
    for name, begins in [("run.pftrace", b"\n"), ("run.json", b"{"), ("run.json.gz", b"\x1f\x8b")]:
        done = ral_trace("-o", name, "--", sys.executable, "-c", program, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name).read_bytes().startswith(begins) or name == "run.pftrace"
    with open_trace(tmp_path / "run.json.gz") as trace:
        assert (
            trace.rows("SELECT count(*) AS n FROM event WHERE kind = 'op' AND name = 'aten::mul.Tensor'")[0]["n"] == 1
        )
    assert ral_trace("-o", "folder", "--", sys.executable, "-c", program, cwd=tmp_path).returncode == 0
    assert list((tmp_path / "folder" / "event").glob("run=*/rank=*/*.parquet"))


def test_a_program_that_only_has_devices_did_nothing(tmp_path: Path) -> None:
    done = ral_trace("-o", "idle.duckdb", "--", sys.executable, "-c", "import torch", cwd=tmp_path, RAL_ENABLE="1")
    assert done.returncode == 3, done.stderr
    assert "none ran an op" in done.stderr
    assert not (tmp_path / "idle.duckdb").exists()


def test_a_program_records_itself_though_a_forked_child_lives_on(tmp_path: Path) -> None:
    program = f"""
import os, time, torch
from ral_trace.tracer import annotate, trace
with trace({str(tmp_path / "self.duckdb")!r}):
    with annotate("mine"):
        torch.ones(2) * 3
    child = os.fork()
    if child == 0:
        time.sleep(300)
        os._exit(0)
begun = time.monotonic()
os.kill(child, 9)
"""
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun < 200
    with open_trace(tmp_path / "self.duckdb") as trace:
        rows = trace.rows(
            "SELECT name FROM event WHERE kind = 'annotation' OR (kind = 'op' AND name = 'aten::mul.Tensor') ORDER BY 1"
        )
        assert [row["name"] for row in rows] == ["aten::mul.Tensor", "mine"]
        assert len(trace.rows("FROM process")) == 2


def test_what_cannot_be_written_can_be_salvaged(tmp_path: Path, rendezvous: Path) -> None:
    """The folder is taken away while the program runs."""
    (tmp_path / "gone").mkdir()
    program = f"import torch, shutil; torch.ones(2) * 3; shutil.rmtree({str(tmp_path / 'gone')!r})"
    words = ["-o", "gone/run.duckdb", "--", sys.executable, "-c", program]
    done = ral_trace(*words, cwd=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 1, done.stderr
    assert "ral-trace --salvage" in done.stderr
    done = ral_trace("--salvage", "-o", "elsewhere.duckdb", cwd=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "elsewhere.duckdb") as trace:
        assert (
            trace.rows("SELECT count(*) AS n FROM event WHERE kind = 'op' AND name = 'aten::mul.Tensor'")[0]["n"] == 1
        )
    assert [path.name for path in rendezvous.iterdir()] == ["page"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("ral-trace-")] == []


def test_a_short_lived_process_has_its_command_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch; torch.ones(2) * 3")
    words = [sys.executable, "train.py", "-m", "resnet50"]
    assert ral_trace("-o", "short.duckdb", "--", *words, cwd=tmp_path).returncode == 0
    with open_trace(tmp_path / "short.duckdb") as trace:
        (row,) = trace.rows("SELECT name, command_line, ended_how FROM process")
        assert row == {"name": "train.py", "command_line": " ".join(words), "ended_how": "exited"}
