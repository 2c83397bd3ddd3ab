"""Hotspots: where the time of each device goes, by op or by kernel."""

from typing import Any

from dash import html

from ral_trace.analysis.hotspots import HOST, HOTSPOTS, KERNELS
from ral_trace.dashboard import figures
from ral_trace.dashboard.answers import Answers
from ral_trace.dashboard.grids import grid
from ral_trace.dashboard.pages.base import Page
from ral_trace.dashboard.parts import chosen, colours, device_filters, filter_by, known, panel
from ral_trace.dashboard.view import View

NAMES_A_DEVICE = 1000
"""More are in the trace's report; a browser need not hold them all."""

_BY: dict[str | None, str] = {None: "op", "kernel": "kernel"}


def render(answers: Answers, view: View) -> list[Any]:
    """The page's components."""
    view = known(answers, view, HOST)
    view = view.but(by=view.by if view.by in _BY and view.device != HOST else None)
    analysis = KERNELS if view.by == "kernel" else HOTSPOTS
    if view.device == HOST:
        rows = answers.ask(HOTSPOTS.run, device=HOST, limit=NAMES_A_DEVICE)
    else:
        rows = answers.ask(analysis.run, limit=NAMES_A_DEVICE)
        rows = chosen(answers, view, rows) if colours(answers) else rows
    filters = [*device_filters(answers, view, {HOST: "host (ops)"}), filter_by("By", view, "by", _BY)]
    return [
        html.Div(filters, className="filters"),
        panel("Hottest", "The time of the hottest names, by device.", figures.graph("hot-names", figures.hot_names(rows, colours(answers))))
        if rows
        else html.Div(),
        panel(
            analysis.title,
            analysis.about,
            grid("hotspots", analysis, rows, without=[] if view.device == HOST else ["self_ns"]),
        ),
    ]


PAGE = Page("/hotspots", "Hotspots", render)
