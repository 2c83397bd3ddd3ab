"""Writers of a trace in other formats. One file an exporter, chosen by the ending of the output's name.

To add one: copy the shape of a neighbour, and add it to EXPORTERS. An output appears under its final name only when
it is whole."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import duckdb

from ral_trace.tracer.errors import RalTraceError, UsageError
from ral_trace.tracer.exporters import collapsed, otlp, own_json, parquet, perfetto, snapshot, speedscope, table
from ral_trace.tracer.exporters.output import Window
from ral_trace.tracer.outputs import output_file
from ral_trace.tracer.reading import Trace

__all__ = ["EXPORTERS", "Exporter", "Window", "export", "exporter_for"]


class Exporter(Protocol):
    """What a module in this folder offers."""

    FORMAT: str
    ENDINGS: tuple[str, ...]
    """Of the output's name; empty: the output is a folder."""

    def write(self, trace: Trace, out: Path, window: Window) -> None:
        """Writes to `out`, a temporary name with the same ending. Raises RalTraceError, duckdb.Error, OSError."""


EXPORTERS: Sequence[Exporter] = [
    perfetto, speedscope, otlp, own_json, snapshot, collapsed, table, parquet,
]  # fmt: skip
"""Where several endings fit a name, the first one's exporter writes it: .otlp.json is also a .json."""


def exporter_for(out: Path) -> Exporter:
    """The exporter for an output's name; a name without an ending is a folder (Parquet). Raises UsageError."""
    for exporter in EXPORTERS:
        if any(out.name.endswith(ending) for ending in exporter.ENDINGS):
            return exporter
    if not out.suffix:
        return parquet
    known = ", ".join(ending for exporter in EXPORTERS for ending in exporter.ENDINGS)
    raise UsageError(f"{out}: no exporter writes '{out.suffix}'; choose one of: {known}, or a folder (Parquet)")


def checked_output(out: Path) -> Path:
    """Where an export to `out` really goes. Raises UsageError when it would replace something that it must not."""
    if exporter_for(out).ENDINGS or not out.is_dir():
        return output_file(out)
    if any(out.iterdir()) and not parquet.is_data_set(out):
        raise UsageError(f"{out}: there is a folder of that name; choose another name, or remove it first")
    return out


def export(trace: Trace, out: Path, window: Window | None = None) -> Path:
    """Writes a trace in the format that the ending of `out` names (.pftrace, .json, .csv, a folder). Returns `out`.

    Replaces a file; a folder must be new, empty, or hold other runs. Raises UsageError, or RalTraceError when it cannot
    be written.
    """
    exporter = exporter_for(out)
    out = checked_output(out)
    window = window or Window()
    if (window.table or window.query) and exporter is not table:
        raise UsageError(f"{out}: --table and --query are for tables; choose a name that ends in .csv or .tsv")
    partial = out.with_name(f".partial-{os.getpid()}-{out.name}")
    try:
        if out.is_dir() and any(out.iterdir()):
            parquet.add(trace, out, partial, window)
        else:
            exporter.write(trace, partial, window)
            partial.replace(out)
    except (duckdb.Error, OSError) as error:
        why = str(error).strip().splitlines()[0]
        raise RalTraceError(f"{out}: could not be written ({why}); choose another place with --output") from error
    finally:
        if partial.is_dir() and not partial.is_symlink():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)
    return out
