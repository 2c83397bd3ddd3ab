"""What the tracks of a `.pftrace` show, for our own importer: names for people leave out which part is what.

    TracePacket { trace_attributes (126) { attribute (1) { key (1): PLACES_KEY, string_value (3): JSON } } }

The JSON: {"version": 1, "shift_ns": what to add to all times, "source": row, "quality": [row, ...], "tracks": [...]}, the
tracks in the order of their uuids, which the encoder counts from 1: {"table", "row", "above": uuid of the track above}
or {"derived": true} for a counter that follows from other rows. Viewers pass it over.
https://perfetto.dev/docs/reference/trace-packet-proto#TraceAttributes
"""

import json
from typing import Any

from ral_trace.tracer.derive import NEVER_ENDED
from ral_trace.tracer.exporters import drawn
from ral_trace.tracer.exporters.output import Selection, cut_note
from ral_trace.tracer.reading import Trace

PLACES_KEY = "ral_trace.places"
VERSION = 1
TABLES = {
    drawn.PROCESS: "process", drawn.THREAD: "thread", drawn.DEVICE: "device", drawn.STREAM: "stream",
    drawn.COUNTER: "counter",
}  # fmt: skip
DERIVED = drawn.FALLBACKS
"""The counter that an importer can make anew; allocated and reserved bytes it cannot, because blocks are not drawn."""


def places_packet(
    trace: Trace, tracks: list[drawn.Track], counters: list[drawn.CounterTrack], selection: Selection
) -> bytes:
    """A chunk for the sink: one packet. `tracks` and `counters` as they are given to the encoder, which comes after."""
    sources = trace.rows("SELECT * FROM source ORDER BY id")
    described = {
        "version": VERSION,
        "shift_ns": drawn.shift_ns(selection),
        "source": sources[0] if len(sources) == 1 else {},
        "quality": trace.rows(
            f"""SELECT what, count, example FROM (SELECT * FROM quality {cut_note(selection)})
                WHERE what <> '{NEVER_ENDED}'"""
        ),
        "tracks": _tracks(trace, tracks, counters),
    }
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":"), default=str).encode()
    attribute = _message(1, PLACES_KEY.encode()) + _message(3, text)
    return _message(1, _message(126, _message(1, attribute)))


def _tracks(trace: Trace, tracks: list[drawn.Track], counters: list[drawn.CounterTrack]) -> list[dict[str, Any]]:
    rows = {
        (table, row["id"]): {column: value for column, value in row.items() if value is not None}
        for table in TABLES.values()
        for row in trace.rows(f"SELECT * FROM {table}")
    }
    uuids = {track.key: uuid for uuid, track in enumerate([*tracks, *counters], 1)}
    found: list[dict[str, Any]] = []
    for track in [*tracks, *counters]:
        kind, number = track.key >> 32 << 32, track.key & 0xFFFF_FFFF
        above = None if track.parent is None else uuids.get(track.parent)
        if kind in TABLES:
            found.append({"table": TABLES[kind], "row": rows.get((TABLES[kind], number), {}), "above": above})
        elif kind == DERIVED:
            found.append({"derived": True})
        else:
            row = {"series": track.name, "unit": getattr(track, "unit", None)}
            found.append({"table": "counter", "row": row, "above": above})
    return found


def _message(field: int, body: bytes) -> bytes:
    """A length-delimited field."""
    return varint(field << 3 | 2) + varint(len(body)) + body


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
