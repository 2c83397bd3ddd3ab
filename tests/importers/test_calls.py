"""Which host calls wait for a device: the same ones for every importer, whatever tool has written the name."""

from pathlib import Path

import duckdb
import pytest

from ral_trace.tracer.importers.calls import SYNC_CALL, waits
from tests.importers.databases import imported, rows
from tests.importers.test_rocprof_csv import API, MEMORY, write

WAIT = [
    "cudaDeviceSynchronize", "cudaStreamSynchronize_ptsz", "cudaEventSynchronize_v3020", "cudaThreadSynchronize",
    "cuCtxSynchronize", "cuStreamSynchronize_v2", "hipDeviceSynchronize", "hipStreamSynchronize_spt",
    "hsa_signal_wait_scacquire", "aclrtSynchronizeStream", "aclrtSynchronizeStreamWithTimeout",
    "aclrtSynchronizeDevice", "StreamSynchronize", "EventSynchronize", "musaDeviceSynchronize", "urEventWait",
    "zeCommandQueueSynchronize", "zeFenceHostSynchronize_v1", "synchronize",
]  # fmt: skip
OTHERS = [
    "cudaStreamWaitEvent", "cudaLaunchKernel", "hsa_signal_create", "aclrtStreamWaitEvent", "pthread_cond_wait",
    "urEventWaitWithBarrier", "finish", "cudaEventQuery", "hsa_amd_signal_async_handler", "",
]  # fmt: skip


@pytest.mark.parametrize(("names", "wait"), [(WAIT, True), (OTHERS, False)])
def test_python_and_sql_agree(names: list[str], wait: bool) -> None:
    assert [name for name in names if bool(SYNC_CALL.search(name)) != wait] == []
    found = duckdb.connect().execute(f"SELECT name, {waits('name')} FROM (SELECT unnest(?) AS name)", [names])
    assert [name for name, waits_too in found.fetchall() if waits_too != wait] == []


def test_a_wait_for_a_signal_in_other_tools_tables(tmp_path: Path) -> None:
    calls = [
        ("HSA_CORE_API", "hsa_signal_wait_scacquire", 7, 8, 1, 100, 200),
        ("HSA_CORE_API", "hsa_init", 7, 8, 2, 5, 6),
    ]
    with imported(write(tmp_path / "hsa_api_trace.csv", API, calls), tmp_path) as trace:
        assert rows(trace, "SELECT kind::VARCHAR FROM event ORDER BY ts_ns") == [("runtime",), ("sync",)]


def test_a_size_that_no_memory_has(tmp_path: Path) -> None:
    cells = [("MEMORY_ALLOCATION", "ALLOCATE", "Agent 4", size, "0x1000", 1, 5, 6) for size in (2**61, 64)]
    with imported(write(tmp_path / "memory_allocation_trace.csv", MEMORY, cells), tmp_path) as trace:
        assert rows(trace, "SELECT bytes FROM event ORDER BY bytes NULLS FIRST") == [(None,), (64,)]
        said = rows(trace, "SELECT count FROM quality WHERE what = 'numbers of bytes that cannot be: taken as unknown'")
        assert said == [(1,)]
