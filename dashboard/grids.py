"""AG Grids and plain tables over the rows of an analysis. What a trace says is shown as text, never as HTML or code."""

from collections.abc import Sequence
from typing import Any

import dash_ag_grid as dag
from dash import html

from ral_trace.analysis import Analysis, Column, Rows
from ral_trace.analysis.units import human
from ral_trace.tracer.text import plain

_WIDTHS = {
    "text": 120,
    "ns": 84,
    "time": 84,
    "bytes": 88,
    "percent": 76,
    "count": 84,
    "id": 70,
    "device": 84,
    "vendor": 84,
}
"""Least width by unit, or by name."""
_FLEX = {"name": 5, "op": 5, "routed": 5, "reason": 5}
"""Share of the width that is left; 2 for the others."""

_TEXT = ("text", "id")
"""Units whose values are no quantities; an id may be larger than JavaScript's numbers."""
_WRITTEN, _ROW_ID = "_written", "_id"
"""What a row of a grid holds besides its columns."""
_ROWS_SHOWN = 14
_ROW_HEIGHT = 34


def grid(
    name: Any,
    analysis: Analysis,
    rows: Rows,
    *,
    without: Sequence[str] = (),
    started_ns: int = 0,
    selectable_by: str | None = None,
    selected: str | None = None,
) -> Any:
    """A grid of `rows`, with the analysis' columns but those in `without`.

    Times are shown since `started_ns`: JavaScript's numbers could not hold them otherwise. With `selectable_by`, a
    column whose values differ, rows can be clicked, and `selected` is the one that is.
    """
    if not rows:
        return html.P("None in what is chosen.", className="none")
    columns = _shown(analysis, rows, without)
    clickable = {
        "className": "grid clickable",
        "getRowId": f"params.data.{_ROW_ID}",
        "selectedRows": {"ids": [selected]} if selected else [],
    }
    return dag.AgGrid(
        id=name,
        columnDefs=[_definition(column, title(column.name, analysis)) for column in columns],
        rowData=[
            _row(row, columns, started_ns) | ({_ROW_ID: row[selectable_by]} if selectable_by else {}) for row in rows
        ],
        defaultColDef={"sortable": True, "resizable": True, "filter": True, "suppressHeaderMenuButton": True},
        dashGridOptions={
            "rowHeight": _ROW_HEIGHT,
            "headerHeight": _ROW_HEIGHT,
            "tooltipShowDelay": 400,
            "suppressFieldDotNotation": True,
            "enableCellTextSelection": True,
            "rowSelection": {"mode": "singleRow", "checkboxes": False, "enableClickSelection": False},
        },
        style={"height": f"{_ROW_HEIGHT * (min(len(rows), _ROWS_SHOWN) + 1) + 4}px", "width": "100%"},
        **(clickable if selectable_by else {"className": "grid"}),
    )


def table(name: str, analysis: Analysis, rows: Rows, *, without: Sequence[str] = (), started_ns: int = 0) -> Any:
    """A plain table, for a few rows: it takes a fraction of a grid's time to draw."""
    columns = _shown(analysis, rows, without)
    head = [html.Th(title(column.name, analysis), title=column.about, className=_side(column)) for column in columns]
    body = [
        html.Tr(
            [
                html.Td(human(row[column.name], column.unit, zero_ns=started_ns), className=_side(column))
                for column in columns
            ]
        )
        for row in rows
    ]
    return html.Div(html.Table([html.Thead(html.Tr(head)), html.Tbody(body)]), id=name, className="table")


def title(column: str, analysis: Analysis) -> str:
    """A column as a heading. Each value says its unit; the heading does where another column has the same name."""
    names = {other.name for other in analysis.columns}
    words = column.removesuffix("_ns").removesuffix("_bytes").replace("percent_of_", "% of ").replace("_percent", " %")
    if words != column and {words, words + "s"} & names:
        words += " time" if column.endswith("_ns") else " size"
    words = "%" if words == "percent" else words.replace("_", " ")
    return words[:1].upper() + words[1:]


def _shown(analysis: Analysis, rows: Rows, without: Sequence[str]) -> list[Column]:
    """The analysis' columns, but those in `without` and those that are unknown in every row."""
    return [
        column
        for column in analysis.columns
        if column.name not in without and any(row[column.name] is not None for row in rows)
    ]


def _definition(column: Column, heading: str) -> dict[str, Any]:
    definition: dict[str, Any] = {
        "field": column.name,
        "headerName": heading,
        "headerTooltip": column.about,
        "flex": _FLEX.get(column.name, 2),
        "minWidth": _WIDTHS.get(column.name) or max(_WIDTHS[column.unit], 32 + 7 * len(heading)),
    }
    if column.unit in _TEXT:
        return definition | {"cellDataType": "text", "tooltipField": column.name}
    written = {"function": f"params.data.{_WRITTEN}.{column.name}"}
    return definition | {"cellDataType": "number", "type": "rightAligned", "valueFormatter": written}


def _row(row: dict[str, Any], columns: list[Column], started_ns: int) -> dict[str, Any]:
    """A row as the browser gets it: numbers to sort by, and what is written in their place."""
    data: dict[str, Any] = {_WRITTEN: {}}
    for column in columns:
        value = row[column.name]
        if column.unit in _TEXT:
            data[column.name] = None if value is None else plain(str(value))
        else:
            data[column.name] = value - started_ns if column.unit == "time" and value is not None else value
            data[_WRITTEN][column.name] = human(value, column.unit, zero_ns=started_ns)
    return data


def _side(column: Column) -> str:
    return "" if column.unit == "text" else "number"
