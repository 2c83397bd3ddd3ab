"""What the tracks of a `.pftrace` show, for our own importer: names for people leave out which part is what.

    TracePacket { trace_attributes (126) { attribute (1) { key (1): PLACES_KEY, string_value (3): JSON } } }

The JSON: {"version": 1, "shift_ns": what to add to all times, "source": row, "quality": [row, ...],
"flows": [[kind of origin, of target, of the arrow], ...], "tracks": [...]},
the tracks in the order of their uuids, which the encoder counts from 1: {"table", "row", "above": uuid of the track
above} or {"derived": true} for what follows from other rows. Viewers pass it over.
https://perfetto.dev/docs/reference/trace-packet-proto#TraceAttributes
"""

import json
from typing import Any

from ral_trace.tracer.derive import NEVER_ENDED, NEVER_RAN
from ral_trace.tracer.exporters import drawn_tracks
from ral_trace.tracer.exporters.output import Selection, cut_note
from ral_trace.tracer.reading import Trace

PLACES_KEY = "ral_trace.places"
VERSION = 1
TABLES = {
    drawn_tracks.PROCESS: "process", drawn_tracks.THREAD: "thread", drawn_tracks.DEVICE: "device",
    drawn_tracks.STREAM: "stream", drawn_tracks.STREAM_RANGES: "stream", drawn_tracks.STREAM_WAITS: "stream",
    drawn_tracks.COUNTER: "counter",
}  # fmt: skip
FLOW_KINDS = """
    SELECT origin.kind::VARCHAR, target.kind::VARCHAR, min(flow.kind) FROM flow
    JOIN event origin ON origin.id = from_event JOIN event target ON target.id = to_event
    WHERE flow.kind <> 'launch' GROUP BY ALL HAVING count(DISTINCT flow.kind) = 1 ORDER BY ALL"""
KEPT_CURVES = (drawn_tracks.ALLOCATED, drawn_tracks.RESERVED)
"""Counters that follow from rows which are not drawn; all other counters that follow from rows can be made anew."""


def places_packet(
    trace: Trace, tracks: list[drawn_tracks.Track], counters: list[drawn_tracks.CounterTrack], selection: Selection
) -> bytes:
    """A chunk for the sink: one packet. `tracks` and `counters` as they are given to the encoder, which comes after."""
    sources = trace.rows("SELECT * FROM source ORDER BY id")
    described = {
        "version": VERSION,
        "shift_ns": selection.shift_ns,
        "source": sources[0] if len(sources) == 1 else {},
        "quality": trace.rows(
            f"""SELECT what, count, example FROM (SELECT * FROM quality {cut_note(selection)})
                WHERE what NOT IN ('{NEVER_ENDED}', '{NEVER_RAN}')"""
        ),
        "flows": [list(row) for row in trace.sql(FLOW_KINDS).fetchall()],
        "tracks": _tracks(trace, tracks, counters),
    }
    text = json.dumps(described, ensure_ascii=False, separators=(",", ":"), default=str).encode()
    attribute = _message(1, PLACES_KEY.encode()) + _message(3, text)
    return _message(1, _message(126, _message(1, attribute)))


def _tracks(
    trace: Trace, tracks: list[drawn_tracks.Track], counters: list[drawn_tracks.CounterTrack]
) -> list[dict[str, Any]]:
    rows = {
        (table, row["id"]): {column: value for column, value in row.items() if value is not None}
        for table in TABLES.values()
        for row in trace.rows(f"SELECT * FROM {table}")
    }
    all_tracks: list[drawn_tracks.Track | drawn_tracks.CounterTrack] = [*tracks, *counters]
    uuids = {track.key: uuid for uuid, track in enumerate(all_tracks, 1)}
    found: list[dict[str, Any]] = []
    for track in all_tracks:
        kind, number = track.key >> 32 << 32, track.key & 0xFFFF_FFFF
        above = None if track.parent is None else uuids.get(track.parent)
        if kind in TABLES:
            found.append({"table": TABLES[kind], "row": rows.get((TABLES[kind], number), {}), "above": above})
        elif kind in KEPT_CURVES:
            row = {"series": track.name, "unit": getattr(track, "unit", None)}
            found.append({"table": "counter", "row": row, "above": above})
        else:
            found.append({"derived": True})
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
