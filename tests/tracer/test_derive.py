"""What follows from rows, against values worked out by hand."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.tracer import Trace, open_trace
from ral_trace.tracer.schema import FLAGS
from ral_trace.tracer.store import TraceBuilder

T0 = 1_790_000_000_000_000_000


class Maker:
    """One process with one thread and one device with one stream; rows by keyword, times from T0."""

    def __init__(self, path: Path) -> None:
        self.builder = TraceBuilder(path)
        self.process = self.builder.add(
            "process", source=self.builder.add("source", format="test"), pid=1, started_ns=T0
        )
        self.thread = self.builder.add("thread", process=self.process, tid=1)
        self.device = self.builder.add("device", process=self.process, type="ral", index=0)
        self.stream = self.builder.add("stream", device=self.device, number=0)

    def host(self, kind: str, start: int, duration: int | None, **more: Any) -> int:
        row = {
            "kind": kind,
            "ts_ns": T0 + start,
            "dur_ns": duration,
            "process": self.process,
            "thread": self.thread,
            "flags": 0,
        }
        return self.builder.add("event", **row, **more)

    def on_device(self, kind: str, start: int, duration: int, correlation: int) -> int:
        return self.builder.add(
            "event", kind=kind, ts_ns=T0 + start, dur_ns=duration, process=self.process, device=self.device,
            stream=self.stream, correlation=correlation, flags=0,
        )  # fmt: skip

    def memory(self, action: str, event: int, at: int, address: int, size: int, **more: Any) -> None:
        row = {"action": action, "event": event, "ts_ns": T0 + at, "device": self.device, "address": address,
               "size_bytes": size, "before_trace": False} | more  # fmt: skip
        names = ", ".join(row)
        self.builder.connection.execute(
            f"INSERT INTO memory_change ({names}) VALUES ({', '.join('?' * len(row))})", list(row.values())
        )

    def open(self) -> Trace:
        with self.builder as builder:
            return open_trace(builder.finish())


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path / "made.duckdb")


def parents(trace: Trace) -> dict[int, int | None]:
    return {row["id"]: row["parent"] for row in trace.rows("SELECT id, parent FROM event")}


def test_the_parent_is_the_innermost_enclosing_row(maker: Maker) -> None:
    inner = maker.host("launch", 20, 10)
    middle = maker.host("op", 15, 20)
    outer = maker.host("op", 0, 100)
    later = maker.host("op", 100, 5)
    instant = maker.host("alloc", 25, 0)
    with maker.open() as trace:
        assert parents(trace) == {inner: middle, middle: outer, outer: None, later: None, instant: inner}


def test_of_rows_with_the_same_times_the_later_written_is_the_outer_one(maker: Maker) -> None:
    inner, outer = maker.host("launch", 10, 5), maker.host("op", 10, 5)
    with maker.open() as trace:
        assert parents(trace) == {inner: outer, outer: None}


def test_a_stated_parent_stays_and_invalid_rows_adopt_nobody(maker: Maker) -> None:
    stated = maker.host("op", 10, 5, parent=77)
    maker.builder.connection.execute(
        "INSERT INTO event (id, kind, ts_ns, dur_ns, process, thread, flags) VALUES (50, 'op', ?, 1000, ?, ?, ?)",
        [T0, maker.process, maker.thread, FLAGS["INVALID"]],
    )
    with maker.open() as trace:
        assert parents(trace) == {stated: 77, 50: None}
        warned = trace.rows("SELECT what, count FROM quality")
        assert [(row["count"], "cannot be" in row["what"]) for row in warned] == [(1, True)]


def test_instants_at_one_moment_are_no_parents_of_each_other(maker: Maker) -> None:
    first, second, op = maker.host("alloc", 5, 0), maker.host("free", 5, 0), maker.host("op", 0, 10)
    with maker.open() as trace:
        assert parents(trace) == {first: op, second: op, op: None}


def test_launches_flow_to_what_they_started(maker: Maker) -> None:
    launch = maker.host("launch", 0, 10, correlation=7)
    kernel = maker.on_device("kernel", 2, 5, 7)
    second = maker.on_device("kernel", 8, 5, 7)
    maker.on_device("kernel", 20, 5, 8)
    with maker.open() as trace:
        flows = {(row["from_event"], row["to_event"]) for row in trace.rows("FROM flow")}
        assert flows == {(launch, kernel), (launch, second)}


def test_a_launch_that_does_not_say_its_device_has_that_of_what_it_started(maker: Maker) -> None:
    other = maker.builder.add("device", process=maker.process, type="ral", index=1)
    plain, both, none = (maker.host("launch", start, 1, correlation=start) for start in (1, 3, 5))
    stated = maker.host("launch", 7, 1, correlation=7, device=other)
    for correlation in (1, 1, 3, 7):
        maker.on_device("kernel", 10, 1, correlation)
    maker.host("fallback", 10, 1, correlation=3, device=other)
    with maker.open() as trace:
        found = dict(trace.sql("SELECT id, device FROM event WHERE kind = 'launch'").fetchall())
        assert found == {plain: maker.device, both: None, none: None, stated: other}


def test_copies_and_syncs_beneath_a_fallback_hang_under_it(maker: Maker) -> None:
    copy = maker.on_device("transfer", 12, 3, 9)
    sync = maker.host("sync", 16, 1)
    maker.host("launch", 11, 7, correlation=9)
    maker.host("op", 11, 8)
    fallback = maker.host("fallback", 10, 20, correlation=5)
    maker.host("launch", 5, 30, correlation=5)
    free_copy = maker.on_device("transfer", 50, 3, 10)
    maker.host("launch", 50, 7, correlation=10)
    with maker.open() as trace:
        found = parents(trace)
        assert found[copy] == fallback
        assert found[sync] == fallback
        assert found[free_copy] is None


@pytest.mark.parametrize(
    ("names", "source", "steps"),
    [
        (["step#0", "step#1"], "step()", [0, 1]),
        (["ProfilerStep#3", "ProfilerStep#4"], "ProfilerStep", [3, 4]),
        (["Optimizer.step#AdamW.step", "Optimizer.step#AdamW.step"], "Optimizer.step", [0, 1]),
        (["epoch", "epoch"], "none", [None, None]),
    ],
)
def test_steps_say_where_they_come_from(maker: Maker, names: list[str], source: str, steps: list[int | None]) -> None:
    ops = [maker.host("op", 10, 5), maker.host("op", 110, 5)]
    kernel = maker.on_device("kernel", 130, 5, 4)
    maker.host("launch", 20, 5, correlation=4)
    for number, name in enumerate(names):
        maker.host("annotation", 100 * number, 100, name=name)
    with maker.open() as trace:
        assert trace.rows("SELECT value FROM trace_info WHERE key = 'steps_from'") == [{"value": source}]
        found = {row["id"]: row["step"] for row in trace.rows("SELECT id, step FROM event")}
        assert [found[op] for op in ops] == steps
        # The kernel ran during the second step, and belongs to the first, where it was launched.
        assert found[kernel] == steps[0]


def test_blocks_live_from_alloc_to_free(maker: Maker) -> None:
    maker.memory("open", 0, 0, 0x1000, 0x1000, handle=3)
    maker.memory("alloc", 1, 10, 0x1000, 256, requested_bytes=200)
    maker.memory("free", 2, 30, 0x1000, 256, uses=4)
    maker.memory("alloc", 3, 40, 0x1000, 512, requested_bytes=512)
    with maker.open() as trace:
        rows = trace.rows(
            "SELECT address, size_bytes, requested_bytes, alloc_ns, free_ns, uses, before_trace FROM allocation"
        )
        assert rows == [
            {"address": 0x1000, "size_bytes": 256, "requested_bytes": 200, "alloc_ns": T0 + 10, "free_ns": T0 + 30,
             "uses": 4, "before_trace": False},
            {"address": 0x1000, "size_bytes": 512, "requested_bytes": 512, "alloc_ns": T0 + 40, "free_ns": None,
             "uses": None, "before_trace": False},
        ]  # fmt: skip
        assert trace.rows("SELECT handle, opened_ns, closed_ns FROM region") == [
            {"handle": 3, "opened_ns": T0, "closed_ns": None}
        ]
        assert trace.rows("SELECT DISTINCT region, offset_bytes FROM allocation_piece") == [
            {"region": 0, "offset_bytes": 0}
        ]
        curve = [(row["ts_ns"] - T0, row["allocated_bytes"]) for row in trace.rows("FROM memory_curve ORDER BY ts_ns")]
        assert curve == [(10, 256), (30, 0), (40, 512)]


def test_blocks_from_before_the_recording(maker: Maker) -> None:
    maker.memory("alloc", 1, 5, 0x100, 64, before_trace=True)
    maker.memory("free", 2, 30, 0x100, 64)
    maker.memory("free", 3, 40, 0x900, 128)
    with maker.open() as trace:
        rows = trace.rows("SELECT address, alloc_ns, free_ns, before_trace FROM allocation ORDER BY address")
        assert rows == [
            {"address": 0x100, "alloc_ns": None, "free_ns": T0 + 30, "before_trace": True},
            {"address": 0x900, "alloc_ns": None, "free_ns": T0 + 40, "before_trace": True},
        ]
        assert min(row["allocated_bytes"] for row in trace.rows("FROM memory_curve")) == 0


def test_a_block_that_is_listed_twice_as_the_recording_begins_is_one_block(maker: Maker) -> None:
    maker.memory("alloc", 1, 5, 0x100, 64)
    maker.memory("alloc", 2, 6, 0x100, 64, before_trace=True)
    maker.memory("free", 3, 9, 0x100, 64)
    with maker.open() as trace:
        assert trace.rows("SELECT alloc_ns - ? AS at, free_ns - ? AS gone FROM allocation", [T0, T0]) == [
            {"at": 5, "gone": 9}
        ]
        assert not trace.rows("FROM quality")


def test_an_address_that_is_used_again_ends_the_older_block_and_is_said(maker: Maker) -> None:
    maker.memory("alloc", 1, 10, 0x100, 64)
    maker.memory("alloc", 2, 20, 0x100, 96)
    maker.memory("free", 3, 30, 0x100, 96)
    maker.memory("free", 4, 40, 0x100, 96)
    with maker.open() as trace:
        lives = trace.rows("SELECT alloc_ns - ? AS at, free_ns - ? AS gone FROM allocation ORDER BY 1", [T0, T0])
        assert lives == [{"at": 10, "gone": 20}, {"at": 20, "gone": 30}]
        assert sorted(row["count"] for row in trace.rows("FROM quality")) == [1, 1]
        assert min(row["allocated_bytes"] for row in trace.rows("FROM memory_curve")) == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=60))
def test_the_curve_equals_a_replay(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bool]]) -> None:
    maker = Maker(tmp_path_factory.mktemp("replay") / "replay.duckdb")
    live: dict[int, int] = {}
    expected = []
    for at, (block, wants_alloc) in enumerate(changes, start=1):
        if wants_alloc and block not in live:
            live[block] = 64 * (block + 1)
            maker.memory("alloc", at, at, block * 4096, live[block])
        elif not wants_alloc and block in live:
            maker.memory("free", at, at, block * 4096, live.pop(block))
        else:
            continue
        expected.append((at, sum(live.values())))
    maker.host("op", 0, 1)
    with maker.open() as trace:
        curve = [(row["ts_ns"] - T0, row["allocated_bytes"]) for row in trace.rows("FROM memory_curve ORDER BY ts_ns")]
    assert curve == expected


def test_everything_works_on_an_empty_trace(maker: Maker) -> None:
    with maker.open() as trace:
        assert trace.rows("FROM event") == []
