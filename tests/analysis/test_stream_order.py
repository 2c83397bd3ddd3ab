from pathlib import Path

import pytest

from ral_trace.analysis.stream_order import STREAM_ORDER, stream_order
from ral_trace.tracer.reading import open_trace
from tests.analysis.cases import INVALID, Case
from tests.shared import CASES, needs_shared


@needs_shared
def test_one_duration_that_runs_over_its_successors():
    with open_trace(CASES / "rocm_dur_overflow.json") as trace:
        [row] = rows = stream_order(trace)
    assert (row["device"], row["stream"], row["kernels"], row["overlapping"]) == ("cuda:0", 7, 51, 51)
    assert (row["union_ns"], row["sum_ns"]) == (1_600_000_000, 1_604_500_000)
    assert (row["suspects"], row["suspect_name"], row["suspect_ns"]) == (1, "fmha_bwd", 1_600_000_000)
    assert (row["run_over"], row["in_order"]) == (50, "yes")
    said = STREAM_ORDER.remark(rows)
    assert said is not None
    assert said.startswith("51 kernels overlap on one in-order stream: fmha_bwd on cuda:0 is said to take 1.60 s")


def test_a_stream_on_which_everything_overlaps_is_not_in_order(tmp_path: Path):
    case = Case()
    case.device()
    for number in range(20):
        case.event("kernel", "k", number * 10, 100 if number % 2 else 15, device=0)
    with case.open(tmp_path) as trace:
        [row] = rows = stream_order(trace)
    assert (row["overlapping"], row["suspects"], row["suspect_name"], row["in_order"]) == (20, 0, None, "no")
    assert STREAM_ORDER.remark(rows) is None


def test_a_begin_before_the_end_of_the_one_before_is_an_overlap_but_not_suspect(tmp_path: Path):
    case = Case()
    case.device()
    for number in range(20):
        case.event("kernel", "k", number * 10, 12 if number == 3 else 10, device=0)
    with case.open(tmp_path) as trace:
        [row] = stream_order(trace)
    assert (row["overlapping"], row["suspects"], row["run_over"], row["in_order"]) == (2, 0, 0, "yes")
    assert (row["sum_ns"], row["union_ns"]) == (202, 200)


@pytest.mark.parametrize("stream", [None, 1])
def test_other_streams_copies_and_impossible_times_do_not_overlap(tmp_path: Path, stream: int | None):
    case = Case()
    case.device()
    case.event("kernel", "k", 0, 10, device=0)
    case.event("kernel", "k", 5, 10, device=0, stream=stream)
    case.event("transfer", "copy", 5, 10, device=0)
    case.event("kernel", "k", 5, 10, device=0, flags=INVALID)
    case.event("kernel", "k", 5, None, device=0)
    case.event("kernel", "k", 5, 0, device=0)
    case.event("kernel", "k", 10, 10, device=0)
    with case.open(tmp_path) as trace:
        assert stream_order(trace) == []
