"""ONNX Runtime profiles (`enable_profiling`): a list of events in Chrome's format.

- Session: what the session did as a whole (loading, initialization, each run): annotations.
- Node: an operator of the graph; its name ends in what of it was measured (`_kernel_time`, `_fence_before`,
  `_fence_after`). An `op`; operator, provider and shapes are in args.
- Kernel: what a GPU provider ran for the node whose event comes before it: device rows, with that node as parent.
- Api: calls of the GPU's runtime.

Times are whole microseconds since the session began. What the categories are:
https://github.com/microsoft/onnxruntime/blob/main/onnxruntime/core/common/profiler.cc
"""

import re
from pathlib import Path

from ral_trace.tracer.importers.event_import import Dialect, Imported, import_events
from ral_trace.tracer.importers.opening import Head
from ral_trace.tracer.importers.places import Role
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.importers.trace_events import Field, Group, scanned, stage

FORMAT = "ONNX Runtime"

FIELDS: list[Field] = [
    ("stream", "stream", "label"), ("device", "device", "label"), ("correlation", "correlation", "int"),
]  # fmt: skip
ROLES = {"Session": Role.ANNOTATION, "Node": Role.OP, "Kernel": Role.KERNEL, "Api": Role.CALL}
SESSION = re.compile(rb'"cat"\s*:\s*"Session"')
OWN_WORDS = re.compile(
    rb'ExecutionProvider"|"(model_loading|session_initialization|model_run)|"thread_scheduling_stats"'
)
TYPES = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "cuda", "NvTensorRTRTXExecutionProvider": "cuda",
         "ROCMExecutionProvider": "cuda", "MIGraphXExecutionProvider": "cuda", "CANNExecutionProvider": "npu",
         "OpenVINOExecutionProvider": "xpu", "DmlExecutionProvider": "dml"}  # fmt: skip
"""By the provider whose kernels they are, in torch's words: a ROCm device is cuda to its programs."""


def sniff(head: Head) -> float:
    """Sure where the session's own events are among those of the category Session."""
    return 0.95 if SESSION.search(head.data) and OWN_WORDS.search(head.data) else 0.0


def read(path: Path, rows: Rows) -> None:
    """Adds the file's rows. Raises InputRefused."""
    with scanned(path, rows, fields=FIELDS) as scan:
        dialect = Dialect(_role_of, fields=FIELDS, one_process=True, inner_first=True)
        imported = import_events(rows, scan, dialect)
        stage(rows, scan, [group for group in scan.groups if group.cat in ("Node", "Kernel")])
        _name_devices(rows, imported)
        _tell_copies(rows, imported)
        _find_nodes(rows, imported)
        rows.facts["clock_zero"] = "file"
        rows.facts["producer"] = FORMAT


def _role_of(group: Group) -> Role | None:
    if group.ph in "iI":
        return Role.INSTANT
    return ROLES.get(group.cat or "", Role.ANNOTATION) if group.ph in "XB" else None


def _name_devices(rows: Rows, imported: Imported) -> None:
    """The file does not say what its devices are; the providers of its nodes do."""
    found = rows.builder.connection.execute(
        "SELECT DISTINCT args->>'$.provider' FROM raw_event WHERE cat = 'Node' AND json_type(args) = 'OBJECT'"
    ).fetchall()
    types = {TYPES[provider] for (provider,) in found if provider in TYPES}
    if len(types) == 1:
        rows.flush()
        rows.builder.connection.execute(
            "UPDATE device SET type = ? WHERE process = ? AND type = 'gpu'", [types.pop(), imported.places.main]
        )


def _tell_copies(rows: Rows, imported: Imported) -> None:
    """Copies and sets are among the kernels, by name."""
    rows.builder.connection.execute(
        """UPDATE event SET kind = 'transfer', category = CASE
               WHEN regexp_matches(name, '(?i)memset') THEN 'memset'
               WHEN regexp_matches(name, '(?i)HostToDevice|HtoD|H2D') THEN 'host_to_device'
               WHEN regexp_matches(name, '(?i)DeviceToHost|DtoH|D2H') THEN 'device_to_host'
               WHEN regexp_matches(name, '(?i)PeerToPeer|PtoP|P2P') THEN 'device_to_device'
               WHEN regexp_matches(name, '(?i)DeviceToDevice|DtoD|D2D') THEN 'within_device' END
           WHERE id >= ? AND kind = 'kernel' AND regexp_matches(name, '^(?i)mem(cpy|set)')""",
        [imported.first],
    )


def _find_nodes(rows: Rows, imported: Imported) -> None:
    """A kernel is the node's whose event comes before it in the file, and whose name it tells where it tells one."""
    rows.builder.connection.execute(
        """UPDATE event SET parent = $1 + found.node FROM (
               SELECT kernel.n, node.n AS node
               FROM (SELECT n, CASE WHEN json_type(args) = 'OBJECT' THEN args->>'$.parent_name' END AS named
                     FROM raw_event WHERE cat = 'Kernel') kernel
               ASOF JOIN (SELECT n, name FROM raw_event WHERE cat = 'Node') node ON kernel.n >= node.n
               WHERE named IS NULL OR starts_with(node.name, named) OR starts_with(named, node.name)) found
           WHERE event.id = $1 + found.n AND event.kind IN ('kernel', 'transfer')""",
        [imported.first],
    )
