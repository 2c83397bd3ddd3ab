from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.analysis.lifetimes import lifetimes
from ral_trace.analysis.memory import memory_by_category, memory_categories, memory_curve, memory_peak
from ral_trace.analysis.peak_holders import peak_holders
from ral_trace.tracer.reading import open_trace
from tests.analysis.cases import T0, Case
from tests.shared import CASES, needs_shared


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


def test_lifetimes_against_steps_and_the_next_use_of_the_address(tmp_path: Path):
    case = Case()
    case.device(index=0)
    for step in range(3):
        case.step(step, step * 1_000_000, 900_000)
    case.alloc("scratch", 100, 64, 0)
    case.free(200, 64, 0)
    case.alloc("scratch", 100_200, 64, 0)  # 100 us after the free, which is at once
    case.free(100_300, 64, 0)
    case.alloc("scratch", 200_301, 64, 0)  # and a nanosecond more than that
    case.free(950_000, 64, 0)  # after its step's end
    case.alloc("state", 300, 64, 4096)
    case.free(1_950_000, 64, 4096)
    with case.open(tmp_path) as trace:
        found = {row["op"]: row for row in lifetimes(trace)}
    scratch, state = found["scratch"], found["state"]
    assert (scratch["short_lived"], scratch["long_lived"], scratch["reused_at_once"]) == (2, 0, 1)
    assert (state["short_lived"], state["long_lived"], state["reused_at_once"]) == (0, 1, 0)


@needs_shared
@pytest.mark.parametrize(
    ("name", "peak", "end", "before"),
    [
        ("alloc_before_trace", 2_097_152 + 512, 2_097_152 + 512, 1),
        ("free_without_alloc", 2_097_152, 0, 1),
        ("free_pending", 2_097_152, 2_097_152, 0),
        ("addr_reused_without_free", 1024, 512, 0),
        ("cyclic_garbage_collected", 20 << 20, 0, 0),
        ("leak_every_step", 60 << 20, 60 << 20, 0),
    ],
)
def test_snapshots(name: str, peak: int, end: int, before: int):
    with open_trace(CASES / "snap" / f"{name}.pickle") as trace:
        curve = memory_curve(trace)
        [found] = memory_peak(trace)
        lives = lifetimes(trace)
        categories = memory_categories(trace)
    assert (found["peak_bytes"], found["end_bytes"]) == (peak, end)
    assert min(row["allocated_bytes"] for row in curve) >= 0
    assert sum(row["before_trace"] for row in lives) == before
    assert sum(row["at_peak_bytes"] for row in categories) == peak


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


@settings(max_examples=15, deadline=None)
@given(CHANGES, st.sampled_from([8, 2000]), st.randoms(use_true_random=False))
def test_categories_add_up_to_the_curve_in_whatever_order_rows_are_stored(blocks, points, random):
    case = Case()
    case.device(index=0)
    case.event("op", "Node", 40, 20, category="backward")
    for step in range(5):
        case.step(step, step * 20, 18)
    for number, (begin, size, length) in enumerate(blocks):
        case.alloc("op", begin, size, number * 4096)
        if length <= 40:
            case.free(begin + length, size, number * 4096)
    answers = []
    for order in (None, random.sample(range(len(case.events)), len(case.events))):
        with TemporaryDirectory() as folder, case.open(Path(folder), order=order) as trace:
            answers.append((memory_by_category(trace, points=points), memory_categories(trace)))
            curve, [peak] = memory_curve(trace, points=points), memory_peak(trace)
    assert answers[0] == answers[1]
    by_category, totals = answers[0]
    assert all(row["bytes"] > 0 for row in by_category)
    for moment in curve:
        at = [row["bytes"] for row in by_category if row["ts_ns"] == moment["ts_ns"]]
        assert sum(at) == moment["allocated_bytes"]
    assert sum(row["at_peak_bytes"] for row in totals) == peak["peak_bytes"]
    assert sum(row["bytes"] for row in totals) == sum(size for _, size, _ in blocks)
    assert all(row["most_bytes"] <= peak["peak_bytes"] for row in totals)
