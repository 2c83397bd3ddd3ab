"""How regions are filled: free runs, fragmentation, and the map at any time."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.analysis.regions import fragmentation, fragmentation_over_time, region_map
from tests.analysis.cases import T0, Case


@pytest.fixture
def trace(tmp_path: Path):
    """A region of 1000 bytes from 0 on and one of 500 from 5 on: used are 0-100, 300-400 and 900-1000 of the first."""
    case = Case()
    case.device(index=0)
    case.region(0, 1000, 4096)
    case.region(5, 500, 16384)
    case.alloc("aten::mm", 10, 100, 4096)
    case.alloc("aten::add.Tensor", 20, 100, 4096 + 300)
    case.alloc("aten::mm", 30, 100, 4096 + 900)
    case.alloc("aten::gone", 35, 50, 4096 + 500)
    case.free(38, 50, 4096 + 500)
    for change in case.changes:
        if change["action"] == "alloc":
            change["requested_bytes"] = change["size_bytes"] - 1
    with case.open(tmp_path) as opened:
        yield opened


def places(rows):
    return [(row["region"], row["offset_bytes"], row["length_bytes"], row["state"], row["op"]) for row in rows]


def test_the_map_at_a_time(trace):
    assert places(region_map(trace, at_ns=T0 + 40)) == [
        (0, 0, 100, "block", "aten::mm"),
        (0, 100, 200, "free", None),
        (0, 300, 100, "block", "aten::add.Tensor"),
        (0, 400, 500, "free", None),
        (0, 900, 100, "block", "aten::mm"),
        (1, 0, 500, "free", None),
    ]
    assert places(region_map(trace, at_ns=T0 + 4)) == [(0, 0, 1000, "free", None)]
    assert region_map(trace, at_ns=T0 - 1) == []
    assert region_map(trace, device="ral:1") == []


def test_the_map_is_of_the_peak_and_its_largest_pieces(trace):
    rows = region_map(trace)
    assert {row["at_ns"] - T0 for row in rows} == {35}
    assert ("aten::gone", 50) in {(row["op"], row["length_bytes"]) for row in rows}
    assert places(region_map(trace, limit=2)) == [(0, 550, 350, "free", None), (1, 0, 500, "free", None)]


def test_fragmentation_at_the_peak(trace):
    [found] = fragmentation(trace)
    assert found == {
        "device": "ral:0", "ts_ns": T0 + 35, "regions": 2, "reserved_bytes": 1500, "used_bytes": 350,
        "free_bytes": 1150, "free_runs": 4, "largest_free_bytes": 500,
        "fragmentation_percent": pytest.approx(100 * 650 / 1150), "rounding_bytes": 4,
    }  # fmt: skip


def test_fragmentation_over_time(trace):
    rows = fragmentation_over_time(trace, moments=39)
    assert [row["ts_ns"] - T0 for row in rows] == list(range(39))
    at = {row["ts_ns"] - T0: row for row in rows}
    assert (at[0]["free_bytes"], at[0]["fragmentation_percent"], at[4]["regions"]) == (1000, 0, 1)
    assert (at[30]["used_bytes"], at[30]["free_runs"], at[30]["largest_free_bytes"]) == (300, 3, 500)
    assert at[38]["used_bytes"] == 300


def test_no_regions(tmp_path: Path):
    case = Case()
    case.device(index=0)
    case.alloc("aten::mm", 0, 64, 0)
    with case.open(tmp_path) as trace:
        assert fragmentation(trace) == region_map(trace) == []


BLOCKS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(0, 15)), max_size=12)


@settings(max_examples=20, deadline=None)
@given(BLOCKS, st.integers(0, 60))
def test_map_and_fragmentation_agree_with_bytes_counted_one_by_one(blocks, moment):
    """Blocks of 60 bytes at most, in cells of 64 bytes; `blocks` are begin, lifetime and cell."""
    case = Case()
    case.device(index=0)
    case.region(0, 1024, 1 << 20)
    used = set()
    taken: dict[int, int] = {}
    for begin, length, cell in sorted(blocks):
        if taken.get(cell, -1) >= begin:
            continue  # the cell is in use
        taken[cell] = begin + length
        size = 4 * length - 3 if length < 16 else 60
        case.alloc("op", begin, size, (1 << 20) + cell * 64)
        case.free(begin + length, size, (1 << 20) + cell * 64)
        if begin <= moment < begin + length:
            used |= {cell * 64 + byte for byte in range(size)}
    with TemporaryDirectory() as folder, case.open(Path(folder)) as trace:
        rows = region_map(trace, at_ns=T0 + moment)
        frames = {row["ts_ns"] - T0: row for row in fragmentation_over_time(trace, moments=200)}
    assert sum(row["length_bytes"] for row in rows) == 1024
    mapped = [
        byte
        for row in rows
        if row["state"] == "block"
        for byte in range(row["offset_bytes"], row["offset_bytes"] + row["length_bytes"])
    ]
    assert sorted(mapped) == sorted(used)
    if moment in frames:
        free = "".join("x" if byte in used else "." for byte in range(1024)).split("x")
        assert frames[moment]["used_bytes"] == len(used)
        assert frames[moment]["largest_free_bytes"] == max(map(len, free))
        assert frames[moment]["free_runs"] == sum(map(bool, free))
