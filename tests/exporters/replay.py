"""Reads a .pftrace with perfetto's own protos and plays it back as trace processor does: clocks, interned strings, a
stack of slices a track."""

import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

CLOCK = 64


@dataclass
class Slice:
    """A slice or (`point`) an instant. `dur_ns` None: it never ended."""

    track: int
    ts_ns: int
    name: str
    category: str
    args: dict[str, Any]
    flows: list[int]
    ending_flows: list[int]
    depth: int
    point: bool
    dur_ns: int | None = None


@dataclass
class _Sequence:
    now_ns: int | None = None
    default_track: int = 0
    interned: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))


@dataclass
class Replay:
    """What a trace holds. Raises AssertionError where trace processor would count an error."""

    slices: list[Slice] = field(default_factory=list)
    counters: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    tracks: dict[int, Any] = field(default_factory=dict)
    _sequences: dict[int, _Sequence] = field(default_factory=dict)
    _stacks: dict[int, list[Slice]] = field(default_factory=lambda: defaultdict(list))

    def arrows(self) -> list[tuple[Slice, Slice]]:
        """The arrows between slices, each from the end that comes first."""
        begun: dict[int, Slice] = {}
        found = []
        for one in self.slices:
            for number in one.flows:
                assert number not in begun, "a flow id is used once"
                begun[number] = one
            for number in one.ending_flows:
                found.append((begun[number], one))
        assert len(found) == len(begun), "each arrow has two ends"
        return found

    def root(self, track: int) -> Any:
        """The descriptor of the track whose further lane `track` is, or its own."""
        while " (overlap " in self.tracks[track].name:
            track = self.tracks[track].parent_uuid
        return self.tracks[track]

    def parent(self, track: int) -> Any:
        """The descriptor of the track above."""
        return self.tracks[self.tracks[track].parent_uuid]

    def play(self, packet: TracePacket) -> None:
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            assert descriptor.uuid not in self.tracks, "a track is described once"
            assert descriptor.parent_uuid == 0 or descriptor.parent_uuid in self.tracks, "parents come first"
            self.tracks[descriptor.uuid] = descriptor
        if packet.sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            self._begin(packet)
        if packet.HasField("track_event"):
            self._event(packet)

    def _begin(self, packet: TracePacket) -> None:
        sequence = self._sequences[packet.trusted_packet_sequence_id] = _Sequence()
        assert packet.trace_packet_defaults.timestamp_clock_id == CLOCK
        sequence.default_track = packet.trace_packet_defaults.track_event_defaults.track_uuid
        clocks = {clock.clock_id: clock for clock in packet.clock_snapshot.clocks}
        assert clocks[CLOCK].is_incremental
        sequence.now_ns = clocks[CLOCK].timestamp

    def _event(self, packet: TracePacket) -> None:
        assert packet.sequence_flags & TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        sequence = self._sequences[packet.trusted_packet_sequence_id]
        assert sequence.now_ns is not None
        sequence.now_ns += packet.timestamp
        for descriptor, entries in packet.interned_data.ListFields():
            for entry in entries:
                text = entry.str.decode() if hasattr(entry, "str") else entry.name
                assert entry.iid not in sequence.interned[descriptor.name]
                sequence.interned[descriptor.name][entry.iid] = text
        event = packet.track_event
        track = event.track_uuid or sequence.default_track
        assert track in self.tracks, "a track is described before its first event"
        if event.type == TrackEvent.TYPE_COUNTER:
            whole = event.HasField("counter_value")
            self.counters[track].append((sequence.now_ns, event.counter_value if whole else event.double_counter_value))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            ended = self._stacks[track].pop()
            ended.dur_ns = sequence.now_ns - ended.ts_ns
        else:
            self._begin_slice(event, track, sequence)

    def _begin_slice(self, event: TrackEvent, track: int, sequence: _Sequence) -> None:
        assert sequence.now_ns is not None
        point = event.type == TrackEvent.TYPE_INSTANT
        args = {}
        for annotation in event.debug_annotations:
            name = sequence.interned["debug_annotation_names"][annotation.name_iid]
            text = sequence.interned["debug_annotation_string_values"].get(annotation.string_value_iid)
            args[name] = annotation.int_value if annotation.HasField("int_value") else text
        [category] = event.category_iids
        begun = Slice(
            track,
            sequence.now_ns,
            sequence.interned["event_names"][event.name_iid],
            sequence.interned["event_categories"][category],
            args,
            list(event.flow_ids),
            list(event.terminating_flow_ids),
            len(self._stacks[track]),
            point,
        )
        self.slices.append(begun)
        if not point:
            self._stacks[track].append(begun)


def packets(data: bytes) -> Iterator[TracePacket]:
    """The packets of a trace, out of their compressed ones."""
    trace = Trace()
    trace.ParseFromString(data)
    for packet in trace.packet:
        if packet.HasField("compressed_packets"):
            yield from packets(zlib.decompress(packet.compressed_packets))
        else:
            yield packet


def replay(data: bytes) -> Replay:
    """Plays back a whole trace."""
    played = Replay()
    for packet in packets(data):
        played.play(packet)
    return played
