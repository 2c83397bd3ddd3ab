"""What must hold of devices' work in any trace: idle + busy = span, the plain definitions, no order of rows matters."""

import os
import tempfile
from pathlib import Path
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.analysis.base import Row
from ral_trace.analysis.bound import STEP_BOUNDS
from ral_trace.analysis.communication import COMMUNICATION, STRAGGLERS
from ral_trace.analysis.device_work import NEVER, DeviceWork, exact_sum, find_gaps
from ral_trace.analysis.idle import IDLE_GAPS, STREAM_IDLE
from ral_trace.analysis.queues import QUEUE_CURVE, QUEUES, thinned
from ral_trace.analysis.steps import STEP_TIMES, STEPS
from ral_trace.analysis.summary import DEVICES
from ral_trace.analysis.utilisation import UTILISATION
from ral_trace.tracer.reading import Trace
from tests.analysis.cases import INVALID, Case

EXAMPLES = int(os.environ.get("RAL_TEST_EXAMPLES", "8"))
"""Traces that are built; each takes a second."""

ASKED = [
    DEVICES, UTILISATION, STREAM_IDLE, IDLE_GAPS, QUEUES, QUEUE_CURVE, STEPS, STEP_TIMES, STEP_BOUNDS, COMMUNICATION,
    STRAGGLERS,
]  # fmt: skip

WORK = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12), st.one_of(st.none(), st.integers(-5, 30))), max_size=10
)
"""Start, duration, and how long before the start the launch began (unknown; negative: after it)."""


def sorted_work(rows: list[tuple[int, int, int | None]]) -> DeviceWork:
    launched = [(start, NEVER if before is None else start - before, start + dur) for start, dur, before in rows]
    columns = np.array(sorted(launched), dtype=np.int64).reshape(-1, 3)
    zero = np.zeros(len(rows), dtype=np.int64)
    return DeviceWork(
        zero, zero, np.arange(len(rows)), columns[:, 0], columns[:, 2], zero == 0, zero, zero, columns[:, 1],
        columns[:, 1],
    )  # fmt: skip


@given(WORK, st.integers(0, 10))
def test_gaps_by_their_plain_definition(rows: list[tuple[int, int, int | None]], kernel_wait_ns: int):
    work = sorted_work(rows)
    expected, covered = [], None
    for start, launch, stop in zip(work.start.tolist(), work.launch_start.tolist(), work.stop.tolist(), strict=True):
        if covered is not None and start > covered:
            host = launch != NEVER and launch > covered
            expected.append((covered, start, host, not host and start - covered < kernel_wait_ns))
        covered = stop if covered is None else max(covered, stop)
    gaps = find_gaps(work, kernel_wait_ns)
    found = [column.tolist() for column in (gaps.start, gaps.end, gaps.host_wait, gaps.kernel_wait)]
    assert list(zip(*found, strict=True)) == expected
    assert (work.start[gaps.after] == gaps.end).all()
    span = max(work.stop.tolist(), default=0) - min(work.start.tolist(), default=0)
    assert work.busy.total_ns + int(gaps.duration_ns.sum()) == span


CURVE = st.dictionaries(st.integers(0, 50), st.integers(-9, 9), min_size=1)


@given(CURVE, st.integers(4, 40))
def test_a_thinned_curve_keeps_its_ends_and_extremes(curve: dict[int, int], points: int):
    times, values = (np.array(column, dtype=np.int64) for column in zip(*sorted(curve.items()), strict=True))
    kept = thinned(times, values, points)
    assert len(kept) <= max(points, 4)
    assert (np.diff(kept) > 0).all()
    assert (kept[0], kept[-1]) == (0, len(times) - 1)
    assert (values[kept].min(), values[kept].max()) == (values.min(), values.max())


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_a_sum_beyond_64_bits(values: list[int]):
    assert exact_sum(np.array(values, dtype=np.int64)) == sum(values)


Event = tuple[str, int, int, int | None, int | None, str | None, int]
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["kernel", "kernel", "transfer", "sync", "dataloader"]),
        st.integers(0, 2),  # device; the third is of another process
        st.integers(-20, 80),  # start
        st.one_of(st.none(), st.integers(0, 25)),  # duration
        st.one_of(st.none(), st.integers(-4, 25)),  # how long before it the launch began
        st.sampled_from(["gemm", "ncclDevKernel_AllReduce", "Memcpy", None]),
        st.sampled_from([0, 0, 0, INVALID]),
    ),
    max_size=14,
)


def case_of(events: list[Event], steps: list[int]) -> Case:
    case = Case()
    case.process(pid=1, rank=0)
    case.process(pid=2, rank=1)
    for process in (0, 0, 1):
        case.device(process=process, index=len(case.devices))
    for number, (kind, device, start, dur, before, name, flags) in enumerate(events):
        process = case.devices[device]["process"]
        if kind == "dataloader":
            case.event("annotation", "enumerate(DataLoader)#Iter.__next__", start, dur, process=process, flags=flags)
            continue
        case.event(kind, name, start, dur, device=device, correlation=number + 1, flags=flags)
        if before is not None:
            case.event("launch", name, start - before, 3, device=device, correlation=number + 1)
    at = 0
    for number, length in enumerate(steps):
        case.step(number, at, length)
        at += length
    return case


def answers(trace: Trace) -> dict[str, list[Row]]:
    return {analysis.name: analysis.run(trace) for analysis in ASKED}


@settings(max_examples=EXAMPLES, deadline=None)
@given(EVENTS, st.lists(st.integers(0, 30), max_size=6), st.randoms(use_true_random=False))
def test_any_trace(events: list[Event], steps: list[int], random: Random):
    case = case_of(events, steps)
    shuffled = list(range(len(case.events)))
    random.shuffle(shuffled)
    with tempfile.TemporaryDirectory() as folder:
        with case.open(Path(folder)) as trace:
            found = answers(trace)
        (Path(folder) / "case.duckdb").unlink()
        with case.open(Path(folder), shuffled) as trace:
            assert answers(trace) == found
    for analysis in ASKED:
        for row in found[analysis.name]:
            assert tuple(row) == tuple(column.name for column in analysis.columns)
            for column in analysis.columns:
                if row[column.name] is not None and column.unit in ("ns", "count", "bytes", "number"):
                    assert row[column.name] >= 0, (analysis.name, column.name, row)
                if row[column.name] is not None and column.unit == "percent":
                    assert 0 <= row[column.name] <= 100, (analysis.name, column.name, row)
        assert isinstance(analysis.remark(found[analysis.name]), str | None)
    check_by_moments(events, found)


def check_by_moments(events: list[Event], found: dict[str, list[Row]]) -> None:
    """Busy and idle time, nanosecond by nanosecond."""
    busy = {row["device"]: row["busy_ns"] for row in found["devices"]}
    for row in found["utilisation"]:
        device = int(row["device"].split(":")[1].split(" ")[0])
        timed = [
            (start, start + dur, kind)
            for kind, of, start, dur, _, _, flags in events
            if of == device and kind in ("kernel", "transfer") and dur is not None and not flags
        ]
        assert row["busy_ns"] == busy[row["device"]]
        if not timed:
            assert row["total_ns"] is None
            continue
        moments = {at for start, stop, _ in timed for at in range(start, stop)}
        assert row["busy_ns"] == len(moments)
        assert row["busy_ns"] + row["idle_ns"] == row["total_ns"]
        assert row["total_ns"] == max(stop for _, stop, _ in timed) - min(start for start, _, _ in timed)
        assert (row["host_wait_ns"] or 0) + row["kernel_wait_ns"] + row["other_wait_ns"] == row["idle_ns"]
        assert row["compute_ns"] + row["non_compute_ns"] == row["busy_ns"]
        assert sum(gap["dur_ns"] for gap in found["idle_gaps"] if gap["device"] == row["device"]) == row["idle_ns"]
        curve = [point for point in found["queue_curve"] if point["device"] == row["device"]]
        assert not curve or curve[-1]["length"] == 0
