"""A flame graph over time: the form that speedscope checks, and the same slices with the same times as the database."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer.exporters import Window, export, nested
from ral_trace.tracer.exporters.drawn import SLICE_KINDS
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.store import TraceBuilder
from tests.awkward import awkward
from tests.synthetic import training


def document(trace: Trace, folder: Path, window: Window | None = None) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(export(trace, folder / "out.speedscope.json", window).read_text())
    return loaded


def slices(found: dict[str, Any]) -> list[tuple[str, int, int]]:
    """(name, start, end) of each slice; checks what speedscope itself checks: balance, nesting, times in order."""
    seen = []
    for profile in found["profiles"]:
        assert (profile["type"], profile["unit"], profile["startValue"]) == ("evented", "nanoseconds", 0)
        opened: list[tuple[int, int]] = []
        last = 0
        for event in profile["events"]:
            assert last <= event["at"] <= profile["endValue"]
            last = event["at"]
            if event["type"] == "O":
                opened.append((event["frame"], event["at"]))
            else:
                frame, start = opened.pop()
                assert frame == event["frame"]
                seen.append((found["shared"]["frames"][frame]["name"], start, event["at"]))
        assert opened == []
    return seen


@pytest.mark.parametrize("make", [training, awkward])
def test_each_slice_is_there_once_with_its_exact_times(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with open_trace(make(tmp_path / "run.duckdb")) as trace:
        found = document(trace, tmp_path)
        rows = trace.sql(f"""
            SELECT coalesce(nullif(name, ''), kind::VARCHAR), ts_ns, ts_ns + dur_ns, flags FROM event
            WHERE flags & 4 = 0 AND kind IN {SLICE_KINDS} AND (dur_ns IS NOT NULL OR flags & 1 <> 0)
              AND NOT (kind IN ('instant', 'error') AND coalesce(dur_ns, 0) <= 0)""").fetchall()
        ended = [row for row in rows if row[2] is not None]
    first = min(row[1] for row in rows)
    expected = Counter((name, start - first, end - first) for name, start, end, _ in ended)
    seen = Counter(slices(found))
    assert expected - seen == Counter()
    last = max(end for _, _, end, _ in ended) - first
    assert all(end == last for (_, _, end), count in (seen - expected).items())


def test_what_speedscope_asks_for_is_there(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb", launches=50)) as trace:
        found = document(trace, tmp_path)
    assert found["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert found.keys() >= {"$schema", "shared", "profiles", "name", "exporter", "activeProfileIndex"}
    assert found["name"] == "run.duckdb"
    names = [profile["name"] for profile in found["profiles"]]
    assert "train.py · python" in names
    assert any("ral:1" in name and "stream 0" in name for name in names)


def test_slices_that_overlap_are_kept_apart(tmp_path: Path) -> None:
    with open_trace(awkward(tmp_path / "run.duckdb")) as trace:
        found = document(trace, tmp_path)
    assert any("(overlap 1)" in profile["name"] for profile in found["profiles"])


def test_all_tracks_come_from_one_query_however_its_rows_are_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    real = Trace.cursor
    monkeypatch.setattr(Trace, "cursor", lambda trace: opened.append(1) or real(trace))
    with open_trace(awkward(tmp_path / "run.duckdb")) as trace:
        whole = document(trace, tmp_path)
        assert len(opened) == 1
        monkeypatch.setattr(nested, "ROWS_AT_ONCE", 3)
        assert document(trace, tmp_path) == whole


def test_a_window_is_a_part(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        whole, part = slices(document(trace, tmp_path)), slices(document(trace, tmp_path, Window(to_ns=3_000_000)))
    assert 0 < len(part) < len(whole)


def test_a_trace_without_slices_is_an_empty_profile(tmp_path: Path) -> None:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        builder.add("source", format="live")
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        found = document(trace, tmp_path)
    assert [profile["events"] for profile in found["profiles"]] == [[]]
