"""What pages are made of: panels, facts, links and the filters that all pages share."""

from typing import Any

import dash_mantine_components as dmc
from dash import html

from ral_trace.analysis import Rows
from ral_trace.analysis.hotspots import HOST
from ral_trace.analysis.summary import devices, summary
from ral_trace.dashboard.answers import Answers
from ral_trace.dashboard.figures import COLOURS
from ral_trace.dashboard.view import View
from ral_trace.tracer.text import plain

ROW_FILTER = "row-filter"
"""The type of the id of a grid whose rows filter: {"type": ROW_FILTER, "filter": name of the View's field}."""

_ALL: dict[str | None, str] = {None: "all"}


def link(text: str, view: View, current: str | None = None) -> Any:
    """A link to another view, without loading the document again. `current`: its aria-current, if it leads here."""
    marks = {"aria-current": current} if current else {}
    return dmc.Anchor(text, href=view.url(), refresh=False, underline="never", **marks)


def alert(title: str, text: str) -> Any:
    """A message in place of a page."""
    return dmc.Alert(text, title=title, color="yellow", variant="light")


def panel(title: str, about: str, *children: Any) -> Any:
    """A titled box. `about` says what the numbers in it mean."""
    contents = [html.H2(title), html.P(about, className="about"), *children]
    return html.Section(contents, className="panel", id="panel-" + title.lower().replace(" ", "-"))


def fact(name: str, value: str, tone: str = "") -> Any:
    """One number with its name. `tone` is '', 'good' or 'bad'."""
    children = [html.Div(value, className="value"), html.Div(name, className="label")]
    return html.Div(children, className=f"fact {tone}".strip())


def started_ns(answers: Answers) -> int:
    """The trace's zero: the start of its first event."""
    return int(answers.ask(summary)[0]["started_ns"] or 0)


def colours(answers: Answers) -> dict[str, str]:
    """The colour of each device, the same on all pages."""
    return {row["device"]: COLOURS[place % len(COLOURS)] for place, row in enumerate(answers.ask(devices))}


def known(answers: Answers, view: View, *also: str) -> View:
    """The view without filters that name nothing in this trace. `also` are values of `device` besides its devices."""
    there = answers.ask(devices)
    device = view.device if view.device in {row["device"] for row in there} | set(also) else None
    of_device = {row["vendor"] for row in there if device in (None, row["device"])}
    return view.but(device=device, vendor=view.vendor if view.vendor in of_device else None)


def chosen(answers: Answers, view: View, rows: Rows) -> Rows:
    """The rows of an analysis by device that pass the view's filters."""
    names = {row["device"] for row in answers.ask(devices) if view.vendor in (None, row["vendor"])}
    if view.vendor is None:
        names.add(HOST)  # what a trace without work on a device answers instead
    return Rows(row for row in rows if row["device"] == view.device or (view.device is None and row["device"] in names))


def filters(*rows: Any) -> Any:
    """Rows of links, one a filter."""
    return html.Div([row for row in rows if row is not None], className="filters", id="filters")


def filter_by(name: str, view: View, values: dict[str | None, str], field: str, **changes: str | None) -> Any:
    """A row of links, one a value of the view's `field`, with its text; `changes` is what each changes besides."""
    links = [
        link(plain(text), view.but(**{field: value}, **changes), "true" if getattr(view, field) == value else None)
        for value, text in values.items()
    ]
    return html.Div([html.Span(name), *links], className="filter")


def by_vendor(answers: Answers, view: View) -> Any:
    """The filter by vendor; None where there is one. It takes the choice of a device away: that may be another's."""
    vendors = list(dict.fromkeys(row["vendor"] for row in answers.ask(devices) if row["vendor"]))
    if len(vendors) < 2:
        return None
    return filter_by("Vendor", view, _ALL | {vendor: vendor for vendor in vendors}, "vendor", device=None)


def by_device(answers: Answers, view: View, also: dict[str | None, str] | None = None) -> Any:
    """The filter by device. `also` are further values and their texts."""
    names = [row["device"] for row in answers.ask(devices) if view.vendor is None or row["vendor"] == view.vendor]
    return filter_by("Device", view, _ALL | {name: name for name in names} | (also or {}), "device")
