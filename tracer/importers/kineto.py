"""torch.profiler's JSON (Kineto), of every era and chip: microseconds and nanoseconds, whole objects and bare lists.

Kineto writes one real process, and beside it a process for each device and some for its own spans. What its members
and categories mean is in https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp, and in
libkineto/include/ActivityType.h beside it.
"""

import re
from pathlib import Path
from typing import Any

from ral_trace.tracer.importers.event_import import Dialect, Window, import_events
from ral_trace.tracer.importers.meanings import RECORDER
from ral_trace.tracer.importers.opening import Head
from ral_trace.tracer.importers.places import Role
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.importers.trace_events import LATEST_NS, Field, Group, Label, Scan, integer, rows_of, scanned

FORMAT = "Kineto JSON"

FIELDS: list[Field] = [
    ("correlation", "correlation", "int"),
    ("External id", "external", "int"),
    ("external id", "external", "int"),
    ("device", "device", "label"),
    ("Device Id", "device", "label"),
    ("stream", "stream", "label"),
    ("bytes", "bytes", "int"),
    ("Bytes", "bytes", "int"),
    ("Addr", "address", "uint"),
    ("Total Allocated", "allocated", "int"),
    ("Total Reserved", "reserved", "int"),
    ("Device Type", "device_type", "label"),
    ("Python id", "python_id", "int"),
    ("Python parent id", "python_parent", "int"),
    ("Fwd thread id", "forward_thread", "int"),
    ("Call stack", "call_stack", "text"),
]
LEFT_OUT = ["Ev Idx", "Record function id", "finished", "cbid", "cid", "external ts"]
"""Numbers of the profiler's own bookkeeping."""
ROLES = {
    "cpu_op": Role.OP, "operator": Role.OLD_OP, "collective_comm": Role.OP, "user_annotation": Role.ANNOTATION,
    "gpu_user_annotation": Role.DEVICE_ANNOTATION, "python_function": Role.PYTHON, "kernel": Role.KERNEL,
    "mtia_ccp_events": Role.KERNEL, "gpu_memcpy": Role.COPY, "memcpy": Role.COPY, "gpu_memset": Role.SET,
    "memset": Role.SET, "cuda_sync": Role.WAIT, "runtime": Role.CALL, "hpu_op": Role.CALL,
    "privateuse1_driver": Role.CALL_OR_KERNEL, "overhead": Role.OVERHEAD, "trace": Role.SPAN,
}  # fmt: skip
CATEGORIES = re.compile(
    rb'"cat"\s*:\s*"(cpu_op|cpu_instant_event|python_function|(gpu_)?user_annotation|gpu_mem(cpy|set)|[a-z0-9]+_runtime'
    rb'|cuda_driver|privateuse1_driver|kernel|Operator|Kernel|Memcpy)"'
)


DEVICE_ARROWS = ["ac2g", "async", "async_cpu_to_gpu", "async_gpu"]
"""Arrows from launches to what they started: the correlation says that too."""


def sniff(head: Head) -> float:
    """Sure where Kineto's own members and its categories are beside each other."""
    if head.data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"["):
        return 0.0
    stated = b'"schemaVersion"' in head.data or b'"deviceProperties"' in head.data
    return 0.4 * stated + 0.4 * bool(CATEGORIES.search(head.data))


def read(path: Path, rows: Rows) -> None:
    """Adds the file's rows. Raises InputRefused."""
    with scanned(path, rows, fields=FIELDS, leave_out=LEFT_OUT, skip_arrows=DEVICE_ARROWS) as scan:
        base_ns = _number(scan.metadata.get("baseTimeNanoseconds")) or 0
        if abs(base_ns) >= LATEST_NS:
            rows.bad("a base of times that cannot be: left out", base_ns)
            base_ns = 0
        if base_ns:
            scan.table.shift(base_ns)
        window = _window(scan)
        facts = {**_distributed(rows, scan), "started_ns": window.start_ns, "ended_ns": window.end_ns}
        imported = import_events(rows, scan, DIALECT, window=window, facts=facts)
        rows.facts["clock_zero"] = "unix epoch" if base_ns else imported.clock_zero
        rows.facts["clock_offset_ns"] = base_ns or None
        rows.facts["program"] = imported.places.program
        rows.facts["producer"] = _producer(scan)


def role_of(group: Group) -> Role | None:
    """What the events of a group are; None: no rows of `event`."""
    category = (group.cat or "").lower()
    if group.ph in "iInTp":
        return Role.INSTANT
    if group.ph not in "XBbS":
        return None
    if category in ROLES:
        return ROLES[category]
    if category.endswith(("_runtime", "_driver")):
        return Role.CALL
    return Role.OTHER if category else Role.ANNOTATION


DIALECT = Dialect(
    role_of,
    fields=FIELDS,
    one_process=True,
    arrow_kinds={"fwdbwd": "autograd"},
    external_parents=True,
)


def _window(scan: Scan) -> Window:
    """What the span of the recorder says."""
    if not any(group.cat == "Trace" for group in scan.groups):
        return Window()
    found = rows_of(scan, [_is_recording(label) for label in scan.labels()])
    ended = found["dur_ns"] >= 0
    start_ns, end_ns = found["ts_ns"][ended], (found["ts_ns"] + found["dur_ns"])[ended]
    return Window(int(start_ns.min()), int(end_ns.max())) if ended.any() else Window()


def _is_recording(label: Label) -> bool:
    return label.group.ph == "X" and label.group.cat == "Trace" and (label.name or "").startswith(RECORDER)


def _distributed(rows: Rows, scan: Scan) -> dict[str, Any]:
    """The rank, which source and process both have."""
    stated = scan.metadata.get("distributedInfo")
    stated = stated if isinstance(stated, dict) else {}
    rank, rows.world_size = _number(stated.get("rank")), _number(stated.get("world_size"))
    if rank is not None and not 0 <= rank < 2**31:
        rows.bad("a rank that cannot be: left out", rank)
        rank = None
    rows.facts["rank"] = rank
    host = scan.metadata.get("hostname", scan.metadata.get("host_name"))
    return {"rank": rank, "host": host if isinstance(host, str) else None}


def _number(value: object) -> int | None:
    """4 and "4" alike."""
    return None if isinstance(value, bool | float | dict | list) or value is None else integer(str(value))


def _producer(scan: Scan) -> str:
    """torch.profiler, and the versions that it names."""
    stated = [
        f"{name} {scan.metadata[key]}"
        for name, key in [("CUPTI", "cupti_version"), ("roctracer", "roctracer_version"), ("torch", "torch_version")]
        if isinstance(scan.metadata.get(key), str | int | float)
    ]
    return ", ".join([f"{RECORDER} (Kineto)", *stated])
