from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.analysis.timeline import timeline
from tests.analysis.cases import INVALID, T0, Case


def test_few_events_are_shown_as_they_are(tmp_path: Path):
    case = Case()
    case.device(index=0)
    case.event("kernel", "aten::mm", 0, 10, device=0)
    case.event("sync", "aten::item", 10, None, device=0)
    case.event("kernel", "aten::mm", 90, 10, device=0, flags=INVALID)
    with case.open(tmp_path) as trace:
        found = [
            (row["lane"], row["ts_ns"] - T0, row["dur_ns"], row["count"], row["busy_percent"])
            for row in timeline(trace)
        ]
    assert found == [("kernels", 0, 10, 1, None), ("syncs", 10, None, 1, None)]


def test_many_events_become_stretches(tmp_path: Path):
    case = Case()
    case.device(index=0)
    # Ten stretches of 10 ns; 0-25 is covered (twice in part), 50-60 wholly.
    for name, start, length in [("a", 0, 20), ("b", 5, 20), ("c", 50, 10), ("d", 99, 1)]:
        case.event("kernel", name, start, length, device=0)
    with case.open(tmp_path) as trace:
        found = [
            (row["ts_ns"] - T0, row["busy_percent"], row["count"], row["name"])
            for row in timeline(trace, events=3, stretches=10)
        ]
    assert found == [(0, 100, 2, "b"), (10, 100, 0, None), (20, 50, 0, None), (50, 100, 1, "c"), (90, 10, 1, "d")]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 100)), min_size=1, max_size=40), st.integers(1, 40))
def test_stretches_hold_the_union_and_every_event(rows, stretches):
    case = Case()
    case.device(index=0)
    for number, (start, length) in enumerate(rows):
        case.event("kernel", f"k{number % 3}", start, length, device=0)
    with TemporaryDirectory() as folder, case.open(Path(folder)) as trace:
        found = timeline(trace, events=0, stretches=stretches)
    covered = {moment for start, length in rows for moment in range(start, start + length)}
    assert sum(row["busy_percent"] * row["dur_ns"] / 100 for row in found) == pytest.approx(len(covered))
    assert sum(row["count"] for row in found) == len(rows)
    assert all(0 <= row["busy_percent"] <= 100.0001 for row in found)
    assert len(found) <= stretches + 1
