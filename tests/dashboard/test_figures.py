"""Figures hold the analyses' numbers, and text out of a trace that Plotly would read as markup is escaped."""

import json
from typing import Any

import pytest

from ral_trace.dashboard import figures
from tests.analysis.cases import HOSTILE

T0 = 1_790_000_000_000_000_000
COLOURS = {"ral:0": "#111111", "ral:1": "#222222"}


def hot(device: str, name: str | None, total_ns: int | None, self_ns: int | None = None) -> dict[str, Any]:
    return {"device": device, "name": name, "total_ns": total_ns, "self_ns": self_ns, "count": 1}


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_escaped(text: str) -> None:
    for written in (figures.escaped(text), figures.label(text), figures.label(text * 9)):
        assert not set(written) & set("<>\n\r\x1b\u202e\u2028")
        assert "&" not in written.replace("&lt;", "").replace("&gt;", "").replace("&amp;", "")


def test_a_name_in_no_figure_is_markup() -> None:
    bars = figures.hot_bars([hot(name, name, 5) for name in HOSTILE], {})
    curve = [{"device": name, "ts_ns": T0, "allocated_bytes": 1} for name in HOSTILE]
    peaks = [{"device": name, "at_ns": T0, "peak_bytes": 1, "live_blocks": 1} for name in HOSTILE]
    lines = figures.memory_curves(curve, peaks, dict.fromkeys(HOSTILE, "#111111"), T0)
    for figure in (bars, lines):
        assert "<" not in json.dumps(figure).replace("<br>", "")


def test_bars_are_the_rows_in_seconds_the_largest_name_first() -> None:
    rows = [hot("ral:0", "mm", 3_000_000), hot("ral:0", "add", 1_000_000), hot("ral:1", "add", 9_000_000)]
    figure = figures.hot_bars(rows, COLOURS)
    assert figure["layout"]["yaxis"]["ticktext"] == ["add", "mm"]
    first, second = figure["data"]
    assert (first["name"], first["x"], first["y"]) == ("ral:0", [0.003, 0.001], [1, 0])
    assert (second["name"], second["x"], second["y"]) == ("ral:1", [0.009], [0])
    assert first["hovertext"][0] == "mm<br>ral:0: 3.00 ms"


def test_ops_on_the_host_are_shown_by_their_own_time() -> None:
    figure = figures.hot_bars(
        [hot("host", "outer", 9_000_000, 1_000_000), hot("host", "inner", 8_000_000, 8_000_000)], {}
    )
    assert figure["layout"]["yaxis"]["ticktext"] == ["inner", "outer"]


def test_an_unknown_time_is_a_dash_and_no_bar() -> None:
    figure = figures.hot_bars([hot("ral:0", None, None)], COLOURS)
    assert figure["data"][0]["x"] == [0]
    assert figure["data"][0]["hovertext"] == ["–<br>ral:0: –"]


def test_of_many_steps_the_slowest_of_each_stretch_is_shown() -> None:
    many = figures.BARS_SHOWN * 3
    rows = [
        {"process": 0, "pid": 7, "step": n, "dur_ns": 10 + n % 3, "launches": 1, "fallbacks": 0, "syncs": 0}
        for n in range(many)
    ]
    [bars] = figures.step_times([*rows, rows[0] | {"step": many, "dur_ns": None}])["data"]
    assert len(bars["x"]) == figures.BARS_SHOWN
    assert bars["x"][0] == 2
    assert set(bars["y"]) == {12 / 1e9}


def test_a_memory_curve_is_in_a_unit_and_since_the_start() -> None:
    curve = [{"device": "ral:0", "ts_ns": T0 + 2_000_000_000, "allocated_bytes": 3 << 20}]
    peaks = [{"device": "ral:0", "at_ns": T0 + 2_000_000_000, "peak_bytes": 3 << 20, "live_blocks": 4}]
    figure = figures.memory_curves(curve, [*peaks, peaks[0] | {"device": "ral:1", "peak_bytes": None}], COLOURS, T0)
    line, peak = figure["data"]
    assert (line["x"], line["y"], line["line"]["shape"]) == ([2.0], [3.0], "hv")
    assert (peak["x"], peak["y"]) == ([2.0], [3.0])
    assert figure["layout"]["yaxis"]["ticksuffix"] == " MiB"
