"""Replays of a trace's allocations; tests/integration/test_replay.py compares them with real runs."""

from pathlib import Path

import pytest

from ral_trace.analysis.replay import ALTERNATIVES, RECORDED, allocator_replay, setup_of
from ral_trace.backend.core import BadSettings
from tests.analysis.cases import INVALID, T0, Case

MIB = 1 << 20


def holes() -> Case:
    """A hole of 3 MiB lies before one of 1 MiB; then come 1 MiB and 3 MiB."""
    case = Case()
    case.device(index=0, memory_bytes=8 * MIB)
    case.region(0, 8 * MIB, 64 * MIB)
    place = 64 * MIB
    for number, size in enumerate([3, 1, 1, 1]):
        case.alloc("op", 10 + number, size * MIB, place)
        place += size * MIB
    case.free(20, 3 * MIB, 64 * MIB)
    case.free(21, MIB, 68 * MIB)
    case.alloc("op", 30, MIB, 68 * MIB)
    case.alloc("op", 31, 3 * MIB, 64 * MIB)
    return case


def test_best_fit_has_room_where_first_fit_has_none(tmp_path: Path):
    """A range of 6 MiB, and 6 handles of 1: first fit puts the 1 MiB into the hole of 3, and nothing is left for 3."""
    with holes().open(tmp_path) as trace:
        recorded, best, first = allocator_replay(
            trace, settings=["", "fit:first"], capacity=6 * MIB, region_bytes=6 * MIB, max_regions=1
        )
    assert (recorded["settings"], recorded["peak_reserved_bytes"], recorded["at_ns"]) == (RECORDED, 8 * MIB, T0)
    assert recorded["peak_allocated_bytes"] == 6 * MIB
    assert (best["peak_reserved_bytes"], best["peak_allocated_bytes"], best["out_of_memory_ns"]) == (
        6 * MIB,
        6 * MIB,
        None,
    )
    assert best["ratio"] == pytest.approx(0.75)
    assert (first["out_of_memory_ns"], first["peak_allocated_bytes"]) == (T0 + 31, 6 * MIB)
    assert "3,145,728 bytes asked for" in first["note"]


def test_what_was_there_before_is_allocated_first(tmp_path: Path):
    case = Case()
    case.device(index=0)
    case.alloc(None, 0, MIB, 64 * MIB, before_trace=True)
    case.alloc("op", 10, MIB, 65 * MIB)
    case.free(20, MIB, 64 * MIB)
    with case.open(tmp_path) as trace:
        _, row = allocator_replay(trace, settings=["region_size_mb:1"])
    # Without a capacity in the trace there is no end to it.
    assert (row["peak_allocated_bytes"], row["regions"], row["out_of_memory_ns"]) == (2 * MIB, 2, None)


def streams(done: int) -> Case:
    """Stream 0's block is freed at 30, while its kernel runs until `done`; at 50 stream 1 wants as much."""
    case = Case()
    case.device(index=0, memory_bytes=64 * MIB)
    case.alloc("op", 10, MIB, 64 * MIB)
    case.event("launch", "op", 5, 10, device=0, correlation=1)
    case.event("kernel", "op", 20, done - 20, device=0, correlation=1)
    case.free(30, MIB, 64 * MIB)
    case.alloc("op", 50, MIB, 66 * MIB)
    case.event("launch", "op", 45, 10, device=0, correlation=2, stream=1)
    return case


@pytest.mark.parametrize(("done", "regions"), [(40, 1), (60, 2)])
def test_memory_goes_to_another_stream_when_its_own_is_done(done: int, regions: int, tmp_path: Path):
    case = streams(done)
    case.event("kernel", "op", 20, 9980, device=0, correlation=1, flags=INVALID)  # whose times cannot be
    case.device(index=1)  # whose stream is number 1 of the trace
    with case.open(tmp_path) as trace:
        trace.connection.execute("CREATE TEMP TABLE stream AS SELECT * REPLACE (id AS number) FROM trace.stream")
        _, row = allocator_replay(trace, device="ral:0", settings=["region_size_mb:1"])
    assert row["regions"] == regions


def test_too_long_a_sequence_is_left_out_and_it_is_said(tmp_path: Path):
    with holes().open(tmp_path) as trace:
        recorded, skipped = allocator_replay(trace, most_changes=11)
        assert len(allocator_replay(trace, most_changes=12)) == 1 + len(ALTERNATIVES)
    assert recorded["peak_reserved_bytes"] == 8 * MIB
    assert (skipped["settings"], skipped["peak_reserved_bytes"]) == (None, None)
    assert skipped["note"] == "up to 12 steps, more than 11: use ral-trace replay"


def test_settings_that_cannot_be(tmp_path: Path):
    with holes().open(tmp_path) as trace, pytest.raises(BadSettings, match="nonsense"):
        allocator_replay(trace, settings=["nonsense:1"])


def test_the_hosts_memory_is_no_devices(tmp_path: Path):
    case = Case()
    case.device(index=0, type="cpu")
    case.alloc("op", 0, 64, 0)
    with case.open(tmp_path) as trace:
        assert allocator_replay(trace) == []


def test_the_setup_follows_from_the_trace(tmp_path: Path):
    case = holes()
    case.alloc("op", 60, 384, 90 * MIB)
    case.device(index=0, type="cuda")
    with case.open(tmp_path) as trace:
        ral, cuda = setup_of(trace, 0), setup_of(trace, 1)
    assert (ral.capacity, ral.max_regions, ral.alignment, ral.domains) == (8 * MIB, 16, 128, 1)
    assert cuda.max_regions > 1 << 15


def test_a_setup_that_cannot_be_is_not_made(tmp_path: Path):
    """A device without memory, whose regions look like the shares of more domains than it has handles."""
    case = Case()
    case.device(index=0, memory_bytes=-5)
    for number in range(40):
        case.region(0, MIB, 64 * MIB)
        case.changes[-1]["handle"] = number
    case.event("region", "region", 0, 0, device=0, args={"stripe_bytes": "wide"})
    case.alloc("op", 10, 1 << 40, 64 * MIB)
    with case.open(tmp_path) as trace:
        _, row = allocator_replay(trace, settings=[""])
    assert (row["peak_allocated_bytes"], row["out_of_memory_ns"]) == (1 << 40, None)
