"""Overview: whether the trace can be trusted, what each device did, how long the steps took, what it cost most."""

from typing import Any

from dash import html

from ral_trace.analysis import Rows
from ral_trace.analysis.fallbacks import FALLBACKS
from ral_trace.analysis.hotspots import HOTSPOTS
from ral_trace.analysis.steps import STEPS
from ral_trace.analysis.summary import DEVICES, SUMMARY
from ral_trace.analysis.trust import LEDGER, QUALITY
from ral_trace.analysis.units import human
from ral_trace.dashboard import figures
from ral_trace.dashboard.answers import Answers
from ral_trace.dashboard.grids import grid, table
from ral_trace.dashboard.pages.base import Page
from ral_trace.dashboard.pages.hotspots import NAMES_A_DEVICE
from ral_trace.dashboard.parts import ROW_FILTER, by_device, by_vendor, chosen, colours, fact, filters, known, panel
from ral_trace.dashboard.view import View


def render(answers: Answers, view: View) -> list[Any]:
    """The page's components."""
    view = known(answers, view)
    return [
        _ledger(answers),
        _devices(answers, view),
        html.Div([_steps(answers), _hottest(answers, view)], className="columns"),
        _fallbacks(answers, view),
    ]


def _ledger(answers: Answers) -> Any:
    rows, quality = answers.ask(LEDGER.run), answers.ask(QUALITY.run)
    live = [row for row in rows if row["written"] is not None]
    facts = []
    for name in ["written", "received", "dropped", "lost"] if live else []:
        total = sum(row[name] or 0 for row in live)
        tone = "" if name in ("written", "received") else "bad" if total else "good"
        facts.append(fact(name, human(total, "count"), tone))
    [about] = answers.ask(SUMMARY.run)
    holds = [
        fact("events in the trace", human(about["events"], "count")),
        fact("from first to last", human(about["span_ns"], "ns")),
        fact("processes", human(about["processes"], "count")),
        fact("steps", human(about["steps"], "count")),
    ]
    warnings = [
        html.P("Know this before you believe the numbers:", className="warn"),
        table("quality", QUALITY, quality, without=["chapters"]),
    ]
    return panel(
        "Ledger",
        LEDGER.about if live else "Not a live recording: no ledger says what may be missing.",
        html.Div([html.Div(group, className="facts") for group in (facts, holds) if group], className="facts groups"),
        table("ledger", LEDGER, rows, without=["process"]),
        *(warnings if quality else []),
    )


def _devices(answers: Answers, view: View) -> Any:
    return panel(
        "Devices",
        DEVICES.about + " Click a row to see one device only, here and on the other pages.",
        filters(by_vendor(answers, view), by_device(answers, view)),
        grid(
            {"type": ROW_FILTER, "filter": "device"},
            DEVICES,
            Rows(row for row in answers.ask(DEVICES.run) if view.vendor is None or row["vendor"] == view.vendor),
            selectable_by="device",
            selected=view.device,
        ),
    )


def _steps(answers: Answers) -> Any:
    rows = answers.ask(STEPS.run)
    about = "How long each training step took."
    if len(rows) > figures.BARS_SHOWN:
        about += " Of so many, the slowest of each stretch is shown."
    none = html.P("No steps in this trace: mark them with ral_trace.tracer.step().")
    return panel("Steps", about, figures.graph("step-times", figures.step_times(rows)) if rows else none)


def _hottest(answers: Answers, view: View) -> Any:
    rows = chosen(answers, view, answers.ask(HOTSPOTS.run, limit=NAMES_A_DEVICE))
    bars = figures.hot_bars(rows, colours(answers))
    return panel("Hottest ops", "Time of each op's kernels, copies and fallbacks.", figures.graph("hottest", bars))


def _fallbacks(answers: Answers, view: View) -> Any:
    rows = chosen(answers, view, answers.ask(FALLBACKS.run))
    return panel("Fallbacks", FALLBACKS.about, grid("fallbacks", FALLBACKS, rows))


PAGE = Page("/", "Overview", render)
