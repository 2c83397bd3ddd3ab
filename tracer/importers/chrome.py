"""Any other file in Chrome's trace format: VizTracer's, and whatever writes for chrome://tracing.

What its phases mean is in `phases`. A slice is a Python call where VizTracer says so (category FEE, function entry and
exit), else an annotation with the file's category.
"""

import re
from pathlib import Path

from ral_trace.tracer.importers.event_import import Dialect, import_events
from ral_trace.tracer.importers.opening import Head
from ral_trace.tracer.importers.places import Role
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.importers.trace_events import Group, Scan, scanned

FORMAT = "Chrome trace JSON"

PYTHON_CALLS = "FEE"
EVENT = re.compile(rb'"ph"\s*:\s*"')


def sniff(head: Head) -> float:
    """Less sure than whoever knows a producer's own marks."""
    data = head.data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if data[:1] not in (b"{", b"["):
        return 0.0
    return 0.3 if b'"traceEvents"' in data else 0.2 if EVENT.search(data) else 0.0


def read(path: Path, rows: Rows) -> None:
    """Adds the file's rows. Raises InputRefused."""
    with scanned(path, rows) as scan:
        viztracer = "viztracer_metadata" in scan.metadata
        imported = import_events(rows, scan, Dialect(role_of, rounding_ns=1, inner_first=viztracer))
        rows.facts["clock_zero"] = imported.clock_zero
        rows.facts["producer"] = _viztracer(scan) if viztracer else None


def role_of(group: Group) -> Role | None:
    """What the events of a group are; None: no rows of `event`."""
    if group.ph in "iInTp":
        return Role.INSTANT
    if group.ph not in "XBbS":
        return None
    return Role.PYTHON if group.cat == PYTHON_CALLS else Role.OTHER


def _viztracer(scan: Scan) -> str:
    stated = scan.metadata["viztracer_metadata"]
    version = stated.get("version") if isinstance(stated, dict) else None
    return f"viztracer {version}" if isinstance(version, str) else "viztracer"
