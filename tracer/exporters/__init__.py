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
from ral_trace.tracer.exporters import collapsed, own_json, parquet, perfetto, snapshot, speedscope, table
from ral_trace.tracer.exporters.output import Options, Window
from ral_trace.tracer.outputs import output_file
from ral_trace.tracer.reading import Trace

__all__ = ["EXPORTERS", "Exporter", "Options", "Window", "export", "exporter_for"]


class Exporter(Protocol):
    """What a module in this folder offers."""

    FORMAT: str
    ENDINGS: tuple[str, ...]
    """Of the output's name; empty: the output is a folder."""

    def write(self, trace: Trace, out: Path, window: Window) -> None:
        """Writes to `out`, a temporary name with the same ending. Raises RalTraceError, duckdb.Error, OSError."""


EXPORTERS: Sequence[Exporter] = [perfetto, speedscope, own_json, snapshot, collapsed, table, parquet]
"""The first whose ending fits writes: longer endings come before those they end in."""


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
    if any(out.iterdir()):
        raise UsageError(f"{out}: there is a folder of that name; choose another name, or remove it first")
    return out


def export(trace: Trace, out: Path, window: Window | None = None, options: Options | None = None) -> Path:
    """Writes a trace in the format that the ending of `out` names (.pftrace, .json, .csv, a folder). Returns `out`.

    `options` are for tables only. Replaces a file; a folder must be new or empty. Raises UsageError, or RalTraceError
    when it cannot be written.
    """
    exporter = exporter_for(out)
    out = checked_output(out)
    partial = out.with_name(f".partial-{os.getpid()}-{out.name}")
    try:
        if options is None or options == Options():
            exporter.write(trace, partial, window or Window())
        elif exporter is table:
            table.write(trace, partial, window or Window(), options)
        else:
            raise UsageError(f"{out}: --table and --query are for tables; choose a name that ends in .csv or .tsv")
        partial.replace(out)
    except (duckdb.Error, OSError) as error:
        why = str(error).strip().splitlines()[0]
        raise RalTraceError(f"{out}: could not be written ({why}); choose another place with --output") from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)
    return out
