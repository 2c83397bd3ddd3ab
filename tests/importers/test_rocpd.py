"""rocprofv3's databases, as its own schema (3.0.1) makes them: a set of tables a GUID."""

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.importers.databases import busy_ns, counts, damaged, imported, quality, rows, survivors, union_ns
from tests.shared import CASES, needs_shared

ID_KEY = "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT"
KEY = f"{ID_KEY}, guid TEXT"
SCHEMA = {
    "metadata": f"{ID_KEY}, tag TEXT NOT NULL, value TEXT NOT NULL",
    "string": f"{KEY}, string TEXT NOT NULL UNIQUE ON CONFLICT ABORT",
    "info_node": f"{KEY}, hash BIGINT, machine_id TEXT, hostname TEXT",
    "info_process": f"""{KEY}, nid INTEGER NOT NULL, ppid INTEGER,
        pid INTEGER NOT NULL, init BIGINT, fini BIGINT, start BIGINT, "end" BIGINT, command TEXT""",
    "info_thread": f"{KEY}, nid INTEGER, pid INTEGER, tid INTEGER, name TEXT",
    "info_agent": f"""{KEY}, nid INTEGER NOT NULL, pid INTEGER NOT NULL,
        type TEXT CHECK (type IN ('CPU', 'GPU', 'NIC')), absolute_index INTEGER, logical_index INTEGER,
        type_index INTEGER, name TEXT, vendor_name TEXT, product_name TEXT""",
    "info_pmc": f"{KEY}, agent_id INTEGER, name TEXT NOT NULL, symbol TEXT",
    "info_kernel_symbol": f"""{KEY}, nid INTEGER, pid INTEGER,
        code_object_id INTEGER, kernel_name TEXT, display_name TEXT""",
    "track": f"{KEY}, nid INTEGER, pid INTEGER, tid INTEGER, name_id INTEGER",
    "event": f"""{KEY}, category_id INTEGER, stack_id INTEGER,
        parent_stack_id INTEGER, correlation_id INTEGER, extdata JSONB NOT NULL""",
    "region": f"""{KEY}, nid INTEGER, pid INTEGER, tid INTEGER,
        start BIGINT NOT NULL, "end" BIGINT NOT NULL, name_id INTEGER NOT NULL, event_id INTEGER""",
    "sample": f"""{KEY}, track_id INTEGER NOT NULL,
        timestamp BIGINT NOT NULL, event_id INTEGER""",
    "pmc_event": f"{KEY}, event_id INTEGER, pmc_id INTEGER, value REAL",
    "kernel_dispatch": f"""{KEY}, nid INTEGER NOT NULL,
        pid INTEGER NOT NULL, tid INTEGER, agent_id INTEGER NOT NULL, kernel_id INTEGER NOT NULL,
        dispatch_id INTEGER NOT NULL, queue_id INTEGER NOT NULL, stream_id INTEGER NOT NULL, start BIGINT NOT NULL,
        "end" BIGINT NOT NULL, group_segment_size INTEGER, workgroup_size_x INTEGER NOT NULL,
        workgroup_size_y INTEGER NOT NULL, workgroup_size_z INTEGER NOT NULL, grid_size_x INTEGER NOT NULL,
        grid_size_y INTEGER NOT NULL, grid_size_z INTEGER NOT NULL, event_id INTEGER""",
    "memory_copy": f"""{KEY}, nid INTEGER, pid INTEGER, tid INTEGER,
        start BIGINT NOT NULL, "end" BIGINT NOT NULL, name_id INTEGER NOT NULL, dst_agent_id INTEGER,
        src_agent_id INTEGER, size INTEGER NOT NULL, stream_id INTEGER, event_id INTEGER""",
    "memory_allocate": f"""{KEY}, nid INTEGER, pid INTEGER, tid INTEGER,
        agent_id INTEGER, type TEXT CHECK (type IN ('ALLOC', 'FREE', 'REALLOC', 'RECLAIM')), level TEXT,
        start BIGINT NOT NULL, "end" BIGINT NOT NULL, address INTEGER, size INTEGER NOT NULL, event_id INTEGER""",
}  # fmt: skip
STRINGS = ["HIP_RUNTIME_API", "MARKER_CORE_RANGE_API", "KERNEL_DISPATCH", "MEMORY_COPY", "hipLaunchKernel",
           "hipDeviceSynchronize", "roctxThreadRangeA", "roctxMarkA", "MEMORY_COPY_HOST_TO_DEVICE",
           "MEMORY_COPY_DEVICE_TO_DEVICE", "MEMORY_COPY_DEVICE_TO_HOST"]  # fmt: skip
ID = {name: number for number, name in enumerate(STRINGS, 1)}
CPU, GPU0, GPU1 = 0, 4, 5
"""Agents, as the system numbers them."""


def add(connection: sqlite3.Connection, table: str, suffix: str, **columns: Any) -> None:
    names, marks = ", ".join(f'"{name}"' for name in columns), ", ".join("?" * len(columns))
    connection.execute(f'INSERT INTO "rocpd_{table}{suffix}" ({names}) VALUES ({marks})', list(columns.values()))


def process(file: Path, guid: str, pid: int, *, views: bool = False) -> Path:
    """Adds a process with two kernels of one launch, three copies, a sync, two markers, memory and counters."""
    suffix = f"_{guid}" if guid else ""
    with closing(sqlite3.connect(file)) as connection:
        for table, columns in SCHEMA.items():
            connection.execute(f'CREATE TABLE "rocpd_{table}{suffix}" ({columns})')
            if views:
                connection.execute(f'CREATE VIEW "rocpd_{table}" AS SELECT * FROM "rocpd_{table}{suffix}"')

        def put(table: str, **columns: Any) -> None:
            add(connection, table, suffix, **columns)

        put("metadata", tag="schema_version", value="3")
        for name in STRINGS:
            put("string", guid=guid, string=name)
        put("info_node", id=1, hostname="node7")
        put("info_process", id=pid, nid=1, pid=pid, start=5, end=9_000, command="./a.out --fast")
        put("info_thread", id=pid + 1, pid=pid, tid=pid + 1, name="worker")
        for number, type, index in ((CPU, "CPU", 0), (GPU0, "GPU", 0), (GPU1, "GPU", 1)):
            put("info_agent", id=number, nid=1, pid=pid, type=type, absolute_index=number, logical_index=number,
                type_index=index, name="gfx90a", vendor_name="AMD", product_name=f"MI250X {index}")  # fmt: skip
        put("info_kernel_symbol", id=7, kernel_name="_Z4gemm.kd", display_name="gemm<float>(float*)")
        put("info_pmc", id=3, agent_id=GPU0, name="SQ_WAVES", symbol="SQ_WAVES")
        events = iter(range(1, 100))

        def event(category: str, correlation: int, message: str | None = None) -> int:
            number = next(events)
            extdata = "{}" if message is None else json.dumps({"message": message})
            put("event", id=number, category_id=ID[category], stack_id=correlation, extdata=extdata)
            return number

        def region(
            name: str, category: str, start: int, end: int, correlation: int, message: str | None = None
        ) -> None:
            put("region", id=correlation, nid=1, pid=pid, tid=pid + 1, start=start, end=end, name_id=ID[name],
                event_id=event(category, correlation, message))  # fmt: skip

        region("hipLaunchKernel", "HIP_RUNTIME_API", 100, 110, 1)
        region("hipDeviceSynchronize", "HIP_RUNTIME_API", 120, 900, 2)
        region("roctxThreadRangeA", "MARKER_CORE_RANGE_API", 50, 950, 3, "my range")
        put("track", id=1, pid=pid, tid=pid + 1, name_id=ID["MARKER_CORE_RANGE_API"])
        put("sample", id=4, track_id=1, timestamp=60, event_id=event("MARKER_CORE_RANGE_API", 4, "my mark"))
        for number, (start, end) in enumerate(((200, 300), (300, 350)), 1):
            of_kernel = event("KERNEL_DISPATCH", 1)
            put("kernel_dispatch", id=number, nid=1, pid=pid, tid=pid + 1, agent_id=GPU0, kernel_id=7,
                dispatch_id=number,
                queue_id=1, stream_id=2, start=start, end=end, group_segment_size=16, workgroup_size_x=64,
                workgroup_size_y=1, workgroup_size_z=1, grid_size_x=1024, grid_size_y=1, grid_size_z=1,
                event_id=of_kernel)  # fmt: skip
            put("pmc_event", event_id=of_kernel, pmc_id=3, value=8.0)
            put("pmc_event", event_id=of_kernel, pmc_id=3, value=8.0)
        for name, source, target in (("HOST_TO_DEVICE", CPU, GPU1), ("DEVICE_TO_DEVICE", GPU0, GPU1),
                                     ("DEVICE_TO_HOST", GPU0, CPU)):  # fmt: skip
            put("memory_copy", nid=1, pid=pid, tid=pid + 1, start=400, end=450, name_id=ID[f"MEMORY_COPY_{name}"],
                src_agent_id=source, dst_agent_id=target, size=4096, stream_id=0,
                event_id=event("MEMORY_COPY", 0))  # fmt: skip
        put("memory_allocate", pid=pid, tid=pid + 1, agent_id=GPU0, type="ALLOC", level="REAL", start=10, end=12,
            address=0x7F00_0000_0000, size=4096)  # fmt: skip
        put("memory_allocate", pid=pid, tid=pid + 1, type="FREE", level="REAL", start=800, end=802,
            address=0x7F00_0000_0000, size=0)  # fmt: skip
        connection.commit()
    return file


KINDS = {"launch": 1, "sync": 1, "kernel": 2, "transfer": 3, "annotation": 1, "instant": 1, "alloc": 1, "free": 1}


@pytest.mark.parametrize(("guid", "views"), [("00000af5_1234", True), ("00000af5_1234", False), ("", False)])
def test_one_process(tmp_path: Path, guid: str, views: bool) -> None:
    with imported(process(tmp_path / "results.db", guid, 4242, views=views), tmp_path) as trace:
        assert counts(trace) == KINDS
        assert rows(trace, "SELECT pid, host, command_line, started_ns, ended_ns FROM process") == [
            (4242, "node7", "./a.out --fast", 5, 9_000)]  # fmt: skip
        assert rows(trace, "SELECT tid, name FROM thread") == [(4243, "worker")]
        found = rows(trace, """
            SELECT e.name, d.type, d."index", d.name, s.number, l.name FROM flow JOIN event l ON l.id = from_event
            JOIN event e ON e.id = to_event JOIN device d ON d.id = e.device
            JOIN stream s ON s.id = e.stream""")  # fmt: skip
        assert found == [("gemm<float>(float*)", "cuda", 0, "MI250X 0", 2, "hipLaunchKernel")] * 2
        found = rows(
            trace,
            """
            SELECT category, d."index", bytes FROM event JOIN device d ON d.id = device
            WHERE kind = 'transfer' ORDER BY 1""",
        )
        assert found == [("device_to_device", 0, 4096), ("device_to_host", 0, 4096), ("host_to_device", 1, 4096)]
        assert rows(trace, """
            SELECT name, ts_ns, dur_ns FROM event WHERE kind IN ('annotation', 'instant')
            ORDER BY 2""") == [
            ("my range", 50, 900), ("my mark", 60, 0)]  # fmt: skip
        assert rows(trace, """
            SELECT series, ts_ns, value FROM counter JOIN counter_value ON counter = counter.id
            ORDER BY 2""") == [
            ("SQ_WAVES", 200, 16.0), ("SQ_WAVES", 300, 16.0)]  # fmt: skip
        found = rows(
            trace,
            """
                SELECT a.address, a.size_bytes, alloc_ns, free_ns, "index" FROM allocation a
                JOIN device d ON d.id = device""",
        )
        assert found == [(0x7F00_0000_0000, 4096, 10, 800, 0)]
        assert busy_ns(trace) == union_ns([(200, 300), (300, 350), (400, 450)]) == 200
        assert rows(trace, "SELECT producer, clock_zero FROM source") == [("rocprofv3 (rocpd 3)", "file")]
        assert quality(trace) == {}


def test_two_processes_of_one_pid(tmp_path: Path) -> None:
    """Two ranks in containers may have the same pid; the GUID tells them apart."""
    file = process(tmp_path / "merged.db", "aaaa", 10)
    with imported(process(file, "bbbb", 10), tmp_path) as trace:
        assert counts(trace) == {kind: 2 * count for kind, count in KINDS.items()}
        assert rows(trace, "SELECT pid FROM process") == [(10,), (10,)]
        assert rows(trace, "SELECT count(*) FROM flow") == [(4,)]


@needs_shared
def test_two_guids(tmp_path: Path) -> None:
    """H3: two kernels of two processes."""
    with imported(CASES / "sqlite/rocpd_two_guids.db", tmp_path) as trace:
        found = rows(
            trace, "SELECT pid, e.name, ts_ns, dur_ns FROM event e JOIN process p ON p.id = process ORDER BY 1"
        )
        assert found == [(10, "k0000aaaa", 1000, 100), (11, "k0000bbbb", 1050, 100)]
        assert counts(trace) == {"kernel": 2}


def test_damaged_extdata(tmp_path: Path) -> None:
    """A marker whose text is no JSON has the name of its call."""
    file = process(tmp_path / "results.db", "aaaa", 10)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute('UPDATE rocpd_event_aaaa SET extdata = \'{"message": "cut o\'')
        connection.commit()
    with imported(file, tmp_path) as trace:
        assert rows(trace, "SELECT name FROM event WHERE kind = 'annotation'") == [("roctxThreadRangeA",)]


def test_damaged_files(tmp_path: Path) -> None:
    data, dice = process(tmp_path / "whole.db", "aaaa", 10).read_bytes(), random.Random(5)
    assert survivors(tmp_path, "damaged.db", (damaged(data, dice) for _ in range(30))) > 5


@pytest.mark.soak
def test_many_damaged_files(tmp_path: Path) -> None:
    data, dice = process(tmp_path / "whole.db", "aaaa", 10).read_bytes(), random.Random(6)
    assert survivors(tmp_path, "damaged.db", (damaged(data, dice) for _ in range(5_000))) > 300
