"""The .pftrace, read back with perfetto's own protos, holds what the database holds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ral_trace.tracer.exporters import Window, export
from ral_trace.tracer.exporters.drawn import SLICE_KINDS
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.schema import FLAGS
from ral_trace.tracer.store import TraceBuilder
from tests.awkward import HUGE, awkward
from tests.exporters.replay import Replay, replay
from tests.synthetic import training

SHOWN = f"(flags & {FLAGS['INVALID']}) = 0 AND kind IN {SLICE_KINDS}"


def exported(trace: Trace, folder: Path, window: Window | None = None) -> Replay:
    return replay(export(trace, folder / "run.pftrace", window).read_bytes())


@pytest.mark.parametrize("make", [training, awkward])
def test_each_row_is_one_slice_with_its_times_and_annotations(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with open_trace(make(tmp_path / "run.duckdb")) as trace:
        slices = exported(trace, tmp_path).slices
        rows = trace.rows(f"SELECT * FROM event WHERE {SHOWN}")
        reasons = dict(trace.sql("SELECT id, args->>'reason' FROM event").fetchall())
    by_event = {one.args["event"]: one for one in slices}
    assert len(by_event) == len(slices) == len(rows)
    for row in rows:
        one = by_event[row["id"]]
        assert (one.ts_ns, one.name, one.category) == (row["ts_ns"], row["name"] or row["kind"], row["kind"])
        assert one.point == (row["dur_ns"] is None and not row["flags"] & FLAGS["UNFINISHED"])
        assert one.dur_ns == row["dur_ns"]
        for key in ("bytes", "step", "correlation", "category"):
            assert one.args.get(key) == row[key]
        assert one.args.get("reason") == reasons[row["id"]]


@pytest.mark.parametrize("make", [training, awkward])
def test_arrows_are_the_flows_and_the_ops_of_launches(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with open_trace(make(tmp_path / "run.duckdb")) as trace:
        found = [(origin.args["event"], target.args["event"]) for origin, target in exported(trace, tmp_path).arrows()]
        expected = trace.sql("""
            SELECT from_event, to_event FROM flow UNION ALL
            SELECT op.id, l.id FROM event l JOIN event op ON op.id = l.parent WHERE l.kind = 'launch' AND op.kind = 'op'
        """).fetchall()
    assert sorted(found) == sorted(expected)
    assert found


@pytest.mark.parametrize("make", [training, awkward])
def test_counters_hold_the_memory_curves(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with open_trace(make(tmp_path / "run.duckdb")) as trace:
        played = exported(trace, tmp_path)
        curves = {
            "allocated bytes": "SELECT ts_ns, allocated_bytes FROM memory_curve",
            "reserved bytes": "SELECT ts_ns, reserved_bytes FROM reserved_curve",
            "queue depth": "SELECT ts_ns, value FROM counter_value WHERE isfinite(value)",
        }
        for name, query in curves.items():
            found = [
                value
                for uuid, values in played.counters.items()
                if played.tracks[uuid].name == name
                for value in values
            ]
            assert sorted(found) == sorted(trace.sql(query).fetchall())
        running = [played.counters[uuid] for uuid in played.counters if "fallbacks" in played.tracks[uuid].name]
        assert running
        assert all(max(value for _, value in values) == 1 and values[-1][1] == 0 for values in running)


def test_tracks_carry_ids_where_perfetto_can_tell_them_apart(tmp_path: Path) -> None:
    with open_trace(awkward(tmp_path / "run.duckdb")) as trace:
        played = exported(trace, tmp_path)
    tracks = list(played.tracks.values())
    assert [track.process.pid for track in tracks if track.HasField("process")] == [101]
    assert [(t.thread.pid, t.thread.tid) for t in tracks if t.HasField("thread")] == [(101, 7), (101, 8)]
    plain = {track.name for track in tracks if not track.HasField("process") and not track.parent_uuid}
    assert {"rank 0 · 100 · rank 0 · host host a", f"rank 4 · {HUGE} · rank 4 · host huge"} <= plain
    for one in played.slices:
        if one.category == "kernel":
            track = played.root(one.track)
            assert track.name in ("stream 0 · compute", "stream 1 · compute")
            assert played.tracks[track.parent_uuid].name.startswith("ral:")


def test_slices_that_do_not_nest_go_to_further_tracks(tmp_path: Path) -> None:
    with open_trace(awkward(tmp_path / "run.duckdb")) as trace:
        played = exported(trace, tmp_path)
    names = {played.tracks[one.track].name for one in played.slices if one.category == "kernel"}
    assert "stream 1 · compute (overlap 1)" in names


def test_nesting_stays_shallower_than_what_perfetto_drops(tmp_path: Path) -> None:
    """Trace processor drops slices below depth 255 without a word."""
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        source = builder.add("source", format="live")
        process = builder.add("process", source=source, pid=1)
        thread = builder.add("thread", process=process, tid=1)
        rows = [
            {"kind": "python", "ts_ns": n, "dur_ns": 2000 - 2 * n, "process": process, "thread": thread, "flags": 0}
            for n in range(600)
        ]
        builder.add_rows("event", rows)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        played = exported(trace, tmp_path)
    assert len(played.slices) == 600
    assert max(one.depth for one in played.slices) < 255


def test_a_window_takes_rows_whole_and_counters_from_the_value_that_holds(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        [(first,)] = trace.sql("SELECT min(ts_ns) FROM event").fetchall()
        begin, end = 3_000_000, 6_000_000
        played = exported(trace, tmp_path, Window(begin, end))
        expected = trace.sql(f"""
            SELECT id, dur_ns FROM event WHERE {SHOWN}
            AND ts_ns < {first + end} AND ts_ns + dur_ns > {first + begin}""").fetchall()
        assert sorted((one.args["event"], one.dur_ns) for one in played.slices) == sorted(expected)
        [(held,)] = trace.sql(f"""
            SELECT arg_max(allocated_bytes, ts_ns) FROM memory_curve WHERE device = 0 AND ts_ns <= {first + begin}
        """).fetchall()
    allocated = [track for track in played.tracks.values() if track.name == "allocated bytes"]
    [first_device] = [track for track in allocated if played.tracks[track.parent_uuid].name.startswith("ral:0")]
    curve = played.counters[first_device.uuid]
    assert curve[0] == (first + begin, held)
    assert all(first + begin <= ts_ns < first + end for ts_ns, _ in curve)


def test_a_clock_that_begins_below_zero_is_moved_up(tmp_path: Path) -> None:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        source = builder.add("source", format="other", clock_zero="file")
        process = builder.add("process", source=source, name="p")
        for ts_ns in (-500, 10):
            builder.add("event", kind="op", name="x", ts_ns=ts_ns, dur_ns=5, process=process, flags=0)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        assert [(one.ts_ns, one.dur_ns) for one in exported(trace, tmp_path).slices] == [(0, 5), (510, 5)]


def test_a_trace_without_events_is_a_trace(tmp_path: Path) -> None:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        builder.add("source", format="live")
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        assert exported(trace, tmp_path).slices == []


def test_rows_that_point_nowhere_have_a_track_all_the_same(tmp_path: Path) -> None:
    """A trace from somebody else may say anything."""
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        builder.add("source", format="live")
        builder.add("event", kind="kernel", name="k", ts_ns=2**63 - 10, dur_ns=2**62, process=77, stream=99)
        builder.add("flow", kind="launch", from_event=0, to_event=12345)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        played = exported(trace, tmp_path)
    assert [(one.name, one.dur_ns) for one in played.slices] == [("k", None)]


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        first = export(trace, tmp_path / "a.pftrace").read_bytes()
        assert export(trace, tmp_path / "b.pftrace").read_bytes() == first
