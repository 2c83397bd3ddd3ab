"""Memory: the curve of each device, its peak and who held it, how long blocks live, what grows from step to step."""

from typing import Any

from dash import html

from ral_trace.analysis.leaks import LEAKS
from ral_trace.analysis.lifetimes import LIFETIMES
from ral_trace.analysis.memory import MEMORY_CURVE, MEMORY_PEAK
from ral_trace.analysis.peak_holders import PEAK_HOLDERS
from ral_trace.dashboard import figures
from ral_trace.dashboard.answers import Answers
from ral_trace.dashboard.grids import grid, table
from ral_trace.dashboard.pages.base import Page
from ral_trace.dashboard.parts import by_device, by_vendor, chosen, colours, filters, known, panel, started_ns
from ral_trace.dashboard.view import View


def render(answers: Answers, view: View) -> list[Any]:
    """The page's components."""
    view = known(answers, view)
    begin = started_ns(answers)
    curve = chosen(answers, view, answers.ask(MEMORY_CURVE.run))
    peaks = chosen(answers, view, answers.ask(MEMORY_PEAK.run))
    drawn = figures.memory_curves(curve, peaks, colours(answers), begin)
    holders = chosen(answers, view, answers.ask(PEAK_HOLDERS.run))
    held = figures.named_bars(holders, "op", "bytes", colours(answers))
    return [
        filters(by_vendor(answers, view), by_device(answers, view)),
        panel(
            MEMORY_CURVE.title,
            MEMORY_CURVE.about,
            figures.graph("memory-curve", drawn) if curve else html.P("No allocation was recorded."),
            table("memory-peak", MEMORY_PEAK, peaks, started_ns=begin),
        ),
        panel(
            PEAK_HOLDERS.title,
            PEAK_HOLDERS.about,
            html.Div([figures.graph("held", held), grid("peak-holders", PEAK_HOLDERS, holders)], className="columns")
            if holders
            else html.P("No allocation was recorded."),
        ),
        panel(LEAKS.title, LEAKS.about, grid("leaks", LEAKS, chosen(answers, view, answers.ask(LEAKS.run)))),
        panel(
            LIFETIMES.title,
            LIFETIMES.about,
            grid("lifetimes", LIFETIMES, chosen(answers, view, answers.ask(LIFETIMES.run))),
        ),
    ]


PAGE = Page("/memory", "Memory", render)
