"""Questions about time on any trace: nothing negative, no dependence on the order of rows, no crash."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.analysis.across import across
from ral_trace.analysis.base import Rows
from ral_trace.analysis.fusion import fusion
from ral_trace.analysis.hotspots import BY, hotspots
from ral_trace.analysis.round_trips import round_trips
from ral_trace.analysis.small_copies import small_copies
from ral_trace.analysis.stream_order import stream_order
from ral_trace.analysis.transfers import transfers
from ral_trace.tracer.reading import Trace
from tests.analysis.cases import INVALID, T0, Case

QUESTIONS: dict[str, Callable[[Trace], Rows]] = {
    **{f"hotspots by {by}": lambda trace, by=by: hotspots(trace, by=by) for by in BY},  # type: ignore[misc]
    **{f"host by {by}": lambda trace, by=by: hotspots(trace, device="host", by=by) for by in BY[:5]},  # type: ignore[misc]
    "across": across,
    "fusion": fusion,
    "transfers": transfers,
    "round trips": round_trips,
    "small copies": small_copies,
    "stream order": stream_order,
}

KINDS = ["op", "launch", "kernel", "transfer", "fallback", "sync", "annotation", "python", "wait"]
EVENTS = st.lists(
    st.fixed_dictionaries({
        "kind": st.sampled_from(KINDS),
        "name": st.sampled_from(["aten::add.Tensor", "aten::mm", "nn.Module: Net", "a.py(3): f", "k<1>", None]),
        "ts": st.integers(-50, 200),
        "dur": st.one_of(st.none(), st.integers(0, 60)),
        "category": st.sampled_from(["host_to_device", "device_to_host", "module", None]),
        "device": st.sampled_from([0, 1, None]),
        "correlation": st.sampled_from([1, 2, 3, None]),
        "bytes": st.sampled_from([0, 8, 16, 8192, None]),
        "flags": st.sampled_from([0, 0, 0, INVALID]),
        "parent": st.one_of(st.none(), st.integers(0, 20)),
    }),
    min_size=1,
    max_size=24,
)  # fmt: skip


def built(events: list[dict[str, Any]]) -> Case:
    case = Case()
    case.device()
    case.device(index=1)
    for event in events:
        on_device = event["kind"] in ("kernel", "transfer", "fallback", "wait")
        device = (event["device"] or 0) if on_device else event["device"]
        case.event(**{**event, "device": device})
    return case


def answers(case: Case, order: list[int] | None = None) -> dict[str, Rows]:
    with TemporaryDirectory() as folder, case.open(Path(folder), order) as trace:
        return {name: question(trace) for name, question in QUESTIONS.items()}


@settings(max_examples=7, deadline=None)
@given(EVENTS, st.randoms())
def test_on_any_rows(events: list[dict[str, Any]], random: Any):
    case = built(events)
    order = list(range(len(events)))
    random.shuffle(order)
    found, shuffled = answers(case), answers(case, order)
    for name, rows in found.items():
        assert rows == shuffled[name], name
        for row in rows:
            negative = [column for column, value in row.items() if isinstance(value, int | float) and value < 0]
            assert not negative, (name, row)
            percents = [value for column, value in row.items() if column == "percent" and value is not None]
            assert all(0 <= value <= 100.000001 for value in percents), (name, row)


@pytest.mark.parametrize("thread", [False, True])
def test_nothing_at_all(tmp_path: Path, thread: bool):
    case = Case()
    if thread:
        case.device()
        case.event("op", "aten::mm", 0, 5)
    with case.open(tmp_path) as trace:
        found = {name for name, question in QUESTIONS.items() if question(trace)}
    assert found == ({"hotspots by op", "host by op"} if thread else set())


def test_times_before_the_epoch(tmp_path: Path):
    case = Case()
    case.device()
    case.event("kernel", "k", -T0 - 100, 10, device=0)
    case.event("kernel", "k", -T0 - 95, 10, device=0)
    with case.open(tmp_path) as trace:
        [row] = hotspots(trace)
        [order] = stream_order(trace)
    assert (row["total_ns"], row["self_ns"], row["sum_ns"]) == (15, 15, 20)
    assert (order["union_ns"], order["overlapping"]) == (15, 2)
