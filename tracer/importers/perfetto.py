"""Perfetto protobuf traces: `.pftrace`, `.perfetto-trace`, with the track events of any producer, ours among them.

Read twice, a packet at a time: first what describes tracks and clocks, which may come late, then the events. Slices
of other producers become annotations of their thread with the categories and debug annotations that they have; those
of ours become the rows that they were. Kernel and system data (ftrace, /proc, heap profiles) are counted, not read.
"""

from collections import Counter
from pathlib import Path
from typing import IO, Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.opening import Head, opened
from ral_trace.tracer.importers.perfetto_clocks import Clocks
from ral_trace.tracer.importers.perfetto_events import Events
from ral_trace.tracer.importers.perfetto_packets import PACKET_TAG, first_packet, packets
from ral_trace.tracer.importers.perfetto_sequence import Sequence
from ral_trace.tracer.importers.perfetto_texts import Texts
from ral_trace.tracer.importers.perfetto_tracks import Tracks
from ral_trace.tracer.importers.rows import Rows

FORMAT = "Perfetto"

CLEARED = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
NEEDED = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
NO_EVENTS = (
    "track_descriptor", "clock_snapshot", "process_tree", "trace_uuid", "trace_config", "trace_stats", "service_event",
    "synchronization_marker", "system_info", "process_descriptor", "thread_descriptor", "trace_attributes", "ui_state",
    "trigger", "packages_list", "extension_descriptor", "trace_provenance", "chrome_metadata", "cpu_info", "gpu_info",
)  # fmt: skip
"""Of a packet's data: what there is nothing to draw of."""


def sniff(head: Head) -> float:
    """High where the first packet is whole and has fields that Perfetto knows; lower for one longer than the head."""
    if not head.data or head.data[0] != PACKET_TAG:
        return 0.0
    packet = first_packet(head.data)
    if packet is not None:
        return 0.95 if packet.ListFields() else 0.0
    return 0.6 if _begins_like_a_packet(head.data) else 0.0


def _begins_like_a_packet(data: bytes) -> bool:
    """Whether a known field of a packet follows the first packet's length: it may be cut off, or long."""
    after = 1 + next((used for used, byte in enumerate(data[1:11], 1) if byte < 0x80), 10)
    tag = data[after : after + 2]
    if len(tag) < 2:
        return False
    key = tag[0] if tag[0] < 0x80 else (tag[0] & 0x7F) | tag[1] << 7
    known = TracePacket.DESCRIPTOR.fields_by_number.get(key >> 3)
    text = bytes(byte for byte in data[1:64] if byte >= 0x20 or byte in b"\t\r\n")
    return known is not None and key & 7 in (0, 1, 2, 5) and len(text) < len(data[1:64])


def read(path: Path, rows: Rows) -> None:
    """Adds all track events. Raises InputRefused when not one packet can be read."""
    clocks, tracks = Clocks(), Tracks(rows)
    with opened(path, rows.bad) as file:
        _describe(path, file, clocks, tracks, rows)
    with opened(path) as file:
        _Reader(rows, clocks, tracks).read(file)


def _describe(path: Path, file: IO[bytes], clocks: Clocks, tracks: Tracks, rows: Rows) -> None:
    """The first reading: what describes, and what is damaged."""
    found = 0
    faults = []

    def fault(what: str, where: str) -> None:
        faults.append(f"{what} ({where})")
        rows.bad(what, where)

    for packet in packets(file, fault):
        found += 1
        if packet.HasField("clock_snapshot"):
            clocks.learn(packet.clock_snapshot)
        else:
            tracks.learn(packet)
    if not found:
        why = faults[0] if faults else "it holds no packet"
        raise InputRefused(path, f"has no packet that can be read: {why}", "export or copy it again")
    clocks.settle()
    tracks.ours.settle()
    zero_ns = clocks.unix_offset_ns
    if zero_ns is not None:
        rows.facts.setdefault("clock_offset_ns", zero_ns)
    rows.facts.setdefault("clock_zero", "file" if zero_ns is None else "unix epoch")


class _Reader:
    """The second reading: events."""

    def __init__(self, rows: Rows, clocks: Clocks, tracks: Tracks) -> None:
        self._rows = rows
        self._clocks = clocks
        self._tracks = tracks
        self._events = Events(rows, tracks, (clocks.unix_offset_ns or 0) + tracks.ours.shift_ns)
        self._text = Texts(rows)
        self._sequences: dict[int, Sequence] = {}
        self._not_read: Counter[str] = Counter()

    def read(self, file: IO[bytes]) -> None:
        """Adds the events of all packets."""
        for packet in packets(file, lambda what, where: None, self._rows.advance):
            self._add(packet)
        self._events.finish()
        for kind, count in sorted(self._not_read.items()):
            self._rows.bad(f"packets with {kind}: not read", count=count)

    def _add(self, packet: Any) -> None:
        number = packet.trusted_packet_sequence_id
        sequence = self._sequences.get(number)
        if sequence is None:
            sequence = self._sequences[number] = Sequence(number, self._clocks, self._text)
        elif packet.previous_packet_dropped:
            self._rows.bad("gaps in which the recorder lost packets")
            sequence.valid = False
        if packet.sequence_flags & CLEARED or packet.incremental_state_cleared:
            sequence.clear()
        sequence.learn(packet)
        kind = packet.WhichOneof("data")
        if kind == "track_event":
            self._add_event(packet, sequence)
        elif kind is not None and kind not in NO_EVENTS:
            self._not_read[kind] += 1

    def _add_event(self, packet: Any, sequence: Sequence) -> None:
        trace_ns = sequence.trace_ns(packet)
        if packet.sequence_flags & NEEDED and not sequence.valid:
            self._rows.bad("events whose names were lost with the packets before them: left out")
        elif trace_ns is None:
            clock = packet.timestamp_clock_id
            self._rows.bad("events whose clock nothing ties to the trace's: left out", f"clock {clock}")
        else:
            self._events.add(packet.track_event, sequence, trace_ns)
