"""Every page can show every trace: what is missing in one is left out, not an error."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ral_trace.analysis import ANALYSES, Analysis, Column, Rows
from ral_trace.analysis.units import human
from ral_trace.dashboard.answers import Answers
from ral_trace.dashboard.app import make_app
from ral_trace.dashboard.gate import Gate
from ral_trace.dashboard.grids import grid, title
from ral_trace.dashboard.pages import PAGES
from ral_trace.dashboard.view import View
from ral_trace.tracer.reading import Trace, open_trace
from tests.analysis.cases import Case, hostile
from tests.awkward import EPOCH_NS, HUGE, awkward
from tests.synthetic import training


def empty(folder: Path) -> Trace:
    return Case().open(folder)


def host_only(folder: Path) -> Trace:
    case = Case()
    case.event("op", "aten::mm", 0, 100)
    case.event("op", "aten::add", 200, 50)
    return case.open(folder)


def idle_device(folder: Path) -> Trace:
    case = Case()
    case.device()
    case.event("op", "aten::mm", 0, 100)
    case.event("annotation", None, 200, None)
    return case.open(folder)


def of_many_ranks(folder: Path) -> Trace:
    return open_trace(awkward(folder / "awkward.duckdb"))


def of_a_training(folder: Path) -> Trace:
    return open_trace(training(folder / "train.duckdb", launches=300))


def of_hostile_names(folder: Path) -> Trace:
    return hostile().open(folder)


TRACES = [empty, host_only, idle_device, of_many_ranks, of_a_training, of_hostile_names]
VIEWS: list[dict[str, Any]] = [
    {},
    {"device": "ral:1"},
    {"device": "host", "by": "kernel"},
    {"vendor": "sim", "by": "kernel"},
    {"device": "'; DROP TABLE event; --", "vendor": "nobody", "by": "moon"},
]


@pytest.mark.parametrize("opened", TRACES)
def test_every_page_shows_every_trace(opened: Callable[[Path], Trace], tmp_path: Path) -> None:
    with opened(tmp_path) as trace, Answers(trace) as answers:
        for page in PAGES:
            for filters in VIEWS:
                assert page.render(answers, View(page.path, **filters))


def components(tree: Any) -> list[Any]:
    if isinstance(tree, (list, tuple)):
        return [found for part in tree for found in components(part)]
    return [tree, *components(getattr(tree, "children", None))] if hasattr(tree, "to_plotly_json") else []


def by_id(tree: Any, name: Any) -> Any:
    return next(found for found in components(tree) if getattr(found, "id", None) == name)


def test_ops_on_the_host_stand_in_where_no_device_worked(tmp_path: Path) -> None:
    with idle_device(tmp_path) as trace, Answers(trace) as answers:
        page = next(page for page in PAGES if page.path == "/hotspots").render(answers, View("/hotspots"))
        assert [row["name"] for row in by_id(page, "hotspots").rowData] == ["aten::mm"]


def test_a_device_of_another_vendor_than_the_filter_wins(tmp_path: Path) -> None:
    with of_a_training(tmp_path) as trace, Answers(trace) as answers:
        page = next(page for page in PAGES if page.path == "/hotspots")
        both = page.render(answers, View("/hotspots", device="ral:1", vendor="host"))
        assert {row["device"] for row in by_id(both, "hotspots").rowData} == {"ral:1"}


def test_a_grid_writes_what_javascript_cannot_count() -> None:
    """Beyond 2**53 its numbers are only good enough to sort by."""
    columns = (Column("pid", "id", ""), Column("at_ns", "time", ""), Column("size_bytes", "bytes", ""))
    row = {"pid": HUGE, "at_ns": EPOCH_NS + 1_500, "size_bytes": HUGE}
    shown = grid(
        "g", Analysis("a", "A", "", columns, lambda trace: Rows(), chapter="overview"), [row], started_ns=EPOCH_NS
    )
    assert shown.rowData == [
        {
            "pid": str(HUGE),
            "at_ns": 1_500,
            "size_bytes": HUGE,
            "_written": {"at_ns": "+1.50 µs", "size_bytes": human(HUGE, "bytes")},
        }
    ]


def test_headings_of_an_analysis_differ() -> None:
    for analysis in ANALYSES:
        headings = [title(column.name, analysis) for column in analysis.columns]
        assert len(set(headings)) == len(headings), headings


def test_inline_scripts_are_those_that_the_policy_names(tmp_path: Path) -> None:
    with of_a_training(tmp_path) as trace, Answers(trace) as answers:
        gate = Gate()
        client = make_app(answers, gate).server.test_client()
        client.get(f"/?token={gate.token}", base_url="http://127.0.0.1")
        answer = client.get("/", base_url="http://127.0.0.1")
        inline = re.findall(r"<script(?![^>]*(?:src=|application/json))[^>]*>", answer.text)
        assert len(inline) == answer.headers["Content-Security-Policy"].count("'sha256-")
        assert not re.search(r"https?://", answer.text)
