"""trace_view.json of torch_npu and msprof: Chrome's format with processes that are layers.

- Python (or whoever): operators, their queue (Enqueue, Dequeue), Python calls.
- CANN: calls of the runtime, on the same threads. Those with device work of their `connection_id` are launches, and
  the innermost of several is the one. Recording an event and the like starts no work.
- Ascend Hardware: tasks of streams. HCCL or Communication: collectives ("Group"), which are kernels here, and the
  copies and notifications of which they consist ("Plane"): those are tasks of streams as well, and tell them bytes and
  ranks.
- Overlap Analysis: computed by the tool from the others, left out. All else: counters.

Times are microseconds since 1970, as text: integer nanoseconds by decimal arithmetic (`trace_events`).
https://gitee.com/ascend/pytorch/tree/master/torch_npu/profiler/analysis/prof_view
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ral_trace.tracer.importers.args import args_text
from ral_trace.tracer.importers.ascend_tasks import (
    ANNOTATIONS,
    COPY_DIRECTION,
    DEVICE_TYPE,
    NO_NUMBER,
    VENDOR,
    frames_of,
    task_kind,
)
from ral_trace.tracer.importers.calls import SYNC_CALL
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.importers.trace_events import Field, Group, Scan, bound_sizes, integer, parsed, scanned, stage
from ral_trace.tracer.schema import FLAGS

FIELDS: list[Field] = [
    ("connection_id", "connection", "int"), ("Task Type", "task_type", "text"), ("Call stack", "call_stack", "text"),
    ("Fwd thread id", "forward_thread", "int"), ("Sequence number", "sequence", "int"),
    ("stream id", "plane_stream", "int"),
    ("size(Byte)", "plane_bytes", "int"), ("Physic Stream Id", "physical_stream", "int"),
]  # fmt: skip
LEFT_OUT = ["Thread Id", "Python id", "Python parent id"]
HARDWARE, COMMUNICATION, CALLS, DERIVED = "Ascend Hardware", ("HCCL", "Communication"), "CANN", "Overlap Analysis"
COLUMNS = (
    "n", "grp", "name", "ts_ns", "dur_ns", "args", "connection", "task_type", "call_stack", "forward_thread",
    "sequence", "plane_stream", "plane_bytes", "physical_stream",
)  # fmt: skip
ROWS_AT_ONCE = 50_000
UNFINISHED = FLAGS["UNFINISHED"]
DERIVED_NOTE = "rows of Overlap Analysis: computed from the others by the tool that wrote the file, left out"


@dataclass(slots=True)
class Event:
    """A row of `raw_event`."""

    n: int
    grp: int
    name: str
    ts_ns: int
    dur_ns: int | None
    args: str | None
    connection: int | None
    task_type: str | None
    call_stack: str | None
    forward_thread: int | None
    sequence: int | None
    plane_stream: int | None
    plane_bytes: int | None
    physical_stream: int | None


@dataclass
class Layer:
    """A process of the file. `device`: which one its rows are of, by its pid."""

    name: str
    sort_index: int | None = None
    labels: str = ""
    threads: dict[str | None, str] = field(default_factory=dict)


def read_json(path: Path, rows: Rows) -> int:
    """Adds the file's rows, and returns the id of their process. Raises InputRefused."""
    with scanned(path, rows, fields=FIELDS, leave_out=LEFT_OUT) as scan:
        stage(rows, scan, scan.groups)
        bound_sizes(rows, ["plane_bytes"])
        return _Reader(rows, scan).read()


class _Reader:
    def __init__(self, rows: Rows, scan: Scan) -> None:
        self._rows = rows
        self._connection = rows.builder.connection
        self._groups = {group.number: group for group in scan.groups}
        self._layers = self._find_layers()
        self._python = next((pid for pid, layer in self._layers.items() if layer.name == "Python"), None)
        pid = integer(self._python) if self._python else self._host_pid()
        name = "Python" if self._python else None
        self.process = rows.process("main", pid=pid, name=name)
        self._launches: dict[int, int] = {}
        self._parents: dict[int, int] = {}
        self._tasks: dict[tuple[int, int], Event] = {}
        self._ids: dict[int, int] = {}

    def read(self) -> int:
        """Host rows first: launches know their operators by id then."""
        self._rows.facts.setdefault("clock_zero", "unix epoch")
        self._rows.facts.setdefault("producer", "torch_npu profiler" if self._python else "msprof")
        hardware = self._groups_of(lambda layer: layer.name == HARDWARE, "X")
        groups = self._groups_of(lambda layer: layer.name in COMMUNICATION, "X")
        calls = self._groups_of(lambda layer: layer.name == CALLS, "X")
        derived = self._groups_of(lambda layer: layer.name == DERIVED, "X")
        host = [g for g in self._groups_of(lambda layer: True, "X") if g not in {*hardware, *groups, *calls, *derived}]
        planes = [g for g in groups if self._thread_name(g).startswith("Plane")]
        self._find_launches(calls, [*hardware, *groups], host)
        self._learn_planes(planes)
        for event in self._events(host):
            self._add_host(event)
        for event in self._events(calls):
            self._add_call(event)
        streams: dict[int, int] = {}
        for event in self._events(hardware):
            self._add_task(event, streams)
        for event in self._events([g for g in groups if g not in planes]):
            self._add_collective(event, streams)
        self._add_left_planes(planes)
        self._add_arrows()
        self._add_counters()
        if derived:
            self._rows.bad(DERIVED_NOTE, count=sum(self._groups[g].rows for g in derived))
        return self.process

    def _find_layers(self) -> dict[str, Layer]:
        found: dict[str, Layer] = defaultdict(lambda: Layer(""))
        query = "SELECT name, pid, tid, args FROM raw_event WHERE ph = 'M' AND args IS NOT NULL ORDER BY n"
        for name, pid, tid, text in self._connection.execute(query).fetchall():
            args = parsed(text)
            if not isinstance(args, dict) or pid is None:
                continue
            if name == "process_name":
                found[pid].name = str(args.get("name", ""))
            elif name == "thread_name":
                found[pid].threads[tid] = str(args.get("name", ""))
            elif name == "process_sort_index" and isinstance(args.get("sort_index"), int):
                found[pid].sort_index = args["sort_index"]
        return dict(found)

    def _host_pid(self) -> int | None:
        """The pid that msprof packs into those of its layers: pid << 10 | sort index << 5 | device."""
        for pid in self._layers:
            number, layer = integer(pid), self._layers[pid]
            if number is not None and layer.sort_index is not None and (number >> 5) & 31 == layer.sort_index:
                return number >> 10
        return None

    def _device(self, group: Group) -> int:
        layer, number = self._layers.get(group.pid or ""), integer(group.pid)
        packed = layer is not None and number is not None and layer.sort_index == (number >> 5) & 31
        index = number & 31 if packed and number is not None else None
        return self._rows.device(self.process, DEVICE_TYPE, index, vendor=VENDOR)

    def _groups_of(self, wanted: Any, phase: str) -> list[int]:
        return [
            group.number
            for group in self._groups.values()
            if group.ph == phase and wanted(self._layers.get(group.pid or "", Layer("")))
        ]

    def _thread_name(self, number: int) -> str:
        group = self._groups[number]
        return self._layers.get(group.pid or "", Layer("")).threads.get(group.tid, "")

    def _events(self, groups: list[int]) -> Iterator[Event]:
        """The events of some groups, in the order of the file, a part at a time."""
        [(last,)] = self._connection.execute("SELECT coalesce(max(n), -1) FROM raw_row").fetchall()
        for begin in range(0, last + 1, ROWS_AT_ONCE):
            found = self._connection.execute(
                f"""SELECT {", ".join(COLUMNS)} FROM raw_row
                    WHERE n >= ? AND n < ? AND grp IN (SELECT unnest(?::BIGINT[])) ORDER BY n""",
                [begin, begin + ROWS_AT_ONCE, groups],
            ).fetchall()
            for row in found:
                name, ts_ns = row[2], row[3]
                if ts_ns is None:
                    self._rows.bad("events without a time: left out", name)
                else:
                    yield Event(row[0], row[1], name or "", *row[3:])

    def _find_launches(self, calls: list[int], device: list[int], host: list[int]) -> None:
        """Which call started the work of a connection (the innermost), and which operator that was."""
        found = self._connection.execute(
            """SELECT DISTINCT connection, coalesce(name, ''), coalesce(task_type, '') FROM raw_row
               WHERE connection IS NOT NULL AND grp IN (SELECT unnest(?::BIGINT[]))""",
            [device],
        ).fetchall()
        working = list({connection for connection, name, kind in found if task_kind(name, kind)[0] != "wait"})
        self._connection.execute(
            """CREATE OR REPLACE TEMP TABLE ascend_launch AS
               SELECT connection, max_by(n, ts_ns) AS n FROM raw_row
               WHERE grp IN (SELECT unnest($1::BIGINT[])) AND connection IN (SELECT unnest($2::BIGINT[]))
               GROUP BY connection""",
            [calls, working],
        )
        found = self._connection.execute("SELECT n, connection FROM ascend_launch").fetchall()
        self._launches = dict(found)
        found = self._connection.execute(
            """SELECT l.n, min_by(op.n, op.dur_ns) FROM raw_event s
               JOIN raw_event f ON f.id = s.id AND f.cat = s.cat AND f.ph = 'f'
               JOIN raw_event task ON task.track = f.track AND task.ts_ns = f.ts_ns AND task.ph = 'X'
               JOIN ascend_launch l ON l.connection = task.connection
               JOIN raw_event op ON op.track = s.track AND op.ts_ns = s.ts_ns AND op.ph = 'X'
               WHERE s.ph = 's' AND s.cat = 'async_npu' AND op.grp IN (SELECT unnest($1::BIGINT[]))
               GROUP BY l.n""",
            [host],
        ).fetchall()
        self._parents = dict(found)
        self._directions = self._find_directions()
        self._wanted = {op for _, op in found}
        self._connection.execute("DROP TABLE ascend_launch")

    def _find_directions(self) -> dict[int, str]:
        """Of the copies of a connection: what was taken from the queue when they were launched says it."""
        found = self._connection.execute(
            """SELECT l.connection, queued.name FROM (
                   SELECT connection, tid, ts_ns FROM ascend_launch JOIN raw_event USING (n, connection)) l
               ASOF JOIN (SELECT tid, name, ts_ns, dur_ns FROM raw_event WHERE cat = 'dequeue' AND ph = 'X') queued
                 ON queued.tid = l.tid AND l.ts_ns >= queued.ts_ns
               WHERE l.ts_ns < queued.ts_ns + queued.dur_ns AND contains(queued.name, 'memcpy')"""
        ).fetchall()
        matches = {connection: COPY_DIRECTION.search(name) for connection, name in found}
        return {connection: match[1] for connection, match in matches.items() if match}

    def _learn_planes(self, planes: list[int]) -> None:
        for event in self._events(planes):
            if event.plane_stream is not None:
                self._tasks[event.plane_stream, event.ts_ns] = event

    def _add_host(self, event: Event) -> None:
        group = self._groups[event.grp]
        category: str | None = None
        match group.cat:
            case "cpu_op" if not ANNOTATIONS.match(event.name):
                kind = "op"
                category = "backward" if (event.forward_thread or 0) > 0 else None
                if category is None and (event.sequence or -1) >= 0:
                    category = "forward"
            case "python_function":
                kind = "python"
            case "enqueue" | "dequeue":
                kind, category = "runtime", group.cat
            case _:
                kind, category = "annotation", None if group.cat in ("cpu_op", "user_annotation") else group.cat
        stack = self._rows.stack(frames_of(event.call_stack))
        self._add(event, kind, category=category, thread=self._thread(group), stack=stack)

    def _thread(self, group: Group) -> int:
        """CANN's threads are the operating system's, and so the same ones."""
        tid = integer(group.tid)
        name = self._thread_name_of(group, tid)
        return self._rows.thread(self.process, ("tid", group.tid), tid=tid, name=name)

    def _thread_name_of(self, group: Group, tid: int | None) -> str | None:
        name = self._layers.get(group.pid or "", Layer("")).threads.get(group.tid, group.tid if tid is None else None)
        return None if name == f"Thread {tid}" else name

    def _add_call(self, event: Event) -> None:
        level, _, name = event.name.partition("@")
        launched = self._launches.get(event.n)
        kind = "launch" if launched is not None else "sync" if SYNC_CALL.search(name) else "runtime"
        parent = self._ids.get(self._parents.get(event.n, -1))
        group = self._groups[event.grp]
        self._add(event, kind, category=level or None, thread=self._thread(group), correlation=launched, parent=parent)

    def _add_task(self, event: Event, streams: dict[int, int]) -> None:
        group = self._groups[event.grp]
        device = self._device(group)
        number = integer(group.tid)
        stream = self._rows.stream(device, number)
        if event.connection is not None:
            streams.setdefault(event.connection, stream)
        plane = None if number is None else self._tasks.pop((number, event.ts_ns), None)
        kind, category = task_kind(event.name, event.task_type or "")
        if kind == "transfer" and category is None and event.connection is not None:
            category = self._directions.get(event.connection)
        args, size = _task_args(event), None
        if plane is not None:
            args |= _task_args(plane)
            size = plane.plane_bytes if kind == "transfer" else None
            category = _link(args) if kind == "transfer" else category
        self._add(
            event, kind, category=category, device=device, stream=stream, correlation=event.connection, bytes=size,
            args=args_text(args),
        )  # fmt: skip

    def _add_collective(self, event: Event, streams: dict[int, int]) -> None:
        device = self._device(self._groups[event.grp])
        stream = streams.get(event.connection) if event.connection is not None else None
        self._add(event, "kernel", category="communication", device=device, stream=stream, correlation=event.connection)

    def _add_left_planes(self, planes: list[int]) -> None:
        """Copies and notifications that the streams' tasks do not show: at level 0 there are none."""
        left, self._tasks = {event.n for event in self._tasks.values()}, {}
        for event in self._events(planes):
            if event.n in left or event.plane_stream is None:
                device = self._device(self._groups[event.grp])
                kind, category = task_kind(event.name, event.name)
                args = _task_args(event)
                stream = None if event.plane_stream is None else self._rows.stream(device, event.plane_stream)
                self._add(
                    event, kind, category=_link(args) if kind == "transfer" else category, device=device, stream=stream,
                    bytes=event.plane_bytes if kind == "transfer" else None, args=args_text(args),
                )  # fmt: skip

    def _add(self, event: Event, kind: str, **columns: Any) -> None:
        columns.setdefault("args", event.args)
        flags = 0 if event.dur_ns is not None else UNFINISHED
        number = self._rows.event(
            kind, event.name or None, event.ts_ns, event.dur_ns, self.process, flags=flags, **columns
        )
        if event.n in self._wanted:
            self._ids[event.n] = number

    def _add_arrows(self) -> None:
        """Arrows of the file's own that launches do not say: forward to backward, and the queue between threads."""
        self._rows.flush()
        for category, kind, phase in (("fwdbwd", "autograd", "op"), ("async_task_queue", "queue", "runtime")):
            self._connection.execute(
                """INSERT INTO flow
                   WITH place AS (
                       SELECT e.id, t.tid, e.ts_ns FROM event e JOIN thread t ON t.id = e.thread
                       WHERE e.process = $1 AND e.kind = $2)
                   SELECT $3, max(a.id), max(b.id) FROM raw_event s
                   JOIN raw_event f ON f.id = s.id AND f.cat = s.cat AND f.ph = 'f'
                   JOIN place a ON a.tid = try_cast(s.tid AS BIGINT) AND a.ts_ns = s.ts_ns
                   JOIN place b ON b.tid = try_cast(f.tid AS BIGINT) AND b.ts_ns = f.ts_ns
                   WHERE s.ph = 's' AND s.cat = $4 GROUP BY s.n, f.n""",
                [self.process, phase, kind, category],
            )

    def _add_counters(self) -> None:
        for event in self._events(self._groups_of(lambda layer: True, "C")):
            args = parsed(event.args) if event.args else {}
            if not isinstance(args, dict):
                continue
            ids = [f"{key} {value}" for key, value in args.items() if key.endswith("_id")]
            device = self._device(self._groups[event.grp])
            for key, value in args.items():
                if not key.endswith("_id"):
                    number = _number(value)
                    series, unit = _series(event.name, key)
                    counter = self._rows.counter(" ".join([series, *ids]), unit, process=self.process, device=device)
                    self._rows.value(counter, event.ts_ns, number)


def _number(value: object) -> float | None:
    """None, a gap, for what is no number or beyond all that a float holds."""
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


def _series(name: str, key: str) -> tuple[str, str | None]:
    """A series and its unit: `Read(MB/s)` of HBM 0/Read is in MB/s; `KB` is a unit alone."""
    what, bracket, unit = key.partition("(")
    if bracket:
        return name if name.endswith(what) else f"{name} {what}", unit.rstrip(")") or None
    if key in ("MHz", "KB", "MB", "GB"):
        return name, key
    return name if key in ("value", name) else f"{name} {key}", None


def _task_args(event: Event) -> dict[str, Any]:
    known = parsed(event.args) if event.args else {}
    args = {"task_type": event.task_type} | (known if isinstance(known, dict) else {})
    return {key: value for key, value in args.items() if value not in (NO_NUMBER, "INVALID_TYPE", None)}


def _link(args: dict[str, Any]) -> str | None:
    """A copy's category, from the ranks between which it is."""
    source, target = args.get("src rank"), args.get("dst rank")
    if source is None or target is None or NO_NUMBER in (source, target):
        return None
    return "within_device" if source == target else "device_to_device"
