"""Nsight Systems' exports: what each table becomes, in schemas from 2022 to 2026, whole, cut down and damaged."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
from tests.shared import CASES, TRACES, needs_shared

HEALTHY = TRACES / "nsys_healthy_1pct.sqlite"
SESSION_NS = 1_790_000_000_000_000_000
PID, OTHER = (1 << 56) | (100 << 24), (1 << 56) | (200 << 24)
MAIN, WORKER, OF_OTHER = PID | 100, PID | 101, OTHER | 200
STRINGS = dict(enumerate((
    "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaDeviceSynchronize_v3020", "cudaGraphLaunch_v10000",
    "gemm", "void gemm<float>(float*)", "_Z4gemm", "python", "pthread_mutex_lock", "registered", "payload",
), 1))  # fmt: skip
ID = {text: number for number, text in STRINGS.items()}

KERNEL_2024 = """start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER, launchType INTEGER,
    registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL,
    blockX INTEGER NOT NULL, blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,
    dynamicSharedMemory INTEGER NOT NULL, graphNodeId INTEGER"""
MEMCPY_2024 = """start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
    streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,
    copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER, srcDeviceId INTEGER, dstDeviceId INTEGER"""
RUNTIME_2024 = """start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL, callchainId INTEGER"""
NVTX_2024 = """start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER,
    color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER,
    uint64Value INTEGER, int64Value INTEGER, doubleValue REAL, jsonTextId INTEGER, jsonText TEXT"""


def kernel(
    start: int, end: int, correlation: int, *, device: int = 0, stream: int = 7, pid: int = PID, node: Any = None
) -> tuple[Any, ...]:
    return (start, end, device, 1, None, stream, correlation, pid, ID["void gemm<float>(float*)"], ID["gemm"],
            ID["_Z4gemm"], 1, 32, 128, 2, 1, 256, 1, 1, 0, 1024, node)  # fmt: skip


def call(name: str, start: int, end: int, correlation: int, tid: int = MAIN) -> tuple[Any, ...]:
    return (start, end, 0, tid, correlation, ID[name], 0, None)


def copy(start: int, kind: int, correlation: int, **more: Any) -> tuple[Any, ...]:
    given = {"device": 0, "stream": 7, "bytes": 4096, "from": None, "to": None, "source": None, "target": None, **more}
    return (start, start + 10, given["device"], 1, given["stream"], correlation, PID, given["bytes"], kind,
            given["from"], given["to"], given["source"], given["target"])  # fmt: skip


def nvtx(start: int, end: int | None, type: int, **more: Any) -> tuple[Any, ...]:
    given = {
        "category": None,
        "text": None,
        "tid": MAIN,
        "text_id": None,
        "domain": 0,
        "int64": None,
        "json": None,
        **more,
    }
    return (start, end, type, None, given["category"], None, given["text"], given["tid"], None, given["text_id"],
            given["domain"], None, given["int64"], None, None, given["json"])  # fmt: skip


def whole() -> dict[str, Any]:
    """Two processes that both use correlation 1; a graph, all ways of copying, waits, ranges, memory, metrics."""
    return {
        "StringIds": ("id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL", list(STRINGS.items())),
        "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs INTEGER, utcTime TEXT, localTime TEXT", [(SESSION_NS, "", "")]),
        "META_DATA_EXPORT": ("name TEXT NOT NULL, value TEXT", [("EXPORT_PRODUCT_VERSION", "2024.6.2.225")]),
        "TARGET_INFO_SYSTEM_ENV": ("name TEXT, value TEXT", [("Hostname", "node7")]),
        "PROCESSES": ("globalPid INTEGER, pid INTEGER, name TEXT", [(PID, 100, "python3"), (OTHER, 200, "other")]),
        "ThreadNames": ("nameId INTEGER, priority INTEGER, globalTid INTEGER", [(ID["python"], 0, MAIN)]),
        "TARGET_INFO_GPU": ("id INTEGER, name TEXT, totalMemory INTEGER", [
            (0, "H100", 80 << 30), (1, "A100", 40 << 30)]),
        "TARGET_INFO_CUDA_DEVICE": ("gpuId INTEGER, cudaId INTEGER, pid INTEGER", [(1, 0, 200)]),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (RUNTIME_2024, [
            call("cudaLaunchKernel_v7000", 100, 110, 1), call("cudaGraphLaunch_v10000", 200, 205, 2),
            call("cudaMemcpyAsync_v3020", 300, 310, 3), call("cudaDeviceSynchronize_v3020", 400, 900, 4, WORKER),
            call("cudaLaunchKernel_v7000", 100, 110, 1, OF_OTHER),
        ]),
        "CUPTI_ACTIVITY_KIND_KERNEL": (KERNEL_2024, [
            kernel(120, 220, 1), kernel(120, 170, 1, pid=OTHER),
            *(kernel(250 + 10 * n, 258 + 10 * n, 2, node=n) for n in range(5)),
        ]),
        "CUPTI_ACTIVITY_KIND_MEMCPY": (MEMCPY_2024, [
            copy(320, 1, 3, **{"from": 1, "to": 2}), copy(340, 2, 0), copy(360, 8, 0, source=0, target=0),
            copy(380, 8, 0, source=0, target=1), copy(400, 10, 0, source=0, target=1), copy(420, 11, 0),
            copy(440, 99, 0),
        ]),
        "CUPTI_ACTIVITY_KIND_MEMSET": (
            "start, end, deviceId, contextId, streamId, correlationId, globalPid, value, bytes, memKind",
            [(460, 465, 0, 1, 7, 0, PID, 255, 64, 2)]),
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
            "start, end, deviceId, contextId, streamId, correlationId, globalPid, syncType, eventId",
            [(400, 890, 0, 1, 2**32 - 1, 4, PID, 4, 0), (300, 350, 0, 1, 7, 0, PID, 2, 5)]),
        "NVTX_EVENTS": (NVTX_2024, [
            nvtx(0, None, 75, text="my domain", domain=3), nvtx(0, None, 33, text="phase", category=9, domain=3),
            nvtx(50, 950, 59, text="ProfilerStep#7"), nvtx(90, 115, 59, text_id=ID["registered"], domain=3, category=9),
            nvtx(60, 500, 60, text="crosses", int64=-5), nvtx(70, None, 34, text="mark", json='{"a": 1}'),
            nvtx(80, None, 59, text="open"),
        ]),
        "OSRT_API": ("start, end, eventClass, globalTid, nameId, returnValue", [
            (10, 20, 0, MAIN, ID["pthread_mutex_lock"], 0)]),
        "CUDA_GPU_MEMORY_USAGE_EVENTS": (
            "start, globalPid, deviceId, contextId, address, bytes, memKind, memoryOperationType, correlationId",
            [(10, PID, 0, 1, 0x7F00_0000_0000, 4096, 2, 0, 0), (11, PID, 0, 1, -4096, 1024, 2, 0, 0),
             (12, PID, 0, 1, 0x1000, 512, 1, 0, 0), (900, PID, 0, 1, 0x7F00_0000_0000, 4096, 2, 1, 0)]),
        "GPU_METRICS": ("timestamp, typeId, metricId, value", [(10, 256, 1, 50), (20, 256, 1, 75), (10, 257, 1, 0.5)]),
        "TARGET_INFO_GPU_METRICS": ("typeId, metricId, metricName", [
            (256, 1, "SMs Active [Throughput %]"), (257, 1, "SMs Active [Throughput %]")]),
        "COMPOSITE_EVENTS": ("id INTEGER PRIMARY KEY, start, cpuCycles", [(1, 5, 100)]),
    }  # fmt: skip


def args(trace: Any, where: str) -> dict[str, Any]:
    [(text,)] = rows(trace, f"SELECT args FROM event WHERE {where}")
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("nsys")
    with imported(database(folder / "report.sqlite", whole()), folder) as trace:
        yield trace


def test_kinds(trace: Any) -> None:
    assert counts(trace) == {
        "launch": 4, "sync": 1, "runtime": 1, "kernel": 7, "transfer": 8, "wait": 2, "annotation": 4, "instant": 1,
        "alloc": 3, "free": 1,
    }  # fmt: skip


def test_times_count_from_1970(trace: Any) -> None:
    assert rows(trace, "SELECT clock_zero, clock_offset_ns, producer, format FROM source") == [
        ("unix epoch", SESSION_NS, "NVIDIA Nsight Systems 2024.6.2.225", "Nsight Systems SQLite")]  # fmt: skip
    assert rows(trace, "SELECT min(ts_ns), max(ts_ns + dur_ns) FROM event") == [(SESSION_NS + 10, SESSION_NS + 950)]
    assert rows(trace, "SELECT ts_ns - $1, value FROM counter_value ORDER BY ALL".replace("$1", str(SESSION_NS))) == [
        (10, 0.5), (10, 50.0), (20, 75.0)]  # fmt: skip


def test_correlation_is_of_a_process(trace: Any) -> None:
    """Correlation 1 is used by both; each launch has the kernel of its own process."""
    found = rows(trace, """
        SELECT p.pid, l.name, k.dur_ns, d.name FROM flow f JOIN event l ON l.id = from_event
        JOIN event k ON k.id = to_event
        JOIN process p ON p.id = k.process JOIN device d ON d.id = k.device
        WHERE l.process = k.process AND k.correlation = 1 ORDER BY ALL""")  # fmt: skip
    assert found == [(100, "cudaLaunchKernel_v7000", 100, "H100"), (200, "cudaLaunchKernel_v7000", 50, "A100")]


def test_graph_is_one_launch_of_many_kernels(trace: Any) -> None:
    assert rows(trace, """
        SELECT l.name, l.dur_ns, count(*) FROM flow JOIN event l ON l.id = from_event JOIN event k ON k.id = to_event
        WHERE k.correlation = 2 GROUP BY ALL""") == [("cudaGraphLaunch_v10000", 5, 5)]  # fmt: skip
    nodes = rows(trace, "SELECT args->>'graph_node' FROM event WHERE kind = 'kernel' AND correlation = 2 ORDER BY ALL")
    assert nodes == [(str(n),) for n in range(5)]


def test_device_rows(trace: Any) -> None:
    assert rows(
        trace, "SELECT count(*) FROM event WHERE kind IN ('kernel', 'transfer', 'wait') AND thread IS NOT NULL"
    ) == [(0,)]
    assert args(trace, "kind = 'kernel' AND dur_ns = 100") == {
        "grid": [128, 2, 1], "block": [256, 1, 1], "registers_per_thread": 32, "shared_memory_bytes": 1024,
        "context": 1,
    }  # fmt: skip
    assert rows(trace, "SELECT DISTINCT name FROM event WHERE kind = 'kernel'") == [("void gemm<float>(float*)",)]
    found = rows(trace, "SELECT category, name, bytes FROM event WHERE kind = 'transfer' ORDER BY ts_ns")
    assert found == [
        ("host_to_device", "Memcpy HtoD", 4096), ("device_to_host", "Memcpy DtoH", 4096),
        ("within_device", "Memcpy DtoD", 4096), ("device_to_device", "Memcpy DtoD", 4096),
        ("device_to_device", "Memcpy PtoP", 4096), ("host_to_device", "Memcpy HtoD (unified memory)", 4096),
        (None, "Memcpy", 4096), ("memset", "Memset", 64),
    ]  # fmt: skip
    assert args(trace, "name = 'Memcpy HtoD'") == {"context": 1, "from_memory": "Pinned", "to_memory": "Device"}
    found = rows(trace, """
        SELECT e.name, s.number, e.dur_ns FROM event e LEFT JOIN stream s ON s.id = e.stream
        WHERE kind = 'wait' ORDER BY e.ts_ns""")  # fmt: skip
    assert found == [("Stream Wait Event", 7, 50), ("Context Sync", None, 490)]


def test_waits_are_no_work(trace: Any) -> None:
    work = [(120, 220), (120, 170), *((250 + 10 * n, 258 + 10 * n) for n in range(5)),
            *((start, start + 10) for start in range(320, 460, 20)), (460, 465)]  # fmt: skip
    assert busy_ns(trace) == union_ns(work)


def test_ranges(trace: Any) -> None:
    found = rows(trace, """
        SELECT name, ts_ns - min(ts_ns) OVER () + 50, dur_ns, flags, step, category FROM event
        WHERE kind = 'annotation' ORDER BY ts_ns""")  # fmt: skip
    assert found == [
        ("ProfilerStep#7", 50, 900, 0, 7, "step"), ("crosses", 60, 440, 64, 7, None), ("open", 80, None, 1, 7, None),
        ("registered", 90, 25, 0, 7, None),
    ]  # fmt: skip
    assert args(trace, "name = 'registered'") == {"domain": "my domain", "category": "phase"}
    assert args(trace, "name = 'crosses'") == {"payload": -5}
    assert args(trace, "name = 'mark'") == {"payload_json": '{"a": 1}'}
    parents = rows(trace, """
        SELECT parent.name FROM event child JOIN event parent ON parent.id = child.parent
        JOIN process p ON p.id = child.process
        WHERE child.name = 'cudaLaunchKernel_v7000' AND p.pid = 100""")  # fmt: skip
    assert parents == [("registered",)]


def test_processes_threads_and_devices(trace: Any) -> None:
    assert rows(trace, "SELECT pid, name, host FROM process ORDER BY pid") == [
        (100, "python3", "node7"), (200, "other", "node7")]  # fmt: skip
    assert rows(trace, "SELECT tid, name FROM thread ORDER BY tid") == [(100, "python"), (101, None), (200, None)]
    assert rows(trace, 'SELECT type, "index", vendor, name, memory_bytes FROM device ORDER BY name') == [
        ("cuda", 0, "NVIDIA", "A100", 40 << 30), ("cuda", 0, "NVIDIA", "H100", 80 << 30)]  # fmt: skip


def test_memory(trace: Any) -> None:
    """Memory of the host has no place on a device; an address with its highest bit set is a high address."""
    found = rows(trace, "SELECT address, size_bytes, free_ns - alloc_ns FROM allocation ORDER BY address")
    assert found == [(0x7F00_0000_0000, 4096, 890), (2**64 - 4096, 1024, None)]


def test_counters(trace: Any) -> None:
    assert rows(trace, """
        SELECT series, unit, count(*) FROM counter JOIN counter_value ON counter = id GROUP BY ALL
        ORDER BY ALL""") == [
        ("SMs Active [Throughput %] (device 0)", "percent", 2),
        ("SMs Active [Throughput %] (device 1)", "percent", 1)]  # fmt: skip


def test_what_is_not_read_is_said(trace: Any) -> None:
    assert quality(trace)["tables that are not read"] == (1, "COMPOSITE_EVENTS")


@pytest.mark.parametrize("without", [name for name in whole() if name != "StringIds"])
def test_any_table_may_be_missing(tmp_path: Path, without: str) -> None:
    tables = whole()
    del tables[without]
    with imported(database(tmp_path / "less.sqlite", tables), tmp_path) as trace:
        found = counts(trace)
        assert found.get("kernel", 0) == (0 if without == "CUPTI_ACTIVITY_KIND_KERNEL" else 7)
        assert found.get("annotation", 0) == (0 if without == "NVTX_EVENTS" else 4)
        assert found.get("transfer", 0) == {"CUPTI_ACTIVITY_KIND_MEMCPY": 1, "CUPTI_ACTIVITY_KIND_MEMSET": 7}.get(
            without, 8
        )


def test_2022_schema(tmp_path: Path) -> None:
    """No green contexts, no globalPid in the kernels' table: the call tells whose the kernel is."""
    tables: Tables = {
        "StringIds": ("id INTEGER PRIMARY KEY, value TEXT", list(STRINGS.items())),
        "CUPTI_ACTIVITY_KIND_RUNTIME": ("start, end, globalTid, correlationId, nameId", [
            (100, 110, MAIN, 1, 1), (100, 110, OF_OTHER, 2, 1)]),
        "CUPTI_ACTIVITY_KIND_KERNEL": ("start, end, deviceId, streamId, correlationId, shortName", [
            (120, 220, 0, 7, 1, 5), (120, 170, 0, 7, 2, 5), (120, 130, 0, 7, 3, 5)]),
    }  # fmt: skip
    with imported(database(tmp_path / "old.sqlite", tables), tmp_path) as trace:
        found = rows(
            trace,
            """
                SELECT pid, e.dur_ns, e.name FROM event e JOIN process p ON p.id = process
                WHERE kind = 'kernel' ORDER BY correlation""",
        )
        assert found == [(100, 100, "gemm"), (200, 50, "gemm"), (None, 10, "gemm")]
        assert rows(trace, "SELECT count(*) FROM flow") == [(2,)]
        assert rows(trace, "SELECT clock_zero, clock_offset_ns FROM source") == [("file", None)]


def test_odd_times(tmp_path: Path) -> None:
    """An end of 0, no end, a kernel before its launch, two calls of one correlation: each row stays, none lies."""
    tables = whole()
    tables["CUPTI_ACTIVITY_KIND_KERNEL"] = (KERNEL_2024.replace("NOT NULL", ""), [
        kernel(1_000, 0, 1), kernel(50, 60, 1), (1_000, None, *kernel(0, 0, 1)[2:])])  # fmt: skip
    tables["CUPTI_ACTIVITY_KIND_RUNTIME"][1].append(call("cudaLaunchKernel_v7000", 102, 108, 1))
    with imported(database(tmp_path / "odd.sqlite", tables), tmp_path) as trace:
        found = rows(trace, "SELECT dur_ns, flags FROM event WHERE kind = 'kernel' ORDER BY flags")
        assert found == [(10, 0), (None, 1), (None, 4)]
        assert quality(trace)["events with a negative duration: kept without it, and out of all sums"][0] == 1
        found = rows(trace, """
            SELECT kind, correlation FROM event JOIN process p ON p.id = process
            WHERE event.name = 'cudaLaunchKernel_v7000' AND pid = 100 ORDER BY dur_ns DESC""")  # fmt: skip
        assert found == [("launch", 1), ("runtime", None)]


def test_missing_strings(tmp_path: Path) -> None:
    tables = whole()
    tables["StringIds"] = (tables["StringIds"][0], [])
    with imported(database(tmp_path / "nameless.sqlite", tables), tmp_path) as trace:
        assert rows(trace, "SELECT DISTINCT name FROM event WHERE kind = 'kernel'") == [(None,)]
        assert quality(trace)["events whose name the file does not have"][0] == 7 + 5 + 1 + 1


@needs_shared
def test_no_kernel_table(tmp_path: Path) -> None:
    """H1: what is there is imported, what is not is named."""
    with imported(CASES / "sqlite/nsys_no_kernel_table.sqlite", tmp_path) as trace:
        assert rows(trace, "SELECT kind, name, ts_ns, dur_ns FROM event") == [("runtime", "cudaFree_v3020", 10, 10)]
        [(count, names)] = [said for what, said in quality(trace).items() if "does not have" in what]
        assert (count, names) == (3, "CUPTI_ACTIVITY_KIND_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, NVTX_EVENTS")


@needs_shared
def test_real_export(tmp_path: Path) -> None:
    """Counted anew, with plain SQL over the file."""
    kernels = asked(HEALTHY, 'SELECT start, "end" FROM CUPTI_ACTIVITY_KIND_KERNEL')
    linked = asked(HEALTHY, """
        SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId IN
        (SELECT correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL)""")  # fmt: skip
    names = asked(
        HEALTHY,
        """
        SELECT value, count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName
        GROUP BY 1 ORDER BY 1""",
    )
    with imported(HEALTHY, tmp_path) as trace:
        assert counts(trace) == {"kernel": len(kernels), "launch": linked[0][0]}
        assert busy_ns(trace) == union_ns(kernels) == 400_000_000
        assert rows(trace, "SELECT name, count(*) FROM event WHERE kind = 'kernel' GROUP BY 1 ORDER BY 1") == names
        assert rows(trace, "SELECT count(*) FROM flow") == [(400,)]
        assert rows(trace, 'SELECT "index", name FROM device') == [(0, "NVIDIA H100 80GB HBM3")]
        assert rows(trace, "SELECT producer FROM source") == [("NVIDIA Nsight Systems 2026.1.1.204",)]
        assert rows(trace, "SELECT min(ts_ns) FROM event") == [(-3000,)]


def test_very_many_processes_and_devices(tmp_path: Path) -> None:
    """As a damaged file may name them: one of each kind of place a row."""
    tables: Tables = {
        "StringIds": ("id, value", [(1, "k")]),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (
            "start, end, globalTid, correlationId, nameId", [(n, n + 1, (n << 24) | n, n, 1) for n in range(1, 2_001)]),
        "CUPTI_ACTIVITY_KIND_KERNEL": ("start, end, deviceId, streamId, globalPid, demangledName", [
            (n, n + 1, n if n % 2 else 2**40 + n, n, n << 24, 1) for n in range(1, 2_001)]),
    }  # fmt: skip
    with imported(database(tmp_path / "many.sqlite", tables), tmp_path) as trace:
        assert rows(trace, "SELECT count(*), count(DISTINCT pid) FROM process") == [(2_000, 2_000)]
        assert rows(trace, "SELECT count(*), count(DISTINCT process) FROM thread") == [(2_000, 2_000)]
        assert rows(trace, 'SELECT count(*), count("index") FROM device') == [(2_000, 1_000)]
        assert rows(trace, """
            SELECT count(*) FROM event e JOIN process p ON p.id = e.process JOIN device d ON d.id = e.device
            JOIN stream s ON s.id = e.stream
            WHERE d.process = p.id AND s.device = d.id AND s.number = pid AND ts_ns = pid""") == [(2_000,)]  # fmt: skip
        assert quality(trace)["devices with a number that cannot be: taken as unknown"][0] == 1_000


CELL = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=8), st.binary(max_size=8),
    st.sampled_from([0, 1, -1, 7, 2**32, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), MAIN, PID]),
)  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_cell(tmp_path: Path, data: st.DataObject) -> None:
    """Without constraints a cell holds anything; the import goes through, and keeps all sound kernels."""
    tables = {}
    for name, (columns, cells) in whole().items():
        plain = ", ".join(column.split()[0] for column in columns.split(","))
        mixed = [list(row) for row in cells]
        if mixed:
            row = data.draw(st.sampled_from(mixed))
            row[data.draw(st.integers(0, len(row) - 1))] = data.draw(CELL)
        tables[name] = (plain, mixed)
    file = tmp_path / "mixed.sqlite"
    file.unlink(missing_ok=True)
    with imported(database(file, tables), tmp_path) as trace:
        assert 6 <= counts(trace)["kernel"] <= 7
        assert rows(trace, "SELECT count(*) FROM event WHERE dur_ns < 0") == [(0,)]


def copies(seed: int, times: int) -> Iterator[bytes]:
    dice, data = random.Random(seed), HEALTHY.read_bytes()
    return (damaged(data, dice) for _ in range(times))


@needs_shared
def test_damaged_files(tmp_path: Path) -> None:
    assert survivors(tmp_path, "damaged.sqlite", copies(1, 60)) > 20


@needs_shared
@pytest.mark.soak
def test_many_damaged_files(tmp_path: Path) -> None:
    assert survivors(tmp_path, "damaged.sqlite", copies(2, 5_000)) > 1_000
