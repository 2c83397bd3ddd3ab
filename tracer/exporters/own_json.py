"""`.json` and `.json.gz`: Chrome's trace format, which the Perfetto UI and chrome://tracing open, and in it the whole
trace for `own_json` to read.

    {"ralTrace":{"format":1,"schema_version":1,"zero_ns":1790000000000000000,"tables":{    the trace: exact, every table
    "trace_info":[
    {"key":"clock","value":"tsc"}
    ],
    "event":[
    {"id":0,"kind":"op","name":"aten::mm","ts_ns":1790000000000001000,"dur_ns":250, ...},  a row a line; no key: NULL
    ...
    ]}},
    "displayTimeUnit":"ns",
    "traceEvents":[                                                                        for viewers only
    {"ph":"X","pid":4242,"tid":4242,"ts":1.000,"dur":0.250,"name":"aten::mm", ...},        decimal us after zero_ns
    ...
    ]}

`args` of an event is text, as in the database. Numbers that are not finite are text, because JSON has none. What
viewers are shown is said in `drawn.py`. Streams are threads of a process that stands for their device. Slices that
overlap without nesting go to threads of their own."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ral_trace.tracer import _native
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.exporters import drawn, drawn_counters, drawn_tracks
from ral_trace.tracer.exporters.output import Selection, Window, create_packed, cut_note, select
from ral_trace.tracer.forms import JSON_VERSION
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.schema import SCHEMA_VERSION, TABLES, Table

FORMAT = "ral-trace JSON"
ENDINGS: tuple[str, ...] = (".json", ".json.gz")

MADE_UP_ID = 10_000_000
"""The first pid and tid given out to tracks that have none of their own; Linux gives out none above 2**22."""
COUNTED = ("memory.main.counted_on_devices", "memory.main.counted_by_source")
"""Values of counters, in the database in memory that the trace is attached to: they spill to its private folder."""


def write(trace: Trace, out: Path, window: Window) -> None:
    """Writes the trace to `out`, compressed where the output's name ends in .gz.

    Raises RalTraceError or duckdb.Error (a query), OSError (the disk).
    """
    selection = select(trace, window)
    with create_packed(out) as file:
        try:
            _write_document(trace, file, selection)
        except RuntimeError as error:
            raise RalTraceError(f"{trace.path}: cannot be exported ({error}); give another trace") from error


def _write_document(trace: Trace, file: IO[bytes], selection: Selection) -> None:
    _stage_counters(trace, selection)
    zero_ns = _zero_ns(trace, selection)
    head = {"format": JSON_VERSION, "schema_version": SCHEMA_VERSION, "zero_ns": zero_ns}
    file.write(f'{{"ralTrace":{json.dumps(head, separators=(",", ":"))[:-1]},"tables":{{\n'.encode())
    conditions = selection.tables()
    for table in TABLES:
        file.write(f'"{table.name}":[\n'.encode())
        with _lines(file) as lines, trace.cursor() as connection:
            lines.objects(connection.sql(_rows_sql(table, conditions.get(table.name, "true"), selection)))
        file.write(b"\n],\n" if table is not TABLES[-1] else b"\n]}},\n")
    file.write(b'"displayTimeUnit":"ns",\n"traceEvents":[\n')
    with _lines(file) as lines:
        _ViewerEvents(trace, selection, zero_ns - selection.shift_ns, lines).write()
    file.write(b"\n]}\n")


@contextmanager
def _lines(file: IO[bytes]) -> Iterator[_native.JsonLines]:
    """The elements of one array of the file."""
    lines = _native.JsonLines(file.write)
    yield lines
    lines.finish()


def _stage_counters(trace: Trace, selection: Selection) -> None:
    """Works out what the counters show, which takes long and is asked for twice."""
    values = drawn_counters.device_values_sql(selection), drawn_counters.source_values_sql(selection)
    for table, query in zip(COUNTED, values, strict=True):
        trace.connection.execute(f"CREATE OR REPLACE TABLE {table} AS {query}")


def _zero_ns(trace: Trace, selection: Selection) -> int:
    """The earliest time that is drawn: viewers know no negative ones, and small numbers are exact in float64."""
    values = " UNION ALL ".join(f"SELECT ts_ns FROM {table}" for table in COUNTED)
    [(first,)] = trace.sql(f"SELECT min(ts_ns) FROM ({values})").fetchall()
    begin = selection.first_ns
    return begin if first is None else min(begin, int(first) + selection.shift_ns)


def _rows_sql(table: Table, condition: str, selection: Selection) -> str:
    """The rows of a table, with each column as a BIGINT, a VARCHAR, or what else JSON makes of it as a BLOB."""
    names = ", ".join(f'"{column}"' for column in table.columns)
    rows = f"SELECT {names} FROM {table.name} WHERE {condition}"
    if table.name == "quality":
        rows += cut_note(selection)
    order = f"ORDER BY {table.sort}" if table.sort else ""
    values = ", ".join(f'{_value(column, kind)} AS "{column}"' for column, (kind, _) in table.columns.items())
    return f"SELECT {values} FROM (FROM ({rows}) {order})"


def _value(column: str, kind: str) -> str:
    value = f'"{column}"'
    if kind in ("BIGINT", "INTEGER", "UTINYINT"):
        return f"{value}::BIGINT"
    if kind in ("VARCHAR", "JSON", "event_kind"):
        return f"{value}::VARCHAR"
    if kind == "DOUBLE":
        return f"encode(CASE WHEN isfinite({value}) THEN to_json({value}) ELSE to_json({value}::VARCHAR) END::VARCHAR)"
    return f"encode(to_json({value})::VARCHAR)"


@dataclass(frozen=True)
class _Place:
    """Where viewers draw a track."""

    pid: int
    tid: int
    name: str

    def members(self) -> str:
        """As members of an element."""
        return f'"pid":{self.pid},"tid":{self.tid}'


class _ViewerEvents:
    """The elements of `traceEvents`. Times count from `zero_ns`."""

    def __init__(self, trace: Trace, selection: Selection, zero_ns: int, lines: _native.JsonLines) -> None:
        self._trace = trace
        self._selection = selection
        self._zero_ns = zero_ns
        self._lines = lines
        self._made_up = MADE_UP_ID
        self._places: dict[int, _Place] = {}

    def write(self) -> None:
        """Slices and points, and behind each the ends of its arrows; then the counters."""
        self._place_tracks()
        rows, arrows = drawn.slices_sql(self._selection), drawn.arrows_sql(self._selection)
        with self._trace.cursor() as of_rows, self._trace.cursor() as of_arrows:
            self._lines.slices(of_rows.sql(rows), of_arrows.sql(arrows), zero_ns=self._zero_ns, place=self._lane)
        self._write_counters()

    def _new_id(self) -> int:
        self._made_up += 1
        return self._made_up

    def _name(self, what: str, pid: int, tid: int, args: dict[str, Any]) -> None:
        self._lines.line(json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}))

    def _place_tracks(self) -> None:
        for order, track in enumerate(drawn_tracks.tracks(self._trace)):
            above = None if track.parent is None else self._places.get(track.parent)
            if track.is_group:
                place = _Place(track.pid or self._new_id(), self._new_id(), track.name)
                name = track.name if above is None else f"{track.name} of {above.name} ({above.pid})"
                self._name("process_name", place.pid, place.tid, {"name": name})
                self._name("process_sort_index", place.pid, place.tid, {"sort_index": order})
                self._name("thread_name", place.pid, place.tid, {"name": f"{track.name} itself"})
            else:
                pid = above.pid if above is not None else self._new_id()
                place = _Place(pid, track.tid or self._new_id(), track.name)
                self._name("thread_name", pid, place.tid, {"name": track.name})
            self._places[track.key] = place

    def _lane(self, track: int, lane: int) -> str:
        """Where a lane of a track is drawn; a track that nobody described gets a place of its own."""
        place = self._places.get(track)
        if place is None:
            place = self._places[track] = _Place(self._new_id(), self._new_id(), "unknown track")
        if lane > 0:
            place = _Place(place.pid, self._new_id(), f"{place.name} (overlap {lane})")
            self._name("thread_name", place.pid, place.tid, {"name": place.name})
        return place.members()

    def _write_counters(self) -> None:
        frames = {track.key: self._counter_frame(track) for track in drawn_tracks.counter_tracks(self._trace)}
        for table in COUNTED:
            with self._trace.cursor() as connection:
                rows = connection.sql(f"FROM {table} ORDER BY key, ts_ns")
                self._lines.counters(rows, zero_ns=self._zero_ns, frame=frames.get)

    def _counter_frame(self, track: drawn_tracks.CounterTrack) -> tuple[str, str]:
        """What stands before the time of a value, and between it and the value."""
        place = self._lane(-1 if track.parent is None else track.parent, 0)
        name, unit = json.dumps(track.name), json.dumps(track.unit or "value")
        return f'{{"ph":"C",{place},"ts":', f',"name":{name},"args":{{{unit}:'
