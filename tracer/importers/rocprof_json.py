"""rocprofv3's JSON (`--output-format json`): one object a process, with its records after the names that they refer to.

https://github.com/ROCm/rocm-systems, projects/rocprofiler-sdk/source/lib/output/generateJSON.cpp
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import rocprof
from ral_trace.tracer.importers.json_stream import BadValueError, CutOffError, JsonStream
from ral_trace.tracer.importers.opening import DAMAGED, Head, opened
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.importers.staging import Staging

FORMAT = "rocprofv3 JSON"

ROOT = "rocprofiler-sdk-tool"
OWN_KEY = re.compile(rb'"%s"\s*:\s*[\[{]' % ROOT.encode())
BATCH_ROWS = 20_000
NOT_JSON = "records that are not JSON: left out"
NOT_RECORDS = "records that are of another type than they should be: left out"

RECORD = dict.fromkeys(("number", "kind", "operation", "tid", "correlation", "start", "end"), "int")
TABLES = {
    "json_call": {**RECORD, "arguments": "text"},
    "json_dispatch": {
        **RECORD, **dict.fromkeys(("kernel", "dispatch", "stream", "lds", "scratch", "gridX", "gridY", "gridZ",
                                   "blockX", "blockY", "blockZ"), "int"), "agent": "text", "queue": "text"},
    "json_copy": {**RECORD, "source": "text", "target": "text", "stream": "int", "bytes": "int"},
    "json_memory": {**RECORD, "agent": "text", "address": "text", "bytes": "int"},
    "json_counter": {**RECORD, "agent": "text", "kernel": "int", "dispatch": "int", "counter": "text", "value": "real"},
    "json_name": {"number": "int", "kind": "int", "operation": "int", "domain": "text", "name": "text"},
    "json_kernel": {"number": "int", "kernel": "int", "name": "text"},
    "json_marker": {"number": "int", "correlation": "int", "message": "text"},
    "json_counter_name": {"number": "int", "counter": "text", "series": "text"},
    "json_agent": {"number": "int", "agent": "text", "gpu": "int", "index": "int", "vendor": "text", "name": "text"},
    "json_process": {"number": "int", "pid": "int"},
}  # fmt: skip
KERNEL_NAMES = ("formatted_kernel_name", "demangled_kernel_name", "truncated_kernel_name", "kernel_name")
GPU = 2
"""rocprofiler_agent_type_t"""


def sniff(head: Head) -> float:
    """Sure when the tool's own key is in sight."""
    return 1.0 if OWN_KEY.search(head.data) else 0.0


def read(path: Path, rows: Rows) -> None:
    """Adds the records of all processes. Raises InputRefused when there are none at all."""
    with Staging(rows, rocprof.places()) as staging, opened(path, rows.bad) as file:
        rocprof.prepare(staging)
        for table, columns in TABLES.items():
            staging.table(table, columns)
        reader = _Reader(staging, rows, JsonStream(file, rows.bad, (EOFError, *DAMAGED)))
        try:
            found = reader.document()
        except (CutOffError, BadValueError) as error:
            if not reader.processes:
                raise InputRefused(path, f"is not whole JSON ({error})", "export it again") from error
            rows.bad("the file is cut off or damaged: what came before was taken", error)
            found = True
        if not found:
            raise InputRefused(path, f"its {ROOT} holds no processes", "export it again")
        reader.flush()
        rows.facts["producer"] = "rocprofv3"
        _resolve(staging)
        rocprof.place(staging)
    rows.advance(path.stat().st_size)


class _Reader:
    """Takes the records of each process into the tables."""

    def __init__(self, staging: Staging, rows: Rows, stream: JsonStream) -> None:
        self.staging = staging
        self.rows = rows
        self.stream = stream
        self.processes = 0
        self._batches: dict[str, list[tuple[Any, ...]]] = {table: [] for table in TABLES}

    def document(self) -> bool:
        """Whether there was a process in it."""
        for name in self.stream.members():
            if name != ROOT or self.stream.peek() not in ("[", "{"):
                self._value()
            elif self.stream.peek() == "{":
                self._process()
            else:
                for _ in self.stream.items():
                    self._process() if self.stream.peek() == "{" else self._value()
        if self.stream.peek():
            self.rows.bad("text after the end of the JSON: left out")
        return self.processes > 0

    def _value(self) -> Any:
        """The next value, None when it is no JSON."""
        try:
            return self.stream.value()
        except BadValueError as error:
            self.rows.bad(NOT_JSON, error)
            return None

    def _process(self) -> None:
        self.processes += 1
        take: dict[str, Callable[[Any], None]] = {
            "metadata": self._metadata, "strings": self._strings, "kernel_symbols": self._kernels,
            "agents": self._agents, "counters": self._counter_names,
        }  # fmt: skip
        for name in self.stream.members():
            if name in ("buffer_records", "callback_records") and self.stream.peek() == "{":
                for group in self.stream.members():
                    self._records(group)
            else:
                value = self._value()
                if name in take:
                    take[name](value)

    def _records(self, group: str) -> None:
        taker = {
            "kernel_dispatch": self._dispatch, "memory_copy": self._copy, "memory_allocation": self._memory,
            "counter_collection": self._counters,
        }.get(group, self._call if group.endswith("_api") else None)  # fmt: skip
        if self.stream.peek() != "[":
            self._value()
            return
        for _ in self.stream.items():
            record = self._value()
            if taker is None:
                self.rows.bad("records of a kind that is not read", group)
            elif isinstance(record, dict):
                taker(record)
            elif record is not None:
                self.rows.bad(NOT_RECORDS, record)

    def _add(self, table: str, *row: Any) -> None:
        batch = self._batches[table]
        batch.append((self.processes, *row))
        if len(batch) == BATCH_ROWS:
            self._flush(table)

    def _flush(self, table: str) -> None:
        self.staging.append(table, list(TABLES[table]), self._batches[table])
        self._batches[table] = []

    def flush(self) -> None:
        """Hands over what is left."""
        for table in TABLES:
            self._flush(table)

    def _metadata(self, value: Any) -> None:
        self._add("json_process", _at(value, "pid"))

    def _strings(self, value: Any) -> None:
        for kind, record in enumerate(_list(_at(value, "buffer_records"))):
            self._add("json_name", kind, None, _at(record, "kind"), None)
            for operation, name in enumerate(_list(_at(record, "operations"))):
                self._add("json_name", kind, operation, _at(record, "kind"), name)
        for entry in _list(_at(value, "marker_api")):
            self._add("json_marker", _at(entry, "key"), _at(entry, "value"))

    def _kernels(self, value: Any) -> None:
        for kernel in _list(value):
            name = next(filter(None, (_at(kernel, column) for column in KERNEL_NAMES)), None)
            self._add("json_kernel", _at(kernel, "kernel_id"), name)

    def _agents(self, value: Any) -> None:
        for agent in _list(value):
            name = _at(agent, "product_name") or _at(agent, "name")
            index = _at(agent, "logical_node_type_id")
            gpu = int(_at(agent, "type") == GPU)
            self._add("json_agent", _handle(agent, "id"), gpu, index, _at(agent, "vendor_name"), name)

    def _counter_names(self, value: Any) -> None:
        for counter in _list(value):
            self._add("json_counter_name", _handle(counter, "id"), _at(counter, "name"))

    def _common(self, record: dict[str, Any]) -> tuple[Any, ...]:
        get = record.get
        correlation = _at(get("correlation_id"), "internal")
        return (
            get("kind"),
            get("operation"),
            get("thread_id"),
            correlation,
            get("start_timestamp"),
            get("end_timestamp"),
        )

    def _call(self, record: dict[str, Any]) -> None:
        arguments = record.get("args")
        self._add("json_call", *self._common(record), _as_json(arguments) if arguments else None)

    def _dispatch(self, record: dict[str, Any]) -> None:
        info = record.get("dispatch_info")
        sizes = [_at(_at(info, size), axis) for size in ("grid_size", "workgroup_size") for axis in "xyz"]
        self._add(
            "json_dispatch", *self._common(record), _at(info, "kernel_id"), _at(info, "dispatch_id"),
            _at(record.get("stream_id"), "handle"), _at(info, "group_segment_size"), _at(info, "private_segment_size"),
            *sizes, _handle(info, "agent_id"), _handle(info, "queue_id"),
        )  # fmt: skip

    def _copy(self, record: dict[str, Any]) -> None:
        source, target = _handle(record, "src_agent_id"), _handle(record, "dst_agent_id")
        stream = _at(record.get("stream_id"), "handle")
        self._add("json_copy", *self._common(record), source, target, stream, record.get("bytes"))

    def _memory(self, record: dict[str, Any]) -> None:
        address = record.get("address")
        agent = _handle(record, "agent_id")
        self._add("json_memory", *self._common(record), agent, address, record.get("allocation_size"))

    def _counters(self, record: dict[str, Any]) -> None:
        data = record.get("dispatch_data")
        if not isinstance(data, dict):
            self.rows.bad(NOT_RECORDS, data)
            return
        info, common = data.get("dispatch_info"), self._common(data)
        ids = _at(info, "kernel_id"), _at(info, "dispatch_id")
        for value in _list(record.get("records")):
            handle = _handle(value, "counter_id") or _handle(value, "id")
            number = value.get("value", value.get("counter_value")) if isinstance(value, dict) else None
            self._add("json_counter", *common, _handle(info, "agent_id"), *ids, handle, number)


def _at(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _handle(value: Any, name: str) -> str | None:
    """An id: {"handle": 53062}."""
    handle = _at(_at(value, name), "handle")
    return None if handle is None else str(handle)


def _list(value: Any) -> Iterator[Any]:
    return iter(value if isinstance(value, list) else ())


def _as_json(arguments: Any) -> str | None:
    try:
        return json.dumps(arguments, allow_nan=False)
    except (ValueError, RecursionError):
        return None


def _resolve(staging: Staging) -> None:
    """Fills the tables of `rocprof` with what the records mean by the names of their process."""
    for table, key in (("json_kernel", "number, kernel"), ("json_marker", "number, correlation"),
                       ("json_counter_name", "number, counter"), ("json_process", "number")):  # fmt: skip
        staging.unique(table, key)
    # A run for counters alone has no trace of the kernels; each value then tells its dispatch.
    staging.connection.execute("""
        INSERT INTO json_dispatch BY NAME
        SELECT DISTINCT ON (number, dispatch) number, correlation, start, "end", agent, kernel, dispatch
        FROM json_counter
        WHERE number NOT IN (SELECT number FROM json_dispatch) ORDER BY number, dispatch, start""")
    staging.made(
        "json_operation",
        """
        SELECT number, kind, operation, any_value(domain) AS domain, any_value(name) AS name FROM json_name
        GROUP BY ALL""",
    )
    process = "r.number || ':' || coalesce(p.pid::VARCHAR, '')"
    whose = "LEFT JOIN json_process p ON p.number = r.number"
    named = """LEFT JOIN json_operation o ON o.number = r.number AND o.kind = r.kind AND o.operation = r.operation
               LEFT JOIN json_operation d ON d.number = r.number AND d.kind = r.kind AND d.operation IS NULL"""
    for table, query in {
        "roc_agent": f"SELECT {process} AS process, r.* EXCLUDE (number) FROM json_agent r {whose}",
        "roc_call": f"""
            SELECT {process} AS process, tid, start, "end", r.correlation, d.domain, o.name, message, arguments
            FROM json_call r {whose} {named}
            LEFT JOIN json_marker m ON m.number = r.number AND m.correlation = r.correlation""",
        "roc_dispatch": f"""
            SELECT {process} AS process, k.name, r.* EXCLUDE (number, kind, operation, tid, kernel) FROM json_dispatch r
            {whose} LEFT JOIN json_kernel k ON k.number = r.number AND k.kernel = r.kernel""",
        "roc_copy": f"""
            SELECT {process} AS process, o.name AS operation, r.* EXCLUDE (number, kind, operation, tid)
            FROM json_copy r {whose} {named}""",
        "roc_memory": f"""
            SELECT {process} AS process, CASE WHEN contains(o.name, 'FREE') THEN 'FREE' WHEN contains(o.name, 'ALLOC')
                       THEN 'ALLOC' END AS operation,
                   CASE WHEN contains(o.name, 'VMEM') THEN 'VIRTUAL' ELSE 'REAL' END AS level,
                   r.* EXCLUDE (number, kind, operation)
                       REPLACE (CASE WHEN o.name LIKE '%FREE' THEN NULL ELSE agent END AS agent)
            FROM json_memory r {whose} {named}""",
        "roc_counter": f"""
            SELECT {process} AS process, agent, start AS ts, series, value, dispatch FROM json_counter r {whose}
            LEFT JOIN json_counter_name n ON n.number = r.number AND n.counter = r.counter""",
    }.items():
        staging.connection.execute(f"INSERT INTO {table} BY NAME {query}")
