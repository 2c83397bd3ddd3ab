"""Databases of torch_npu and msprof, in the tables that msprof writes, some of them missing or full of surprises."""

import random
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import ascend, import_files
from ral_trace.tracer.importers.opening import head_of
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.schema import FLAGS
from tests.importers.reading_back import busy_ns, imported, warnings

EPOCH = 1_736_408_883_704_643_212
PID, TID, QUEUE_TID = 4242, 4243, 4244
MAIN, QUEUE = PID << 32 | TID, PID << 32 | QUEUE_TID
NONE = 4294967295
TABLES = {
    "STRING_IDS": "id INTEGER PRIMARY KEY, value TEXT",
    "RANK_DEVICE_MAP": "rankId INTEGER, deviceId INTEGER",
    "PYTORCH_API": "startNs INTEGER, endNs INTEGER, globalTid INTEGER, connectionId INTEGER, name INTEGER,"
    " sequenceNumber INTEGER, fwdThreadId INTEGER, inputDtypes INTEGER, inputShapes INTEGER, callchainId INTEGER,"
    " type INTEGER",
    "CONNECTION_IDS": "id INTEGER, connectionId INTEGER",
    "PYTORCH_CALLCHAINS": "id INTEGER, stack INTEGER, stackDepth INTEGER",
    "CANN_API": "startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER, connectionId INTEGER, name INTEGER",
    "TASK": "startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER,"
    " globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER, modelId INTEGER",
    "COMPUTE_TASK_INFO": "name INTEGER, globalTaskId INTEGER PRIMARY KEY, opType INTEGER, inputShapes INTEGER",
    "MEMCPY_INFO": "globalTaskId NUMERIC, size NUMERIC, memcpyOperation NUMERIC",
    "ENUM_MEMCPY_OPERATION": "id INTEGER PRIMARY KEY, name TEXT",
    "COMMUNICATION_OP": "opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, groupName INTEGER,"
    " opId INTEGER PRIMARY KEY",
    "COMMUNICATION_TASK_INFO": "name INTEGER, globalTaskId INTEGER, taskType INTEGER, srcRank INTEGER, dstRank INTEGER,"
    " size INTEGER",
    "OP_MEMORY": "name INTEGER, size INTEGER, allocationTime INTEGER, releaseTime INTEGER, deviceId INTEGER",
    "MEMORY_RECORD": "component INTEGER, timestamp INTEGER, totalAllocated INTEGER, totalReserved INTEGER,"
    " totalActive INTEGER, deviceId INTEGER",
    "MSTX_EVENTS": "startNs INTEGER, endNs INTEGER, message INTEGER, globalTid INTEGER",
}


class Database:
    """A database in the making. `text` gives the id of a string."""

    def __init__(self, path: Path, without: Iterable[str] = ()) -> None:
        self.path = path
        self.connection = sqlite3.connect(path)
        self.without = set(without)
        self.ids: dict[str, int] = {}
        for table, columns in TABLES.items():
            if table not in self.without:
                self.connection.execute(f"CREATE TABLE {table} ({columns})")

    def text(self, value: str) -> int:
        if value not in self.ids:
            self.ids[value] = len(self.ids)
            self.add("STRING_IDS", self.ids[value], value)
        return self.ids[value]

    def add(self, table: str, *values: Any) -> None:
        if table not in self.without:
            marks = ", ".join("?" * len(values))
            self.connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)

    def task(self, start: int, length: int, kind: str, number: int, connection: int, stream: int = 2) -> None:
        span = (EPOCH + start, EPOCH + start + length)
        self.add("TASK", *span, 1, connection, number, PID, self.text(kind), NONE, stream, number, NONE)

    def call(self, start: int, length: int, name: str, level: int, connection: int, thread: int = QUEUE) -> None:
        self.add("CANN_API", EPOCH + start, EPOCH + start + length, level, thread, connection, self.text(name))

    def api(self, start: int, length: int, name: str, kind: int, connection: int | None = None, **known: Any) -> None:
        self.add(
            "PYTORCH_API", EPOCH + start, EPOCH + start + length, known.get("thread", MAIN), connection,
            self.text(name),
            known.get("sequence", -1), known.get("forward", 0), None, known.get("shapes"), known.get("chain"), kind,
        )  # fmt: skip

    def close(self) -> Path:
        self.connection.commit()
        self.connection.close()
        return self.path


def training(path: Path, without: Iterable[str] = ()) -> Path:
    """A step with an operator, its queue, a launch under two calls, a kernel, copies, a collective, blocks."""
    made = Database(path, without)
    made.add("RANK_DEVICE_MAP", 5, 1)
    made.api(0, 10_000, "ProfilerStep#7", 50001)
    made.api(100, 900, "aten::mm", 50001, 1, sequence=12, shapes=made.text("4,4;4,4"), chain=3)
    made.api(2_000, 500, "MmBackward0", 50001, 2, sequence=12, forward=1)
    made.api(200, 50, "Enqueue", 50002, 3)
    made.api(300, 300, "Dequeue@aclnnMm", 50002, 4, thread=QUEUE)
    made.api(50, 5_000, "train.py(3): step", 50003)
    for number, connection in [(1, 77), (1, 900), (2, 900), (3, 800), (4, 800)]:
        made.add("CONNECTION_IDS", number, connection)
    for depth, frame in enumerate(["model.py(10): forward", "train.py(3): step"]):
        made.add("PYTORCH_CALLCHAINS", 3, made.text(frame), depth)
    made.call(310, 200, "aclnnMm", 20000, 77)
    made.call(350, 100, "launch", 10000, 77)
    made.call(700, 50, "aclrtMemcpyAsync", 20000, 78)
    made.call(6_000, 400, "aclrtSynchronizeStream", 20000, 79)
    made.call(800, 50, "HcomAllReduce", 5500, 80)
    made.task(1_000, 500, "AI_CORE", 1, 77)
    made.add("COMPUTE_TASK_INFO", made.text("MatMulV2"), 1, made.text("MatMul"), made.text("4,4;4,4"))
    made.task(1_600, 200, "PCIE_DMA_SQE", 2, 78)
    made.add("MEMCPY_INFO", 2, 4096, 1)
    made.add("ENUM_MEMCPY_OPERATION", 1, "host to device")
    made.call(900, 10, "aclrtStreamWaitEvent", 20000, 81)
    made.task(1_900, 30, "EVENT_WAIT_SQE", 3, 81)
    made.task(2_000, 100, "SDMA", 4, 80, stream=4)
    made.add("COMMUNICATION_TASK_INFO", made.text("hcom"), 4, made.text("Memcpy"), 0, 1, 512)
    made.add("COMMUNICATION_OP", made.text("hcom_allReduce"), EPOCH + 1_950, EPOCH + 2_450, 80, made.text("group"), 1)
    made.add("OP_MEMORY", made.text("aten::empty"), 1024, EPOCH + 150, EPOCH + 5_000, 1)
    made.add("OP_MEMORY", made.text("aten::zeros"), 512, EPOCH + 160, None, 1)
    made.add("MEMORY_RECORD", made.text("PTA"), EPOCH + 150, 1024, 2048, 1024, 1)
    made.add("MSTX_EVENTS", EPOCH + 400, EPOCH + 900, made.text("my range"), MAIN)
    return made.close()


def test_a_training_step(tmp_path: Path) -> None:
    path = training(tmp_path / "ascend_pytorch_profiler_5.db")
    with imported(path, tmp_path) as trace:
        found = trace.sql(f"""
            SELECT e.kind::VARCHAR, e.category, e.name, e.ts_ns - {EPOCH}, e.dur_ns, t.tid, s.number, e.correlation,
                   up.name
            FROM event e LEFT JOIN thread t ON t.id = e.thread LEFT JOIN stream s ON s.id = e.stream
            LEFT JOIN event up ON up.id = e.parent WHERE e.kind NOT IN ('alloc', 'free') ORDER BY e.ts_ns""").fetchall()
        assert found == [
            ("annotation", "step", "ProfilerStep#7", 0, 10_000, TID, None, None, None),
            ("python", None, "train.py(3): step", 50, 5_000, TID, None, None, "ProfilerStep#7"),
            ("op", "forward", "aten::mm", 100, 900, TID, None, None, "train.py(3): step"),
            ("runtime", "enqueue", "Enqueue", 200, 50, TID, None, None, "aten::mm"),
            ("runtime", "dequeue", "Dequeue@aclnnMm", 300, 300, QUEUE_TID, None, None, None),
            ("runtime", "acl", "aclnnMm", 310, 200, QUEUE_TID, None, None, "Dequeue@aclnnMm"),
            ("launch", "node", "launch", 350, 100, QUEUE_TID, None, 77, "aten::mm"),
            ("annotation", "mstx", "my range", 400, 500, TID, None, None, "aten::mm"),
            ("launch", "acl", "aclrtMemcpyAsync", 700, 50, QUEUE_TID, None, 78, None),
            ("launch", "communication", "HcomAllReduce", 800, 50, QUEUE_TID, None, 80, None),
            ("runtime", "acl", "aclrtStreamWaitEvent", 900, 10, QUEUE_TID, None, None, None),
            ("kernel", None, "MatMulV2", 1_000, 500, None, 2, 77, None),
            ("transfer", "host_to_device", "PCIE_DMA_SQE", 1_600, 200, None, 2, 78, None),
            ("wait", "event_wait", "EVENT_WAIT_SQE", 1_900, 30, None, 2, 81, None),
            ("kernel", "communication", "hcom_allReduce", 1_950, 500, None, 4, 80, None),
            ("op", "backward", "MmBackward0", 2_000, 500, TID, None, None, "train.py(3): step"),
            ("transfer", "device_to_device", "Memcpy", 2_000, 100, None, 4, 80, None),
            ("sync", "acl", "aclrtSynchronizeStream", 6_000, 400, QUEUE_TID, None, None, None),
        ]
        assert busy_ns(trace) == 500 + 200 + 500
        assert trace.sql("SELECT bytes FROM transfers ORDER BY ts_ns").fetchall() == [(4096,), (512,)]
        assert trace.sql("SELECT kind, count(*) FROM flow GROUP BY ALL ORDER BY ALL").fetchall() == [
            ("autograd", 1), ("launch", 4), ("queue", 1)
        ]  # fmt: skip
        assert trace.sql("SELECT pid, rank FROM process").fetchall() == [(PID, 5)]
        assert trace.sql('SELECT type, "index" FROM device').fetchall() == [("npu", 1)]
        assert trace.sql("SELECT max(allocated_bytes) FROM memory_curve").fetchall() == [(1536,)]
        assert trace.sql("SELECT count(*), count(free_ns) FROM allocation").fetchall() == [(2, 1)]
        [(frames,)] = trace.sql("SELECT frames FROM stack").fetchall()
        assert [(frame["file"], frame["line"], frame["function"]) for frame in frames] == [
            ("model.py", 10, "forward"), ("train.py", 3, "step")
        ]  # fmt: skip
        assert trace.sql("SELECT args->>'inputShapes' FROM kernels WHERE name = 'MatMulV2'").fetchall() == [
            ("4,4;4,4",)
        ]


@pytest.mark.parametrize("missing", sorted(TABLES.keys() - {"STRING_IDS", "TASK"}))
def test_what_is_not_there_is_named_and_the_rest_is_read(tmp_path: Path, missing: str) -> None:
    path = training(tmp_path / "msprof_1.db", without=[missing])
    with imported(path, tmp_path) as trace:
        [(tasks,)] = trace.sql("SELECT count(*) FROM event WHERE thread IS NULL AND stream IS NOT NULL").fetchall()
        assert tasks == (4 if missing == "COMMUNICATION_OP" else 5)
        said = [what for what in warnings(trace) if what.startswith("there is no table")]
        assert said == ([f"there is no table {missing} in the database: what it holds is not here"]
                        if missing in ("CANN_API", "PYTORCH_API") else [])  # fmt: skip


def test_times_and_sizes_that_cannot_be(tmp_path: Path) -> None:
    far = 2**63 - 100
    made = Database(tmp_path / "msprof_1.db")
    made.task(0, 10, "AI_CORE", 1, 5)
    made.add("TASK", far, far + 9, 1, 6, 2, PID, 0, NONE, 2, 2, NONE)
    made.add("TASK", EPOCH, far, 1, 7, 3, PID, 0, NONE, 2, 3, NONE)
    made.add("OP_MEMORY", made.text("a"), 1024, EPOCH, far, 1)
    made.add("OP_MEMORY", made.text("b"), far, EPOCH, EPOCH + 1, 1)
    made.connection.execute("CREATE TABLE AICORE_FREQ (deviceId INTEGER, timestampNs INTEGER, freq INTEGER)")
    made.add("AICORE_FREQ", 1, far, 800)
    with imported(made.close(), tmp_path) as trace:
        found = trace.sql("SELECT kind::VARCHAR, end_ns - ts_ns FROM events ORDER BY id").fetchall()
        assert found == [("kernel", 10), ("kernel", None), ("alloc", 0)]
        assert trace.sql("SELECT size_bytes, free_ns FROM allocation").fetchall() == [(1024, None)]
        said = warnings(trace)
        assert said["rows of TASK without a time: left out"] == 1
        assert said["blocks without a size or a time: left out"] == 1
        assert said["values of counters without a time: left out"] == 1


def test_values_of_other_types_cost_their_rows_only(tmp_path: Path) -> None:
    made = Database(tmp_path / "msprof_1.db")
    made.task(0, 10, "AI_CORE", 1, 5)
    made.add("TASK", "soon", 5, 0, 1, 2, PID, 0, 0, 2, 2, 0)
    made.add("TASK", EPOCH, None, "x", b"blob", None, 2**62, "no such text", 0, 1.5, 2, 0)
    made.add("TASK", EPOCH + 100, EPOCH, 0, 1, 3, PID, 0, 0, 2, 2, 0)
    made.add("TASK", EPOCH + 200, EPOCH + 207, 2**40, 1, 4, 2**62, 0, 0, 2**62, 2, 0)
    made.add("RANK_DEVICE_MAP", 2**40, 0)
    made.add("STRING_IDS", 99, b"\xff\x00bytes")
    made.add("CANN_API", EPOCH, EPOCH + 1, 20000, "thread", None, 99)
    with imported(made.close(), tmp_path) as trace:
        assert trace.sql("SELECT kind::VARCHAR, dur_ns, flags FROM event ORDER BY id").fetchall() == [
            ("runtime", 1, 0), ("kernel", 10, 0), ("kernel", None, FLAGS["UNFINISHED"]),
            ("kernel", None, FLAGS["INVALID"]), ("kernel", 7, 0),
        ]  # fmt: skip
        assert busy_ns(trace) == 17
        assert trace.sql('SELECT count(*), count("index") FROM device').fetchall() == [(4, 2)]
        assert trace.sql("SELECT rank FROM source").fetchall() == [(None,)]
        assert warnings(trace)["rows of TASK without a time: left out"] == 1


def test_a_log_that_was_not_written_back_is_read_from_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "inputs"
    folder.mkdir()
    made = Database(folder / "msprof_1.db")
    made.connection.execute("PRAGMA journal_mode = WAL")
    made.task(0, 10, "AI_CORE", 1, 5)
    made.connection.commit()
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    folder.chmod(0o500)
    try:
        with imported(folder / "msprof_1.db", tmp_path) as trace:
            assert trace.sql("SELECT count(*) FROM kernels").fetchall() == [(1,)]
        after = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
        assert {name: data for name, data in after.items() if not name.endswith("-shm")} == {
            name: data for name, data in before.items() if not name.endswith("-shm")
        }
    finally:
        folder.chmod(0o700)
        made.connection.close()


def test_a_folder_with_a_database(tmp_path: Path) -> None:
    output = tmp_path / "x_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    training(output / "ascend_pytorch_profiler_5.db")
    with open_trace(import_files([tmp_path], tmp_path / "back.duckdb")) as trace:
        assert trace.sql("SELECT count(*) FROM kernels").fetchall() == [(2,)]


def test_it_knows_its_databases(tmp_path: Path) -> None:
    assert ascend.sniff(head_of(training(tmp_path / "any.name"))) == 1
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE STRING_IDS (id INTEGER)")
    other.commit()
    other.close()
    assert ascend.sniff(head_of(tmp_path / "other.db")) == 0


def damaged(data: bytes, seed: int) -> bytes:
    chance = random.Random(seed)
    content = bytearray(data)
    for _ in range(chance.choice([1, 3, 30])):
        at = chance.randrange(100, len(content))
        content[at] = chance.randrange(256)
    return bytes(content[: chance.randrange(200, len(content))] if chance.random() < 0.3 else content)


def check(folder: Path, whole: bytes, change: Callable[[bytes], bytes]) -> None:
    path = folder / "given.db"
    path.write_bytes(change(whole))
    try:
        with imported(path, folder) as trace:
            trace.sql("SELECT count(*), count(args::VARCHAR) FROM event").fetchall()
    except InputRefused as refused:
        assert "\n" not in str(refused)  # noqa: PT017


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_damage_is_said_in_words(tmp_path: Path, first: int) -> None:
    whole = training(tmp_path / "whole.db").read_bytes()
    for seed in range(first, first + 20):
        check(tmp_path, whole, lambda data, seed=seed: damaged(data, seed))  # type: ignore[misc]


@pytest.mark.soak
def test_much_damage_is_said_in_words(tmp_path: Path) -> None:
    whole = training(tmp_path / "whole.db").read_bytes()
    for seed in range(1_000, 6_000):
        check(tmp_path, whole, lambda data, seed=seed: damaged(data, seed))  # type: ignore[misc]
