"""Perfetto export against perfetto's own Python builder: from columns in memory, in one run, with the same content.

    python tests/benchmarks/bench_perfetto.py [SLICES]

Prints the time and the bytes of each, and the ratios that the design budgets: >= 20 x faster, <= 1/2 the bytes a slice.
The content is what the exporter writes of a training: op, launch and kernel with the arrows between them, interned
names and categories, debug annotations.
"""

import io
import sys
import time
from typing import Any

import duckdb
import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from ral_trace.tracer import _native
from ral_trace.tracer.exporters.drawn import ANNOTATIONS
from ral_trace.tracer.exporters.perfetto import compressed_into

FASTER, SMALLER = 20, 0.5
NAMES = [f"aten::op_{n}" for n in range(60)]
BUILDER_SLICES = 30_000
"""The builder keeps all in memory and takes the same time for each slice: a part is enough to know its rate."""

Columns = dict[str, np.ndarray[Any, Any]]


def content(slices: int) -> tuple[Columns, Columns]:
    """Slices in order of time, and the ends of their arrows: op -> launch -> kernel, over and over."""
    generator = np.random.default_rng(1)
    calls = slices // 3
    call = np.repeat(np.arange(calls), 3)
    part = np.tile(np.arange(3), calls)
    at = np.cumsum(generator.integers(8_000, 60_000, calls)).repeat(3) + part * 700 + 1_790_000_000_000_000_000
    names = np.array(NAMES, object)[generator.integers(0, len(NAMES), calls)].repeat(3)
    id = np.arange(len(call))
    launch = part == 1
    columns: Columns = {
        "id": id,
        "track": part // 2,
        "start_ns": at,
        "dur_ns": np.array([6_000, 4_000, 3_000])[part],
        "shape": np.zeros(len(call), np.int64),
        "name": names,
        "kind": np.array(["op", "launch", "kernel"], object)[part],
        "event": id,
        "step": call // 500,
        "correlation": np.ma.masked_array(call * 3 + 7, part == 0),
        "routed": np.where(launch, names, None),
        "route": np.where(launch, "native", None),
    }
    op, kernel = id[part == 0], id[part == 2]
    arrows = np.arange(calls * 2)
    first, second = arrows[:calls], arrows[calls:]
    ends = np.concatenate([op, op + 1, op + 1, kernel])
    numbers = np.concatenate([first, first, second, second])
    order = np.lexsort((numbers, ends))
    return columns, {"id": ends[order], "number": numbers[order]}


def load(connection: duckdb.DuckDBPyConnection, columns: Columns, arrows: Columns) -> None:
    """Puts the columns where DuckDB hands them out in batches, in memory."""
    for name, table in (("slices", columns), ("arrows", arrows)):
        connection.register("given", table)
        connection.execute(f"CREATE TABLE {name} AS FROM given")
        connection.unregister("given")


def ours(connection: duckdb.DuckDBPyConnection) -> bytes:
    """The exporter's way: encoder, compression, packets around it."""
    out = io.BytesIO()
    encoder = _native.PerfettoEncoder(compressed_into(out), unix_epoch=True)
    encoder.add_process(10, 4242, "train.py", 0, "python train.py", [])
    encoder.add_thread(0, 4242, 4242, "python", 0)
    encoder.add_track(1, 10, "stream 0", 0)
    encoder.slices(connection.cursor().sql("FROM slices"), connection.cursor().sql("FROM arrows"))
    encoder.finish()
    return out.getvalue()


def theirs(columns: Columns, arrows: Columns, slices: int) -> bytes:
    """The same slices, arrows, interned strings, annotations and incremental clock with perfetto's builder."""
    return _Builder().build({key: values[:slices].tolist() for key, values in columns.items()}, arrows)


class _Builder:
    """Writes packets with perfetto.trace_builder as its documentation shows."""

    def __init__(self) -> None:
        self.builder = TraceProtoBuilder()
        self.interned: dict[tuple[str, str], int] = {}
        self.now = 0

    def build(self, columns: dict[str, list[Any]], arrows: Columns) -> bytes:
        self._begin(columns["start_ns"][0])
        flows: dict[int, list[int]] = {}
        for event, number in zip(arrows["id"].tolist(), arrows["number"].tolist(), strict=True):
            flows.setdefault(event, []).append(number + 1)
        known, ends, seen = [key for key in ANNOTATIONS if key in columns], [], set()
        for n, start in enumerate(columns["start_ns"]):
            while ends and ends[0][0] <= start:
                self._end(*ends.pop(0))
            event = self._event(start, columns["track"][n] + 1, TrackEvent.TYPE_SLICE_BEGIN)
            event.track_event.name_iid = self._intern(event, "event_names", columns["name"][n])
            event.track_event.category_iids.append(self._intern(event, "event_categories", columns["kind"][n]))
            for number in flows.get(columns["id"][n], []):
                ended = event.track_event.terminating_flow_ids if number in seen else event.track_event.flow_ids
                ended.append(number)
                seen.add(number)
            for key in known:
                if columns[key][n] is not None:
                    self._annotate(event, key, columns[key][n])
            ends.append((start + columns["dur_ns"][n], columns["track"][n] + 1))
            ends.sort()
        for end in ends:
            self._end(*end)
        return bytes(self.builder.serialize())

    def _begin(self, now: int) -> None:
        self.now = now
        packet = self.builder.add_packet()
        packet.trusted_packet_sequence_id = 1
        packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        packet.trace_packet_defaults.timestamp_clock_id = 64
        packet.clock_snapshot.clocks.add(clock_id=64, timestamp=now, is_incremental=True)
        packet.clock_snapshot.clocks.add(clock_id=6, timestamp=now)
        for uuid in (1, 2):
            self.builder.add_packet().track_descriptor.uuid = uuid

    def _event(self, at: int, track: int, kind: int) -> Any:
        packet = self.builder.add_packet()
        packet.timestamp = at - self.now
        packet.trusted_packet_sequence_id = 1
        packet.sequence_flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        packet.track_event.type = kind
        packet.track_event.track_uuid = track
        self.now = at
        return packet

    def _end(self, at: int, track: int) -> None:
        self._event(at, track, TrackEvent.TYPE_SLICE_END)

    def _intern(self, packet: Any, table: str, text: str) -> int:
        iid = self.interned.get((table, text))
        if iid is None:
            iid = self.interned[table, text] = len(self.interned) + 1
            entry = getattr(packet.interned_data, table).add(iid=iid)
            if table == "debug_annotation_string_values":
                entry.str = text.encode()
            else:
                entry.name = text
        return iid

    def _annotate(self, packet: Any, key: str, value: Any) -> None:
        annotation = packet.track_event.debug_annotations.add()
        annotation.name_iid = self._intern(packet, "debug_annotation_names", key)
        if isinstance(value, str):
            annotation.string_value_iid = self._intern(packet, "debug_annotation_string_values", value)
        else:
            annotation.int_value = value


def main(slices: int) -> int:
    """Prints the comparison. Returns 1 when a budget is missed."""
    slices -= slices % 3
    columns, arrows = content(slices)
    connection = duckdb.connect(config={"threads": 1})
    load(connection, columns, arrows)
    begin = time.perf_counter()
    written = ours(connection)
    middle = time.perf_counter()
    part = min(slices, BUILDER_SLICES)
    built = theirs(columns, arrows, part)
    end = time.perf_counter()

    our_ns, their_ns = (middle - begin) * 1e9 / slices, (end - middle) * 1e9 / part
    our_bytes, their_bytes = len(written) / slices, len(built) / part
    print(f"{'':10}{'ns/slice':>12}{'bytes/slice':>14}")
    print(f"{'ral-trace':10}{our_ns:12.0f}{our_bytes:14.1f}   {slices} slices")
    print(f"{'perfetto':10}{their_ns:12.0f}{their_bytes:14.1f}   {part} slices")
    faster, smaller = their_ns / our_ns, our_bytes / their_bytes
    print(f"{faster:.0f} x faster (budget {FASTER}), {smaller:.2f} of the bytes (budget {SMALLER})")
    return 0 if faster >= FASTER and smaller <= SMALLER else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 600_000))
