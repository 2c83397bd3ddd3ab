"""The report as one HTML file that opens offline.

Charts are drawn by Plotly, which is inside the file, from data that is inside the file. Names out of traces are
untrusted: Jinja escapes them in the page, `script_json` in the data, report.js in what Plotly reads as markup. And the
page's content security policy admits its own scripts only, by their hashes, and no request at all.
"""

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from ral_trace.analysis.base import Rows
from ral_trace.analysis.report import charts
from ral_trace.analysis.report.sections import Report, Section, ledger_line
from ral_trace.analysis.units import human
from ral_trace.tracer.text import plain

MOST_ROWS = 300
"""Rows of one table; the rest is in `--json`."""


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
    return environment.get_template("report.html").render(
        title=plain(report.name),
        policy=_policy(scripts),
        style=Markup(_file("report.css")),
        scripts=[Markup(script) for script in scripts],
        data=script_json(charts.data(report)),
        facts=_facts(report),
        ledger=[_ledger(row) for row in report.rows("ledger")],
        quality=[
            {key: plain(str(value)) if value is not None else "" for key, value in row.items()}
            for row in report.rows("quality")
        ],
        fallbacks=_remark(report, "fallbacks"),
        leak=_remark(report, "leaks"),
        only=None if report.device is None else plain(report.device),
        vendors=charts.vendors(report),
        tables={name: _tables(report, report.sections[name]) for name in TABLES if report.rows(name)},
        about={name: section.analysis.about for name, section in report.sections.items()},
        command_line=human(report.summary["command_line"], "text"),
        clock=human(report.summary["clock"], "text"),
        tool_version=human(report.summary["tool_version"], "text"),
    )


TABLES = ("devices", "hotspots", "kernels", "fallbacks", "memory_peak", "peak_holders", "lifetimes", "leaks", "steps")


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


def _ledger(row: dict[str, Any]) -> dict[str, Any]:
    who, what, missing = ledger_line(row)
    return {"who": plain(who), "what": plain(what), "missing": missing}


def _tables(report: Report, section: Section) -> list[dict[str, Any]]:
    """A section's tables: one, or one for each device."""
    if not section.analysis.per_device:
        return [_table(report, section, section.rows, section.columns)]
    columns = [column for column in section.columns if column != "device"]
    colours = charts.colours(report)
    groups = section.by_device()
    most = max(5, MOST_ROWS // len(groups))
    return [
        _table(report, section, rows, columns, {"name": plain(device), "colour": colours.get(device, "")}, most)
        for device, rows in groups.items()
    ]


def _table(
    report: Report,
    section: Section,
    rows: Rows,
    columns: list[str],
    device: dict[str, str] | None = None,
    most: int = MOST_ROWS,
) -> dict[str, Any]:
    """A table's headings and rows; `number` is what sorts a cell, `share` the width of its bar."""
    zero = report.summary["started_ns"] or 0
    largest = {column: _largest(rows, column) for column in columns if section.column(column).unit == "percent"}

    def cell(row: dict[str, Any], column: str) -> dict[str, Any]:
        value, unit = row[column], section.column(column).unit
        barred = value is not None and largest.get(column)
        return {
            "text": human(value, unit, zero_ns=zero),
            "number": value if unit != "text" else None,
            "kind": "t" if unit == "text" else "n",
            "share": round(100 * value / largest[column], 1) if barred else None,
            "warn": column in section.analysis.notable(row),
        }

    return {
        "name": section.analysis.name,
        "title": section.analysis.title,
        "device": device,
        "columns": [
            {
                "heading": section.column(column).shown_as,
                "about": section.column(column).about,
                "kind": "t" if section.column(column).unit == "text" else "n",
            }
            for column in columns
        ],
        "rows": [[cell(row, column) for column in columns] for row in rows[:most]],
        "more": max(0, len(rows) - most),
    }


def _remark(report: Report, name: str) -> str | None:
    section = report.sections[name]
    return section.analysis.remark(section.rows)


def _largest(rows: Rows, column: str) -> float:
    return max((float(row[column]) for row in rows if row[column] is not None), default=0.0)
