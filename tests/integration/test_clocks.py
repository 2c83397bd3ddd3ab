"""Times of several processes on one host line up: never an answer before its question."""

from pathlib import Path

import pytest

from ral_trace.tracer import _native, open_trace
from ral_trace.tracer.assemble import WALL_CLOCK_JUMP_NS, _clock_jumps
from ral_trace.tracer.journal import Begin, Journal
from tests.integration.programs import LIGHT, Counts, python, ral_trace

ROUNDS = 3000

PING_PONG = f"""
turn = lambda: _page[4096]

def play(name, mine):
    for round in range({ROUNDS}):
        while turn() != 2 * round + mine:
            os.sched_yield()
        with annotate(f"{{name}} {{round}}"):
            pass
        _page[4096] = 2 * round + mine + 1

if os.fork() == 0:
    play("answer", 1)
    os._exit(0)
play("ask", 0)
os.wait()
"""


def test_an_answer_never_comes_before_its_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts(tmp_path / "counts")
    monkeypatch.setenv("RAL_TEST_COUNTS", str(counts.path))
    done = ral_trace("-o", "clocks.duckdb", "--", *python(LIGHT + PING_PONG), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "clocks.duckdb") as trace:
        rows = trace.rows("SELECT name, process, ts_ns, ts_ns + dur_ns AS end_ns FROM event WHERE kind = 'annotation'")
        info = dict(trace.query("SELECT key, value FROM trace_info")[1])
    found = {row["name"]: row for row in rows}
    assert len(found) == len(rows) == 2 * ROUNDS
    assert len({row["process"] for row in rows}) == 2
    wrong = [
        number
        for number in range(ROUNDS)
        if not found[f"ask {number}"]["end_ns"] <= found[f"answer {number}"]["ts_ns"]
        or (number and not found[f"answer {number - 1}"]["end_ns"] <= found[f"ask {number}"]["ts_ns"])
    ]
    assert wrong == []
    # How far the ticks came apart from CLOCK_MONOTONIC within a recording of seconds: less than the promised 10 us.
    assert 0 <= int(info["clock_error_ns"]) < 10_000


def journal(*samples: tuple[int, int, int]) -> Journal:
    begin = Begin(1, "", "", "", 0, 0, overwrite=False)
    return Journal(begin, clocks=[_native.ClockSample(*sample) for sample in samples])


SECOND = 1_000_000_000
ZERO = 1_790_000_000 * SECOND


def test_a_wall_clock_that_is_set_is_reported_and_changes_no_time() -> None:
    steady = [(2 * SECOND * n, SECOND * n, ZERO + SECOND * n) for n in range(4)]
    assert _clock_jumps(journal(*steady)) == []
    # Set forward by two seconds, and back by one: twice.
    set_by = [0, 2 * SECOND, 2 * SECOND, SECOND]
    jumping = [(t, m, r + by) for by, (t, m, r) in zip(set_by, steady, strict=True)]
    ((what, count),) = _clock_jumps(journal(*jumping))
    assert count == 2
    assert "+2.000 s, -1.000 s" in what
    clock = _native.Calibration(journal(*jumping).clocks)
    assert [clock.epoch_ns(2 * SECOND * n) for n in range(4)] == [ZERO + SECOND * n for n in range(4)]
    # NTP slews by half a millisecond a second at most: no jump.
    slewed = [(t, m, r + n * WALL_CLOCK_JUMP_NS // 20) for n, (t, m, r) in enumerate(steady)]
    assert _clock_jumps(journal(*slewed)) == []


def test_only_the_boot_clock_is_believed_after_a_jump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a real recording: durations come from the ticks, and their sum from CLOCK_MONOTONIC."""
    counts = Counts(tmp_path / "counts")
    monkeypatch.setenv("RAL_TEST_COUNTS", str(counts.path))
    program = (
        LIGHT
        + """
with annotate("outer"):
    begun = time.monotonic_ns()
    time.sleep(0.5)
    taken = time.monotonic_ns() - begun
_page[0] = taken
"""
    )
    done = ral_trace("-o", "sleep.duckdb", "--", *python(program), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "sleep.duckdb") as trace:
        (row,) = trace.rows("SELECT dur_ns FROM event WHERE name = 'outer'")
    # The annotation encloses what the program measured itself, to which the conversion may add its rounding.
    assert row["dur_ns"] >= counts.slot(0)[0] - 10_000
