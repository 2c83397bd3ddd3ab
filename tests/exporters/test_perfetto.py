"""The .pftrace, read back with perfetto's own protos, holds what the database holds."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ral_trace.tracer.exporters import Window, export
from ral_trace.tracer.exporters.drawn import SLICE_KINDS
from ral_trace.tracer.exporters.drawn_tracks import LINKS
from ral_trace.tracer.forms import MARK
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.schema import FLAGS
from ral_trace.tracer.store import TraceBuilder
from tests.awkward import HUGE, awkward
from tests.exporters.expected import Curve, bandwidths, queue_depths
from tests.exporters.replay import Replay, Slice, replay
from tests.synthetic import training

SHOWN = f"(flags & {FLAGS['INVALID']}) = 0 AND kind IN {SLICE_KINDS}"


def rows_of(played: Replay) -> list[Slice]:
    """All that is drawn but the marks, which are no rows of the trace."""
    return [one for one in played.slices if one.category != MARK]


def exported(trace: Trace, folder: Path, window: Window | None = None) -> Replay:
    return replay(export(trace, folder / "run.pftrace", window).read_bytes())


@pytest.mark.parametrize("make", [training, awkward])
def test_each_row_is_one_slice_with_its_times_and_annotations(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with open_trace(make(tmp_path / "run.duckdb")) as trace:
        slices = rows_of(exported(trace, tmp_path))
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


def curves(played: Replay, name: str) -> list[Curve]:
    """The values of all counters whose names begin so."""
    return sorted(values for uuid, values in played.counters.items() if played.tracks[uuid].name.startswith(name))


@pytest.mark.parametrize("make", [training, awkward])
def test_counters_hold_the_depth_of_queues_and_the_bandwidth_of_links(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    with open_trace(make(tmp_path / "run.duckdb")) as trace:
        played = exported(trace, tmp_path)
        assert curves(played, "queue depth of") == queue_depths(trace) != []
        for link in LINKS:
            assert curves(played, f"{link} bandwidth") == bandwidths(trace, link)


def test_a_queue_and_a_link_by_hand(tmp_path: Path) -> None:
    """Two launches before the first kernel begins; two copies at once; one whose bytes are unknown."""
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        process = builder.add("process", source=builder.add("source", format="test", clock_zero="file"))
        thread = builder.add("thread", process=process, tid=1)
        device = builder.add("device", process=process, type="cuda", index=0)
        stream = builder.add("stream", device=device, number=7)
        host = {"process": process, "thread": thread, "kind": "launch", "dur_ns": 5, "flags": 0}
        placed = {"process": process, "device": device, "stream": stream, "flags": 0}
        copy = {**placed, "kind": "transfer", "category": "host_to_device"}
        for correlation, launched, begun in [(1, 10, 40), (2, 20, 60), (3, 100, 90)]:
            builder.add("event", **host, ts_ns=launched, correlation=correlation)
            builder.add("event", **placed, kind="kernel", ts_ns=begun, dur_ns=10, correlation=correlation)
        for begun, dur_ns, size in [(200, 100, 1000), (250, 100, 500), (260, 10, None), (270, None, 10), (280, 0, 10)]:
            builder.add("event", **copy, ts_ns=begun, dur_ns=dur_ns, bytes=size)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        played = exported(trace, tmp_path)
    assert curves(played, "queue depth of stream 7") == [[(10, 1), (20, 2), (40, 1), (60, 0)]]
    assert curves(played, "host_to_device bandwidth") == [[(200, 10e9), (250, 15e9), (300, 5e9), (350, 0)]]


def test_fallbacks_are_marked_on_their_device(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        played = exported(trace, tmp_path)
        fallbacks = trace.sql("SELECT id, ts_ns, name FROM event WHERE kind = 'fallback' ORDER BY id").fetchall()
    marks = [one for one in played.slices if one.category == MARK]
    assert [(one.args["fallback"], one.ts_ns, one.name) for one in marks] == fallbacks
    assert all(one.point and one.args["reason"] == "native: no entry" for one in marks)
    assert {(played.tracks[one.track].name, played.parent(one.track).name) for one in marks} == {
        ("fallbacks", "ral:1 · sim · Sim accelerator")
    }


def test_what_waits_or_is_projected_on_a_stream_lies_beside_its_work(tmp_path: Path) -> None:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        process = builder.add("process", source=builder.add("source", format="kineto"), pid=5)
        device = builder.add("device", process=process, type="cuda", index=0)
        stream = builder.add("stream", device=device, number=7)
        placed = {"process": process, "device": device, "stream": stream, "flags": 0}
        for kind, ts_ns in [("kernel", 10), ("transfer", 30), ("wait", 15), ("annotation", 5)]:
            builder.add("event", **placed, kind=kind, name=kind, ts_ns=ts_ns, dur_ns=20)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        played = exported(trace, tmp_path)
    where = {one.name: played.tracks[one.track] for one in played.slices}
    assert {kind: track.name for kind, track in where.items()} == {
        "kernel": "stream 7",
        "transfer": "stream 7",
        "wait": "stream 7 · waits",
        "annotation": "stream 7 · annotations",
    }
    in_order = sorted(where.values(), key=lambda track: track.sibling_order_rank)
    assert [track.name for track in in_order] == ["stream 7 · annotations", "stream 7", "stream 7", "stream 7 · waits"]
    assert {played.tracks[track.parent_uuid].name for track in in_order} == {"cuda:0"}


def test_a_slice_says_its_shapes_and_its_innermost_line(tmp_path: Path) -> None:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        process = builder.add("process", source=builder.add("source", format="live"), pid=5)
        inner, outer = ("model.py", 12, "forward"), ("train.py", 3, "main")
        frames = [dict(zip(("file", "line", "function"), frame, strict=True)) for frame in (inner, outer)]
        stack = builder.add("stack", frames=frames)
        args = '{"shapes": [[2, 3], [3]], "dtypes": ["float", "float"], "other": 1}'
        builder.add("event", kind="op", ts_ns=1, dur_ns=1, process=process, stack=stack, args=args, flags=0)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        [one] = exported(trace, tmp_path).slices
    assert one.args == {
        "event": 0, "line": "model.py:12", "shapes": "[[2,3],[3]]", "dtypes": '["float","float"]',
    }  # fmt: skip


def test_processes_and_threads_are_in_the_order_of_ranks_and_ids(tmp_path: Path) -> None:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        source = builder.add("source", format="kineto")
        for rank, pid in [(1, 50), (0, 60)]:
            process = builder.add("process", source=source, pid=pid, rank=rank, name=f"rank {rank}")
            for tid in (9, 7):
                builder.add("thread", process=process, tid=tid)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        played = exported(trace, tmp_path)
    tracks = sorted(played.tracks.values(), key=lambda track: track.sibling_order_rank)
    assert [track.process.pid for track in tracks if track.HasField("process")] == [60, 50]
    assert [track.thread.tid for track in tracks if track.thread.pid == 50] == [9, 7]
    [root] = [track for track in tracks if track.uuid == 0]
    assert root.process_ordering == root.PROCESS_ORDERING_EXPLICIT
    assert root.thread_ordering == root.THREAD_ORDERING_EXPLICIT


def test_tracks_carry_ids_where_perfetto_can_tell_them_apart(tmp_path: Path) -> None:
    with open_trace(awkward(tmp_path / "run.duckdb")) as trace:
        played = exported(trace, tmp_path)
    tracks = [track for track in played.tracks.values() if track.uuid]
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
        assert sorted((one.args["event"], one.dur_ns) for one in rows_of(played)) == sorted(expected)
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
        builder.add("event", kind="op", name="when?", process=77, flags=0)
        builder.add("flow", kind="launch", from_event=0, to_event=12345)
        builder.add("thread", tid=5)
        builder.add("device", type="cuda")
        builder.add("stream", number=1)
        builder.add("counter", series="of nobody")
        builder.add("counter_value", counter=4711, ts_ns=2**62, value=1)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        played = exported(trace, tmp_path)
    assert [(one.name, one.dur_ns) for one in played.slices] == [("k", None)]
    assert curves(played, "unknown counter") == [[(2**62, 1)]]


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        first = export(trace, tmp_path / "a.pftrace").read_bytes()
        assert export(trace, tmp_path / "b.pftrace").read_bytes() == first
