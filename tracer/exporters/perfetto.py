"""`.pftrace`: a trace for the Perfetto UI (ui.perfetto.dev), written natively and compressed.

What is drawn is said in `drawn.py`. Here:

- A process is a group, a thread a track in it with its real pid and tid. Ids that Perfetto cannot take (unknown,
  beyond 31 bits, or given twice) are in the names of plain tracks instead. A device is a group in its process,
  `ral:1 · sim · ...`, with one track a stream.
- Starts and durations are the database's, in nanoseconds; a slice's category is the row's kind; ANNOTATIONS are its
  debug annotations.
- Slices that overlap without nesting go to further tracks, `... (overlap 1)`, below the first. The UI draws a slice
  without an end to the end of the trace.
- Perfetto draws arrows forward in time: one whose target begins before its origin points the other way.
- A window takes rows whole, so that a slice which reaches into it may begin before it.
- What the tracks show is said again for our importer, exactly, where viewers do not look (`perfetto_places.py`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import IO

from isal import isal_zlib

from ral_trace.tracer import _native
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.exporters import drawn, drawn_counters, drawn_tracks
from ral_trace.tracer.exporters.output import COMPRESSION_LEVEL, Selection, Window, create_private, select
from ral_trace.tracer.exporters.perfetto_places import places_packet, varint
from ral_trace.tracer.reading import Trace

FORMAT = "Perfetto"
ENDINGS: tuple[str, ...] = (".pftrace",)

NO_PARENT = _native.PERFETTO_NO_PARENT


def write(trace: Trace, out: Path, window: Window) -> None:
    """Writes the trace to `out`. Raises RalTraceError or duckdb.Error (a query), OSError (the disk)."""
    selection = select(trace, window)
    with create_private(out) as file:
        sink = compressed_into(file)
        tracks, counters = drawn_tracks.tracks(trace), drawn_tracks.counter_tracks(trace)
        sink(places_packet(trace, tracks, counters, selection))
        encoder = _native.PerfettoEncoder(sink, unix_epoch=_counts_from_1970(trace))
        describe(encoder, tracks, counters)
        try:
            with trace.cursor() as slices, trace.cursor() as arrows:
                encoder.slices(slices.sql(drawn.slices_sql(selection)), arrows.sql(drawn.arrows_sql(selection)))
            _write_counters(trace, encoder, selection)
        except RuntimeError as error:
            raise RalTraceError(f"{trace.path}: cannot be exported ({error}); give another trace") from error
        encoder.finish()


def describe(
    encoder: _native.PerfettoEncoder, tracks: list[drawn_tracks.Track], counters: list[drawn_tracks.CounterTrack]
) -> None:
    """Tells the encoder all tracks: parents first."""
    for track in tracks:
        parent = NO_PARENT if track.parent is None else track.parent
        if track.tid is not None and track.pid is not None:
            encoder.add_thread(track.key, track.pid, track.tid, track.name, track.rank)
        elif track.pid is not None:
            encoder.add_process(track.key, track.pid, track.name, track.rank, track.command_line, track.labels)
        else:
            encoder.add_track(track.key, parent, track.name, track.rank)
    for counter in counters:
        parent = NO_PARENT if counter.parent is None else counter.parent
        encoder.add_counter(counter.key, parent, counter.name, counter.unit)


def _write_counters(trace: Trace, encoder: _native.PerfettoEncoder, selection: Selection) -> None:
    for values in (drawn_counters.device_values_sql(selection), drawn_counters.source_values_sql(selection)):
        with trace.cursor() as connection:
            encoder.counters(connection.sql(values))


def compressed_into(file: IO[bytes]) -> Callable[[bytes], object]:
    """A sink for the encoder: packs each chunk of packets into one compressed packet.

    Trace { packet (1) { compressed_packets (50): zlib(Trace { packet ... }) } }
    """

    def write_chunk(packets: bytes) -> None:
        packed = isal_zlib.compress(packets, COMPRESSION_LEVEL)
        inner = b"\x92\x03" + varint(len(packed))
        file.write(b"\x0a" + varint(len(inner) + len(packed)) + inner)
        file.write(packed)

    return write_chunk


def _counts_from_1970(trace: Trace) -> bool:
    [(others,)] = trace.sql("SELECT count(*) FROM source WHERE clock_zero IS DISTINCT FROM 'unix epoch'").fetchall()
    return bool(others == 0)
