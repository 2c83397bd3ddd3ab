"""The flight recorder and its dumps, with programs that die in different ways; and dumps of ordinary recordings."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ral_trace.tracer import open_trace
from tests.integration.programs import CountPage, python, ral_trace, running, start, wait_for

TICKING = """
import mmap, sys, time
import torch
from ral_trace.tracer import annotate
file = open(sys.argv[1], "r+b")
page = memoryview(mmap.mmap(file.fileno(), 4096)).cast("q")
done = 0
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    with annotate(f"tick {done}"):
        pass
    done += 1
    page[0] = done
    time.sleep(0.001)
raise RuntimeError("nobody catches this")
"""
"""Annotates for some seconds, a name each, and counts; then raises."""

CHILD = """
import threading, torch
from ral_trace.tracer import annotate
def work(number):
    with annotate(f"of thread {number}"):
        pass
for number in range(50):
    thread = threading.Thread(target=work, args=(number,))
    thread.start()
    thread.join()
import os, time
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def flying(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A flight recorder, once it records."""
    recorder = start("--flight", "20s", "-o", "flight.duckdb", *words, cwd=folder)
    rendezvous = Path(os.environ["RAL_TRACE_DIR"])
    try:
        wait_for(lambda: any(rendezvous.glob("session-*/control")) if rendezvous.exists() else False, "it records")
        yield recorder
    finally:
        recorder.terminate()
        recorder.wait(60)


def ticks(trace: Path) -> list[int]:
    """The numbers of the ticks that a trace holds."""
    with open_trace(trace) as opened:
        rows = opened.rows("SELECT name FROM event WHERE kind = 'annotation' AND name LIKE 'tick %' ORDER BY ts_ns")
    return [int(row["name"].removeprefix("tick ")) for row in rows]


def facts(trace: Path) -> dict[str, str]:
    with open_trace(trace) as opened:
        return {row["key"]: row["value"] for row in opened.rows("FROM trace_info")}


def test_dump_holds_what_there_was_and_the_recording_goes_on(tmp_path: Path) -> None:
    page = CountPage(tmp_path / "count")
    with flying(tmp_path) as recorder, running(python(TICKING, page.path, "60")) as program:
        wait_for(lambda: page.count() > 300, "the program works")
        before = page.count()
        done = ral_trace("dump", "-o", "one.duckdb", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        after = page.count()
        found = ticks(tmp_path / "one.duckdb")
        assert found == list(range(len(found)))  # all since its begin, in order, none twice
        assert before <= len(found) <= after + 1
        wait_for(lambda: page.count() > after + 300, "the program goes on")
        assert ral_trace("dump", "-o", "two.json", cwd=tmp_path).returncode == 0
        assert len(ticks(tmp_path / "two.json")) > after + 300
        recorder.send_signal(signal.SIGINT)
        _, errors = recorder.communicate(timeout=60)
        assert recorder.returncode == 0, errors
        program.kill()
    assert facts(tmp_path / "one.duckdb")["flight_reason"] == "asked for"
    assert facts(tmp_path / "one.duckdb")["flight_asked_ns"] == "20000000000"


def test_a_ring_that_went_round_holds_the_last_and_says_how_much(tmp_path: Path) -> None:
    """A ring of 1,024 records: of more ticks than that the last are there, without a gap."""
    page = CountPage(tmp_path / "count")
    with flying(tmp_path, "--buffer", "64k"), running(python(TICKING, page.path, "60")) as program:
        wait_for(lambda: page.count() > 2500, "the ring goes round")
        before = page.count()
        assert ral_trace("dump", "-o", "last.duckdb", cwd=tmp_path).returncode == 0
        program.kill()
    found = ticks(tmp_path / "last.duckdb")
    assert found == list(range(found[0], found[0] + len(found)))
    assert 900 <= len(found) <= 1024
    assert found[-1] >= before - 1
    held_ns = int(facts(tmp_path / "last.duckdb")["flight_held_ns"])
    with open_trace(tmp_path / "last.duckdb") as trace:
        [span] = trace.rows(
            "SELECT max(ts_ns + dur_ns) - min(ts_ns + dur_ns) AS ns FROM event WHERE starts_with(name, 'tick ')"
        )
        assert held_ns >= span["ns"]
        assert held_ns < 20_000_000_000
        [ring] = trace.rows("SELECT * FROM ledger WHERE dropped > 0")
        assert ring["written"] == ring["received"] + ring["dropped"] + ring["lost"]
        assert ring["written"] >= found[-1] + 1
        assert any("more room with --buffer" in row["what"] for row in trace.rows("FROM quality"))


@pytest.mark.parametrize("death", ["exception", "kill"])
def test_a_program_that_dies_is_dumped_by_itself(tmp_path: Path, death: str) -> None:
    page = CountPage(tmp_path / "count")
    with flying(tmp_path) as recorder:
        with running(python(TICKING, page.path, "1" if death == "exception" else "60"), stderr=-3) as program:
            wait_for(lambda: page.count() > 100, "the program works")
            if death == "kill":
                program.kill()
            program.wait()
        wait_for((tmp_path / "flight.duckdb").exists, "the dump is written")
        time.sleep(1)
        recorder.send_signal(signal.SIGINT)
        _, errors = recorder.communicate(timeout=60)
    assert recorder.returncode == 0, errors
    assert len(ticks(tmp_path / "flight.duckdb")) - page.count() in (0, 1)
    reason = facts(tmp_path / "flight.duckdb")["flight_reason"]
    assert ("uncaught exception" in reason) == (death == "exception")
    assert not (tmp_path / "flight-2.duckdb").exists()


def test_a_command_under_the_flight_recorder(tmp_path: Path) -> None:
    page = CountPage(tmp_path / "count")
    words = ["--flight", "20s", "-o", "own.duckdb", "--", *python(TICKING, page.path, "1")]
    done = ral_trace(*words, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "nobody catches this" in done.stderr
    assert ticks(tmp_path / "own.duckdb") == list(range(page.count()))


def test_threads_that_are_gone_are_dumped_too(tmp_path: Path) -> None:
    with flying(tmp_path), running(python(CHILD), stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        assert ral_trace("dump", "-o", "threads.duckdb", cwd=tmp_path).returncode == 0
        program.kill()
    with open_trace(tmp_path / "threads.duckdb") as trace:
        rows = trace.rows("SELECT name FROM event WHERE name LIKE 'of thread %'")
    assert sorted(row["name"] for row in rows) == sorted(f"of thread {number}" for number in range(50))


def test_an_ordinary_recording_can_be_dumped_while_it_runs(tmp_path: Path, rendezvous: Path) -> None:
    page = CountPage(tmp_path / "count")
    recording = start("--duration", "600s", "-o", "all.duckdb", cwd=tmp_path)
    wait_for(lambda: any(rendezvous.glob("session-*/control")) if rendezvous.exists() else False, "it records")
    with running(python(TICKING, page.path, "60")) as program:
        wait_for(lambda: page.count() > 200, "the program works")
        before = page.count()
        assert ral_trace("dump", "-o", "so-far.duckdb", cwd=tmp_path).returncode == 0
        program.kill()
    recording.send_signal(signal.SIGINT)
    _, errors = recording.communicate(timeout=60)
    assert recording.returncode == 0, errors
    assert len(ticks(tmp_path / "so-far.duckdb")) >= before
    assert len(ticks(tmp_path / "all.duckdb")) - page.count() in (0, 1)


def test_dump_without_a_recording_says_so(tmp_path: Path) -> None:
    done = ral_trace("dump", cwd=tmp_path)
    assert done.returncode == 3
    assert "nothing is being recorded" in done.stderr
