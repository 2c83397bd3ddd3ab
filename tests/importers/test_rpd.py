"""rocmProfileData's databases."""

import random
from pathlib import Path

import pytest

from tests.importers.databases import (
    Tables,
    asked,
    busy_ns,
    counts,
    damaged,
    database,
    imported,
    quality,
    rows,
    survivors,
    union_ns,
)
from tests.shared import TRACES, needs_shared

MATMUL = TRACES / "rpd_matmul.rpd"
NAMES = ["", "hipLaunchKernel", "hipMemcpyPeerAsync", "UserMarker", "my range", "KernelExecution", "CopyDeviceToDevice",
         "gemm", "hipStreamSynchronize", "HIP", "hipMemsetAsync", "FillBuffer"]  # fmt: skip
ID = {name: number for number, name in enumerate(NAMES, 1)}


@needs_shared
def test_real_file(tmp_path: Path) -> None:
    """Counted anew, with plain SQL over the file."""
    operations = asked(MATMUL, 'SELECT start, "end" FROM rocpd_op')
    kinds = dict(
        asked(MATMUL, "SELECT string, count(*) FROM rocpd_op o JOIN rocpd_string s ON s.id = opType_id GROUP BY 1")
    )
    launching = asked(MATMUL, "SELECT count(DISTINCT api_id) FROM rocpd_api_ops")[0][0]
    calls = asked(MATMUL, "SELECT count(*) FROM rocpd_api")[0][0]
    sizes = dict(asked(MATMUL, """
        SELECT string, sum(size) FROM rocpd_op o JOIN rocpd_string s ON s.id = opType_id
        JOIN rocpd_api_ops ON op_id = o.id
        JOIN rocpd_copyapi ON api_ptr_id = api_id GROUP BY 1"""))  # fmt: skip
    threads = asked(MATMUL, "SELECT DISTINCT pid, tid FROM rocpd_api ORDER BY 1, 2")
    values = asked(MATMUL, "SELECT start, CAST(value AS REAL) FROM rocpd_monitor ORDER BY 1")
    with imported(MATMUL, tmp_path) as trace:
        assert counts(trace) == {
            "kernel": kinds["KernelExecution"], "transfer": sum(kinds.values()) - kinds["KernelExecution"],
            "launch": launching, "runtime": calls - launching,
        }  # fmt: skip
        assert busy_ns(trace) == union_ns(operations)
        found = rows(
            trace,
            "SELECT category, count(*), sum(bytes)::BIGINT FROM event WHERE kind = 'transfer' GROUP BY 1 ORDER BY 1",
        )
        assert found == [
            ("device_to_host", kinds["CopyDeviceToHost"], sizes["CopyDeviceToHost"]),
            ("host_to_device", kinds["CopyHostToDevice"], sizes["CopyHostToDevice"]),
            ("memset", kinds["FillBuffer"], None),
        ]  # fmt: skip
        assert rows(trace, "SELECT count(*) FROM flow") == [(len(operations),)]
        found = rows(trace, "SELECT pid, tid FROM thread JOIN process p ON p.id = process ORDER BY ALL")
        assert found == threads
        assert rows(trace, 'SELECT DISTINCT "index" FROM device') == [(2,)]
        assert rows(trace, "SELECT ts_ns, value FROM counter_value ORDER BY 1") == values
        assert rows(trace, "SELECT series, unit FROM counter") == [("sclk (device 0)", "MHz")]
        assert quality(trace) == {}


def synthetic(folder: Path) -> Path:
    """Schema 3 has domains and categories. One call starts two operations; a marker has a length, another has none."""
    return database(folder / "made.rpd", {
        "rocpd_string": ("id INTEGER PRIMARY KEY, string TEXT", list(enumerate(NAMES, 1))),
        "rocpd_api": ("id INTEGER PRIMARY KEY, pid, tid, start, end, domain_id, category_id, apiName_id, args_id", [
            (1, 10, 11, 100, 110, ID["HIP"], 1, ID["hipLaunchKernel"], 1),
            (2, 10, 11, 120, 130, ID["HIP"], 1, ID["hipMemcpyPeerAsync"], 1),
            (3, 10, 11, 90, 200, 1, 1, ID["UserMarker"], ID["my range"]),
            (4, 10, 11, 95, 95, 1, 1, ID["UserMarker"], ID["my range"]),
            (5, 10, 11, 140, 190, 1, 1, ID["hipStreamSynchronize"], 1),
            (6, 12, 12, 100, 110, 1, 1, ID["hipLaunchKernel"], 1),
        ]),
        "rocpd_op": ("""
            id INTEGER PRIMARY KEY, gpuId, queueId, sequenceId, completionSignal, start, end, description_id,
            opType_id""", [
            (1, 0, 1, 0, "", 130, 150, ID["gemm"], ID["KernelExecution"]),
            (2, 0, 1, 1, "", 150, 160, ID["gemm"], ID["KernelExecution"]),
            (3, 1, 2, 0, "", 140, 170, 1, ID["CopyDeviceToDevice"]),
            (4, 0, 1, 0, "", 150, 180, ID["gemm"], ID["KernelExecution"]),
        ]),
        "rocpd_api_ops": ("id INTEGER PRIMARY KEY, api_id, op_id", [(1, 1, 1), (2, 1, 2), (3, 2, 3), (4, 6, 4)]),
        "rocpd_copyapi": ("""
            api_ptr_id, stream, size, width, height, kind, dst, src, dstDevice, srcDevice, sync, pinned""", [
            (2, "0x1", 4096, "", "", 3, "0x2000", "0x1000", 1, 0, 0, 0)]),
    })  # fmt: skip


def test_synthetic(tmp_path: Path) -> None:
    with imported(synthetic(tmp_path), tmp_path) as trace:
        assert counts(trace) == {"launch": 3, "kernel": 3, "transfer": 1, "sync": 1, "annotation": 1, "instant": 1}
        assert rows(trace, "SELECT category, bytes FROM event WHERE kind = 'transfer'") == [("device_to_device", 4096)]
        assert rows(trace, "SELECT name, dur_ns FROM event WHERE kind IN ('annotation', 'instant') ORDER BY ts_ns") == [
            ("my range", 110), ("my range", 0)]  # fmt: skip
        found = rows(trace, """
            SELECT pid, count(*) FROM flow JOIN event l ON l.id = from_event JOIN process p ON p.id = process
            GROUP BY 1 ORDER BY 1""")  # fmt: skip
        assert found == [(10, 3), (12, 1)]


def test_without_links(tmp_path: Path) -> None:
    """Operations that no call is known to have started are still there, of a process of their own."""
    tables: Tables = {
        "rocpd_string": ("id INTEGER PRIMARY KEY, string TEXT", list(enumerate(NAMES, 1))),
        "rocpd_op": ("id, gpuId, queueId, start, end, description_id, opType_id", [(1, 0, 1, 130, 150, 8, 6)]),
    }
    with imported(database(tmp_path / "ops.rpd", tables), tmp_path) as trace:
        assert rows(trace, "SELECT kind, name, correlation FROM event") == [("kernel", "gemm", None)]
        assert rows(trace, "SELECT pid FROM process") == [(None,)]
        [(count, names)] = [said for what, said in quality(trace).items() if "does not have" in what]
        assert (count, names) == (2, "rocpd_api, rocpd_api_ops")


@needs_shared
def test_damaged_files(tmp_path: Path) -> None:
    dice, data = random.Random(3), MATMUL.read_bytes()
    assert survivors(tmp_path, "damaged.rpd", (damaged(data, dice) for _ in range(40))) > 10


@needs_shared
@pytest.mark.soak
def test_many_damaged_files(tmp_path: Path) -> None:
    dice, data = random.Random(4), MATMUL.read_bytes()
    assert survivors(tmp_path, "damaged.rpd", (damaged(data, dice) for _ in range(5_000))) > 1_000
