"""What report.js draws: the rows of the analyses in columns, with times as milliseconds since the first event.

JavaScript's numbers do not hold nanoseconds since the epoch.
"""

from typing import Any

from ral_trace.analysis.base import Rows
from ral_trace.analysis.report.sections import Report
from ral_trace.analysis.units import human
from ral_trace.tracer.text import plain

MOST_STEPS = 5_000
"""Steps that are drawn, over all processes."""

VENDOR_COLOURS = ["#4f7cff", "#14b8a6", "#a855f7", "#ec4899", "#84cc16", "#64748b"]
"""In the order in which vendors appear. Amber is kept for fallbacks: a vendor did not serve those."""


def data(report: Report) -> dict[str, Any]:
    """All that report.js draws."""
    zero = report.summary["started_ns"] or 0
    vendor_of = {row["device"]: human(row["vendor"], "text") for row in report.rows("devices")}
    colour_of = colours(report)
    capacity = {row["device"]: row["memory_bytes"] for row in report.rows("devices")}

    def owner(device: str) -> dict[str, Any]:
        return {"device": plain(device), "vendor": vendor_of[device], "colour": colour_of[device]}

    return {
        "span": _ms(report.summary["span_ns"] or 0),
        "lanes": [
            {**owner(device), "lane": lane, **_lane(rows, zero)}
            for (device, lane), rows in _lanes(report.rows("timeline")).items()
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
        "names": [human(name, "text") for name in names],
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
