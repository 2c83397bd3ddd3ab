"""The Dash application: the shell around the pages, and the one way from a URL to what is shown."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from flask import Flask

from ral_trace.dashboard.answers import Answers
from ral_trace.dashboard.changes import changes
from ral_trace.dashboard.gate import Gate
from ral_trace.dashboard.pages import PAGES
from ral_trace.dashboard.parts import ROW_FILTER, alert, link
from ral_trace.dashboard.view import View
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.text import plain

_INDEX = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title><link rel="icon" href="data:,">{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>"""
_THEME = {
    "fontFamily": "system-ui, sans-serif",
    "fontFamilyMonospace": "ui-monospace, monospace",
    "primaryColor": "blue",
}


def make_app(answers: Answers, gate: Gate) -> Dash:
    """The application over one trace. Nothing that it serves, or lets the browser load, comes from elsewhere."""
    folder = Path(__file__).parent  # said outright: Flask cannot find the folder of a package in a namespace
    server: Any = Flask("ral_trace.dashboard", root_path=str(folder), instance_path=str(folder), static_folder=None)
    app = Dash(
        "ral_trace.dashboard",
        server=server,
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
    app.layout = _shell(answers.trace.path)
    _add_callbacks(app, answers)
    gate.guard(app.server, app.csp_hashes())
    return app


def prefetch(answers: Answers) -> threading.Thread:
    """Asks in the background what the pages will ask, so that they open at once."""

    def render_all() -> None:
        for page in PAGES:
            for view in (View(page.path), *page.ahead):
                _render(answers, view)

    thread = threading.Thread(target=render_all, name="prefetch", daemon=True)
    thread.start()
    return thread


def _shell(path: Path) -> Any:
    top = html.Header(
        [
            html.Div("ral-trace", className="brand"),
            html.Nav(id="tabs", className="tabs"),
            html.Div(plain(path.name), className="file", title=plain(str(path.resolve()))),
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
    page = html.Main(html.P("Asking the trace …", className="none"), id="page", className="stack")
    return dmc.MantineProvider(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            *[dcc.Store(id=name) for name in ("shown", "changes", "applied")],
            html.Div([top, page], className="shell"),
        ],
        theme=_THEME,
        defaultColorScheme="auto",
    )


def _add_callbacks(app: Dash, answers: Answers) -> None:
    app.callback(
        Output("page", "children"),
        Output("changes", "data"),
        Output("tabs", "children"),
        Output("shown", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
        State("shown", "data"),
    )(lambda path, query, shown: _show(answers, View.of(path, query), shown))
    in_browser: Callable[..., object] = app.clientside_callback
    in_browser(ClientsideFunction("ral_trace", "apply"), Output("applied", "data"), Input("changes", "data"))
    app.callback(
        Output("url", "href"),
        Input({"type": ROW_FILTER, "filter": ALL}, "cellClicked"),
        State("url", "pathname"),
        State("url", "search"),
        prevent_initial_call=True,
    )(_filter_by_row)


def _show(answers: Answers, view: View, shown: dict[str, Any] | None) -> tuple[Any, Any, list[Any], dict[str, Any]]:
    """The page, or what changes in it; the tabs, whose links keep the filters; the view, which is `shown` next time."""
    tabs = [link(page.title, view.but(path=page.path), "page" if page.path == view.path else None) for page in PAGES]
    page = _render(answers, view)
    before = View(**shown) if shown else None
    differing = changes(_render(answers, before), page) if before and before.path == view.path else None
    if differing is None:
        return page, no_update, tabs, vars(view)
    return no_update, differing, tabs, vars(view)


def _render(answers: Answers, view: View) -> list[Any]:
    page = next((page for page in PAGES if page.path == view.path), None)
    if page is None:
        return [alert("There is no such page", "Choose one above.")]
    try:
        return page.render(answers, view)
    except RalTraceError as error:
        return [alert("This page cannot be shown", str(error))]


def _filter_by_row(clicked: list[dict[str, Any] | None], path: str, query: str) -> Any:
    """The view filtered by the row that was clicked; a second click on it takes the filter away."""
    cell = ctx.triggered[0]["value"] if ctx.triggered else None
    if not cell:
        return no_update
    view, name, value = View.of(path, query), ctx.triggered_id["filter"], cell["rowId"]
    return view.but(**{name: None if getattr(view, name) == value else value}).url()
