"""The Dash application: the shell around the pages, and the one way from a URL to what is shown."""

from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from flask import Flask

from ral_trace.dashboard.answers import Answers
from ral_trace.dashboard.gate import Gate
from ral_trace.dashboard.pages import PAGES
from ral_trace.dashboard.parts import ROW_FILTER, alert, link
from ral_trace.dashboard.view import View
from ral_trace.tracer.errors import RalTraceError

_INDEX = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title><link rel="icon" href="data:,">{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>"""
_THEME = {"fontFamily": "system-ui, sans-serif", "fontFamilyMonospace": "ui-monospace, monospace", "primaryColor": "blue"}


def make_app(answers: Answers, gate: Gate) -> Dash:
    """The application over one trace. Nothing that it serves, or lets the browser load, comes from elsewhere."""
    folder = Path(__file__).parent  # said outright: Flask cannot find the folder of a package in a namespace
    app = Dash(
        "ral_trace.dashboard",
        server=Flask("ral_trace.dashboard", root_path=str(folder), instance_path=str(folder), static_folder=None),
        assets_folder=str(folder / "assets"),
        title="ral-trace",
        update_title="",
        index_string=_INDEX,
        serve_locally=True,
        use_pages=False,
        pages_folder="",
        enable_mcp=False,
        suppress_callback_exceptions=True,  # a page's grids exist only while it is shown
        add_log_handler=False,
    )
    app.layout = _shell(answers)
    _add_callbacks(app, answers)
    gate.guard(app.server, app.csp_hashes())
    return app


def _shell(answers: Answers) -> Any:
    top = html.Header(
        [
            html.Div("ral-trace", className="brand"),
            html.Nav(id="tabs", className="tabs"),
            html.Div(answers.trace.path.name, className="file", title=str(answers.trace.path)),
            dmc.ColorSchemeToggle(
                lightIcon=html.Span(className="scheme-light"),
                darkIcon=html.Span(className="scheme-dark"),
                variant="subtle",
                color="gray",
                **{"aria-label": "Light or dark"},
            ),
        ],
        className="top",
    )
    page = html.Main(id="page", className="stack")
    return dmc.MantineProvider(
        [dcc.Location(id="url", refresh="callback-nav"), html.Div([top, page], className="shell")],
        theme=_THEME,
        defaultColorScheme="auto",
    )


def _add_callbacks(app: Dash, answers: Answers) -> None:
    app.callback(
        Output("page", "children"), Output("tabs", "children"), Input("url", "pathname"), Input("url", "search")
    )(lambda path, query: _render(answers, View.of(path, query)))
    app.callback(
        Output("url", "href"),
        Input({"type": ROW_FILTER, "filter": ALL}, "cellClicked"),
        State("url", "pathname"),
        State("url", "search"),
        prevent_initial_call=True,
    )(_filter_by_row)


def _render(answers: Answers, view: View) -> tuple[list[Any], list[Any]]:
    """The page's components, and the tabs, whose links keep the filters."""
    tabs = [
        link(page.title, view.but(path=page.path), "page" if page.path == view.path else None) for page in PAGES
    ]
    page = next((page for page in PAGES if page.path == view.path), None)
    if page is None:
        return [alert("There is no such page", "Choose one above.")], tabs
    try:
        return page.render(answers, view), tabs
    except RalTraceError as error:
        return [alert("This page cannot be shown", str(error))], tabs


def _filter_by_row(clicked: list[dict[str, Any] | None], path: str, query: str) -> Any:
    """The view filtered by the row that was clicked; a second click on it takes the filter away."""
    cell = ctx.triggered[0]["value"] if ctx.triggered else None
    if not cell:
        return no_update
    view, name, value = View.of(path, query), ctx.triggered_id["filter"], cell["rowId"]
    return view.but(**{name: None if getattr(view, name) == value else value}).url()
