"""The command `replay`: what a recorded program would have taken under other settings of the allocator."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ral_trace.analysis.base import Row, Rows
from ral_trace.analysis.command import check_device
from ral_trace.analysis.replay import ALLOCATOR_REPLAY, ALTERNATIVES, allocator_replay
from ral_trace.analysis.summary import SUMMARY
from ral_trace.analysis.units import human
from ral_trace.backend.core import BadSettings
from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.reading import newest_trace, open_trace
from ral_trace.tracer.text import plain
from ral_trace.tracer.units import size_bytes

MIB = 1 << 20


@click.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path, readable=False))
@click.option("--device", metavar="DEVICE", help="Only this device, such as ral:1.")
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="TEXT",
    help="Settings as RAL_ALLOC_CONF takes them, such as max_split_size_mb:64,fit:first. May be given several times.",
)
@click.option("--fit", type=click.Choice(["best", "first"]), help="Which free block serves a request.")
@click.option("--region-size", metavar="SIZE", help="Length of the first region, in whole MiB: 16MiB.")
@click.option("--max-split-size", metavar="SIZE", help="Free blocks above this are not split: 64MiB.")
@click.option("--capacity", metavar="SIZE", help="The device's memory; without it what the trace says: 4g.")
@click.option("--regions", type=click.IntRange(min=1), help="How many regions the device may have; 16 on ral.")
def replay(trace: Path | None, device: str | None, settings: tuple[str, ...], **options: Any) -> None:
    """Replays the allocations of TRACE (the newest one here when none is named) under other settings.

    Without settings it tries a few that are often worth a try.
    """
    wanted = [*settings, *_from_options(options)] or [*ALTERNATIVES]
    setup = {name: value for name, value in (("max_regions", options["regions"]),) if value is not None}
    if options["capacity"] is not None:
        setup["capacity"] = size_bytes(options["capacity"])
    with open_trace(trace or newest_trace(Path())) as opened:
        if device is not None:
            check_device(opened, device)
        missing = ALLOCATOR_REPLAY.missing(opened)
        if missing:
            raise UsageError(f"nothing to replay: {missing}")
        zero_ns = SUMMARY.run(opened)[0]["started_ns"] or 0
        try:
            rows = allocator_replay(opened, device=device, settings=wanted, most_changes=None, **setup)
        except (BadSettings, ValueError) as error:
            raise UsageError(str(error)) from error
    _print(rows, zero_ns)


def _from_options(options: dict[str, Any]) -> list[str]:
    """The settings that the single options make together, if any is given."""
    parts = []
    for option, name in (("region_size", "region_size_mb"), ("max_split_size", "max_split_size_mb")):
        if options[option] is not None:
            parts.append(f"{name}:{_mebibytes(option, options[option])}")
    if options["fit"] is not None:
        parts.append(f"fit:{options['fit']}")
    return [",".join(parts)] if parts else []


def _mebibytes(option: str, text: str) -> int:
    count, rest = divmod(size_bytes(text), MIB)
    if rest or not count:
        raise UsageError(f"--{option.replace('_', '-')} {text}: the allocator takes whole MiB; write it as 16MiB")
    return count


SHOWN = ("settings", "peak_reserved_bytes", "ratio", "out_of_memory_ns")


def _print(rows: Rows, zero_ns: int) -> None:
    """A table for each device, and under it what else there is to know of a setting."""
    console = Console()
    for device in dict.fromkeys(row["device"] for row in rows):
        of_device = [row for row in rows if row["device"] == device]
        console.print(Text(plain(device), style="bold"))
        console.print(_table(of_device, zero_ns))
        for row in of_device:
            if row["note"] is not None:
                console.print(Text(f"{_named(row)}: {row['note']}", style="yellow"))


def _named(row: Row) -> str:
    return row["settings"] or "the allocator's own"


def _table(rows: list[Row], zero_ns: int) -> Table:
    columns = {column.name: column for column in ALLOCATOR_REPLAY.columns}
    table = Table(box=None, header_style="dim")
    table.add_column("settings", overflow="fold")
    for name in SHOWN[1:]:
        table.add_column(columns[name].shown_as, justify="right", no_wrap=True, min_width=len(columns[name].shown_as))
    for row in rows:
        cells = [human(row[name], columns[name].unit, zero_ns=zero_ns) for name in SHOWN[1:]]
        table.add_row(*map(Text, [_named(row), *cells]))
    return table
