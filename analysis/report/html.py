"""The report as one HTML file that opens offline. Charts are drawn by Plotly, which is inside the file, from the data that is inside the file.

Names out of traces are untrusted: Jinja escapes them in the page, `script_json` in the data, report.js in what Plotly reads as markup; and
the page's content security policy admits its own scripts only, by their hashes, and no request at all.
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
from ral_trace.analysis.report.sections import Report, Section, fallback_sentence, heading, ledger_line
from ral_trace.analysis.units import human, plain

MOST_ROWS = 300
"""Rows of one table; the rest is in `--json`."""

VENDOR_COLOURS = ["#4f7cff", "#14b8a6", "#a855f7", "#ec4899", "#84cc16", "#64748b"]
"""In the order in which vendors appear. Amber is kept for fallbacks: a vendor did not serve those."""


def render(report: Report) -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_file), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    scripts = [get_plotlyjs(), _file("report.js")]
    return environment.get_template("report.html").render(
        title=plain(report.name),
        policy=_policy(scripts),
        style=Markup(_file("report.css")),
        scripts=[Markup(script) for script in scripts],
        data=script_json(_data(report)),
        facts=_facts(report),
        ledger=[_ledger(row) for row in report.rows("ledger")],
        quality=[{key: plain(str(value)) if value is not None else "" for key, value in row.items()} for row in report.rows("quality")],
        fallbacks=fallback_sentence(report),
        vendors=_vendors(report),
        tables={name: _tables(report, report.sections[name]) for name in TABLES if report.rows(name)},
        about={name: section.analysis.about for name, section in report.sections.items()},
        command_line=human(report.summary["command_line"], "text"),
        clock=human(report.summary["clock"], "text"),
        tool_version=human(report.summary["tool_version"], "text"),
    )


TABLES = ("devices", "hotspots", "kernels", "fallbacks", "memory_peak", "peak_holders", "lifetimes", "growth", "steps")
BY_DEVICE = ("hotspots", "kernels", "peak_holders", "lifetimes")
"""Sections with a table for each device."""


def _file(name: str) -> str:
    return files("ral_trace.analysis.report").joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: list[str]) -> str:
    """Content-Security-Policy: these scripts, their styles and the images that they draw; no request."""
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"


def script_json(value: object) -> Markup:
    """JSON that can stand in a <script>: nothing in it can end the element, begin a comment or a tag."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _facts(report: Report) -> list[dict[str, str]]:
    """The tiles at the top."""
    facts = report.summary
    devices = report.rows("devices")
    fallback_ns = [row["fallback_ns"] for row in devices if row["fallback_ns"] is not None]
    missing = None if facts["dropped"] is None else facts["dropped"] + facts["lost"]
    tiles = [
        ("span", human(facts["span_ns"], "ns"), ""),
        ("events", human(facts["events"], "count"), ""),
        ("events missing", human(missing, "count"), "warn" if missing else ""),
        ("devices", human(facts["devices"], "count"), ""),
        ("steps", human(facts["steps"], "count"), ""),
        ("launches", human(sum(row["launches"] for row in devices), "count"), ""),
        ("fallbacks", human(sum(row["fallbacks"] for row in devices), "count"), "warn" if any(row["fallbacks"] for row in devices) else ""),
        ("time in fallbacks", human(sum(fallback_ns) if fallback_ns else None, "ns"), "warn" if any(fallback_ns) else ""),
    ]
    return [{"name": name, "value": value, "kind": kind} for name, value, kind in tiles]


def _ledger(row: dict[str, Any]) -> dict[str, Any]:
    who, what, missing = ledger_line(row)
    return {"who": plain(who), "what": plain(what), "missing": missing}


def _vendors(report: Report) -> list[dict[str, str]]:
    names = list(dict.fromkeys(row["vendor"] for row in report.rows("devices")))
    return [
        {"vendor": human(vendor, "text"), "colour": VENDOR_COLOURS[number % len(VENDOR_COLOURS)]} for number, vendor in enumerate(names)
    ]


def _tables(report: Report, section: Section) -> list[dict[str, Any]]:
    """A section's tables: one, or one for each device."""
    name = section.analysis.name
    if name not in BY_DEVICE:
        return [_table(report, section, section.rows, section.columns, None)]
    columns = [column for column in section.columns if column != "device"]
    colours = _colours(report)
    return [
        _table(report, section, rows, columns, {"name": human(device, "text"), "colour": colours.get(device, "")})
        for device, rows in section.by_device().items()
    ]


def _table(
    report: Report, section: Section, rows: Rows, columns: list[str], device: dict[str, str] | None
) -> dict[str, Any]:
    """A table's headings and rows; `number` is what sorts a cell, `share` the width of its bar."""
    zero = report.summary["started_ns"] or 0
    about = {column.name: column.about for column in section.analysis.columns}
    largest = {column: _largest(rows, column) for column in columns if section.unit(column) == "percent"}

    def cell(row: dict[str, Any], column: str) -> dict[str, Any]:
        value, unit = row[column], section.unit(column)
        share = None if column not in largest or value is None else round(100 * float(value) / max(largest[column], 1e-9), 1)
        return {
            "text": human(value, unit, zero_ns=zero),
            "number": value if unit != "text" else None,
            "kind": "text" if unit == "text" else "number",
            "share": share,
            "warn": _notable(section.analysis.name, column, row),
        }

    return {
        "name": section.analysis.name,
        "title": section.analysis.title,
        "device": device,
        "columns": [
            {
                "heading": heading(column),
                "about": about[column],
                "kind": "text" if section.unit(column) == "text" else "number",
            }
            for column in columns
        ],
        "rows": [[cell(row, column) for column in columns] for row in rows[:MOST_ROWS]],
        "more": max(0, len(rows) - MOST_ROWS),
    }


def _notable(analysis: str, column: str, row: dict[str, Any]) -> bool:
    """Whether a cell should catch the eye: a fallback, or memory that grows in nearly every step."""
    if column == "fallbacks" and analysis != "steps":
        return bool(row[column])
    return column == "steps_grown" and row["steps_grown"] >= 0.8 * (row["steps"] - 1)


def _colours(report: Report) -> dict[str, str]:
    """The colour of each device: its vendor's."""
    of_vendor = {found["vendor"]: found["colour"] for found in _vendors(report)}
    return {row["device"]: of_vendor[human(row["vendor"], "text")] for row in report.rows("devices")}


def _largest(rows: Rows, column: str) -> float:
    return max((float(row[column]) for row in rows if row[column] is not None), default=0.0)


def _data(report: Report) -> dict[str, Any]:
    """What report.js draws. Times are milliseconds since the first event: JavaScript's numbers do not hold nanoseconds since the epoch."""
    zero = report.summary["started_ns"] or 0
    vendor_of = {row["device"]: human(row["vendor"], "text") for row in report.rows("devices")}
    colours = _colours(report)
    capacity = {row["device"]: row["memory_bytes"] for row in report.rows("devices")}

    def owner(device: str) -> dict[str, Any]:
        return {"device": plain(device), "vendor": vendor_of[device], "colour": colours[device]}

    return {
        "span": _ms(report.summary["span_ns"] or 0),
        "lanes": [
            {**owner(device), "lane": lane, **_lane(rows, zero)} for (device, lane), rows in _lanes(report.rows("timeline")).items()
        ],
        "memory": [
            {
                **owner(device),
                "x": [_ms(row["ts_ns"] - zero) for row in rows],
                "y": [row["allocated_bytes"] for row in rows],
                "capacity": capacity[device],
            }
            for device, rows in report.sections["memory_curve"].by_device().items()
        ],
        "steps": _steps(report.rows("steps")),
    }


def _steps(rows: Rows) -> list[dict[str, Any]]:
    """Each process' steps; of very many, the first MOST_POINTS."""
    processes: dict[int, Rows] = {}
    for row in rows:
        processes.setdefault(row["process"], []).append(row)
    return [
        {
            "who": f"pid {found[0]['pid']}" if found[0]["pid"] is not None else f"process {process}",
            "x": [row["step"] for row in found[:MOST_POINTS]],
            "y": [None if row["dur_ns"] is None else _ms(row["dur_ns"]) for row in found[:MOST_POINTS]],
            "fallbacks": [row["fallbacks"] for row in found[:MOST_POINTS]],
            "launches": [row["launches"] for row in found[:MOST_POINTS]],
        }
        for process, found in processes.items()
    ]


MOST_POINTS = 5_000


def _lanes(rows: Rows) -> dict[tuple[str, str], Rows]:
    lanes: dict[tuple[str, str], Rows] = {}
    for row in rows:
        lanes.setdefault((row["device"], row["lane"]), []).append(row)
    return lanes


def _lane(rows: Rows, zero: int) -> dict[str, Any]:
    """One lane in columns; names are listed once. `busy` is None where rows are events."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    place = {name: number for number, name in enumerate(names)}
    stretches = rows[0]["busy_percent"] is not None
    return {
        "names": [human(name, "text") for name in names],
        "x": [_ms(row["ts_ns"] - zero) for row in rows],
        "width": _ms(rows[0]["dur_ns"]) if stretches else [_ms(row["dur_ns"] or 0) for row in rows],
        "name": [place[row["name"]] for row in rows],
        "count": [row["count"] for row in rows],
        "busy": [round(row["busy_percent"], 1) for row in rows] if stretches else None,
    }


def _ms(ns: int) -> float:
    return round(ns / 1e6, 6)
