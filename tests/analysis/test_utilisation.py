"""Utilisation, idle time and queues: the golden example, whose values follow from the definitions, and odd inputs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ral_trace.analysis import ANALYSES
from ral_trace.analysis.idle import idle_gaps, stream_idle
from ral_trace.analysis.queues import queue_curve, queues
from ral_trace.analysis.summary import devices
from ral_trace.analysis.utilisation import utilisation
from ral_trace.tracer.reading import Trace, open_trace
from tests.analysis.cases import INVALID, T0, Case
from tests.analysis.kineto_file import KinetoFile
from tests.shared import CASES, TRACES, needs_shared

US = 1_000


@pytest.fixture
def golden(tmp_path: Path) -> Iterator[Trace]:
    """Two streams, in microseconds: `sgemm` at 20-120, 140-190, 250-300, 370-400; AllReduce at 200-320, 500-540."""
    file = KinetoFile()
    file.host("cpu_op", "aten::linear", 0, 700)
    for launch, start, duration in [(10, 20, 100), (30, 140, 50), (40, 250, 50), (350, 370, 30)]:
        file.kernel("sgemm", launch, start, duration, stream=7)
    for launch, start, duration in [(60, 200, 120), (330, 500, 40)]:
        file.kernel("ncclKernel_AllReduce", launch, start, duration, stream=20)
    with open_trace(file.write(tmp_path)) as trace:
        yield trace


def test_golden_utilisation(golden: Trace):
    (row,) = utilisation(golden)
    assert row["total_ns"] == 520 * US  # 20 to 540
    assert row["idle_ns"] == 180 * US  # 120-140, 190-200, 320-370, 400-500
    assert row["compute_ns"] == 230 * US
    assert row["non_compute_ns"] == 110 * US
    assert (row["busy_ns"], row["busy_percent"]) == (340 * US, pytest.approx(100 * 340 / 520))
    assert row["communication_ns"] == 160 * US
    assert row["communication_hidden_percent"] == 31.25  # 250-300 of 200-320 and 500-540
    assert (row["copy_ns"], row["copy_hidden_percent"]) == (0, None)
    assert (row["kernel_ns"], row["sum_ns"]) == (340 * US, 390 * US)
    # 320-370 ended with the kernel launched at 350, 400-500 with the one launched at 330.
    assert (row["host_wait_ns"], row["kernel_wait_ns"], row["other_wait_ns"]) == (50 * US, 30 * US, 100 * US)
    # Of 180 us that it was idle, 100 us are waits of streams.
    assert (row["input_wait_ns"], row["bound"]) == (0, "wait")


def test_golden_idle_time_of_streams(golden: Trace):
    first, second = stream_idle(golden)
    assert (first["stream"], first["count"], first["idle_ns"]) == (7, 4, 150 * US)
    assert (first["host_wait_ns"], first["kernel_wait_ns"], first["other_wait_ns"]) == (70 * US, 20 * US, 60 * US)
    assert (second["stream"], second["count"], second["idle_ns"]) == (20, 2, 180 * US)
    assert (second["host_wait_ns"], second["kernel_wait_ns"], second["other_wait_ns"]) == (180 * US, 0, 0)
    # A gap as long as the threshold is no kernel wait.
    first, _ = stream_idle(golden, kernel_wait_ns=20 * US)
    assert (first["kernel_wait_ns"], first["other_wait_ns"]) == (0, 80 * US)
    first, _ = stream_idle(golden, kernel_wait_ns=61 * US)
    assert (first["kernel_wait_ns"], first["other_wait_ns"]) == (80 * US, 0)


def test_golden_launch_delays_and_queues(golden: Trace):
    first, second = queues(golden)
    # 20 - 15, 140 - 35, 250 - 45, 370 - 355; 200 - 65, 500 - 335
    assert first["mean_delay_ns"] * 4 + second["mean_delay_ns"] * 2 == 6 * 105 * US
    assert (first["mean_delay_ns"], first["median_delay_ns"], first["max_delay_ns"]) == (82_500, 15 * US, 205 * US)
    assert first["p99_delay_ns"] == 205 * US
    # 1 in 10-20 and 30-40, 2 in 40-140, 1 in 140-250 and 350-370: 10 + 10 + 200 + 110 + 20 of 360 us.
    assert (first["max_length"], first["mean_length"]) == (2, pytest.approx(350 / 360))
    assert (second["max_length"], second["mean_length"]) == (1, pytest.approx((140 + 170) / 440))
    curve = [row for row in queue_curve(golden) if row["stream"] == 7]
    assert [((row["ts_ns"] - curve[0]["ts_ns"]) // US, row["length"]) for row in curve] == [
        (0, 1), (10, 0), (20, 1), (30, 2), (130, 1), (240, 0), (340, 1), (360, 0),
    ]  # fmt: skip


def test_golden_longest_idle_times(golden: Trace):
    found = [(row["dur_ns"], row["reason"], row["after"], row["before"]) for row in idle_gaps(golden)]
    reduce = "ncclKernel_AllReduce"
    assert found == [
        (100 * US, "other", "sgemm", reduce),
        (50 * US, "host", reduce, "sgemm"),
        (20 * US, "launching", "sgemm", "sgemm"),
        (10 * US, "launching", "sgemm", reduce),
    ]
    # In 320-370 the thread launched for 5 us at 330 and for 5 us at 350; the op around it has the other 40.
    assert [(row["host"], row["host_kind"], row["host_ns"]) for row in idle_gaps(golden)][1] == (
        "aten::linear",
        "op",
        40 * US,
    )
    assert [row["dur_ns"] for row in idle_gaps(golden, limit=2)] == [100 * US, 50 * US]


@needs_shared
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("two_streams_overlap.json", {"busy_ns": 100, "total_ns": 100, "busy_percent": 100.0, "sum_ns": 200}),
        ("stream_idle_other_busy.json", {"busy_ns": 51, "idle_ns": 0, "host_wait_ns": None, "bound": "device"}),
        ("memcpy_fills_gap.json", {"kernel_ns": 20, "copy_ns": 80, "busy_ns": 100, "idle_ns": 0}),
        ("stream_sync_row.json", {"busy_ns": 150, "idle_ns": 50, "total_ns": 200}),
        ("zero_dur_gpu.json", {"busy_ns": 10, "total_ns": 10, "busy_percent": 100.0, "idle_ns": 0}),
        # The leftover of the warm-up is in no sum; the early one is.
        ("kernel_before_launch.json", {"busy_ns": 40, "total_ns": 1135, "idle_ns": 1095, "host_wait_ns": 1095}),
        ("cuda_graph_one_correlation.json", {"busy_ns": 40, "total_ns": 48, "idle_ns": 8, "kernel_wait_ns": 8}),
        ("no_profiler_step.json", {"busy_ns": 30, "total_ns": 30, "idle_ns": 0, "bound": "device"}),
    ],
)  # fmt: skip
def test_shared_cases(file: str, expected: dict[str, Any]):
    with open_trace(CASES / file) as trace:
        (row,) = utilisation(trace)
        (device,) = devices(trace)
    expected = {key: value * US if key.endswith("_ns") and value else value for key, value in expected.items()}
    assert {key: row[key] for key in expected} == expected
    assert device["busy_ns"] == row["busy_ns"]


@needs_shared
def test_a_stream_may_be_idle_while_the_device_is_not():
    with open_trace(CASES / "stream_idle_other_busy.json") as trace:
        assert [(row["stream"], row["idle_ns"], row["other_wait_ns"]) for row in stream_idle(trace)] == [
            (7, 49 * US, 49 * US),
            (8, 0, 0),
        ]
        assert idle_gaps(trace) == []


@needs_shared
def test_what_began_before_its_launch_has_no_delay():
    with open_trace(CASES / "kernel_before_launch.json") as trace:
        (row,) = queues(trace)
    assert (row["count"], row["before_launch"], row["mean_delay_ns"], row["max_delay_ns"]) == (1, 1, 5 * US, 5 * US)
    assert row["max_length"] == 1


@needs_shared
def test_kernels_of_one_launch():
    with open_trace(CASES / "cuda_graph_one_correlation.json") as trace:
        (row,) = queues(trace)
        (device,) = devices(trace)
    assert (device["kernels"], device["launches"]) == (5, 1)
    # All 5 wait from 0 on; they begin at 10, 20, 30, 40, 50, and the launch ends at 5.
    assert (row["count"], row["max_length"], row["mean_length"]) == (5, 5, 3.0)
    assert (row["mean_delay_ns"], row["max_delay_ns"]) == (25 * US, 45 * US)


@needs_shared
@pytest.mark.parametrize("file", ["no_profiler_step.json", "cpu_only.json", "zero_dur_gpu.json"])
def test_each_question_says_what_is_missing_and_the_others_answer(file: str):
    with open_trace(CASES / file) as trace:
        missing = {analysis.name: analysis.missing(trace) for analysis in ANALYSES}
        for analysis in ANALYSES:
            rows = [] if missing[analysis.name] else analysis.run(trace)
            assert all(tuple(row) == tuple(column.name for column in analysis.columns) for row in rows)
    assert missing["hotspots"] is None
    assert (missing["utilisation"] is not None) == (file == "cpu_only.json")
    assert missing["steps"] is None or "step" in missing["steps"]


def test_nothing_known_of_a_device_is_not_zero(tmp_path: Path):
    case = Case()
    for index in range(4):
        case.device(index=index)
    case.event("kernel", "aten::mm", 0, None, device=0)
    case.event("kernel", "aten::mm", 0, 50, device=1, flags=INVALID)
    case.event("kernel", "aten::mm", 7, 0, device=2)
    case.event("wait", "Stream Sync", 0, 100, device=3, thread=None)
    with case.open(tmp_path) as trace:
        unknown, invalid, instant = utilisation(trace)
        assert [row["device"] for row in stream_idle(trace)] == ["ral:2"]
        assert (unknown["busy_ns"], unknown["idle_ns"], invalid["busy_ns"]) == (None, None, None)
        assert (instant["busy_ns"], instant["total_ns"], instant["busy_percent"], instant["bound"]) == (
            0,
            0,
            None,
            None,
        )
        assert [row["busy_ns"] for row in devices(trace)] == [None, None, 0, 0]
        assert utilisation(trace, device="ral:2") == [instant]


def test_times_before_the_clocks_zero_and_a_launch_of_another_process(tmp_path: Path):
    case = Case()
    case.process(pid=1)
    case.process(pid=2)
    case.device(process=0)
    case.device(process=1)
    case.event("launch", "aten::mm", -T0 - 100, 10, device=0, correlation=1)
    case.event("kernel", "aten::mm", -T0 - 80, 30, device=0, correlation=1)
    case.event("kernel", "aten::mm", -T0 - 40, 60, device=0, correlation=2)
    # The same correlation in another process is another launch.
    case.event("kernel", "aten::mm", -T0 - 20, 5, device=1, correlation=1)
    with case.open(tmp_path) as trace:
        first, second = queues(trace)
        assert (first["count"], first["no_launch"], first["mean_delay_ns"]) == (1, 1, 10)
        assert (second["count"], second["no_launch"], second["mean_delay_ns"]) == (0, 1, None)
        assert [row["idle_ns"] for row in utilisation(trace)] == [10, 0]


def test_idle_for_input(tmp_path: Path):
    """Busy 0-100 and 900-1000; the process waits for its batch in 150-850."""
    case = Case()
    case.device()
    case.event("launch", "aten::mm", 0, 1, device=0, correlation=1)
    case.event("kernel", "aten::mm", 0, 100, device=0, correlation=1)
    case.event("annotation", "enumerate(DataLoader)#Iter.__next__", 150, 700)
    case.event("launch", "aten::mm", 890, 5, device=0, correlation=2)
    case.event("kernel", "aten::mm", 900, 100, device=0, correlation=2)
    with case.open(tmp_path) as trace:
        (row,) = utilisation(trace)
        (gap,) = idle_gaps(trace)
    assert (row["idle_ns"], row["host_wait_ns"], row["input_wait_ns"], row["bound"]) == (800, 800, 700, "input")
    assert (gap["host"], gap["host_ns"], gap["reason"]) == ("enumerate(DataLoader)#Iter.__next__", 700, "host")


@needs_shared
def test_the_numbers_of_holistic_trace_analysis():
    """HTA 0.5.0 on files of whole microseconds (it cuts finer times to those): all in microseconds."""
    with open_trace(TRACES / "kineto_2080ti_resnet.json.gz") as trace:
        (row,) = utilisation(trace)
        idle = {row["stream"]: row for row in stream_idle(trace)}
        longest = {row["stream"]: (row["count"], row["max_length"]) for row in queues(trace)}
    assert [row[name] // US for name in BREAKDOWN] == [9_789_089, 4_103_141, 630_681, 14_522_911]
    assert [idle[7][name] // US for name in WAITS] == [9_777_580, 11_515, 0]
    assert longest == {7: (20_222 // 2, 315), 20: (1, 1), 36: (1, 1)}
    with open_trace(TRACES / "kineto_128rank_sampled_rank0.json.gz") as trace:
        (row,) = utilisation(trace)
        idle = {row["stream"]: row for row in stream_idle(trace)}
        longest = {row["stream"]: row["max_length"] for row in queues(trace)}
    assert [row[name] // US for name in BREAKDOWN] == [675_191, 210_320, 337_336, 1_222_847]
    assert round(row["communication_hidden_percent"], 2) == 14.95
    assert {stream: [found[name] // US for name in WAITS] for stream, found in idle.items()} == {
        23: [1_214_793, 160, 34],
        84: [794_901, 6, 3_142],
        25: [560_120, 35, 100_413],
        7: [397_917, 3_765, 598_335],
        203: [558_073, 0, 0],
    }
    assert longest == {7: 80, 23: 4, 25: 8, 84: 2, 203: 1}


BREAKDOWN = ("idle_ns", "compute_ns", "non_compute_ns", "total_ns")
WAITS = ("host_wait_ns", "kernel_wait_ns", "other_wait_ns")
