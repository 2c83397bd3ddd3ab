"""Databases of Ascend: `ascend_pytorch_profiler_<rank>.db` of torch_npu, `msprof_<time>.db`. They share their tables.

Times are integer nanoseconds since 1970, sizes bytes; texts are ids of STRING_IDS; a `globalTid` is pid << 32 | tid.
Tables and columns differ between versions: what is not there is unknown. Units and meanings:
https://www.hiascend.com/document/detail/en/CANNCommunityEdition/910/devaids/Profiling/atlasprofiling_16_1145.html
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.args import args_text
from ral_trace.tracer.importers.ascend_tasks import (
    ANNOTATIONS,
    DEVICE_TYPE,
    NO_NUMBER,
    VENDOR,
    frames_of,
    task_kind,
)
from ral_trace.tracer.importers.calls import SYNC_CALL
from ral_trace.tracer.importers.rows import LIMIT, Rows
from ral_trace.tracer.importers.sqlite import CUT_OFF, batches, opened_database, tables
from ral_trace.tracer.schema import FLAGS

OURS = frozenset({"STRING_IDS", "TASK", "CANN_API", "PYTORCH_API", "COMPUTE_TASK_INFO", "COMMUNICATION_OP"})
OP, QUEUE, PYTHON, MSTX = 50001, 50002, 50003, 50004
"""PYTORCH_API.type, as in ENUM_API_TYPE."""
LEVELS = {20000: "acl", 15000: "model", 10000: "node", 5500: "communication", 5000: "runtime"}
"""CANN_API.type, as in ENUM_API_TYPE."""
INTEGERS = range(-(2**63) + 1, 2**63)
STEP_BYTES = 256
TEXT_COLUMNS = {"STRING_IDS": ("value",), "ENUM_MEMCPY_OPERATION": ("name",)}
"""All others hold numbers."""
UNFINISHED = FLAGS["UNFINISHED"]
INFO = {
    "COMPUTE_TASK_INFO": ("name", "opType", "inputShapes", "inputDataTypes", "inputFormats", "outputShapes",
                          "outputDataTypes", "outputFormats"),
}  # fmt: skip


def is_ascend_database(tables: frozenset[str]) -> bool:
    """By its tables."""
    return "STRING_IDS" in tables and len(tables & OURS) >= 2


def read_database(path: Path, rows: Rows) -> None:
    """Adds the rows of a database. Raises InputRefused."""
    with opened_database(path, rows.bad) as connection:
        _Reader(path, connection, rows).read()


class _Reader:
    def __init__(self, path: Path, connection: sqlite3.Connection, rows: Rows) -> None:
        self._path = path
        self._connection = connection
        self._rows = rows
        self._columns = {name: frozenset(columns) for name, columns in tables(connection).items()}
        self._most_rows = path.stat().st_size
        self._texts: dict[Any, str] = {}
        self._operators: dict[int, int] = {}
        """Events of the framework, by the connections that they have."""
        self._process: int | None = None

    def read(self) -> None:
        """Host rows first: launches know their operators by id then."""
        if not self._columns.keys() & (OURS - {"STRING_IDS"}):
            raise InputRefused(self._path, "has none of the tables of an Ascend profile", "export it again")
        self._texts = {row["id"]: str(row["value"]) for row in self._table("STRING_IDS", "id", "value")}
        self._rows.facts.setdefault("clock_zero", "unix epoch")
        torch = "PYTORCH_API" in self._columns
        self._rows.facts.setdefault("producer", "torch_npu profiler" if torch else "msprof")
        for row in self._table("RANK_DEVICE_MAP", "rankId"):
            rank = self._whole(row["rankId"])
            if rank is not None and 0 <= rank < 2**31:
                self._rows.facts["rank"] = rank
        self._add_framework()
        self._add_calls()
        self._add_tasks()
        self._add_collectives()
        self._add_annotations()
        self._add_blocks()
        self._add_curves()
        missing = sorted((OURS & {"TASK", "CANN_API", "PYTORCH_API"}) - self._columns.keys())
        for table in missing:
            self._rows.bad(f"there is no table {table} in the database: what it holds is not here")

    def _table(self, table: str, *columns: str) -> Iterator[dict[str, Any]]:
        """The rows of a table, those of one that is not there none; columns that are not there are None."""
        if table not in self._columns:
            return
        have = [column for column in columns if column in self._columns[table]]
        if not have:
            return
        kinds = {column: "text" if column in TEXT_COLUMNS.get(table, ()) else "int" for column in have}
        missing = dict.fromkeys(columns)
        try:
            for rows in batches(self._connection, table, kinds, at_most=self._most_rows):
                for values in rows:
                    yield missing | dict(zip(have, values, strict=True))
        except sqlite3.DatabaseError as error:
            self._rows.bad(CUT_OFF, f"{table}: {error}")

    def _text(self, number: Any) -> str | None:
        return self._texts.get(number)

    def _whole(self, value: Any) -> int | None:
        """SQLite puts anything into any column."""
        return value if type(value) is int and value in INTEGERS and value != NO_NUMBER else None

    def _bounded(self, value: Any) -> int | None:
        """A time or a size that can be."""
        number = self._whole(value)
        return None if number is None or abs(number) >= LIMIT else number

    def _span(self, row: dict[str, Any], what: str) -> tuple[int, int | None] | None:
        """Start and duration; None: the row has no time."""
        start, end = self._bounded(row["startNs"]), self._bounded(row["endNs"])
        if start is None:
            self._rows.bad(f"rows of {what} without a time: left out", row.get("startNs"))
            return None
        return start, None if end is None else end - start

    def _place(self, global_tid: Any) -> tuple[int, int | None]:
        """Process and thread."""
        number = self._whole(global_tid)
        if number is None:
            return self._main(None), None
        process = self._main(number >> 32 & 0xFFFF_FFFF)
        tid = number & 0xFFFF_FFFF
        return process, self._rows.thread(process, tid, tid=tid)

    def _main(self, pid: int | None) -> int:
        """The process with a pid; rows that do not say it are of the first."""
        if pid is None and self._process is not None:
            return self._process
        process = self._rows.process(("pid", pid), pid=pid)
        if self._process is None:
            self._process = process
        return process

    def _device(self, process: int, index: Any) -> int:
        return self._rows.device(process, DEVICE_TYPE, self._whole(index), vendor=VENDOR)

    def _add_framework(self) -> None:
        connections: dict[Any, list[int]] = defaultdict(list)
        for row in self._table("CONNECTION_IDS", "id", "connectionId"):
            if self._whole(row["connectionId"]) is not None:
                connections[row["id"]].append(row["connectionId"])
        stacks: dict[Any, list[tuple[int, str]]] = defaultdict(list)
        for row in self._table("PYTORCH_CALLCHAINS", "id", "stack", "stackDepth"):
            stacks[row["id"]].append((self._whole(row["stackDepth"]) or 0, self._text(row["stack"]) or ""))
        ends: dict[tuple[str, int], list[int]] = defaultdict(list)
        for row in self._table(
            "PYTORCH_API", "startNs", "endNs", "globalTid", "connectionId", "name", "sequenceNumber", "fwdThreadId",
            "inputDtypes", "inputShapes", "callchainId", "type",
        ):  # fmt: skip
            span = self._span(row, "PYTORCH_API")
            if span is None:
                continue
            name = self._text(row["name"])
            kind, category = _framework_kind(name or "", row)
            process, thread = self._place(row["globalTid"])
            lines = "\n".join(line for _, line in sorted(stacks.get(row["callchainId"], [])))
            known = {"shapes": self._text(row["inputShapes"]), "dtypes": self._text(row["inputDtypes"])}
            event = self._rows.event(
                kind, name, *span, process, category=category, thread=thread, args=args_text(known),
                stack=self._rows.stack(frames_of(lines)), flags=UNFINISHED if span[1] is None else 0,
            )  # fmt: skip
            for number in connections.get(row["connectionId"], ()):
                if kind == "op":
                    self._operators.setdefault(number, event)
                ends[kind, number].append(event)
        for (kind, _), events in ends.items():
            if len(events) == 2 and kind in ("op", "runtime"):
                self._rows.flow("autograd" if kind == "op" else "queue", *events)

    def _add_calls(self) -> None:
        """The innermost of the calls that share a connection with work of the device is the launch."""
        started = {
            row["connectionId"]
            for row in self._table("TASK", "connectionId", "taskType")
            if task_kind("", self._text(row["taskType"]) or "")[0] != "wait"
        }
        started |= {row["connectionId"] for row in self._table("COMMUNICATION_OP", "connectionId")}
        launches: dict[Any, tuple[int, int]] = {}
        columns = ("startNs", "endNs", "type", "globalTid", "connectionId", "name")
        for number, row in enumerate(self._table("CANN_API", *columns)):
            start, connection = self._whole(row["startNs"]), self._whole(row["connectionId"])
            if connection in started and start is not None and (start, number) >= launches.get(connection, (start, -1)):
                launches[connection] = (start, number)
        chosen = {number for _, number in launches.values()}
        for number, row in enumerate(self._table("CANN_API", *columns)):
            span = self._span(row, "CANN_API")
            if span is None:
                continue
            name, connection = self._text(row["name"]), self._whole(row["connectionId"])
            launch = number in chosen
            process, thread = self._place(row["globalTid"])
            self._rows.event(
                "launch" if launch else "sync" if SYNC_CALL.search(name or "") else "runtime", name, *span, process,
                category=LEVELS.get(row["type"]), thread=thread, correlation=connection if launch else None,
                parent=self._operators.get(connection) if launch and connection is not None else None,
                flags=UNFINISHED if span[1] is None else 0,
            )  # fmt: skip

    def _add_tasks(self) -> None:
        described: dict[Any, dict[str, Any]] = {}
        for row in self._table("COMPUTE_TASK_INFO", "globalTaskId", *INFO["COMPUTE_TASK_INFO"]):
            described[row.pop("globalTaskId")] = {key: self._text(value) for key, value in row.items()}
        operations = {row["id"]: str(row["name"]) for row in self._table("ENUM_MEMCPY_OPERATION", "id", "name")}
        copies = {
            row["globalTaskId"]: (self._whole(row["size"]), _direction(operations.get(row["memcpyOperation"], "")))
            for row in self._table("MEMCPY_INFO", "globalTaskId", "size", "memcpyOperation")
        }
        planes = {
            row.pop("globalTaskId"): row
            for row in self._table(
                "COMMUNICATION_TASK_INFO", "globalTaskId", "name", "taskType", "srcRank", "dstRank", "size"
            )
        }
        for row in self._table(
            "TASK", "startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "globalPid", "taskType", "streamId"
        ):
            span = self._span(row, "TASK")
            if span is None:
                continue
            task_type = self._text(row["taskType"]) or ""
            info, plane = dict(described.get(row["globalTaskId"], {})), planes.get(row["globalTaskId"])
            name = info.pop("name", None) or (self._text(plane["taskType"]) if plane else None) or task_type
            kind, category = ("kernel", None) if row["globalTaskId"] in described else task_kind(name, task_type)
            size: int | None = None
            if kind == "transfer":
                size, direction = copies.get(row["globalTaskId"], (None, None))
                category = direction or category
                if plane is not None:
                    size, category = self._whole(plane["size"]), _between(plane)
            process = self._main(self._whole(row["globalPid"]))
            device = self._device(process, row["deviceId"])
            self._rows.event(
                kind, name, *span, process, category=category, device=device, bytes=size,
                stream=self._rows.stream(device, self._whole(row["streamId"])),
                correlation=self._whole(row["connectionId"]), args=args_text({"task_type": task_type or None, **info}),
                flags=UNFINISHED if span[1] is None else 0,
            )  # fmt: skip

    def _add_collectives(self) -> None:
        """A collective is a kernel on the stream of its tasks, where they tell it."""
        places = {
            row["connectionId"]: (row["deviceId"], row["streamId"])
            for row in self._table("TASK", "connectionId", "deviceId", "streamId")
        } if "COMMUNICATION_OP" in self._columns else {}  # fmt: skip
        for row in self._table(
            "COMMUNICATION_OP", "opName", "startNs", "endNs", "connectionId", "groupName", "deviceId"
        ):
            span = self._span(row, "COMMUNICATION_OP")
            if span is None:
                continue
            connection, process = self._whole(row["connectionId"]), self._main(None)
            index, number = places.get(connection, (row["deviceId"], None))
            device = self._device(process, index)
            stream = None if self._whole(number) is None else self._rows.stream(device, number)
            self._rows.event(
                "kernel", self._text(row["opName"]), *span, process, category="communication", device=device,
                stream=stream, correlation=connection, args=args_text({"group": self._text(row["groupName"])}),
                flags=UNFINISHED if span[1] is None else 0,
            )  # fmt: skip

    def _add_annotations(self) -> None:
        """Ranges of mstx on the host, the framework's steps, collections of garbage."""
        for row in self._table("MSTX_EVENTS", "startNs", "endNs", "message", "globalTid"):
            span = self._span(row, "MSTX_EVENTS")
            if span is not None:
                process, thread = self._place(row["globalTid"])
                kind = "instant" if span[1] == 0 else "annotation"
                self._rows.event(kind, self._text(row["message"]), *span, process, category="mstx", thread=thread)
        for row in self._table("GC_RECORD", "startNs", "endNs", "globalTid"):
            span = self._span(row, "GC_RECORD")
            if span is not None:
                process, thread = self._place(row["globalTid"])
                self._rows.event("annotation", "garbage collection", *span, process, category="gc", thread=thread)

    def _add_blocks(self) -> None:
        """A block a row, with both ends; without addresses, so that each has a number of its own."""
        columns = ("name", "size", "allocationTime", "releaseTime", "deviceId")
        for number, row in enumerate(self._table("OP_MEMORY", *columns), 1):
            size = self._bounded(row["size"])
            ends = (("alloc", self._bounded(row["allocationTime"])), ("free", self._bounded(row["releaseTime"])))
            if size is None or size < 0 or all(ts_ns is None for _, ts_ns in ends):
                self._rows.bad("blocks without a size or a time: left out", self._text(row["name"]))
                continue
            process = self._main(None)
            device = self._device(process, row["deviceId"])
            self._rows.bad("blocks whose address the file does not say: numbered in their order instead")
            for action, ts_ns in ends:
                if ts_ns is not None:
                    event = self._rows.event(
                        action, self._text(row["name"]), ts_ns, 0, process, device=device, bytes=size
                    )
                    self._rows.memory(action, event, ts_ns, device, number * STEP_BYTES, size_bytes=size)

    def _add_curves(self) -> None:
        columns = ("component", "timestamp", "totalAllocated", "totalReserved", "totalActive", "deviceId")
        for row in self._table("MEMORY_RECORD", *columns):
            series = self._text(row["component"]) or "memory"
            for column, what in (
                ("totalAllocated", "allocated"),
                ("totalReserved", "reserved"),
                ("totalActive", "active"),
            ):
                self._value(row["timestamp"], row["deviceId"], f"{series} {what}", "bytes", row[column])
        for row in self._table("AICORE_FREQ", "deviceId", "timestampNs", "freq"):
            self._value(row["timestampNs"], row["deviceId"], "AI Core Freq", "MHz", row["freq"])
        for row in self._table("HBM", "deviceId", "timestampNs", "bandwidth", "hbmId", "type"):
            series = f"HBM {row['hbmId']} {self._text(row['type']) or ''}".strip()
            self._value(row["timestampNs"], row["deviceId"], series, "bytes/s", row["bandwidth"])
        for row in self._table("NPU_MEM", "type", "ddr", "hbm", "timestampNs", "deviceId"):
            for column in ("ddr", "hbm"):
                series = f"{self._text(row['type']) or 'NPU'} {column.upper()}"
                self._value(row["timestampNs"], row["deviceId"], series, "bytes", row[column])

    def _value(self, ts_ns: Any, index: Any, series: str, unit: str, value: Any) -> None:
        at = self._bounded(ts_ns)
        if at is None or not isinstance(value, int | float):
            if at is None:
                self._rows.bad("values of counters without a time: left out", series)
            return
        process = self._main(None)
        counter = self._rows.counter(series, unit, process=process, device=self._device(process, index))
        self._rows.value(counter, at, float(value))


def _framework_kind(name: str, row: dict[str, Any]) -> tuple[str, str | None]:
    kind = row["type"]
    if kind == QUEUE:
        return "runtime", "enqueue" if name.startswith("Enqueue") else "dequeue"
    if kind == PYTHON:
        return "python", None
    if kind == MSTX or ANNOTATIONS.match(name):
        return "annotation", "mstx" if kind == MSTX else None
    forward, sequence = row["fwdThreadId"], row["sequenceNumber"]
    if isinstance(forward, int) and forward > 0:
        return "op", "backward"
    return "op", "forward" if isinstance(sequence, int) and sequence >= 0 else None


def _direction(operation: str) -> str | None:
    """Of a copy, from ENUM_MEMCPY_OPERATION: "host to device"."""
    words = operation.lower().replace("_", " ").strip()
    known = {
        "host to device": "host_to_device",
        "device to host": "device_to_host",
        "device to device": "within_device",
    }
    return known.get(words)


def _between(plane: dict[str, Any]) -> str | None:
    source, target = plane["srcRank"], plane["dstRank"]
    if type(source) is not int or type(target) is not int or NO_NUMBER in (source, target):
        return None
    return "within_device" if source == target else "device_to_device"
