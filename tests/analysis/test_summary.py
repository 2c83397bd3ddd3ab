from pathlib import Path

import pytest

from ral_trace.analysis.summary import devices, summary
from tests.analysis.cases import INVALID, Case


@pytest.fixture
def two_processes(tmp_path: Path):
    case = Case()
    case.process(pid=10, name="rank0", ended_how="exited")
    case.process(pid=11, name="rank1", ended_how="killed by SIGKILL")
    case.device(process=0, index=1, vendor="sim", name="Sim", memory_bytes=1000)
    case.device(process=1, index=1, vendor="sim", memory_bytes=1000)
    # ral:1 of pid 10: kernels 0-100 and 50-150 overlap, a copy 140-200 overlaps both: busy 0-200, then 300-310.
    case.event("kernel", "aten::mm", 0, 100, device=0)
    case.event("kernel", "aten::mm", 50, 100, device=0)
    case.event("transfer", "aten::copy_", 140, 60, device=0, bytes=4096)
    case.event("kernel", "aten::mm", 300, 10, device=0)
    # A wait is not work; impossible times are in no sum; an unknown duration is not 0.
    case.event("sync", "aten::item", 400, 100, device=0)
    case.event("kernel", "aten::mm", 500, 400, device=0, flags=INVALID)
    case.event("kernel", "aten::mm", 600, None, device=0)
    case.event("kernel", "aten::mm", 700, None, device=1)
    case.event("op", "aten::mm", 900, 100, process=1)
    case.ledgers.append({"process": 0, "written": 12, "received": 9, "dropped": 1, "lost": 2, "shed": 3})
    case.quality.append({"process": 1, "source": 0, "what": "something", "count": 4, "example": "x"})
    with case.open(tmp_path) as trace:
        yield trace


def test_busy_is_the_union_of_kernels_and_copies(two_processes):
    first, second = devices(two_processes)
    assert (first["device"], second["device"]) == ("ral:1 (pid 10)", "ral:1 (pid 11)")
    assert first["busy_ns"] == 210
    assert first["busy_percent"] == pytest.approx(21.0)
    assert (first["kernels"], first["transfers"], first["transferred_bytes"]) == (5, 1, 4096)


def test_unknown_is_absent_and_nothing_is_zero(two_processes):
    _, second = devices(two_processes)
    assert second["busy_ns"] is None
    assert second["busy_percent"] is None
    assert second["peak_bytes"] is None
    assert (second["kernels"], second["launches"], second["fallback_ns"], second["transferred_bytes"]) == (1, 0, 0, 0)


def test_devices_takes_the_full_name_or_the_label(two_processes):
    assert [row["device"] for row in devices(two_processes, device="ral:1 (pid 11)")] == ["ral:1 (pid 11)"]
    assert len(devices(two_processes, device="ral:1")) == 2
    assert devices(two_processes, device="ral:7") == []


def test_summary(two_processes):
    (row,) = summary(two_processes)
    assert (row["events"], row["invalid"], row["span_ns"], row["processes"], row["devices"]) == (9, 1, 1000, 2, 2)
    assert (row["dropped"], row["lost"], row["steps"], row["clock"]) == (1, 2, 0, "tsc")


def test_an_empty_trace_has_a_summary(tmp_path: Path):
    with Case().open(tmp_path) as trace:
        (row,) = summary(trace)
    assert (row["events"], row["span_ns"], row["dropped"]) == (0, None, None)


def test_devices_of_one_name_are_told_apart(tmp_path: Path):
    case = Case()
    for pid in (1, 1, 2):
        case.process(pid=pid)
    for process in (0, 0, 1, 2):
        case.device(process=process)
    for name in ("x", "y", "y"):
        case.device(index=None, name=name)
    with case.open(tmp_path) as trace:
        assert {row["device"] for row in devices(trace)} == {
            "ral:0 (device 0)", "ral:0 (device 1)", "ral:0 (process 1)", "ral:0 (pid 2)", "x", "y (device 5)",
            "y (device 6)",
        }  # fmt: skip
