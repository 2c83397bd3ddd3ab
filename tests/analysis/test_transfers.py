import json
from pathlib import Path

import pytest

from ral_trace.analysis.transfers import transfers
from ral_trace.tracer.reading import Trace, open_trace
from tests.analysis.cases import INVALID, Case
from tests.shared import TRACES, needs_shared

MIB = 1 << 20


@pytest.fixture
def trace(tmp_path: Path):
    case = Case()
    case.device()

    def copy(name: str, category: str, size: int | None, took: int | None, **more: object) -> None:
        case.event("transfer", name, 0, took, device=0, category=category, bytes=size, **more)

    # 4 MiB in 1 ms and in 4 ms: 8 MiB in 5 ms; the better one, 4 MiB in 1 ms, stands for the link.
    copy("Memcpy HtoD (Pageable -> Device)", "host_to_device", 4 * MIB, 1_000_000)
    copy("Memcpy HtoD (Pageable -> Device)", "host_to_device", 4 * MIB, 4_000_000)
    copy("Memcpy HtoD (Pageable -> Device)", "host_to_device", 4 * MIB, None)
    copy("Memcpy HtoD (Pinned -> Device)", "host_to_device", 1000, 1_000)
    copy("Memcpy HtoD (Pinned -> Device)", "host_to_device", 1000, 0)
    copy("Memcpy HtoD (Pinned -> Device)", "host_to_device", 1000, 500, flags=INVALID)
    copy("Memcpy DtoH", "device_to_host", 4096, 2_000, args={"from_memory": "Device", "to_memory": "Pinned"})
    copy("Memcpy DtoH", "device_to_host", None, 7)
    with case.open(tmp_path) as opened:
        yield opened


def found(trace: Trace) -> dict[tuple[str, str | None, str | None], dict[str, object]]:
    return {(row["direction"], row["size"], row["host_memory"]): row for row in transfers(trace)}


def test_bandwidth_is_of_the_copies_with_known_bytes_and_time(trace: Trace):
    large = found(trace)["host_to_device", "< 16 MiB", "pageable"]
    assert (large["count"], large["bytes"], large["total_ns"]) == (3, 12 * MIB, 5_000_000)
    assert large["bandwidth"] == pytest.approx(8 * MIB / 5e-3)
    assert (large["median_bandwidth"], large["best_bandwidth"]) == (
        pytest.approx((4 * MIB / 1e-3 + 4 * MIB / 4e-3) / 2),
        pytest.approx(4 * MIB / 1e-3),
    )
    assert large["link_bandwidth"] == large["best_bandwidth"]
    assert large["percent_of_link"] == pytest.approx(100 * 2 / 5)


def test_a_copy_without_a_time_or_a_size_has_no_bandwidth(trace: Trace):
    rows = found(trace)
    small = rows["host_to_device", "< 4 KiB", "pinned"]
    assert (small["count"], small["bytes"], small["total_ns"]) == (3, 3000, 1_000)
    assert small["bandwidth"] == pytest.approx(1e9)
    assert small["percent_of_link"] == pytest.approx(100 * 1e9 / (4 * MIB / 1e-3))
    unknown = rows["device_to_host", None, None]
    assert (unknown["count"], unknown["bytes"], unknown["total_ns"], unknown["bandwidth"]) == (1, None, 7, None)


def test_without_a_large_copy_nothing_stands_for_the_link(trace: Trace):
    row = found(trace)["device_to_host", "< 64 KiB", "pinned"]
    assert (row["bandwidth"], row["link_bandwidth"], row["percent_of_link"]) == (pytest.approx(4096 / 2e-6), None, None)


def test_sizes_end_below_their_bounds(tmp_path: Path):
    case = Case()
    case.device()
    bounds = [4 << 10, 64 << 10, MIB, 16 * MIB, 256 * MIB]
    for bound in bounds:
        for size in (bound - 1, bound):
            case.event("transfer", "c", 0, 10, device=0, category="host_to_device", bytes=size)
    with case.open(tmp_path) as trace:
        counts = {row["size"]: row["count"] for row in transfers(trace)}
    assert counts == {
        "< 4 KiB": 1, "< 64 KiB": 2, "< 1 MiB": 2, "< 16 MiB": 2, "< 256 MiB": 2, "256 MiB and more": 1
    }  # fmt: skip


@needs_shared
def test_what_torch_profiler_says_of_pageable_copies():
    with open_trace(TRACES / "kineto_2080ti_resnet.json.gz") as trace:
        rows = {(row["direction"], row["size"]): row for row in transfers(trace)}
        [(count, size, took)] = trace.sql(
            "SELECT count(*), sum(bytes), sum(dur_ns) FROM event WHERE name = 'Memcpy HtoD (Pageable -> Device)' "
            "AND bytes >= 16777216"
        ).fetchall()
    row = rows["host_to_device", "< 256 MiB"]
    assert (row["host_memory"], row["count"], row["bytes"], row["total_ns"]) == ("pageable", count, size, took)
    assert json.loads(json.dumps(row["bandwidth"])) == pytest.approx(size / took * 1e9)
