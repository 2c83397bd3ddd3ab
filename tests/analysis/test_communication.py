"""Communication between ranks, with values worked out from nccl-tests' definitions."""

from pathlib import Path
from typing import Any

import pytest

from ral_trace.analysis.communication import STRAGGLERS, communication, stragglers
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import Trace, open_trace
from tests.analysis.cases import INVALID, Case
from tests.analysis.kineto_file import KinetoFile
from tests.shared import TRACES, needs_shared

US = 1_000
FACTS = {"Group size": 2, "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}


def reduced(elements: int, dtype: str = "Float", **more: Any) -> dict[str, Any]:
    return {"Collective name": "allreduce", "In msg nelems": elements, "Out msg nelems": elements, "dtype": dtype,
            **FACTS, **more}  # fmt: skip


def two_ranks(folder: Path, *calls: list[tuple[str, float, float, dict[str, Any]]]) -> Trace:
    """A trace of ranks 0 and 1, with the collectives of each: name, start, duration, facts."""
    paths = []
    for rank, of_rank in enumerate(calls):
        file = KinetoFile(rank)
        for name, start, dur, facts in of_rank:
            file.kernel(name, start - 10, start, dur, stream=20, **facts)
        paths.append(file.write(folder, f"rank{rank}.json"))
    import_files(paths, folder / "ranks.duckdb")
    return open_trace(folder / "ranks.duckdb")


NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)"


def test_bandwidth_and_waiting(tmp_path: Path):
    """Two calls of 4 MB each. Rank 1 comes 40 us later to the first, rank 0 comes 10 us later to the second."""
    facts = reduced(1_000_000)
    first = [(NAME, 100, 140, facts), (NAME, 1010, 100, facts)]
    second = [(NAME, 140, 100, facts), (NAME, 1000, 110, facts)]
    with two_ranks(tmp_path, first, second) as trace:
        rows = communication(trace)
        late, early = stragglers(trace)
    zero, one = sorted(rows, key=lambda row: row["rank"])
    assert (zero["collective"], zero["bytes"], zero["count"], zero["ranks"], zero["group"]) == (
        "AllReduce", 4_000_000, 2, 2, "0",
    )  # fmt: skip
    assert (zero["total_ns"], zero["wait_ns"], zero["matched"], zero["mean_ns"]) == (240 * US, 40 * US, 2, 120 * US)
    assert (one["total_ns"], one["wait_ns"], one["max_ns"]) == (210 * US, 10 * US, 110 * US)
    # 8 MB in 200 us of either rank are 40 GB/s; with 2 ranks the bus moves 2 * (2 - 1) / 2 of that.
    assert [row["algorithm_bandwidth"] for row in rows] == [4e10, 4e10]
    assert [row["bus_bandwidth"] for row in rows] == [4e10, 4e10]
    assert (late["rank"], late["last"], late["caused_ns"], late["wait_ns"]) == (1, 1, 40 * US, 10 * US)
    assert (early["rank"], early["last"], early["caused_ns"], early["matched"]) == (0, 1, 10 * US, 2)
    assert late["wait_percent"] == pytest.approx(100 * 10 / 210)
    said = STRAGGLERS.remark([late, early])
    assert said == "The others waited for rank 1 for 40.0 µs: it was the last to come to 1 of 2 collectives."


@pytest.mark.parametrize(
    ("collective", "elements", "expected", "size", "factor"),
    [
        ("allreduce", (100, 100), "AllReduce", 200, 2 * 7 / 8),
        ("_allgather_base", (100, 800), "AllGather", 1600, 7 / 8),
        ("reduce_scatter_tensor_coalesced", (800, 100), "ReduceScatter", 1600, 7 / 8),
        ("all_to_allv", (800, 800), "AllToAll", 1600, 7 / 8),
        ("broadcast", (100, 100), "Broadcast", 200, 1),
        ("reduce", (100, 100), "Reduce", 200, 1),
        ("send", (100, 100), "SendRecv", 200, 1),
        ("gather", (100, 0), "Gather", 200, None),
        ("something", (100, 100), "something", 200, None),
    ],
)
def test_sizes_and_bus_factors(
    tmp_path: Path, collective: str, elements: tuple[int, int], expected: str, size: int, factor: float | None
):
    case = Case()
    case.device()
    facts = {"Collective name": collective, "In msg nelems": elements[0], "Out msg nelems": elements[1],
             "dtype": "BFloat16", "Group size": 8}  # fmt: skip
    case.event("kernel", "ncclDevKernel_Generic(ncclDevComm*)", 0, 1000, device=0, args=facts)
    with case.open(tmp_path) as trace:
        (row,) = communication(trace)
    assert (row["collective"], row["bytes"], row["algorithm_bandwidth"]) == (expected, size, size * 1e6)
    assert row["bus_bandwidth"] == (None if factor is None else pytest.approx(size * 1e6 * factor))
    assert (row["matched"], row["wait_ns"]) == (0, None)


def test_what_is_not_recorded_is_not_known(tmp_path: Path):
    case = Case()
    case.process(pid=1, rank=0)
    case.process(pid=2, rank=1)
    case.device(process=0)
    case.device(process=1)
    case.event("kernel", "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*)", 0, 100, device=0)
    case.event("kernel", "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*)", 200, None, device=0)
    case.event("kernel", "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*)", 300, 50, device=0, flags=INVALID)
    case.event("kernel", "gemm", 400, 50, device=0)
    # One call of this is of one rank only: which one matches is not known.
    case.event("kernel", "ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*)", 0, 70, device=1)
    case.event("kernel", "ncclDevKernel_SendRecv(ncclDevComm*)", 500, 10, device=0)
    case.event("kernel", "ncclDevKernel_SendRecv(ncclDevComm*)", 500, 20, device=1)
    with case.open(tmp_path) as trace:
        rows = communication(trace, device="ral:0 (pid 1)")
        reduce, send = rows
        assert (reduce["collective"], reduce["count"], reduce["total_ns"], reduce["mean_ns"]) == (
            "AllReduce",
            3,
            100,
            100,
        )
        assert (send["collective"], send["count"], send["total_ns"]) == ("SendRecv", 1, 10)
        for row in rows:
            unknown = ("bytes", "algorithm_bandwidth", "bus_bandwidth", "wait_ns", "ranks", "group", "dtype")
            assert {row[column] for column in unknown} == {None}
        assert len(communication(trace, limit=1)) == 1
        found = stragglers(trace)
    assert [(row["rank"], row["count"], row["matched"], row["last"], row["caused_ns"]) for row in found] == [
        (0, 4, 0, None, None),
        (1, 2, 0, None, None),
    ]
    assert STRAGGLERS.remark(found) is None


def test_sequence_numbers_match_calls_that_only_one_rank_has_all_of(tmp_path: Path):
    numbered = [reduced(10, Seq=number) for number in range(3)]
    first = [(NAME, 100, 30, numbered[0]), (NAME, 200, 30, numbered[1]), (NAME, 300, 90, numbered[2])]
    second = [(NAME, 201, 20, numbered[1]), (NAME, 301, 20, numbered[2])]
    with two_ranks(tmp_path, first, second) as trace:
        late, early = stragglers(trace)
    assert (late["rank"], late["matched"], late["last"], late["caused_ns"]) == (1, 2, 2, 80 * US)
    assert (early["matched"], early["count"], early["wait_ns"]) == (2, 3, 80 * US)


def test_ranks_that_come_last_together_share_what_they_caused(tmp_path: Path):
    case = Case()
    for rank in range(3):
        case.process(pid=rank, rank=rank)
        case.device(process=rank)
        case.event("kernel", "ncclDevKernel_AllReduce", 0, 100 if rank == 0 else 40, device=rank)
    with case.open(tmp_path) as trace:
        rows = {row["rank"]: row for row in stragglers(trace)}
    assert [(rows[rank]["last"], rows[rank]["caused_ns"], rows[rank]["wait_ns"]) for rank in range(3)] == [
        (0, 0, 60), (1, 30, 0), (1, 30, 0),
    ]  # fmt: skip


def test_ranks_on_the_host(tmp_path: Path):
    """What PyTorch's gloo backend annotates; live recordings know no rank."""
    case = Case()
    for pid, dur in [(10, 500), (11, 300)]:
        process = case.process(pid=pid)
        case.event("annotation", "gloo:all_reduce", 0, dur, process=process)
    with case.open(tmp_path) as trace:
        assert [(row["collective"], row["pid"], row["device"], row["wait_ns"]) for row in communication(trace)] == [
            ("AllReduce", 10, None, 200),
            ("AllReduce", 11, None, 0),
        ]
        said = STRAGGLERS.remark(stragglers(trace))
    assert said == "The others waited for pid 11 for 200 ns: it was the last to come to 1 of 1 collectives."


@needs_shared
def test_two_ranks_of_ascend(tmp_path: Path):
    """Rank 1 begins the first AllReduce 5.617 ms after rank 0, and both leave it within 6 us."""
    path = tmp_path / "ascend.duckdb"
    import_files([TRACES / "ascend_level1_rank0", TRACES / "ascend_level1_rank1"], path)
    with open_trace(path) as trace:
        late, _ = stragglers(trace)
        rows = communication(trace)
    assert (late["rank"], late["last"], late["matched"]) == (1, 3, 4)
    assert late["caused_ns"] == (79_089_520 - 73_475_168) + (2_281_106 - 2_280_146) + (2_402_388 - 2_395_388)
    assert {row["bytes"] for row in rows} == {count * 4 for count in (4_097_000, 16_781_312, 37_752_832, 2_469_696)}
