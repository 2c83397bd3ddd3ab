"""What Kineto's files say of devices: their properties, where rows ran, and the memory that the allocator gave out."""

import re
from dataclasses import dataclass
from typing import Any

from ral_trace.tracer.importers.places import Places, Role, stream_number
from ral_trace.tracer.importers.rows import SUM_LIMIT, Rows
from ral_trace.tracer.importers.trace_events import Label, Scan, integer

TORCH_TYPES = {
    0: "cpu", 1: "cuda", 6: "cuda", 12: "xpu", 13: "mps", 15: "hpu", 18: "ipu", 19: "mtia", 20: "privateuse1",
}  # fmt: skip
"""c10::DeviceType, as `[memory]` events give it. A ROCm device is cuda to its programs.

https://github.com/pytorch/pytorch/blob/main/torch/headeronly/core/DeviceType.h
"""
VENDORS = {
    "NVIDIA": r"NVIDIA|Tesla|GeForce|Quadro|TITAN", "AMD": r"AMD|Radeon|Instinct|gfx\d",
    "Intel": r"Intel|Arc\b|Data Center GPU",
    "Huawei": r"Ascend|NPU", "Moore Threads": r"MTT", "Habana": r"Gaudi|HL-\d",
}  # fmt: skip
TYPES = {
    "privateuse1": "privateuse1",
    "mtia": "mtia",
    "xpu": "xpu",
    "hpu": "hpu",
    "musa": "musa",
    "npu": "npu",
    "cuda": "cuda",
}
"""By what a category begins with: the device type in torch."""
LARGEST_INDEX = 1 << 20


@dataclass(frozen=True)
class _Kind:
    type: str
    properties: dict[int, dict[str, Any]]


@dataclass(frozen=True)
class Spot:
    """Where the rows of a label ran, or what memory they are about."""

    device: int
    stream: int | None
    works: bool
    """The device did it: there is no thread."""


def add_devices(rows: Rows, scan: Scan, places: Places) -> dict[int, Spot]:
    """Adds devices and streams. Returns where the rows of labels ran, by their numbers."""
    kind = _Kind(_device_type(scan), _properties(scan))
    if places.main is not None:
        for index in kind.properties:
            _device(rows, places.main, kind.type, index, kind)
    labels: dict[tuple[Any, ...], list[int]] = {}
    for number, label in enumerate(scan.labels()):
        if label.rows and (key := _spot_key(label, places)) is not None:
            labels.setdefault(key, []).append(number)
    found: dict[int, Spot] = {}
    for key in sorted(labels, key=lambda key: [(value is None, value or 0) for value in key]):
        grp, process, works, index, stream, code = key
        group = scan.groups[grp]
        if not works:
            type = TORCH_TYPES.get(code, f"device type {code}")
            spot = Spot(_device(rows, process, type, 0 if type == "cpu" else _index(index, None), kind), None, False)
        else:
            device = _device(rows, process, kind.type, _index(index, group.pid), kind)
            line = stream_number(stream, group.tid)
            spot = Spot(device, None if line is None else rows.stream(device, line), True)
        found |= dict.fromkeys(labels[key], spot)
    return found


def _spot_key(label: Label, places: Places) -> tuple[Any, ...] | None:
    """What the place of a label's rows on devices follows from; None: they have none."""
    if label.group.number not in places.process:
        return None
    role = places.roles.get(label.group.number, Role.INSTANT)
    device, stream, code = (label.fields.get(name) for name in ("device", "stream", "device_type"))
    on_device = role.value.on_device
    ran = on_device or (role in (Role.CALL_OR_KERNEL, Role.OTHER) and stream is not None)
    if not ran and not (role is Role.INSTANT and code is not None):
        return None
    process = places.process[label.group.number]
    return label.group.number, process, on_device or code is None, device, stream, code


def _index(index: int | None, pid: str | None) -> int | None:
    """A device's index: what args say, else the number of the process that stands for it. -1: unknown."""
    if index is None:
        index = integer(pid)
    return index if index is not None and 0 <= index < LARGEST_INDEX else None


def _device(rows: Rows, process: int, type: str, index: int | None, kind: _Kind) -> int:
    known = kind.properties.get(index, {}) if index is not None and type == kind.type else {}
    name, memory = known.get("name"), known.get("totalGlobalMem")
    name = name if isinstance(name, str) else None
    vendor = next((vendor for vendor, words in VENDORS.items() if name and re.search(words, name)), None)
    memory = memory if isinstance(memory, int) and 0 < memory < 2**63 else None
    return rows.device(process, type, index, vendor=vendor, name=name, memory_bytes=memory)


def _properties(scan: Scan) -> dict[int, dict[str, Any]]:
    stated = scan.metadata.get("deviceProperties") or scan.metadata.get("computeProperties")
    found: dict[int, dict[str, Any]] = {}
    for order, one in enumerate(stated if isinstance(stated, list) else []):
        if isinstance(one, dict):
            index = one.get("id", order)
            if isinstance(index, int) and 0 <= index < LARGEST_INDEX:
                found[index] = one
    return found


def _device_type(scan: Scan) -> str:
    categories = {(group.cat or "").lower() for group in scan.groups}
    for prefix, type in TYPES.items():
        if any(category.startswith(prefix) for category in categories):
            return type
    return "cuda" if _properties(scan) or categories & {"runtime"} else "gpu"


def add_memory(rows: Rows, first: int) -> None:
    """`[memory]` events: allocations and frees, which are named for the op that they happened in, and what the
    allocator then had given out and reserved, as counters.
    """
    connection = rows.builder.connection
    found = connection.execute(
        """CREATE OR REPLACE TEMP TABLE memory_event AS
           SELECT r.n, e.kind::VARCHAR AS kind, e.ts_ns, e.device, e.process, r.address, e.bytes, r.allocated,
                  r.reserved
           FROM event e JOIN raw_row r ON e.id = $1 + r.n
           WHERE e.id >= $1 AND e.kind IN ('alloc', 'free') AND e.device IS NOT NULL""",
        [first],
    ).fetchone()
    if found == (0,):
        return
    _bound_sum(rows)
    rows.builder.insert(
        "memory_change",
        ("action", "event", "ts_ns", "device", "address", "size_bytes", "before_trace"),
        f"""SELECT kind, {first} + n, ts_ns, device, address, bytes, false FROM memory_event
            WHERE address IS NOT NULL AND bytes IS NOT NULL ORDER BY n""",
    )
    for column, series in (("allocated", "Total Allocated"), ("reserved", "Total Reserved")):
        for process, device in connection.execute(
            f"SELECT DISTINCT process, device FROM memory_event WHERE {column} IS NOT NULL ORDER BY ALL"
        ).fetchall():
            counter = rows.counter(series, "bytes", process=process, device=device)
            rows.builder.insert(
                "counter_value",
                ("counter", "ts_ns", "value"),
                f"""SELECT {counter}, ts_ns, {column} FROM memory_event
                    WHERE device = {device} AND {column} IS NOT NULL ORDER BY n""",
            )
    connection.execute(
        """UPDATE event SET name = op.name FROM event op
           WHERE event.id >= $1 AND event.kind IN ('alloc', 'free') AND event.parent = op.id""",
        [first],
    )
    connection.execute("DROP TABLE memory_event")


def _bound_sum(rows: Rows) -> None:
    """Takes the sizes from what would make the sums of sizes too large for 64 bits."""
    connection = rows.builder.connection
    [(total,)] = connection.execute("SELECT sum(bytes) FROM memory_event").fetchall()
    if total is None or total < SUM_LIMIT:
        return
    [(count,)] = connection.execute(
        """UPDATE memory_event SET bytes = NULL
           FROM (SELECT n, sum(bytes) OVER (ORDER BY n) AS so_far FROM memory_event) s
           WHERE s.n = memory_event.n AND s.so_far >= ? AND bytes IS NOT NULL""",
        [SUM_LIMIT],
    ).fetchall()
    rows.bad("allocations and frees of more bytes than there can be: not among the blocks", count=count)
