"""Several sources in one trace: their ranks, and their clocks on what they did together."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer.importers import clocks, import_files, ranks
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.store import TraceBuilder
from tests.shared import CASES, needs_shared

NEVER_MET = "clocks are not aligned: no matching collectives tell how they differ"


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[TraceBuilder]:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        yield builder


def source(builder: TraceBuilder, name: str, rank: int | None = None, world: int | None = None, **facts: Any) -> Rows:
    rows = Rows(builder, Path("folder") / name, "kineto")
    rows.process("it", pid=7, host=facts.pop("host", None))
    rows.facts |= facts if rank is None else {"rank": rank, **facts}
    rows.world_size = world
    rows.flush()
    return rows


def settle(*files: Rows) -> list[Any]:
    ranks.settle(files)
    for rows in files:
        rows.finish()
    return (
        files[0]
        .builder.connection.execute(
            "SELECT s.rank, p.rank FROM source s JOIN process p ON p.source = s.id ORDER BY s.id"
        )
        .fetchall()
    )


def said(builder: TraceBuilder) -> dict[str, tuple[int, str]]:
    rows = builder.connection.execute("SELECT what, sum(count)::INT, min(example) FROM quality GROUP BY ALL").fetchall()
    return {what: (count, example) for what, count, example in rows}


def test_stated_ranks_are_of_the_source_and_its_processes(builder: TraceBuilder) -> None:
    assert settle(source(builder, "b", 1, 2), source(builder, "a", 0, 2)) == [(1, 1), (0, 0)]
    assert said(builder) == {}


def test_a_rank_that_is_claimed_twice_is_the_first_ones(builder: TraceBuilder) -> None:
    assert settle(source(builder, "a0", 0, 2), source(builder, "a1", 0, 2)) == [(0, 0), (None, None)]
    found = said(builder)
    assert found["files that claim a rank which another has: kept apart, without a rank (it says 0)"][0] == 1
    assert found["ranks of 2 that no file is about"] == (1, "1")


def test_missing_ranks_are_named(builder: TraceBuilder) -> None:
    settle(source(builder, "a", 0, 4), source(builder, "b", 3, 4))
    assert said(builder) == {"ranks of 4 that no file is about": (2, "1, 2")}


def test_files_that_do_not_agree_on_the_number_of_ranks(builder: TraceBuilder) -> None:
    settle(source(builder, "a", 0, 2), source(builder, "b", 1, 3))
    assert said(builder)["files that do not agree on how many ranks there are"] == (2, "[2, 3]")


@pytest.mark.parametrize(
    ("names", "wanted", "where"),
    [
        (["run_rank3.json", "run_rank1.json"], [3, 1], "its name"),
        (["rank-0", "rank-0"], [0, 1], "the order of the files"),
        (["b.json", "a.json"], [0, 1], "the order of the files"),
    ],
)
def test_ranks_that_nobody_states(builder: TraceBuilder, names: list[str], wanted: list[int], where: str) -> None:
    assert settle(*[source(builder, name) for name in names]) == [(rank, rank) for rank in wanted]
    assert said(builder)[f"files that do not say their rank: taken from {where}"][0] == 2


def test_one_file_alone_needs_no_rank(builder: TraceBuilder) -> None:
    assert settle(source(builder, "run_rank3.json")) == [(None, None)]
    assert said(builder) == {}


def test_files_of_other_formats_may_be_about_the_same_rank(builder: TraceBuilder) -> None:
    memory = Rows(builder, Path("memory"), "PyTorch memory snapshot")
    memory.process("it", pid=7)
    memory.facts["rank"] = 0
    memory.flush()
    assert settle(source(builder, "a", 0, 1), memory) == [(0, 0), (0, 0)]
    assert said(builder) == {}


@needs_shared
def test_a_folder_in_which_two_files_claim_a_rank(tmp_path: Path) -> None:
    """Neither is overwritten by the other."""
    with open_trace(import_files([CASES / "two_ranks_same_rank"], tmp_path / "run.duckdb")) as trace:
        assert trace.sql("SELECT rank FROM source ORDER BY id").fetchall() == [(0,), (None,)]
        assert trace.sql("SELECT count(*) FROM event").fetchall() == [(2,)]
        assert ("ranks of 2 that no file is about", "1") in trace.sql("SELECT what, example FROM quality").fetchall()


def test_sizes_of_the_world_are_numbers_or_text(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "step", "pid": 1, "tid": 1, "ts": 0, "dur": 1}
    for rank, size in ((0, "4"), (3, 4)):
        document = {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": size}, "traceEvents": [event]}
        (tmp_path / f"{rank}.json").write_text(json.dumps(document))
    files = [tmp_path / "0.json", tmp_path / "3.json"]
    with open_trace(import_files(files, tmp_path / "run.duckdb")) as trace:
        found = trace.sql("SELECT what, count, example FROM quality WHERE what LIKE 'ranks of%'").fetchall()
        assert found == [("ranks of 4 that no file is about", 2, "1, 2")]


def collectives(rows: Rows, ends_ns: list[int], dur_ns: int = 500, name: str = "ncclDevKernel_AllReduce_Sum") -> None:
    process = rows.process("it")
    device = rows.device(process, "cuda", 0)
    stream = rows.stream(device, 20)
    for end_ns in ends_ns:
        rows.event("kernel", name, end_ns - dur_ns, dur_ns, process, device=device, stream=stream)
    rows.event("kernel", "gemm", ends_ns[0] - 100_000, 50, process, device=device, stream=stream)
    counter = rows.counter("power", "W", process=process)
    rows.value(counter, ends_ns[0], 100.0)
    rows.flush()


def aligned(builder: TraceBuilder, *files: Rows) -> list[dict[str, Any]]:
    clocks.align(builder, files)
    for rows in files:
        rows.finish()
    found = builder.connection.sql("SELECT rank, clock_offset_ns, clock_uncertainty_ns FROM source ORDER BY id")
    return [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]


ENDS = [1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000]


def test_a_rank_is_moved_by_the_median_difference(builder: TraceBuilder) -> None:
    """The second's clock is 7,000 ns behind; its collectives end 0, 10, 20, -10 and 40 ns later than the first's."""
    first, second = source(builder, "a", 0), source(builder, "b", 1)
    collectives(first, ENDS)
    collectives(second, [end - 7_000 + late for end, late in zip(ENDS, [0, 10, 20, -10, 40], strict=True)], dur_ns=300)
    rows = aligned(builder, first, second)
    assert rows[1] == {"rank": 1, "clock_offset_ns": 7_000 - 10, "clock_uncertainty_ns": 30}
    moved = builder.connection.execute(
        "SELECT e.ts_ns FROM event e JOIN process p ON p.id = e.process WHERE p.source = 1 AND e.name = 'gemm'"
    ).fetchall()
    assert moved == [(1_000_000 - 7_000 - 100_000 + 6_990,)]
    values = builder.connection.execute("SELECT ts_ns FROM counter_value WHERE counter = 1").fetchall()
    assert values == [(1_000_000 - 7_000 + 6_990,)]
    assert said(builder)["collectives on which the clock was aligned with that of the lowest rank"][0] == 5


def test_without_common_collectives_clocks_are_not_aligned(builder: TraceBuilder) -> None:
    first, second = source(builder, "a", 0), source(builder, "b", 1)
    collectives(first, ENDS)
    collectives(second, ENDS, name="volta_sgemm")
    assert aligned(builder, first, second)[1]["clock_offset_ns"] is None
    assert said(builder)[NEVER_MET][0] == 1


def test_collectives_that_do_not_match_are_no_evidence(builder: TraceBuilder) -> None:
    """The second's were recorded from the second one on, and one more at the end: the differences are a whole step."""
    first, second = source(builder, "a", 0), source(builder, "b", 1)
    collectives(first, [1_000_000, 2_000_000, 4_000_000, 7_000_000])
    collectives(second, [2_000_000, 4_000_000, 7_000_000, 9_000_000])
    assert aligned(builder, first, second)[1]["clock_offset_ns"] is None


def test_ranks_of_one_host_share_its_clock(builder: TraceBuilder) -> None:
    first, second = (source(builder, str(rank), rank, host="box", clock_zero="unix epoch") for rank in (0, 1))
    collectives(first, ENDS)
    collectives(second, [end + 50 for end in ENDS])
    assert aligned(builder, first, second)[1] == {"rank": 1, "clock_offset_ns": 0, "clock_uncertainty_ns": 50}
