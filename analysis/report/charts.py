"""What report.js draws: the rows of the analyses in columns, with times as milliseconds since the first event.

JavaScript's numbers do not hold nanoseconds since the epoch.
"""

from typing import Any

from ral_trace.analysis.base import Bars, Heat, Lines, Rows
from ral_trace.analysis.report.sections import Report, Section
from ral_trace.analysis.units import human
from ral_trace.tracer.text import plain

MOST_STEPS = 5_000
"""Steps that are drawn, over all processes."""
MOST_BARS = 12
MOST_SERIES = 12
DASHES = ("solid", "dot")
"""Of lines that share a colour."""
MOST_CELLS_A_SIDE = 24
MOST_NAME = 300
"""Characters of one name in a chart."""

VENDOR_COLOURS = ["#4f7cff", "#14b8a6", "#a855f7", "#ec4899", "#84cc16", "#64748b"]
"""In the order in which vendors appear. Amber is kept for fallbacks: a vendor did not serve those."""

DRAWN_UNITS = {
    "ns": (1e-6, " ms"),
    "bytes": (1 / (1 << 20), " MiB"),
    "bandwidth": (1e-9, " GB/s"),
    "percent": (1, " %"),
}
"""Of a value on an axis: what it is multiplied with, and the unit then."""


def data(report: Report) -> dict[str, Any]:
    """All that report.js draws."""
    zero = report.zero_ns
    vendor_of = {row["device"]: human(row["vendor"], "text") for row in report.rows("devices")}
    colour_of = colours(report)
    return {
        "span": _ms(report.summary["span_ns"] or 0),
        "lanes": [
            {
                "device": plain(device),
                "vendor": vendor_of[device],
                "colour": colour_of[device],
                "lane": lane,
                **_lane(rows, zero),
            }
            for (device, lane), rows in _lanes(report.rows("timeline")).items()
        ],
        "steps": _steps(report.rows("steps")),
        "charts": {
            f"chart-{name}": drawn
            for name, section in report.sections.items()
            if section.rows and (drawn := _drawn(report, section)) is not None
        },
    }


def _drawn(report: Report, section: Section) -> dict[str, Any] | None:
    """A chart of the general kinds; None where report.js has a drawing of its own for it, or there is none."""
    chart = section.analysis.chart
    if isinstance(chart, Bars):
        return _bars(report, section, chart)
    if isinstance(chart, Lines):
        return _lines(report, section, chart)
    return _heat(section, chart) if isinstance(chart, Heat) else None


def _bars(report: Report, section: Section, chart: Bars) -> dict[str, Any]:
    """The labels with the largest values over all devices, each device's part in its colour."""
    factor, unit = DRAWN_UNITS.get(section.column(chart.value).unit, (1, ""))
    total: dict[str, float] = {}
    part: dict[str, dict[str, float]] = {}
    for row in section.rows:
        if row[chart.value] is not None:
            label, device = _name(row[chart.label]), plain(str(row.get("device", "")))
            total[label] = total.get(label, 0) + row[chart.value] * factor
            of_device = part.setdefault(device, {})
            of_device[label] = of_device.get(label, 0) + row[chart.value] * factor
    labels = sorted(total, key=lambda label: (-total[label], label))[:MOST_BARS]
    colour_of = {plain(device): colour for device, colour in colours(report).items()}
    return {
        "kind": "bars",
        "unit": unit,
        "labels": labels,
        "parts": [
            {
                "name": device,
                "colour": colour_of.get(device, VENDOR_COLOURS[0]),
                "x": [found.get(label, 0) for label in labels],
            }
            for device, found in part.items()
            if any(label in found for label in labels)
        ],
    }


def _lines(report: Report, section: Section, chart: Lines) -> dict[str, Any]:
    """The series with the largest values; of a device's memory its capacity, too."""
    factor, unit = DRAWN_UNITS.get(section.column(chart.value).unit, (1, ""))
    series: dict[tuple[str, ...], Rows] = {}
    for row in section.rows:
        series.setdefault(tuple(_name(row[key]) for key in chart.series), Rows()).append(row)
    largest = {key: max((row[chart.value] or 0 for row in rows), default=0) for key, rows in series.items()}
    kept = sorted(series, key=lambda key: -largest[key])[:MOST_SERIES]
    colour_of = {plain(device): colour for device, colour in colours(report).items()}
    many = len({key[0] for key in kept}) < len(kept)
    return {
        "kind": "lines",
        "unit": unit,
        "series": [
            {
                "name": " ".join(key),
                "colour": VENDOR_COLOURS[number % len(VENDOR_COLOURS)] if many else colour_of.get(key[0], "#64748b"),
                "dash": DASHES[number // len(VENDOR_COLOURS) % len(DASHES)] if many else DASHES[0],
                "x": [_ms(row[chart.time] - report.zero_ns) for row in series[key]],
                "y": [None if row[chart.value] is None else row[chart.value] * factor for row in series[key]],
            }
            for number, key in enumerate(key for key in series if key in kept)
        ],
    }


def _heat(section: Section, chart: Heat) -> dict[str, Any]:
    """The rows and columns with the largest sums, as a matrix; null where there is nothing."""
    factor, unit = DRAWN_UNITS.get(section.column(chart.value).unit, (1, ""))
    value: dict[tuple[str, str], float] = {}
    for row in section.rows:
        if row[chart.value] is not None:
            key = (_name(row[chart.row]), _name(row[chart.column]))
            value[key] = value.get(key, 0) + row[chart.value] * factor
    sides = []
    for side in (0, 1):
        total: dict[str, float] = {}
        for key, number in value.items():
            total[key[side]] = total.get(key[side], 0) + number
        sides.append(sorted(total, key=lambda name: (-total[name], name))[:MOST_CELLS_A_SIDE])
    rows, columns = sides
    matrix = [[value.get((row, column)) for column in columns] for row in rows]
    return {"kind": "heat", "unit": unit, "rows": rows, "columns": columns, "values": matrix}


def _name(value: object) -> str:
    return human(value, "text")[:MOST_NAME]


def _steps(rows: Rows) -> list[dict[str, Any]]:
    """Each process' steps; of very many, the first."""
    processes: dict[int, Rows] = {}
    for row in rows:
        processes.setdefault(row["process"], Rows()).append(row)
    most = MOST_STEPS // max(len(processes), 1)
    return [
        {
            "who": f"pid {found[0]['pid']}" if found[0]["pid"] is not None else f"process {process}",
            "x": [row["step"] for row in found[:most]],
            "y": [None if row["dur_ns"] is None else _ms(row["dur_ns"]) for row in found[:most]],
            "fallbacks": [row["fallbacks"] for row in found[:most]],
            "launches": [row["launches"] for row in found[:most]],
        }
        for process, found in processes.items()
    ]


def _lanes(rows: Rows) -> dict[tuple[str, str], Rows]:
    lanes: dict[tuple[str, str], Rows] = {}
    for row in rows:
        lanes.setdefault((row["device"], row["lane"]), Rows()).append(row)
    return lanes


def _lane(rows: Rows, zero: int) -> dict[str, Any]:
    """One lane in columns; names are listed once. `busy` is None where rows are events."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    place = {name: number for number, name in enumerate(names)}
    stretches = rows[0]["busy_percent"] is not None
    return {
        "names": [_name(name) for name in names],
        "x": [_ms(row["ts_ns"] - zero) for row in rows],
        "width": _ms(rows[0]["dur_ns"]) if stretches else [_ms(row["dur_ns"] or 0) for row in rows],
        "name": [place[row["name"]] for row in rows],
        "count": [row["count"] for row in rows],
        "busy": [round(row["busy_percent"], 1) for row in rows] if stretches else None,
    }


def _ms(ns: int) -> float:
    return round(ns / 1e6, 6)


def vendors(report: Report) -> list[dict[str, str]]:
    """The vendors, in the order of their devices, each with its colour."""
    names = list(dict.fromkeys(row["vendor"] for row in report.rows("devices")))
    return [
        {"vendor": human(vendor, "text"), "colour": VENDOR_COLOURS[number % len(VENDOR_COLOURS)]}
        for number, vendor in enumerate(names)
    ]


def colours(report: Report) -> dict[str, str]:
    """The colour of each device: its vendor's."""
    of_vendor = {found["vendor"]: found["colour"] for found in vendors(report)}
    return {row["device"]: of_vendor[human(row["vendor"], "text")] for row in report.rows("devices")}
