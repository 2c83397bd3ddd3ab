"""Perfetto traces: what the protos say becomes rows, and a trace of ours comes back."""

from collections.abc import Callable
from pathlib import Path

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from ral_trace.tracer.exporters import export
from ral_trace.tracer.exporters.perfetto_places import PLACES_KEY
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.schema import FLAGS
from ral_trace.tracer.store import TraceBuilder
from tests.awkward import awkward
from tests.exporters.replay import packets as all_packets
from tests.importers.perfetto_recordings import (
    BEGIN,
    BYTES_TRACK,
    CLEARED,
    COUNTER,
    DRAWN,
    END,
    INSTANT,
    NEEDED,
    PID,
    PLAIN_TRACK,
    PROCESS_TRACK,
    THREAD_TRACK,
    TID,
    Recording,
    imported,
    quality,
    rows,
)
from tests.synthetic import training


def test_a_description_with_an_impossible_shift(tmp_path: Path) -> None:
    recording = Recording().described()
    attribute = pb.TraceAttributes.Attribute(
        key=PLACES_KEY,
        string_value='{"tracks": [], "shift_ns": Infinity, "source": {}, "quality": [], "flows": []}',
    )
    recording.packet(trace_attributes=pb.TraceAttributes(attribute=[attribute]))
    recording.event(INSTANT, 5, name="here")
    with open_trace(imported(tmp_path, recording.bytes())) as trace:
        assert trace.sql("SELECT name, ts_ns FROM event").fetchall() == [("here", 5)]
        assert any(what.startswith("descriptions of the tracks that are damaged") for what in quality(trace))


def test_a_slice_at_the_end_of_all_numbers(tmp_path: Path) -> None:
    recording = Recording().described()
    for name, ts_ns in (("far", 2**63 - 100), ("near", 7)):
        legacy = pb.TrackEvent.LegacyEvent(phase=ord("X"), duration_us=1)
        recording.event(pb.TrackEvent.TYPE_UNSPECIFIED, ts_ns, name=name, legacy_event=legacy)
    with open_trace(imported(tmp_path, recording.bytes())) as trace:
        assert trace.sql("SELECT name, ts_ns, end_ns FROM events").fetchall() == [("near", 7, 1_007)]
        assert quality(trace) == {"events at a time that no clock shows: left out": 1}


@pytest.mark.parametrize("make", [training, awkward])
def test_our_own_comes_back(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    original = make(tmp_path / "run.duckdb")
    with open_trace(original) as trace:
        export(trace, tmp_path / "run.pftrace")
    back = import_files([tmp_path / "run.pftrace"], tmp_path / "back.duckdb")
    same = [
        f"SELECT kind, category, coalesce(nullif(name, ''), kind::VARCHAR), ts_ns, dur_ns, process, thread, device,"
        f" stream, correlation, bytes, step, args->>'reason', args->>'routed', flags FROM {{}}.event WHERE {DRAWN}",
        "SELECT f.kind, a.ts_ns, a.name, b.ts_ns, b.name FROM {}.flow f JOIN {}.event a ON a.id = f.from_event"
        " JOIN {}.event b ON b.id = f.to_event",
        "FROM {}.process", "FROM {}.thread", "FROM {}.device", "FROM {}.stream",
        "SELECT c.series, c.unit, c.device, ts_ns, value FROM {}.counter_value v JOIN {}.counter c ON c.id = v.counter"
        " WHERE isfinite(value) AND series NOT IN ('allocated bytes', 'reserved bytes')",
        "SELECT program, producer, rank, clock_zero, clock_offset_ns FROM {}.source",
    ]  # fmt: skip
    with open_trace(original, other=back) as trace:
        for query in same:
            one, two = (query.replace("{}", catalog) for catalog in ("trace", "other"))
            found = trace.sql(f"(({one}) EXCEPT ALL ({two})) UNION ALL (({two}) EXCEPT ALL ({one}))").fetchall()
            assert found == [], query
        curve = "SELECT device, ts_ns, allocated_bytes::DOUBLE FROM trace.memory_curve"
        drawn = (
            "SELECT c.device, ts_ns, value FROM other.counter_value v JOIN other.counter c ON c.id = v.counter"
            " WHERE series = 'allocated bytes'"
        )
        assert trace.sql(f"SELECT count(*) FROM ({drawn})").fetchall() != [(0,)]
        assert trace.sql(f"({curve}) EXCEPT ALL ({drawn})").fetchall() == []


def test_exporting_what_came_back_gives_the_same_slices(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        first = export(trace, tmp_path / "run.pftrace")
    with open_trace(import_files([first], tmp_path / "back.duckdb")) as trace:
        second = export(trace, tmp_path / "again.pftrace")
    one, two = (
        sorted((packet.timestamp, packet.track_event.type) for packet in all_packets(path.read_bytes()))
        for path in (first, second)
    )
    assert len(one) == len(two)


def test_a_clock_that_begins_below_zero_comes_back(tmp_path: Path) -> None:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        source = builder.add("source", format="other", clock_zero="file")
        process = builder.add("process", source=source, name="p")
        for ts_ns in (-500, 10):
            builder.add("event", kind="op", name="x", ts_ns=ts_ns, dur_ns=5, process=process, flags=0)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        out = export(trace, tmp_path / "run.pftrace")
    with open_trace(import_files([out], tmp_path / "back.duckdb")) as trace:
        assert trace.sql("SELECT ts_ns, dur_ns FROM event ORDER BY ts_ns").fetchall() == [(-500, 5), (10, 5)]


def test_slices_nest_and_places_have_their_names(tmp_path: Path) -> None:
    made = Recording().described()
    made.event(BEGIN, 100, name="outer", categories=["ui", "slow"])
    made.event(BEGIN, 100, name="inner")
    made.event(END, 164)
    made.event(INSTANT, 170, name="tick")
    made.event(END, 383)
    made.event(BEGIN, 120, PLAIN_TRACK, name="GET /")
    made.event(END, 130, PLAIN_TRACK)
    with open_trace(imported(tmp_path, made.bytes())) as trace:
        assert trace.sql("""
            SELECT e.kind, e.name, e.category, e.ts_ns, e.dur_ns, t.tid, t.name, p.pid, p.name, p.command_line, up.name
            FROM event e JOIN process p ON p.id = e.process JOIN thread t ON t.id = e.thread
            LEFT JOIN event up ON up.id = e.parent ORDER BY e.ts_ns, e.dur_ns DESC""").fetchall() == [
            ("annotation", "outer", "ui,slow", 100, 283, TID, "main loop", PID, "render", "render -x", None),
            ("annotation", "inner", None, 100, 64, TID, "main loop", PID, "render", "render -x", "outer"),
            ("annotation", "GET /", None, 120, 10, None, "requests", PID, "render", "render -x", None),
            ("instant", "tick", None, 170, 0, TID, "main loop", PID, "render", "render -x", "outer"),
        ]  # fmt: skip
        assert trace.sql("SELECT format, clock_zero FROM source").fetchall() == [("Perfetto", "file")]


def test_descriptors_may_come_after_the_events(tmp_path: Path) -> None:
    early, late = Recording(), Recording().described()
    early.event(BEGIN, 5, name="x")
    early.event(END, 7)
    early.packets += late.packets
    assert rows(tmp_path, early, "SELECT tid, name FROM thread") == [(TID, "main loop")]


def test_interned_texts_belong_to_their_sequence_until_it_is_cleared(tmp_path: Path) -> None:
    made = Recording().described()
    for sequence, text in ((1, "one"), (2, "two")):
        packet = made.event(INSTANT, sequence, sequence=sequence, name_iid=1, category_iids=[1])
        packet.sequence_flags = CLEARED | NEEDED
        packet.interned_data.event_names.add(iid=1, name=text)
        packet.interned_data.event_categories.add(iid=1, name=f"c{text}")
    made.event(INSTANT, 3, name_iid=1).sequence_flags = NEEDED
    packet = made.event(INSTANT, 4, name_iid=1)
    packet.sequence_flags = CLEARED | NEEDED
    packet.interned_data.event_names.add(iid=1, name="other")
    assert rows(tmp_path, made, "SELECT ts_ns, name, category FROM event ORDER BY ts_ns") == [
        (1, "one", "cone"), (2, "two", "ctwo"), (3, "one", None), (4, "other", None),
    ]  # fmt: skip


def test_events_after_a_loss_wait_for_the_next_clearing(tmp_path: Path) -> None:
    made = Recording().described()
    made.event(INSTANT, 1, name="before").sequence_flags = NEEDED
    lost = made.event(INSTANT, 2, name_iid=7)
    lost.sequence_flags, lost.previous_packet_dropped = NEEDED, 1
    made.event(INSTANT, 3, name="after").sequence_flags = CLEARED | NEEDED
    with open_trace(imported(tmp_path, made.bytes())) as trace:
        assert trace.sql("SELECT name FROM event ORDER BY ts_ns").fetchall() == [("before",), ("after",)]
        assert quality(trace) == {
            "gaps in which the recorder lost packets": 1,
            "events whose names were lost with the packets before them: left out": 1,
        }


def test_annotations_keep_their_types(tmp_path: Path) -> None:
    made = Recording().described()
    packet = made.event(INSTANT, 1, name="x")
    packet.interned_data.debug_annotation_names.add(iid=4, name="interned")
    packet.interned_data.debug_annotation_string_values.add(iid=5, str=b"text \xff")
    add = packet.track_event.debug_annotations.add
    add(name="int", int_value=-(2**63))
    add(name="uint", uint_value=2**64 - 1)
    add(name="double", double_value=0.5)
    add(name="nan", double_value=float("nan"))
    add(name="bool", bool_value=True)
    add(name_iid=4, string_value_iid=5)
    add(name="list", array_values=[pb.DebugAnnotation(int_value=1), pb.DebugAnnotation(string_value="a")])
    add(name="dict", dict_entries=[pb.DebugAnnotation(name="k", int_value=2)])
    [(text,)] = rows(tmp_path, made, "SELECT args::VARCHAR FROM event")
    assert text == (
        '{"int": -9223372036854775808, "uint": 18446744073709551615, "double": 0.5, "nan": "nan", "bool": true, '
        '"interned": "text \ufffd", "list": [1, "a"], "dict": {"k": 2}}'
    )


def test_clocks_are_brought_to_the_traces_own_and_to_1970(tmp_path: Path) -> None:
    """BOOTTIME 1000 is MONOTONIC 400 is 1790000000000000000; clock 64 counts in us, from event to event."""
    made = Recording().described()
    clock = pb.ClockSnapshot.Clock
    snapshot = pb.ClockSnapshot(clocks=[
        clock(clock_id=6, timestamp=1000), clock(clock_id=3, timestamp=400),
        clock(clock_id=1, timestamp=1_790_000_000_000_000_000),
        clock(clock_id=64, timestamp=7, is_incremental=True, unit_multiplier_ns=1000),
    ])  # fmt: skip
    made.packet(clock_snapshot=snapshot, trace_packet_defaults=pb.TracePacketDefaults(timestamp_clock_id=64))
    made.event(INSTANT, 2, name="two us later")
    made.event(INSTANT, 3, name="five us later")
    made.event(INSTANT, 450, name="monotonic").timestamp_clock_id = 3
    made.event(INSTANT, 1001, name="boot").timestamp_clock_id = 6
    made.event(INSTANT, 9, name="unknown").timestamp_clock_id = 99
    with open_trace(imported(tmp_path, made.bytes())) as trace:
        offset = 1_790_000_000_000_000_000 - 1000
        assert dict(trace.sql("SELECT name, ts_ns FROM event").fetchall()) == {
            "two us later": offset + 3000, "five us later": offset + 6000, "monotonic": offset + 1050,
            "boot": offset + 1001,
        }  # fmt: skip
        assert trace.sql("SELECT clock_zero, clock_offset_ns FROM source").fetchall() == [("unix epoch", offset)]
        assert quality(trace) == {"events whose clock nothing ties to the trace's: left out": 1}


def test_counters_with_units_deltas_and_those_that_ride_on_slices(tmp_path: Path) -> None:
    made = Recording().described()
    delta = pb.CounterDescriptor(is_incremental=True, unit_multiplier=10, unit_name="cycles")
    made.packet(track_descriptor=pb.TrackDescriptor(uuid=20, parent_uuid=THREAD_TRACK, name="cpu", counter=delta))
    made.event(COUNTER, 1, BYTES_TRACK, counter_value=4096)
    made.event(COUNTER, 2, BYTES_TRACK, double_counter_value=0.5)
    made.event(BEGIN, 3, name="x", extra_counter_track_uuids=[20], extra_counter_values=[5])
    made.event(END, 4, extra_counter_track_uuids=[20], extra_counter_values=[2])
    made.event(COUNTER, 5, BYTES_TRACK)
    with open_trace(imported(tmp_path, made.bytes())) as trace:
        assert trace.sql("""
            SELECT series, unit, ts_ns, value FROM counter_value v JOIN counter c ON c.id = v.counter ORDER BY ts_ns
        """).fetchall() == [
            ("heap", "bytes", 1, 4096.0), ("heap", "bytes", 2, 0.5), ("cpu", "cycles", 3, 50.0),
            ("cpu", "cycles", 4, 70.0),
        ]  # fmt: skip
        assert quality(trace) == {"counter events without a value: left out": 1}


def test_arrows_follow_their_ids(tmp_path: Path) -> None:
    made = Recording().described()
    made.event(BEGIN, 1, name="A", flow_ids=[7])
    made.event(END, 2)
    made.event(BEGIN, 3, name="B", flow_ids=[7])
    made.event(INSTANT, 4, PLAIN_TRACK, name="C", terminating_flow_ids=[7], flow_ids=[2**64 - 1])
    made.event(END, 5)
    made.event(INSTANT, 6, name="D", terminating_flow_ids=[7])
    made.event(INSTANT, 7, name="E", terminating_flow_ids=[2**64 - 1])
    arrows = "SELECT a.name || b.name FROM flow f JOIN event a ON a.id = from_event JOIN event b ON b.id = to_event"
    assert sorted(rows(tmp_path, made, arrows)) == [("AB",), ("BC",), ("CE",)]


def test_chromes_phases_in_legacy_events(tmp_path: Path) -> None:
    made = Recording()
    made.packet(thread_descriptor=pb.ThreadDescriptor(pid=5, tid=6, thread_name="t", reference_timestamp_us=1000))
    legacy = pb.TrackEvent.LegacyEvent
    for delta, event in [
        (1, legacy(phase=ord("X"), duration_us=10)),
        (1, legacy(phase=ord("b"), unscoped_id=1)),
        (1, legacy(phase=ord("b"), unscoped_id=2)),
        (1, legacy(phase=ord("e"), unscoped_id=1)),
        (1, legacy(phase=ord("e"), unscoped_id=2)),
        (1, legacy(phase=ord("I"))),
        (1, legacy(phase=ord("?"))),
    ]:
        made.packet(track_event=pb.TrackEvent(timestamp_delta_us=delta, name=chr(event.phase), legacy_event=event))
    with open_trace(imported(tmp_path, made.bytes())) as trace:
        assert trace.sql("SELECT kind, name, ts_ns, dur_ns FROM event ORDER BY ts_ns").fetchall() == [
            ("annotation", "X", 1_001_000, 10_000), ("annotation", "b", 1_002_000, 2_000),
            ("annotation", "b", 1_003_000, 2_000), ("instant", "I", 1_006_000, 0),
        ]  # fmt: skip
        assert trace.sql("SELECT tid FROM thread").fetchall() == [(6,)]
        assert quality(trace) == {"track events of a type that is not read": 1}


def test_what_does_not_pair_is_kept_and_said(tmp_path: Path) -> None:
    made = Recording().described()
    made.event(END, 1)
    made.event(BEGIN, 2, name="open")
    made.event(BEGIN, 9, name="backwards")
    made.event(END, 4)
    made.event(INSTANT, 2**64 - 1, name="no clock shows this")
    with open_trace(imported(tmp_path, made.bytes())) as trace:
        assert trace.sql("SELECT name, ts_ns, dur_ns, flags FROM event ORDER BY ts_ns").fetchall() == [
            ("open", 2, None, FLAGS["UNFINISHED"]),
            ("backwards", 9, None, FLAGS["INVALID"]),
        ]
        assert quality(trace) == {
            "ends of slices that never began: left out": 1,
            "events with a negative duration: kept without it, and out of all sums": 1,
            "events at a time that no clock shows: left out": 1,
            "events whose end was never seen: kept, but out of all sums": 1,
            "events with times that cannot be: kept, but out of all sums": 1,
        }


def test_texts_that_are_not_utf8_are_replaced(tmp_path: Path) -> None:
    made = Recording().described()
    made.event(BEGIN, 1, PLAIN_TRACK, name="BADname", categories=["BADcat"])
    made.event(END, 2, PLAIN_TRACK).track_event.debug_annotations.add(name="BADkey", string_value="BADvalue")
    whole = made.bytes().replace(b"BAD", b"\xff\xfe.").replace(b"requests", b"reques\xff\xfe")
    with open_trace(imported(tmp_path, whole)) as trace:
        shown = "SELECT e.name, category, args::VARCHAR, t.name FROM event e JOIN thread t ON t.id = thread"
        assert trace.sql(shown).fetchall() == [
            ("\ufffd\ufffd.name", "\ufffd\ufffd.cat", '{"\ufffd\ufffd.key": "\ufffd\ufffd.value"}',
             "reques\ufffd\ufffd"),
        ]  # fmt: skip
        assert "parts of the text are not UTF-8: replaced" in quality(trace)


def test_a_stack_without_ends_is_bounded(tmp_path: Path) -> None:
    made = Recording().described()
    for n in range(5_000):
        made.event(BEGIN, n, name="deeper")
    assert rows(tmp_path, made, "SELECT count(*), min(flags) FROM event") == [(5_000, FLAGS["UNFINISHED"])]


def test_kernel_and_system_data_are_counted(tmp_path: Path) -> None:
    made = Recording().described()
    made.event(INSTANT, 1, name="x")
    made.packet(ftrace_events=pb.TracePacket().ftrace_events)
    made.packet(ftrace_events=pb.TracePacket().ftrace_events)
    made.packet(trace_config=pb.TracePacket().trace_config)
    with open_trace(imported(tmp_path, made.bytes())) as trace:
        assert quality(trace) == {"packets with ftrace_events: not read": 2}


def test_tracks_in_a_circle_and_of_nothing_do_no_harm(tmp_path: Path) -> None:
    made = Recording()
    for uuid, parent in ((1, 2), (2, 1), (3, 3)):
        made.packet(track_descriptor=pb.TrackDescriptor(uuid=uuid, parent_uuid=parent, name=f"t{uuid}"))
    for track in (1, 2, 3, 77):
        made.event(INSTANT, track, track, name="x")
    assert rows(tmp_path, made, "SELECT count(*), count(thread) FROM event") == [(4, 4)]


def test_the_same_counter_name_twice_is_two_series(tmp_path: Path) -> None:
    made = Recording().described()
    made.packet(
        track_descriptor=pb.TrackDescriptor(
            uuid=50, parent_uuid=PROCESS_TRACK, name="heap", counter=pb.CounterDescriptor()
        )
    )
    made.event(COUNTER, 1, BYTES_TRACK, counter_value=1)
    made.event(COUNTER, 1, 50, counter_value=2)
    assert rows(tmp_path, made, "SELECT series, unit FROM counter ORDER BY 1") == [
        ("heap", "bytes"),
        ("heap (50)", None),
    ]
