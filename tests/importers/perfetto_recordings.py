"""Traces in Perfetto's form for tests, and what became of them."""

import zlib
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from ral_trace.tracer.exporters import export
from ral_trace.tracer.exporters.drawn import SLICE_KINDS
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.schema import FLAGS
from tests.synthetic import training

BEGIN, END, INSTANT, COUNTER = (
    getattr(pb.TrackEvent, f"TYPE_{name}") for name in ("SLICE_BEGIN", "SLICE_END", "INSTANT", "COUNTER")
)
CLEARED = pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
NEEDED = pb.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
DRAWN = f"(flags & {FLAGS['INVALID']}) = 0 AND kind IN {SLICE_KINDS}"
PID, TID = 300, 301
PROCESS_TRACK, THREAD_TRACK, PLAIN_TRACK, BYTES_TRACK = 10, 11, 12, 13


class Recording:
    """A trace in the making: packets on sequences, times in ns."""

    def __init__(self) -> None:
        self.packets: list[Any] = []

    def packet(self, sequence: int = 1, **fields: Any) -> Any:
        one = pb.TracePacket(trusted_packet_sequence_id=sequence, **fields)
        self.packets.append(one)
        return one

    def event(self, kind: int, ns: int, track: int = THREAD_TRACK, *, sequence: int = 1, **fields: Any) -> Any:
        one = pb.TrackEvent(type=kind, track_uuid=track, **fields)
        return self.packet(sequence, timestamp=ns, track_event=one)

    def described(self) -> "Recording":
        """With a process, a thread of it, a track of its own, and a counter of bytes."""
        track = pb.TrackDescriptor
        self.packet(
            track_descriptor=track(
                uuid=PROCESS_TRACK,
                process=pb.ProcessDescriptor(pid=PID, process_name="render", cmdline=["render", "-x"]),
            )
        )
        thread = pb.ThreadDescriptor(pid=PID, tid=TID, thread_name="main loop")
        self.packet(track_descriptor=track(uuid=THREAD_TRACK, thread=thread))
        self.packet(track_descriptor=track(uuid=PLAIN_TRACK, parent_uuid=PROCESS_TRACK, name="requests"))
        counter = pb.CounterDescriptor(unit=pb.CounterDescriptor.UNIT_SIZE_BYTES)
        self.packet(track_descriptor=track(uuid=BYTES_TRACK, parent_uuid=PROCESS_TRACK, name="heap", counter=counter))
        return self

    def bytes(self) -> bytes:
        return pb.Trace(packet=self.packets).SerializeToString()


def imported(folder: Path, content: bytes, name: str = "run.pftrace") -> Path:
    path = folder / name
    path.write_bytes(content)
    return import_files([path], folder / "back.duckdb")


def rows(folder: Path, recording: Recording, query: str) -> list[tuple[Any, ...]]:
    with open_trace(imported(folder, recording.bytes())) as trace:
        return trace.sql(query).fetchall()


def quality(trace: Trace) -> dict[str, int]:
    return dict(trace.sql("SELECT what, count FROM quality").fetchall())


def ours(folder: Path) -> bytes:
    with open_trace(training(folder / "whole.duckdb", launches=60)) as trace:
        return export(trace, folder / "whole.pftrace").read_bytes()


def packed(recording: Recording) -> bytes:
    """As one compressed packet, with the last packet outside."""
    *inner, last = recording.packets
    squeezed = zlib.compress(pb.Trace(packet=inner).SerializeToString())
    return pb.Trace(packet=[pb.TracePacket(compressed_packets=squeezed), last]).SerializeToString()
