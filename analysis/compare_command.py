"""The command `compare`: what is different between two recordings, as tables and one verdict, or as JSON."""

import json
from pathlib import Path
from typing import Any

import click
import duckdb
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ral_trace.analysis.bootstrap import CONFIDENCE
from ral_trace.analysis.compare import COLUMNS, Comparison
from ral_trace.analysis.compare import compare as compare_traces
from ral_trace.analysis.compare_words import changed, regressions, said
from ral_trace.analysis.units import UNKNOWN
from ral_trace.tracer.errors import AssertionFailed, InputRefused
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.text import plain
from ral_trace.tracer.units import percent

SCHEMA_VERSION = 1
"""Of the JSON; rises when something is removed or changes its meaning."""
MOST_ROWS = 20
"""Of the table in a terminal."""
GAP = 2
NAME_AT_LEAST = 18
VERDICTS = {"slower": "bold red", "faster": "bold green", "same": "bold", "unknown": "bold yellow"}


@click.command()
@click.argument("base", type=click.Path(path_type=Path, readable=False))
@click.argument("new", type=click.Path(path_type=Path, readable=False))
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/checking.md) in place of tables.")
@click.option(
    "--fail-on-regression",
    is_flag=True,
    help="Exit with 6 where NEW has new fallbacks or syncs, or is slower, copies or holds more beyond the tolerance.",
)
@click.option("--tolerance", default="5%", metavar="PERCENT", show_default=True, help="What may get worse by how much.")
def compare(base: Path, new: Path, as_json: bool, fail_on_regression: bool, tolerance: str) -> None:
    """Says what is different in NEW, a trace or any file that can be imported, from BASE, and how sure that is."""
    share = percent(tolerance)
    found = compared(base, new)
    if as_json:
        click.echo(json.dumps(document(found), indent=1, allow_nan=False))
    else:
        render(found, Console())
    worse = regressions(found, share) if fail_on_regression else []
    if worse:
        raise AssertionFailed(f"{new}: is worse than {base}: {'; '.join(worse)}")


def compared(base: Path, new: Path) -> Comparison:
    """The comparison of two files. A file that opens may still be damaged further in."""
    with open_trace(base, other=new) as trace:
        try:
            return compare_traces(trace)
        except duckdb.Error as error:
            cause = str(error).strip().splitlines()[0]
            raise InputRefused(f"{base} or {new}", f"cannot be read through ({cause})", "record it again") from error


def document(found: Comparison) -> dict[str, Any]:
    """The comparison as plain values. Integers may exceed 2^53; what cannot be known is null."""
    time = found.time
    return {
        "schema_version": SCHEMA_VERSION,
        "base": found.base,
        "new": found.new,
        "verdict": found.verdict,
        "said": said(found),
        "step": {
            "base_steps": len(found.base_steps.numbers),
            "new_steps": len(found.new_steps.numbers),
            "base_warm_up": found.base_steps.warm_up,
            "new_warm_up": found.new_steps.warm_up,
            "confidence": CONFIDENCE,
            "base_ns": None if time is None else round(time.base),
            "new_ns": None if time is None else round(time.new),
            "low_ns": None if time is None else round(time.low),
            "high_ns": None if time is None else round(time.high),
        },
        "columns": [{"name": column.name, "unit": column.unit} for column in COLUMNS],
        "changes": found.changes,
        "notes": found.notes,
    }


def render(found: Comparison, console: Console) -> None:
    """Prints the verdict and what changed."""
    steps = [
        f"{plain(name)}: {len(side.numbers)} steady steps after {side.warm_up} of warm-up"
        for name, side in ((found.base, found.base_steps), (found.new, found.new_steps))
    ]
    console.print(Text(f"base {steps[0]}\nnew  {steps[1]}", style="dim"))
    for note in found.notes:
        console.print(Text(f"! {plain(note)}", style="bold yellow"))
    if found.changes:
        console.print(_table(found, console.width))
        if len(found.changes) > MOST_ROWS:
            console.print(Text(f"… {len(found.changes) - MOST_ROWS:,} more: --json has all", style="dim"))
    console.print(Text(said(found), style=VERDICTS[found.verdict]))


def _table(found: Comparison, width: int) -> Table:
    """What changed, the most telling first; names are cut to the width. A Text is shown as it is: markup in a name is
    not read.
    """
    headings = ("changed", "a steady step" if found.time is not None else "in all", "device")
    rows = [
        (f"{row['status']} {row['what']}", changed(row), plain(row["device"] or "host"))
        for row in found.changes[:MOST_ROWS]
    ]
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    for heading, cells in zip(headings, zip(*rows, strict=True), strict=True):
        wide = max(map(cell_len, (heading, *cells)))
        table.add_column(heading, no_wrap=True, width=wide)
        width -= wide + GAP
    table.add_column("name", no_wrap=True, overflow="ellipsis", width=max(width, NAME_AT_LEAST))
    for row, cells in zip(found.changes, rows, strict=False):
        style = "yellow" if row["status"] in ("new", "more", "larger", "slower") else ""
        module = f" in {row['module']}" if row["module"] else ""
        name = Text(plain(f"{row['name'] or UNKNOWN}{module}"))
        table.add_row(Text(cells[0], style=style), Text(cells[1]), Text(cells[2]), name)
    return table
