"""The long tests: `make soak`. RAL_SOAK_SECONDS says how long each takes, RAL_SOAK_SEED with which dice."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from ral_trace.tracer import open_trace
from tests.integration.programs import (
    LIGHT,
    CountPage,
    Counts,
    assert_every_ring_balances,
    python,
    ral_trace,
    recorded,
    start,
    wait_for,
)
from tests.native import toolchain
from tests.native.test_native import BUILDS

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("RAL_TRACE_SOAK") != "1", reason="takes long; runs in `make soak`"),
]

SECONDS = float(os.environ.get("RAL_SOAK_SECONDS", "600"))
OTHERS_SECONDS = SECONDS / 5
"""Of the tests that are not about the device."""
SEED = int(os.environ.get("RAL_SOAK_SEED", "1"))
PROGRAMS = 8

PACED = """
import mmap, sys, time
import torch
import ral_trace.backend
torch.set_num_threads(1)
ral_trace.backend.enable()
file = open(sys.argv[1], "r+b")
page = memoryview(mmap.mmap(file.fileno(), 4096)).cast("q")
x = torch.ones(8, 8, device="ral:1")
done = 0
while True:
    x.mul_(1.0)
    done += 1
    page[0] = done
    if done % 50 == 0:
        time.sleep(0.05)
"""
"""Launches on ral:1 for ever, slowly enough that minutes of eight of them fit into one trace."""


def test_programs_that_are_killed_and_restarted_are_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(SEED)
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as shared:
        rendezvous = Path(shared) / "rendezvous"
        monkeypatch.setenv("RAL_TRACE_DIR", str(rendezvous))
        # The duration is only a bound: Ctrl-C ends it.
        recording = start("--duration", f"{int(OTHERS_SECONDS) + 3600}s", "-o", "soak.duckdb", cwd=tmp_path)
        try:
            wait_for(lambda: any(rendezvous.glob("session-*")), "the recording begins")
            time.sleep(0.5)
            counted = killed_at_random(tmp_path, dice)
            assert recording.poll() is None, "ral-trace goes on"
            recording.send_signal(signal.SIGINT)
            # Half an hour of them is thirty million events.
            _, errors = recording.communicate(timeout=1800)
        finally:
            recording.kill()
            recording.wait()
        assert recording.returncode == 0, errors
    assert len(counted) >= PROGRAMS
    assert sum(counted.values()) > 0
    with open_trace(tmp_path / "soak.duckdb") as trace:
        dropped, lost = assert_every_ring_balances(trace)
        rows = trace.rows("""
            SELECT p.pid, l.written, l.received, l.dropped, l.lost,
                   (SELECT count(*) FROM event e WHERE e.process = p.id) AS events,
                   (SELECT count(*) FROM event e WHERE e.process = p.id AND e.kind = 'launch'
                                                   AND e.name = 'aten::mul_.Tensor') AS launches
            FROM (SELECT process, sum(written) AS written, sum(received) AS received, sum(dropped) AS dropped,
                         sum(lost) AS lost FROM ledger GROUP BY process) l
            JOIN process p ON p.id = l.process""")
    found = {row["pid"]: row for row in rows}
    assert len(found) == len(rows)
    assert set(found) <= set(counted)
    # Of a program that is killed, each of its two threads may have had one event that it had not committed.
    assert lost <= 2 * len(counted)
    # A program that was killed while it imported torch may never have joined.
    assert {pid for pid, count in counted.items() if count > 0} <= set(found)
    wrong = [(row, counted[pid]) for pid, row in found.items() if not balanced(row, counted[pid])]
    assert wrong == []
    received = sum(row["received"] for row in rows)
    print(f"{len(counted)} programs, {received:,} events received, {dropped:,} dropped, {lost:,} lost")


def balanced(row: dict[str, int], count: int) -> bool:
    """The ledger adds up, every event that was received is a row (facts are none), and the launches are those that
    the program counted: one more where it died before it could count, fewer by what the ledger says is missing.
    """
    missing = row["dropped"] + row["lost"]
    return (
        row["written"] == row["received"] + missing
        and row["events"] <= row["received"]
        and 0 <= count + 1 - row["launches"] <= missing + 1
    )


def works(program: subprocess.Popen[bytes], page: CountPage) -> bool:
    assert program.poll() is None, "it ended by itself"
    return page.count() > 0


def killed_at_random(folder: Path, dice: random.Random) -> dict[int, int]:
    """Keeps the programs running, and kills one of them now and then. Returns what each counted, by pid."""
    running: list[tuple[subprocess.Popen[bytes], CountPage]] = []
    counted: dict[int, int] = {}

    def begin() -> None:
        page = CountPage(folder / f"count-{len(counted) + len(running)}")
        running.append((subprocess.Popen(python(PACED, page.path)), page))

    def kill(position: int) -> None:
        program, page = running.pop(position)
        program.kill()
        assert program.wait() == -signal.SIGKILL, "it ended by itself"
        assert program.pid not in counted
        counted[program.pid] = page.count()

    try:
        for _ in range(PROGRAMS):
            begin()
        wait_for(lambda: all(works(*one) for one in running), "all programs work", seconds=120)
        until = time.monotonic() + OTHERS_SECONDS
        while time.monotonic() < until:
            time.sleep(min(dice.uniform(0.2, 4), max(0.0, until - time.monotonic())))
            kill(dice.randrange(len(running)))
            begin()
    finally:
        for program, _ in running:
            program.kill()
        while running:
            kill(-1)
    return counted


def test_the_allocator_with_many_more_examples() -> None:
    from tests.backend.test_core_allocator import AllocatorModel

    run_state_machine_as_test(
        AllocatorModel,
        settings=settings(max_examples=max(50, int(8 * OTHERS_SECONDS)), stateful_step_count=150, deadline=None),
    )


def test_damaged_files_with_other_seeds(tmp_path: Path) -> None:
    """Under the address and undefined-behaviour sanitizers."""
    sources = sorted((Path(toolchain.__file__).parent).glob("*.cpp"))
    units = {"tracer": toolchain.record_path_sources(), "cases": sources}
    flags = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    program = toolchain.build(tmp_path / "tests", units, flags)
    until = time.monotonic() + OTHERS_SECONDS
    seed = SEED
    while seed == SEED or time.monotonic() < until:
        seed += 1
        with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as folder:
            place = Path(folder) / "rendezvous"
            place.mkdir(0o700)
            done = subprocess.run(
                [program, "damaged_files_are_read_safely", "a_damaged_spool_is_read_safely"],
                env={**os.environ, "RAL_TRACE_DIR": str(place), "RAL_TRACE_TEST_SEED": str(seed)},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        assert done.returncode == 0, (seed, done.stderr)
    print(f"{seed - SEED} seeds")


WORKING = """
threads = [threading.Thread(target=work, args=(n, 10**9)) for n in range(4)]
for thread in threads: thread.start()
"""


def test_collectors_that_are_killed_leave_everything_to_salvage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a random moment, again and again; the program's threads are faster than any ring."""
    dice = random.Random(SEED)
    until = time.monotonic() + OTHERS_SECONDS
    rounds = 0
    while rounds == 0 or time.monotonic() < until:
        rounds += 1
        counts = Counts(tmp_path / f"counts-{rounds}")
        monkeypatch.setenv("RAL_TEST_COUNTS", str(counts.path))
        with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as shared:
            monkeypatch.setenv("RAL_TRACE_DIR", f"{shared}/rendezvous")
            program: list[int] = []
            recording = start("-o", "never.duckdb", "--", *python(LIGHT + WORKING), cwd=tmp_path)
            wait_for(lambda counts=counts: len(counts.by_pid()) > 0, "the program works")
            time.sleep(dice.uniform(0, 1.5))
            recording.kill()
            recording.wait()
            program += counts.by_pid()
            time.sleep(dice.uniform(0, 0.1))
            os.kill(program[0], signal.SIGKILL)
            recording.communicate()  # until the program has let go of the pipes, too
            wait_for(lambda pid=program[0]: not Path(f"/proc/{pid}").exists(), "the program is gone")
            output = tmp_path / f"salvaged-{rounds}.duckdb"
            done = ral_trace("--salvage", "-o", output, cwd=tmp_path)
            assert done.returncode == 0, (rounds, done.stderr)
        with open_trace(output) as trace:
            dropped, lost = assert_every_ring_balances(trace)
            (written,) = trace.rows("SELECT sum(written) AS n, sum(received) AS received FROM ledger")
            (count,) = counts.by_pid().values()
            # In each thread one may have been written that was not counted yet, and one that was not committed.
            assert 0 <= written["n"] - count <= 4, rounds
            assert lost <= 4, rounds
            assert recorded(trace) == {program[0]: written["received"]}, rounds
            assert written["received"] + dropped + lost == written["n"]
        output.unlink()
    print(f"{rounds} collectors killed")


def test_random_programs_end_with_the_right_values() -> None:
    """A process each few minutes, so that an hour's soak sees many beginnings and ends."""
    until = time.monotonic() + SECONDS
    seed = SEED
    while seed == SEED or time.monotonic() < until:
        seed += 1
        seconds = max(10.0, min(120.0, until - time.monotonic()))
        words = ["--seed", str(seed), "--seconds", str(seconds), "--threads", str(1 + seed % 4)]
        words += ["--devices", ("host:1,sim:2", "sim:2", "host:2")[seed % 3]]
        done = subprocess.run(
            [sys.executable, "-m", "tests.soak.random_programs", *words],
            env={**os.environ, "RAL_MODE": ("pf", "vf")[seed % 2]},
            capture_output=True,
            text=True,
            timeout=seconds + 200,
            check=False,
        )
        assert done.returncode == 0, (words, done.stderr)
        print(" ".join(words), done.stdout)


@pytest.mark.parametrize("build", ["address", "thread"])
def test_random_work_in_the_core_with_other_seeds(tmp_path: Path, build: str) -> None:
    """Streams and allocators without torch, under the sanitizers."""
    sources = [Path(toolchain.__file__).with_name(name) for name in ("main.cpp", "test_core.cpp")]
    units = {"allocator": toolchain.allocator_sources(), "streams": toolchain.stream_sources(), "cases": sources}
    program = toolchain.build(tmp_path / "tests", units, BUILDS[build])
    until = time.monotonic() + OTHERS_SECONDS
    seed = SEED
    while seed == SEED or time.monotonic() < until:
        seed += 1
        done = subprocess.run(
            [program],
            env={**os.environ, "RAL_TRACE_TEST_SEED": str(seed), "RAL_TRACE_TEST_STEPS": "20000"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, (seed, done.stderr)
    print(f"{seed - SEED} seeds")
