from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.analysis.memory import growth, lifetimes, memory_curve, memory_peak, peak_holders
from tests.analysis.cases import T0, Case


@pytest.fixture
def trace(tmp_path: Path):
    case = Case()
    case.device(index=0, memory_bytes=10_000)
    case.device(index=1)
    case.region(0, 4096, 0)
    case.alloc(None, 5, 100, 0, before_trace=True)
    case.alloc("aten::mm", 10, 200, 256)
    case.alloc("aten::add.Tensor", 20, 300, 512)
    case.free(30, 200, 256)
    case.region(32, 4096, 8192)
    case.alloc("aten::mm", 35, 200, 256)
    case.free(40, 300, 512)
    case.free(50, 200, 256)
    case.alloc("aten::mm", 60, 50, 1024)
    with case.open(tmp_path) as opened:
        yield opened


def test_curve(trace):
    found = [(row["ts_ns"] - T0, row["allocated_bytes"]) for row in memory_curve(trace, device="ral:0")]
    assert found == [(0, 100), (10, 300), (20, 600), (30, 400), (35, 600), (40, 300), (50, 100), (60, 150)]


def test_peak_is_the_first_moment_of_the_most(trace):
    first, second = memory_peak(trace)
    assert first == {
        "device": "ral:0", "peak_bytes": 600, "at_ns": T0 + 20, "live_blocks": 3, "reserved_bytes": 4096,
        "end_bytes": 150, "memory_bytes": 10_000,
    }  # fmt: skip
    assert (second["device"], second["peak_bytes"], second["live_blocks"], second["end_bytes"]) == (
        "ral:1",
        None,
        None,
        None,
    )


def test_holders_add_up_to_the_peak(trace):
    found = peak_holders(trace, device="ral:0")
    assert [(row["op"], row["blocks"], row["bytes"], row["before_trace"]) for row in found] == [
        ("aten::add.Tensor", 1, 300, 0), ("aten::mm", 1, 200, 0), (None, 1, 100, 1),
    ]  # fmt: skip
    assert sum(row["percent"] for row in found) == pytest.approx(100)


def test_lifetimes(trace):
    found = {row["op"]: row for row in lifetimes(trace)}
    mm = found["aten::mm"]
    assert (mm["blocks"], mm["bytes"], mm["median_ns"], mm["p99_ns"], mm["still_live"], mm["still_live_bytes"]) == (
        3,
        450,
        15,
        20,
        1,
        50,
    )
    assert (found[None]["median_ns"], found[None]["before_trace"], found[None]["still_live"]) == (None, 1, 1)


def test_growth_tells_a_leak_from_a_cache(tmp_path: Path):
    case = Case()
    case.device(index=0)
    for step in range(6):
        start = step * 1000
        case.step(step, start, 900)
        case.alloc("leak", start + 10, 64, 10_000 + step * 64)
        case.alloc("scratch", start + 20, 512, 0)
        case.free(start + 30, 512, 0)
        if step == 2:
            case.alloc("cache", start + 40, 4096, 50_000)
        if step > 0:
            case.free(start + 50, 8, 90_000 + step - 1)
        case.alloc("steady", start + 60, 8, 90_000 + step)
    case.alloc("after the last step", 5950, 8, 99_999)
    with case.open(tmp_path) as trace:
        cache, leak = growth(trace)
    assert (cache["op"], cache["grown_bytes"], cache["steps_grown"], cache["steps"]) == ("cache", 4096, 1, 6)
    assert (leak["op"], leak["first_bytes"], leak["last_bytes"], leak["grown_bytes"], leak["grown_blocks"]) == (
        "leak",
        64,
        384,
        320,
        5,
    )
    assert (leak["steps_grown"], leak["steps_shrunk"], leak["bytes_per_step"]) == (5, 0, 64)


CHANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 100), st.integers(1, 60)), min_size=1, max_size=60)


@settings(max_examples=15, deadline=None)
@given(CHANGES, st.sampled_from([8, 12, 2000]))
def test_the_curve_equals_a_replay_and_thinning_keeps_the_peak(blocks, points):
    case = Case()
    case.device(index=0)
    for number, (begin, size, length) in enumerate(blocks):
        case.alloc("op", begin, size, number * 4096)
        if length <= 40:
            case.free(begin + length, size, number * 4096)
    replayed = {}
    for moment in range(110):
        replayed[moment] = sum(
            size for begin, size, length in blocks if begin <= moment and (length > 40 or begin + length > moment)
        )
    with TemporaryDirectory() as folder, case.open(Path(folder)) as trace:
        curve = [
            (row["ts_ns"] - T0, row["allocated_bytes"]) for row in memory_curve(trace, device="ral:0", points=points)
        ]
        (peak,) = memory_peak(trace)
        held = peak_holders(trace, device="ral:0")
    assert all(replayed[moment] == level for moment, level in curve)
    assert len(curve) <= max(points, 8)
    assert (
        max(level for _, level in curve)
        == max(replayed.values())
        == peak["peak_bytes"]
        == sum(row["bytes"] for row in held)
    )
    assert peak["at_ns"] - T0 == min(moment for moment, level in replayed.items() if level == peak["peak_bytes"])
    assert curve[-1][1] == replayed[109] == peak["end_bytes"]
