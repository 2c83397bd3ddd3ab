"""Blocks that are held long after their last use."""

from pathlib import Path

from ral_trace.analysis.held_unused import HELD_UNUSED, held_unused
from tests.analysis.cases import T0, Case


def held(used: bool = True) -> Case:
    """Ten steps of 100 ns. Two blocks of a site are used once and held to the end; one is used to its end."""
    case = Case()
    case.device(index=0)
    for step in range(10):
        case.step(step, step * 100, 100)
    for number, (op, begin, last, end) in enumerate(
        [("forgotten", 10, 20, 990), ("forgotten", 30, 45, 990), ("busy", 50, 980, 990), ("brief", 60, 70, 270)]
    ):
        case.alloc(op, begin, 64 << number, number * 4096)
        case.free(end, 64 << number, number * 4096)
        if used:
            case.changes[-1]["last_use_ns"] = T0 + last
    return case


def test_two_steps_without_a_use_are_long(tmp_path: Path):
    with held().open(tmp_path) as trace:
        [found] = held_unused(trace)
    # brief: 200 ns without a use are two steps, and not more. The peak is at 60, when all four are there.
    assert found == {
        "device": "ral:0", "op": "forgotten", "line": None, "category": "unknown", "blocks": 2, "bytes": 64 + 128,
        "at_peak_bytes": 64 + 128, "idle_ns": (970 + 945) // 2 + 1, "used_ns": 12, "still_live": 0,
    }  # fmt: skip


def test_where_uses_were_not_recorded_it_is_said(tmp_path: Path):
    with held(used=False).open(tmp_path) as trace:
        assert HELD_UNUSED.missing(trace) == "when blocks were last used was not recorded"
        assert held_unused(trace) == []


def test_accesses_tell_it_of_blocks_that_were_never_freed(tmp_path: Path):
    case = Case()
    case.device(index=0)
    case.alloc("live", 0, 64, 0)
    op = case.event("op", "aten::mm", 10, 5)
    case.event("op", "aten::mm", 1000, 15)
    with case.open(tmp_path) as trace:
        trace.connection.execute(f"CREATE TEMP TABLE access AS SELECT {op} AS event, 0 AS allocation, 'read' AS mode")
        [found] = held_unused(trace)
    assert (found["still_live"], found["used_ns"], found["idle_ns"]) == (1, 15, 1000)


def test_a_use_before_the_block_was_there_is_one_at_its_begin(tmp_path: Path):
    case = held()
    for change in case.changes:
        if change["last_use_ns"] is not None:
            change["last_use_ns"] = T0 - 5
    with case.open(tmp_path) as trace:
        rows = held_unused(trace)
    assert {row["op"]: (row["used_ns"], row["idle_ns"]) for row in rows} == {
        "forgotten": (0, 970), "busy": (0, 940), "brief": (0, 210),
    }  # fmt: skip
