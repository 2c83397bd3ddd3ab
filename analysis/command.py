"""The command `report`: what a trace says, in the terminal, as HTML, as JSON."""

import difflib
import os
import tempfile
from collections.abc import Collection
from pathlib import Path

import click
import duckdb
from rich.console import Console

from ral_trace.analysis import ANALYSES
from ral_trace.analysis.report import html, json, terminal
from ral_trace.analysis.report.sections import Report, collect
from ral_trace.analysis.summary import devices
from ral_trace.tracer.errors import InputRefused, RalTraceError, UsageError
from ral_trace.tracer.outputs import output_file
from ral_trace.tracer.reading import Trace, newest_trace, open_trace

BESIDE_THE_TRACE = ""
"""`--html` without a file."""

TRACE_ENDINGS = (".duckdb", ".json", ".json.gz", ".pftrace")


@click.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path, readable=False))
@click.option(
    "--html",
    "page",
    is_flag=False,
    flag_value=BESIDE_THE_TRACE,
    metavar="[FILE]",
    help="Also write one HTML file that opens offline; without FILE beside the trace, under its name with .html.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/report-json.md) in place of tables.")
@click.option("--device", metavar="DEVICE", help="Only this device, such as ral:1.")
@click.option("--all", "whole", is_flag=True, help="Show the details too; --html and --json always do.")
@click.option(
    "--only",
    "names",
    multiple=True,
    metavar="ANALYSIS",
    help="Only this analysis; repeatable.",
)
@click.option("--list", "listing", is_flag=True, help="List the analyses and what each tells, and end.")
def report(
    trace: Path | None,
    page: str | None,
    as_json: bool,
    device: str | None,
    whole: bool,
    names: tuple[str, ...],
    listing: bool,
) -> None:
    """Says what TRACE holds: the newest one here when none is named."""
    if listing:
        terminal.render_list(Console(), as_json)
        return
    check_names(names)
    path = trace or newest_trace(Path())
    target = None if page is None else html_path(path, page)
    with open_trace(path) as opened:
        if device is not None:
            check_device(opened, device)
        found = _collected(opened, device, names or None)
    if as_json:
        click.echo(json.render(found))
    else:
        terminal.render(found, Console(), whole=whole or bool(names))
    if target is not None:
        write_private(target, html.render(found))
        click.echo(f"HTML report: {target}", err=as_json)


def _collected(trace: Trace, device: str | None, names: Collection[str] | None) -> Report:
    """All the answers. A file that opens may still be damaged further in, or hold numbers that cannot be."""
    try:
        return collect(trace, device, names)
    except duckdb.Error as error:
        cause = str(error).strip().splitlines()[0]
        raise InputRefused(trace.path, f"cannot be read through ({cause})", "record it again") from error


def check_names(names: Collection[str]) -> None:
    """Raises UsageError, naming what comes close, when one of `names` is no analysis."""
    known = [analysis.name for analysis in ANALYSES]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known)
            hint = f"did you mean {' or '.join(close)}?" if close else "see them with: ral-trace --report --list"
            raise UsageError(f"--only {name}: there is no such analysis; {hint}")


PAGE_ENDINGS = (".html", ".htm")


def html_path(trace: Path, page: str) -> Path:
    """Where the HTML report goes. Raises UsageError for the name of a trace, as in `report --html run.duckdb`."""
    if page == BESIDE_THE_TRACE:
        name = trace.name
        for ending in TRACE_ENDINGS:
            name = name.removesuffix(ending)
        return trace.with_name(f"{name}.html")
    if output_file(Path(page)).exists() and not page.endswith(PAGE_ENDINGS):
        raise UsageError(f"--html {page}: that file is no HTML and would be written over; choose another name")
    if page.endswith(TRACE_ENDINGS):
        raise UsageError(
            f"--html {page}: that is a trace's name and would be written over; name the trace first: {page} --html"
        )
    return output_file(Path(page))


def check_device(trace: Trace, device: str) -> None:
    """Raises UsageError, naming the devices that there are, when `device` is none of them."""
    if device != "host" and not devices(trace, device=device):
        known = ", ".join(row["device"] for row in devices(trace)) or "none"
        raise UsageError(f"--device {device}: the trace has no such device; it has: {known}")


def write_private(target: Path, text: str) -> None:
    """Writes `text` with mode 0600 under a temporary name, then renames it: nobody ever sees half a report."""
    try:
        handle, partial = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(partial).replace(target)
    except OSError as error:
        raise _unwritable(target, error) from error
    finally:
        Path(partial).unlink(missing_ok=True)


def _unwritable(target: Path, error: OSError) -> RalTraceError:
    return RalTraceError(
        f"{target}: the HTML report could not be written ({error.strerror}); choose another place with --html FILE"
    )
