"""Hotspots: where the time of each device goes, by op or by kernel."""

from collections import Counter
from typing import Any

from ral_trace.analysis import Rows
from ral_trace.analysis.hotspots import HOST, HOTSPOTS, KERNELS
from ral_trace.dashboard import figures
from ral_trace.dashboard.answers import Answers
from ral_trace.dashboard.grids import grid
from ral_trace.dashboard.pages.base import Page
from ral_trace.dashboard.parts import by_device, by_vendor, chosen, colours, filter_by, filters, known, panel
from ral_trace.dashboard.view import View

NAMES_A_DEVICE = 1000
"""A browser need not hold more; `ral-trace query` gives them."""

_CUT = f" The hottest {NAMES_A_DEVICE:,} of each device."
_BY: dict[str | None, str] = {None: "op", "kernel": "kernel"}


def render(answers: Answers, view: View) -> list[Any]:
    """The page's components."""
    view = known(answers, view, HOST)
    view = view.but(by=view.by if view.by in _BY and view.device != HOST else None)
    analysis = KERNELS if view.by == "kernel" else HOTSPOTS
    if view.device == HOST:
        rows = answers.ask(HOTSPOTS.run, device=HOST, limit=NAMES_A_DEVICE)
    else:
        rows = chosen(answers, view, answers.ask(analysis.run, limit=NAMES_A_DEVICE))
    return [
        filters(
            by_vendor(answers, view),
            by_device(answers, view, {HOST: "host (ops)"}),
            filter_by("By", view, _BY, "by") if view.device != HOST else None,
        ),
        panel(
            "Hottest",
            "The time of the hottest names.",
            figures.graph("hot-names", figures.hot_bars(rows, colours(answers))),
        ),
        panel(analysis.title, analysis.about + (_CUT if _cut(rows) else ""), grid("hotspots", analysis, rows)),
    ]


def _cut(rows: Rows) -> bool:
    """Whether there may be more names than were asked for."""
    return any(number == NAMES_A_DEVICE for number in Counter(row["device"] for row in rows).values())


PAGE = Page("/hotspots", "Hotspots", render, (View("/hotspots", by="kernel"), View("/hotspots", device=HOST)))
