"""AG Grids over the rows of an analysis. What a trace says is shown as text: no cell is HTML, Markdown or code."""

from collections.abc import Sequence
from typing import Any

import dash_ag_grid as dag
from dash import html

from ral_trace.analysis import Analysis, Column, Rows

FORMATTERS = {"ns": "duration", "time": "duration", "bytes": "bytes", "percent": "percent", "count": "count"}
"""Unit of a column -> function of assets/dashAgGridFunctions.js."""

_WIDTHS = {"text": 150, "ns": 100, "time": 100, "bytes": 105, "percent": 90, "count": 105, "id": 85}
_ROWS_SHOWN = 14
_ROW_HEIGHT = 34


def grid(
    name: Any,
    analysis: Analysis,
    rows: Rows,
    *,
    without: Sequence[str] = (),
    started_ns: int | None = None,
    selectable_by: str | None = None,
    selected: str | None = None,
) -> Any:
    """A grid of `rows`, with the analysis' columns but those in `without`.

    Times are shown since `started_ns`: JavaScript's numbers cannot hold them otherwise. With `selectable_by`, a column whose values differ, rows can
    be clicked, and `selected` is the one that is.
    """
    if not rows:
        return html.P("Nothing of this kind in what is chosen.", className="about")
    columns = [column for column in analysis.columns if column.name not in without]
    clickable = {
        "className": "grid clickable",
        "getRowId": f"params.data.{selectable_by}",
        "selectedRows": {"ids": [selected]} if selected else [],
    }
    return dag.AgGrid(
        id=name,
        columnDefs=[_definition(column) for column in columns],
        rowData=[{column.name: _value(row[column.name], column, started_ns) for column in columns} for row in rows],
        defaultColDef={"sortable": True, "resizable": True, "filter": True, "suppressHeaderMenuButton": True},
        columnSize="responsiveSizeToFit",
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


def title(column: str) -> str:
    """A column's name as a heading: its unit is said by each value."""
    words = column.replace("percent_of_", "% of ").removesuffix("_ns").removesuffix("_bytes")
    words = words.replace("_percent", " %").replace("_", " ")
    return "%" if words == "percent" else words[:1].upper() + words[1:]


def _definition(column: Column) -> dict[str, Any]:
    definition: dict[str, Any] = {
        "field": column.name,
        "headerName": title(column.name),
        "headerTooltip": column.about,
        "minWidth": _WIDTHS[column.unit],
    }
    if column.unit == "text":
        return definition | {"cellDataType": "text", "tooltipField": column.name, "flex": 1}
    definition |= {"cellDataType": "number", "type": "rightAligned"}
    if column.unit in FORMATTERS:
        definition["valueFormatter"] = {"function": f"{FORMATTERS[column.unit]}(params.value)"}
    return definition


def _value(value: Any, column: Column, started_ns: int | None) -> Any:
    if column.unit == "time" and value is not None:
        return value - (started_ns or 0)
    return value
