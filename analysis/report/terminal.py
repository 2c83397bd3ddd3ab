"""The report in a terminal: the ledger first, then the answers, in whatever width there is."""

import json
from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from ral_trace.analysis import ANALYSES
from ral_trace.analysis.base import CHAPTERS, Analysis, Row, Rows
from ral_trace.analysis.report.sections import Report, Section, ledger_lines
from ral_trace.analysis.units import duration, human, short_path
from ral_trace.tracer.text import plain

TEXT_AT_LEAST, FIRST_TEXT_AT_LEAST = 18, 36
"""Cells that a column of text keeps before a less important column is left out; the first one says what a row is
about, and is worth more than a further number."""
GAP = 2
WARNING = "bold yellow"


def render(report: Report, console: Console, *, whole: bool = True) -> None:
    """Prints the report; with whole=False without the analyses that are details."""
    console.print(Group(*_parts(report, console.width, whole)))


def render_list(console: Console, as_json: bool) -> None:
    """Prints what can be asked: each analysis, by chapter, and what it tells."""
    if as_json:
        listed = [
            {"name": found.name, "chapter": found.chapter, "title": found.title, "about": found.about}
            for found in ANALYSES
        ]
        console.file.write(json.dumps(listed, indent=1) + "\n")
        return
    for chapter, title in CHAPTERS.items():
        found = [analysis for analysis in ANALYSES if analysis.chapter == chapter]
        if found:
            console.print(Text(title, style="bold"))
        for analysis in found:
            console.print(Padding(Text.assemble((analysis.name, "cyan"), f": {analysis.about}"), (0, 0, 0, 2)))


def _parts(report: Report, width: int, whole: bool) -> Iterator[RenderableType]:
    yield from _trust(report)
    yield _summary(report)
    for chapter, sections in report.chapters().items():
        shown = [s for s in sections if s.analysis.shown and not s.nameless and (whole or not s.analysis.detail)]
        if any(section.rows for section in shown):
            yield ""
            yield Rule(Text(CHAPTERS[chapter], style="bold"), align="left", characters="━", style="cyan")
            for warning in report.warnings.get(chapter, []):
                yield Text(f"! {warning}", style=WARNING)
        for section in shown:
            yield from _section(report, section, width)
    missing = dict.fromkeys(
        s.missing for s in report.sections.values() if s.missing and (whole or not s.analysis.detail)
    )
    if missing:
        yield ""
        yield Text("Not here: " + "; ".join(missing) + ".", style="dim")
    left = [s.analysis.name for s in report.sections.values() if s.analysis.shown and s.analysis.detail and s.rows]
    if left and not whole:
        yield ""
        yield Text(f"More with --all, or --only NAME: {', '.join(left)}.", style="dim")


def _trust(report: Report) -> Iterator[RenderableType]:
    """The first lines: what became of each process' events, and what to know before believing the numbers."""
    for who, what, missing in ledger_lines(report):
        yield Text.assemble((plain(who), "bold"), ": ", (plain(what), WARNING if missing else "green"))
    for row in report.rows("quality"):
        example = f", such as {row['example']}" if row["example"] else ""
        count = f" ({row['count']:,})" if row["count"] is not None else ""
        yield Text(plain(f"! {row['what']}{count}{example}"), style=WARNING)


def _summary(report: Report) -> RenderableType:
    facts = report.summary
    over = f" over {duration(facts['span_ns'])}" if facts["span_ns"] is not None else ""
    said = [_number(facts["events"], "events") + over]
    said += [_number(facts[name], name) for name in ("processes", "devices", "steps")]
    if facts["invalid"]:
        said.append(f"{facts['invalid']:,} with impossible times, in no sum")
    return Group("", Text.assemble((plain(report.name), "bold"), ": ", " · ".join(said)))


def _number(count: int, plural: str) -> str:
    return f"{count:,} {plural if count != 1 else {'processes': 'process'}.get(plural, plural.removesuffix('s'))}"


def _section(report: Report, section: Section, width: int) -> Iterator[RenderableType]:
    """A section in one table, or in one for each device."""
    if not section.rows:
        return
    analysis = section.analysis
    yield ""
    yield Text(analysis.title, style="bold")
    if analysis.told is not None:
        yield from _told(section)
        return
    if section.remark:
        yield Text(plain(section.remark), style=WARNING)
    if analysis.per_device:
        yield from _each_device(report, section, width)
    else:
        yield _table(section, section.columns, section.rows, width, report)


def _told(section: Section) -> Iterator[RenderableType]:
    """Numbered sentences, each with its evidence below it."""
    analysis = section.analysis
    assert analysis.told is not None
    shown = section.rows[: analysis.most]
    for number, row in enumerate(shown, 1):
        headline, below = (plain(text) for text in analysis.told(row))
        entry = Table.grid(padding=(0, 1, 0, 0))
        entry.add_row(
            f"{number}.",
            Group(Text(headline, style="yellow" if analysis.notable(row) else ""), Text(below, style="dim")),
        )
        yield entry
    if len(section.rows) > len(shown):
        yield Text(f"… {len(section.rows) - len(shown):,} more", style="dim")


def _each_device(report: Report, section: Section, width: int) -> Iterator[RenderableType]:
    for device, rows in section.by_device().items():
        columns = [column for column in section.columns if column != "device"]
        cut = f" · the first {section.analysis.most}" if len(rows) > section.analysis.most else ""
        yield Text.assemble((plain(device), "bold cyan"), (cut, "dim"))
        yield Padding(_table(section, columns, rows, width - 2, report), (0, 0, 0, 2), expand=False)


def _table(section: Section, columns: list[str], rows: Rows, width: int, report: Report) -> RenderableType:
    """The first rows in as many of the columns as fit."""
    limit = section.analysis.most
    zero = report.zero_ns
    cells = {
        column: [short_path(human(row[column], section.column(column).unit, zero_ns=zero)) for row in rows[:limit]]
        for column in columns
    }
    widths = _widths(section, cells, width)
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim", show_edge=False)
    for column, cell_width in widths.items():
        table.add_column(
            Text(section.column(column).shown_as),
            justify="left" if section.column(column).unit == "text" else "right",
            no_wrap=True,
            overflow="ellipsis",
            width=cell_width,
        )
    shown = [str(column) for column in cells][: len(table.columns)]
    for number, row in enumerate(rows[:limit]):
        # A Text is shown as it is: markup in a name is not read.
        table.add_row(
            *[
                Text(shortened(cells[column][number], widths[column]), style=_style(section.analysis, column, row))
                for column in shown
            ]
        )
    if len(rows) <= limit:
        return table
    return Group(table, Text(f"… {len(rows) - limit:,} more", style="dim"))


def _style(analysis: Analysis, column: str, row: Row) -> str:
    return "yellow" if column in analysis.notable(row) else ""


def _widths(section: Section, cells: dict[str, list[str]], width: int) -> dict[str, int]:
    """The columns from the left that fit, with their widths. Text is cut before a column is left out."""
    natural = {
        column: max(cell_len(text) for text in [section.column(column).shown_as, *texts])
        for column, texts in cells.items()
    }
    texts = [column for column in natural if section.column(column).unit == "text"]
    longest_kept = dict.fromkeys(texts, TEXT_AT_LEAST)
    # The first long text tells the rows apart: a device or a direction needs no such room.
    for column in [column for column in texts if natural[column] > TEXT_AT_LEAST][:1]:
        longest_kept[column] = max(TEXT_AT_LEAST, min(FIRST_TEXT_AT_LEAST, width * 2 // 5))
    least = {column: min(wide, longest_kept.get(column, wide)) for column, wide in natural.items()}
    shown: dict[str, int] = {}
    for column in natural:
        if shown and sum(shown.values()) + least[column] + GAP * len(shown) > width:
            break
        shown[column] = least[column]
    spare = width - sum(shown.values()) - GAP * (len(shown) - 1)
    for column in shown:
        more = max(0, min(natural[column] - shown[column], spare))
        shown[column] += more
        spare -= more
    return shown


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` cells, without its middle: names of kernels begin alike, and paths end with what tells
    them apart.
    """
    if cell_len(text) <= width:
        return text
    head, tail = (width - 1) // 2, width - 1 - (width - 1) // 2
    return f"{set_cell_size(text, head).rstrip()}…{_end(text, tail)}"


def _end(text: str, width: int) -> str:
    """The last characters of `text` that fit."""
    kept = text[-width:] if width > 0 else ""
    while cell_len(kept) > width:
        kept = kept[1:]
    return kept
