"""Writers of a trace in other formats. One file an exporter, chosen by the ending of the output's name.

To add one: copy the shape of a neighbour, and add it to EXPORTERS. An output appears under its final name only when it is whole.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.exporters import own_json, parquet, perfetto
from ral_trace.tracer.trace import Trace


@dataclass(frozen=True)
class Window:
    """The part of a trace to write: integer nanoseconds from the trace's first event; None: no limit."""

    from_ns: int | None = None
    to_ns: int | None = None


class Exporter(Protocol):
    """What a module in this folder offers."""

    FORMAT: str
    ENDINGS: tuple[str, ...]

    def write(self, trace: Trace, out: Path, window: Window) -> None:
        """Writes the trace to `out`, a temporary name in the final folder."""


EXPORTERS: Sequence[Exporter] = [perfetto, own_json, parquet]


def exporter_for(out: Path) -> Exporter:
    """The exporter for an output's name. Raises UsageError when no exporter knows the ending; a name without ending is a folder (Parquet)."""
    for exporter in EXPORTERS:
        if any(out.name.endswith(ending) for ending in exporter.ENDINGS if ending):
            return exporter
    if not out.suffix:
        return parquet
    known = ", ".join(ending or "a folder" for exporter in EXPORTERS for ending in exporter.ENDINGS)
    raise UsageError(f"{out}: no exporter writes '{out.suffix}'; choose one of: {known}")


def export(trace: Trace, out: Path, window: Window | None = None) -> Path:
    """Writes a trace in the format that the ending of `out` names (.pftrace, .json, .json.gz, a folder). Returns `out`."""
    exporter = exporter_for(out)
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}")
    exporter.write(trace, partial, window or Window())
    partial.replace(out)
    return out
