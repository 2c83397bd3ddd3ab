"""What holds of the graph of any run, for random ones: odd rows among them."""

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ral_trace.analysis.critical_path import bounds, critical_path, pieces_of
from ral_trace.analysis.path_edges import Edge, last_ended
from ral_trace.analysis.path_graph import graph_of
from ral_trace.analysis.path_rows import Window
from ral_trace.analysis.what_if import Scenario, predicted, what_if
from ral_trace.tracer.schema import FLAGS
from tests.analysis.cases import Case

NAMES = st.sampled_from(["a", "b", "c"])
LENGTH = st.integers(0, 30)


@st.composite
def calls(draw: st.DrawFn, case: Case, process: int, thread: int, devices: list[int]) -> None:
    """What a thread does, one thing after another: calls, launches with kernels and copies, waits, fallbacks."""
    now = draw(st.integers(-50, 50))
    host = {"process": process, "thread": thread}
    for number in range(draw(st.integers(0, 8))):
        name, length = draw(NAMES), draw(LENGTH)
        kind = draw(st.sampled_from(["op", "backward", "launch", "launch", "sync", "fallback", "annotation"]))
        device = draw(st.sampled_from(devices))
        if kind in ("launch", "fallback"):
            correlation = thread * 100 + number
            case.event("op", name, now, length + 4, **host)
            case.event("launch", name, now + 1, length + 2, device=device, correlation=correlation, **host)
            for _ in range(draw(st.integers(0, 2)) if kind == "launch" else 0):
                begin = now + draw(st.integers(-5, 60))  # some before their launch
                work = draw(st.sampled_from(["kernel", "transfer"]))
                more = {"category": "device_to_host"} if work == "transfer" else {}
                flags = draw(st.sampled_from([0, 0, 0, FLAGS["INVALID"]]))
                took = draw(st.one_of(LENGTH, st.none()))
                case.event(work, name, begin, took, device=device, correlation=correlation, flags=flags, **more)
            if kind == "fallback":
                case.event("fallback", name, now + 2, length, device=device, correlation=correlation, **host)
            now += 4
        elif kind == "backward":
            case.event("op", name, now, length, category="backward", **host)
        else:
            case.event(kind, name, now, length, device=device if kind == "sync" else None, **host)
        now += length + draw(st.integers(0, 15))


@st.composite
def runs(draw: st.DrawFn) -> Case:
    case = Case()
    for rank in range(draw(st.integers(1, 2))):
        process = case.process(pid=rank, rank=rank)
        devices = [case.device(process=process, index=index) for index in range(draw(st.integers(1, 2)))]
        for thread in range(draw(st.integers(1, 3))):
            draw(calls(case, process, 10 * process + thread, devices))
        for _ in range(draw(st.integers(0, 2))):
            case.event("kernel", "ncclAllReduce", draw(LENGTH), draw(LENGTH), device=devices[0])
    return case


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(runs(), st.randoms(use_true_random=False))
def test_paths_and_predictions(case: Case, random: np.random.Generator):
    order = list(range(len(case.events)))
    random.shuffle(order)
    with tempfile.TemporaryDirectory() as folder, case.open(Path(folder)) as trace:
        graph = graph_of(trace, Window())
        # Nothing changed: every moment is where it was recorded.
        stands_in = (graph.kind == Edge.WORK) & (graph.about >= len(graph.device["id"]))
        used = np.setdiff1d(
            np.concatenate([graph.source, graph.target]),
            np.concatenate([graph.source[stands_in], graph.target[stands_in]]),
        )
        assert (graph.times(graph.weight)[used] == graph.time[used]).all()
        assert (graph.weight >= 0).all()
        assert (graph.work >= 0).all()
        assert (graph.work <= graph.delay).all()
        start, stop = bounds(graph)
        pieces = pieces_of(graph)
        lengths = [(rows["stop"] - rows["start"]).max(initial=0) for rows in (graph.host, graph.device)]
        assert max(lengths) <= pieces.total_ns <= stop - start
        assert (pieces.stop > pieces.start).all()
        assert (pieces.start[1:] >= pieces.stop[:-1]).all()
        rows = critical_path(trace)
        assert sum(row["total_ns"] for row in rows) == stop - start
        assert all(row["total_ns"] >= 0 for row in rows)
        predictions = what_if(trace)
        for row in predictions:
            assert 0 <= row["predicted_ns"] <= row["before_ns"] or "native" in row["scenario"]
        for name in [row["scenario"].split(" ")[0] for row in predictions if "2 x as fast" in row["scenario"]][:1]:
            slower, same, faster, fastest = (
                predicted(trace, graph, Scenario(faster={name: factor})).predicted_ns for factor in (0.5, 1, 2, 4)
            )
            assert fastest <= faster <= same <= slower
            assert same == predictions[0]["before_ns"]
    with tempfile.TemporaryDirectory() as folder, case.open(Path(folder), order) as shuffled:
        assert critical_path(shuffled) == rows
        assert what_if(shuffled) == predictions


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=10))
def test_last_ended(spans: list[tuple[int, int]]):
    rows = sorted((start, start + length) for start, length in spans)
    start, stop = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    for row, before in enumerate(last_ended(start, stop).tolist()):
        if stop[row] > start[row]:
            over = [stop[n] for n in range(len(rows)) if n != row and stop[n] <= start[row]]
            assert (before == -1 and not over) or stop[before] == max(over)
        else:  # a moment; what happens at the same time may be on either side of it
            over = [stop[n] for n in range(len(rows)) if stop[n] < start[row]]
            assert before != row
            assert (before == -1 and not over) or max([start[row] - 30, *over]) <= stop[before] <= start[row]
