"""Plotly figures, as plain dictionaries.

Plotly reads a little HTML in every label, so that text out of a trace goes through `escaped` first.
"""

from typing import Any

from dash import dcc

from ral_trace.analysis import Rows
from ral_trace.analysis.hotspots import HOST
from ral_trace.analysis.units import SIZES, UNKNOWN, human
from ral_trace.tracer.text import plain

COLOURS = ["#4c8dff", "#f59f00", "#12b886", "#e64980", "#7950f2", "#15aabf", "#82c91e", "#fa5252"]
"""Of devices, in their order; readable on light and on dark."""

NO_DEVICE = "#868e96"

NAMES_SHOWN = 15
BARS_SHOWN = 400
_BUTTONS = [["zoom2d", "pan2d", "resetScale2d", "toImage"]]
"""Named one by one: among Plotly's own choice is one that sends the figure to a server of theirs."""
_LONGEST_LABEL = 44


def escaped(text: str | None) -> str:
    """Text that Plotly shows as it is: no tags, no entities, no line breaks."""
    return plain(text or UNKNOWN).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def label(text: str | None) -> str:
    """`escaped`, with the middle left out of what is too long for an axis."""
    visible = plain(text or UNKNOWN)
    if len(visible) > _LONGEST_LABEL:
        half = _LONGEST_LABEL // 2
        visible = visible[:half] + "…" + visible[-half + 1 :]
    return escaped(visible)


def graph(name: str, figure: dict[str, Any]) -> Any:
    """The component that shows a figure."""
    layout = figure["layout"]
    config: Any = {"displaylogo": False, "responsive": True, "modeBarButtons": _BUTTONS, "plotlyServerURL": ""}
    return dcc.Graph(
        id=name, figure=figure, className="figure", config=config, style={"height": f"{layout['height']}px"}
    )


def named_bars(rows: Rows, name: str, value: str, colours: dict[str, str]) -> dict[str, Any]:
    """Bars: the rows' largest names, stacked by device. `value` is a column of nanoseconds or of bytes."""
    total: dict[str | None, int] = {}
    for row in rows:
        total[row[name]] = total.get(row[name], 0) + (row[value] or 0)
    names = sorted(total, key=lambda key: (-total[key], str(key)))[:NAMES_SHOWN]
    place = {key: position for position, key in enumerate(names)}
    unit = "ns" if value.endswith("_ns") else "bytes"
    scale, axis = _axis(unit, max(total.values(), default=0))
    traces: list[dict[str, Any]] = []
    for device in dict.fromkeys(row["device"] for row in rows):
        shown = [row for row in rows if row["device"] == device and row[name] in place]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": escaped(device),
                "marker": {"color": colours.get(device, NO_DEVICE)},
                "x": [(row[value] or 0) / scale for row in shown],
                "y": [place[row[name]] for row in shown],
                "hovertext": [f"{escaped(row[name])}<br>{escaped(device)}: {human(row[value], unit)}" for row in shown],
                "hoverinfo": "text",
            }
        )
    layout = _layout(70 + 24 * max(len(names), 3), legend=len(traces) > 1)
    layout |= {"barmode": "stack", "bargap": 0.28}
    layout["xaxis"] |= axis
    layout["yaxis"] |= {
        "tickvals": list(range(len(names))),
        "ticktext": [label(key) for key in names],
        "range": [max(len(names), 3) - 0.5, -0.5],
        "showgrid": False,
        "fixedrange": True,
    }
    return {"data": traces, "layout": layout}


def hot_bars(rows: Rows, colours: dict[str, str]) -> dict[str, Any]:
    """Bars: the hottest names (hotspots). Ops on the host by their own time, as their total holds what they called."""
    on_host = any(row["device"] == HOST for row in rows)
    return named_bars(rows, "name", "self_ns" if on_host else "total_ns", colours)


def step_times(rows: Rows) -> dict[str, Any]:
    """Bars: how long each step took (steps), a colour a process; of many steps the slowest of each stretch."""
    traces: list[dict[str, Any]] = []
    for process in dict.fromkeys(row["process"] for row in rows):
        timed = Rows(row for row in rows if row["process"] == process and row["dur_ns"] is not None)
        shown = _slowest(timed)
        traces.append(
            {
                "type": "bar",
                "name": _process(timed[0]) if timed else "",
                "marker": {"color": COLOURS[len(traces) % len(COLOURS)]},
                "x": [row["step"] for row in shown],
                "y": [row["dur_ns"] / 1e9 for row in shown],
                "hovertext": [
                    f"step {row['step']}: {human(row['dur_ns'], 'ns')}<br>{human(row['launches'], 'count')} launches, "
                    f"{human(row['fallbacks'], 'count')} fallbacks, {human(row['syncs'], 'count')} syncs"
                    for row in shown
                ],
                "hoverinfo": "text",
            }
        )
    layout = _layout(260, legend=len(traces) > 1)
    layout["bargap"] = 0.15
    layout["xaxis"] |= {"title": {"text": "step"}, "showgrid": False}
    layout["yaxis"] |= _axis("ns", 0)[1]
    return {"data": traces, "layout": layout}


def memory_curves(curve: Rows, peaks: Rows, colours: dict[str, str], started_ns: int) -> dict[str, Any]:
    """Steps: allocated bytes of each device over time (memory_curve), its peak marked (memory_peak)."""
    scale, axis = _axis("bytes", max((row["peak_bytes"] or 0 for row in peaks), default=0))
    traces: list[dict[str, Any]] = []
    for peak in peaks:
        device, colour = peak["device"], colours[peak["device"]]
        points = [row for row in curve if row["device"] == device]
        if not points:
            continue
        seconds = [(row["ts_ns"] - started_ns) / 1e9 for row in points]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": escaped(device),
                "line": {"shape": "hv", "width": 1.5, "color": colour},
                "fill": "tozeroy" if len(peaks) == 1 else "none",
                "fillcolor": colour + "26",
                "x": seconds,
                "y": [row["allocated_bytes"] / scale for row in points],
                "hovertext": [
                    f"{escaped(device)}: {human(row['allocated_bytes'], 'bytes')} at {second:.6f} s"
                    for row, second in zip(points, seconds, strict=True)
                ],
                "hoverinfo": "text",
            }
        )
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{escaped(device)} peak",
                "showlegend": False,
                "marker": {"color": colour, "size": 9, "symbol": "diamond"},
                "x": [(peak["at_ns"] - started_ns) / 1e9],
                "y": [peak["peak_bytes"] / scale],
                "hovertext": [
                    f"{escaped(device)}: peak of {human(peak['peak_bytes'], 'bytes')} "
                    f"in {human(peak['live_blocks'], 'count')} blocks"
                ],
                "hoverinfo": "text",
            }
        )
    layout = _layout(320, legend=len(peaks) > 1)
    layout["xaxis"] |= {"tickformat": "~s", "ticksuffix": "s"}
    layout["yaxis"] |= axis
    return {"data": traces, "layout": layout}


def _axis(unit: str, largest: float) -> tuple[float, dict[str, Any]]:
    """What to divide values of that unit by, and how their axis is written."""
    if unit == "ns":
        return 1e9, {"tickformat": "~s", "ticksuffix": "s", "rangemode": "tozero"}
    name, scale = next((size for size in SIZES if largest >= size[1]), ("B", 1))
    return scale, {"ticksuffix": f" {name}", "rangemode": "tozero"}


def _process(step: dict[str, Any]) -> str:
    return f"process {step['process']}" if step["pid"] is None else f"pid {step['pid']}"


def _slowest(steps: Rows) -> Rows:
    """At most BARS_SHOWN of them, of each stretch the slowest."""
    stretch = -(-len(steps) // BARS_SHOWN) or 1
    return Rows(
        max(steps[begin : begin + stretch], key=lambda row: row["dur_ns"]) for begin in range(0, len(steps), stretch)
    )


def _layout(height: int, *, legend: bool) -> dict[str, Any]:
    """What all figures share. Their colours are the style sheet's, so that they follow the colour scheme."""
    axis = {"automargin": True, "zeroline": False, "ticks": "outside", "ticklen": 5, "tickcolor": "rgba(0,0,0,0)"}
    return {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 34 if legend else 8, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "showlegend": legend,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom", "traceorder": "normal"},
        "hoverlabel": {"align": "left", "namelength": -1},
        "xaxis": dict(axis),
        "yaxis": dict(axis),
    }
