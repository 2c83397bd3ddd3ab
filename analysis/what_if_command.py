"""The command `what-if`: what a step would take if something were different."""

import json
import re
from pathlib import Path

import click
import duckdb
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ral_trace.analysis.base import Rows
from ral_trace.analysis.units import human
from ral_trace.analysis.what_if import WHAT_IF
from ral_trace.analysis.what_if import what_if as answer
from ral_trace.tracer.errors import InputRefused, UsageError
from ral_trace.tracer.reading import Trace, newest_trace, open_trace

UNITS_NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


@click.command("what-if")
@click.argument("trace", required=False, type=click.Path(path_type=Path, readable=False))
@click.option(
    "--without-sync", "waits", multiple=True, metavar="NAME",
    help="Without the waits of that name, in that op, or at that line (train.py:12). May be given again.",
)  # fmt: skip
@click.option(
    "--native", "natives", multiple=True, metavar="OP[=TIME]",
    help="With a kernel in place of that op's fallbacks, which takes TIME (such as 20us), else what the device's "
    "kernels of such size take. May be given again.",
)  # fmt: skip
@click.option(
    "--faster", "faster", multiple=True, metavar="NAME=FACTOR",
    help="With that op, kernel or copy FACTOR times as fast. May be given again.",
)  # fmt: skip
@click.option("--step", type=int, help="Look at this step only, in place of some from the middle of the trace.")
@click.option("--whole", is_flag=True, help="Look at the whole trace.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON in place of a table.")
def what_if(
    trace: Path | None, waits: tuple[str, ...], natives: tuple[str, ...], faster: tuple[str, ...],
    step: int | None, whole: bool, as_json: bool,
) -> None:  # fmt: skip
    """Says what a step of TRACE (the newest one here when none is named) would take if all that were so.

    Without an option: what each of the costliest waits, fallbacks and kernels would bring alone.
    """
    kernels = dict(native_of(text) for text in natives)
    factors = dict(factor_of(text) for text in faster)
    path = trace or newest_trace(Path())
    with open_trace(path) as opened:
        if (missing := WHAT_IF.missing(opened)) is not None:
            raise UsageError(f"{path}: {missing}")
        rows = _answered(opened, waits, kernels, factors, step, whole)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        Console().print(table(rows))


def _answered(
    trace: Trace, waits: tuple[str, ...], natives: dict[str, int | None], faster: dict[str, float],
    step: int | None, whole: bool,
) -> Rows:  # fmt: skip
    try:
        return answer(trace, without_syncs=waits, native=natives, faster=faster, step=step, whole=whole)
    except duckdb.Error as error:
        cause = str(error).strip().splitlines()[0]
        raise InputRefused(trace.path, f"cannot be read through ({cause})", "record it again") from error


def table(rows: Rows) -> Table:
    """The rows for a terminal. Names in them are untrusted text."""
    found = Table(box=None, pad_edge=False)
    columns = [column for name in WHAT_IF.shown.split() for column in WHAT_IF.columns if column.name == name]
    for column in columns:
        found.add_column(column.shown_as, justify="left" if column.unit == "text" else "right")
    for row in rows:
        found.add_row(*(Text(human(row[column.name], column.unit)) for column in columns))
    return found


def native_of(text: str) -> tuple[str, int | None]:
    """OP or OP=TIME. Raises UsageError for what is no time."""
    name, equals, time = text.rpartition("=")
    if not equals:
        return text, None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zµ]+)", time)
    if not name or match is None or match[2] not in UNITS_NS:
        raise UsageError(f"--native {text}: write OP, or OP and a time such as {name or 'aten::gelu'}=20us")
    return name, round(float(match[1]) * UNITS_NS[match[2]])


def factor_of(text: str) -> tuple[str, float]:
    """NAME=FACTOR. Raises UsageError for what is no factor."""
    name, _, factor = text.rpartition("=")
    if not name or re.fullmatch(r"\d+(\.\d+)?", factor) is None:
        raise UsageError(f"--faster {text}: write a name and a factor, such as aten::mm=2")
    return name, float(factor)
