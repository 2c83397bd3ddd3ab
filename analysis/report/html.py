"""The report as one HTML file that opens offline.

Charts are drawn by Plotly, which is inside the file, from data that is inside the file. Names out of traces are
untrusted: Jinja escapes them in the page, `script_json` in the data, report.js in what Plotly reads as markup. And the
page's content security policy admits its own scripts only, by their hashes, and no request at all.
"""

import base64
import hashlib
import json
from collections.abc import Collection
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ral_trace.analysis.base import CHAPTERS, Row, Rows
from ral_trace.analysis.report import charts
from ral_trace.analysis.report.sections import Report, Section, ledger_lines
from ral_trace.analysis.units import human, short_path
from ral_trace.tracer.text import plain

MOST_ROWS = 300
"""Rows of one question's tables; the rest is in `--json`."""
MOST_CELLS = 9_000
"""Cells of all tables together, so that the page stays below 6 MB."""
LEAST_ROWS = 5
MOST_DEVICES = 16
"""Devices with a table of their own; `--device` shows the others."""
MOST_TEXT = 400
"""Characters of one cell."""


def render(report: Report) -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scripts = [get_plotlyjs(), _file("report.js")]
    shares = _Shares(report)
    return environment.get_template("report.html").render(
        title=plain(report.name),
        policy=_policy(scripts),
        style=Markup(_file("report.css")),
        scripts=[Markup(script) for script in scripts],
        data=script_json(charts.data(report)),
        facts=_facts(report),
        ledger=[
            {"who": plain(who), "what": plain(what), "missing": missing} for who, what, missing in ledger_lines(report)
        ],
        quality=[_quality(row) for row in report.rows("quality")],
        only=None if report.device is None else plain(report.device),
        vendors=charts.vendors(report),
        chapters=[
            {
                "id": chapter,
                "title": CHAPTERS[chapter],
                "warnings": report.warnings.get(chapter, []),
                "questions": [_question(report, section, shares) for section in sections],
            }
            for chapter, sections in report.chapters().items()
        ],
        command_line=human(report.summary["command_line"], "text"),
        clock=human(report.summary["clock"], "text"),
        tool_version=human(report.summary["tool_version"], "text"),
    )


def _file(name: str) -> str:
    return files("ral_trace.analysis.report").joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: list[str]) -> str:
    """Content-Security-Policy: these scripts, their styles and the images that they draw; no request."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def script_json(value: object) -> Markup:
    """JSON that can stand in a <script>: nothing in it can end the element, begin a comment or a tag."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _facts(report: Report) -> list[dict[str, str]]:
    """The tiles at the top."""
    facts = report.summary
    devices = report.rows("devices")
    launches, fallbacks = (sum(row[column] for row in devices) for column in ("launches", "fallbacks"))
    known_ns = [row["fallback_ns"] for row in devices if row["fallback_ns"] is not None]
    fallback_ns = sum(known_ns) if known_ns else None
    missing = None if facts["dropped"] is None else facts["dropped"] + facts["lost"]
    tiles = [
        ("span", human(facts["span_ns"], "ns"), ""),
        ("events", human(facts["events"], "count"), ""),
        ("events missing", human(missing, "count"), "warn" if missing else ""),
        ("devices", human(facts["devices"], "count"), ""),
        ("steps", human(facts["steps"], "count"), ""),
        ("launches", human(launches, "count"), ""),
        ("fallbacks", human(fallbacks, "count"), "warn" if fallbacks else ""),
        ("time in fallbacks", human(fallback_ns, "ns"), "warn" if fallback_ns else ""),
    ]
    return [{"name": name, "value": value, "kind": kind} for name, value, kind in tiles]


def _quality(row: Row) -> dict[str, str]:
    return {key: plain(str(value)) if value is not None else "" for key, value in row.items()}


def _question(report: Report, section: Section, shares: "_Shares") -> dict[str, Any]:
    """A question and its answer: a sentence, a chart, tables."""
    analysis = section.analysis
    return {
        "name": analysis.name,
        "title": analysis.title,
        "about": analysis.about,
        "remark": None if section.remark is None else plain(section.remark),
        "missing": section.missing,
        "told": [_plain(analysis.told(row)) for row in section.rows] if analysis.told is not None else [],
        "chart": analysis.chart is not None and bool(section.rows),
        "detail": analysis.detail,
        "tables": _tables(report, section, shares) if section.rows and analysis.shown and analysis.told is None else [],
        "left_out": max(0, len(section.by_device()) - MOST_DEVICES) if analysis.per_device else 0,
        "shown": bool(analysis.shown) or analysis.chart is not None,
        "empty": not section.rows,
    }


class _Shares:
    """How many rows of a table the page has room for: the tables share MOST_CELLS, and none gets more than it needs."""

    def __init__(self, report: Report) -> None:
        tables = [section for section in report.sections.values() if section.rows and section.analysis.shown]
        wanted = sorted(min(len(s.rows), MOST_ROWS) * max(len(s.columns), 1) for s in tables)
        self.cells, left = MOST_CELLS, MOST_CELLS
        for number, cells in enumerate(wanted):
            self.cells = left // (len(wanted) - number)
            left -= min(cells, self.cells)

    def rows(self, section: Section) -> int:
        """Rows of this section's tables, all together."""
        return min(MOST_ROWS, max(LEAST_ROWS, self.cells // max(len(section.columns), 1)))


def _tables(report: Report, section: Section, shares: _Shares) -> list[dict[str, Any]]:
    """A section's tables: one, or one for each device."""
    most = shares.rows(section)
    if not section.analysis.per_device:
        return [_table(report, section, section.rows, section.columns, None, most)]
    columns = [column for column in section.columns if column != "device"]
    colours = charts.colours(report)
    groups = section.by_device()
    return [
        _table(
            report,
            section,
            rows,
            columns,
            {"name": plain(device), "colour": colours.get(device, "")},
            max(LEAST_ROWS, most // min(len(groups), MOST_DEVICES)),
        )
        for device, rows in list(groups.items())[:MOST_DEVICES]
    ]


def _table(
    report: Report,
    section: Section,
    rows: Rows,
    columns: list[str],
    device: dict[str, str] | None,
    most: int,
) -> dict[str, Any]:
    """A table's headings and rows; `number` is what sorts a cell, `share` the width of its bar."""
    zero = report.zero_ns
    units = {column: section.column(column).unit for column in columns}
    largest = {column: _largest(rows, column) for column in columns if units[column] == "percent"}

    def cell(row: Row, column: str, notable: Collection[str]) -> dict[str, Any]:
        value, unit = row[column], units[column]
        barred = value is not None and largest.get(column)
        return {
            "text": _cut(short_path(human(value, unit, zero_ns=zero))),
            "number": value if unit != "text" else None,
            "kind": "t" if unit == "text" else "n",
            "share": round(100 * value / largest[column], 1) if barred else None,
            "warn": column in notable,
        }

    def cells(row: Row) -> list[dict[str, Any]]:
        notable = section.analysis.notable(row)
        return [cell(row, column, notable) for column in columns]

    return {
        "name": section.analysis.name,
        "title": section.analysis.title,
        "device": device,
        "columns": [
            {
                "heading": section.column(column).shown_as,
                "about": section.column(column).about,
                "kind": "t" if units[column] == "text" else "n",
            }
            for column in columns
        ],
        "rows": [cells(row) for row in rows[:most]],
        "more": max(0, len(rows) - most),
    }


def _plain(told: tuple[str, str]) -> tuple[str, str]:
    headline, below = told
    return plain(headline), plain(below)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 1]}…"


def _largest(rows: Rows, column: str) -> float:
    return max((float(row[column]) for row in rows if row[column] is not None), default=0.0)
