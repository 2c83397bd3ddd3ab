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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ral_trace.tracer import _native
from ral_trace.tracer.exporters import drawn, drawn_counters, drawn_tracks
from ral_trace.tracer.exporters.output import MAX_NS, Selection, Window, create_packed, cut_note, select
from ral_trace.tracer.forms import JSON_VERSION
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.schema import SCHEMA_VERSION, TABLES, Table

FORMAT = "ral-trace JSON"
ENDINGS: tuple[str, ...] = (".json", ".json.gz")

MADE_UP_ID = 10_000_000
"""The first pid and tid given out to tracks that have none of their own; Linux gives out none above 2**22."""
ROWS_AT_ONCE = 20_000


def write(trace: Trace, out: Path, window: Window) -> None:
    """Writes the trace to `out`, compressed where the output's name ends in .gz. Raises duckdb.Error, OSError."""
    selection = select(trace, window)
    with create_packed(out) as file:
        _write_document(trace, file, selection)


def _write_document(trace: Trace, file: IO[bytes], selection: Selection) -> None:
    zero_ns = _zero_ns(trace, selection)
    head = {"format": JSON_VERSION, "schema_version": SCHEMA_VERSION, "zero_ns": zero_ns}
    file.write(f'{{"ralTrace":{json.dumps(head, separators=(",", ":"))[:-1]},"tables":{{\n'.encode())
    conditions = selection.tables()
    for table in TABLES:
        file.write(f'"{table.name}":[\n'.encode())
        _write_lines(file, _rows_of(trace, table, conditions.get(table.name, "true"), selection))
        file.write(b"\n],\n" if table is not TABLES[-1] else b"\n]}},\n")
    file.write(b'"displayTimeUnit":"ns",\n"traceEvents":[\n')
    _write_lines(file, _ViewerEvents(trace, selection, zero_ns).chunks())
    file.write(b"\n]}\n")


def _write_lines(file: IO[bytes], chunks: Iterator[list[str]]) -> None:
    """Writes the elements of an array, a line each, with commas between them."""
    first = True
    for chunk in chunks:
        if chunk:
            file.write(("" if first else ",\n").encode() + ",\n".join(chunk).encode())
            first = False


def _zero_ns(trace: Trace, selection: Selection) -> int:
    """The earliest time that is drawn: viewers know no negative ones, and small numbers are exact in float64."""
    values = (
        f"({drawn_counters.device_values_sql(selection)}) UNION ALL ({drawn_counters.source_values_sql(selection)})"
    )
    [(first,)] = trace.sql(f"SELECT min(ts_ns) FROM ({values})").fetchall()
    begin = selection.first_ns
    return begin if first is None else min(begin, int(first) + selection.shift_ns)


def _rows_of(trace: Trace, table: Table, condition: str, selection: Selection) -> Iterator[list[str]]:
    """The rows of a table as JSON objects, in chunks."""
    names = ", ".join(f'"{column}"' for column in table.columns)
    rows = f"SELECT {names} FROM {table.name} WHERE {condition}"
    if table.name == "quality":
        rows += cut_note(selection)
    texts = ", ".join(_member(column, kind) for column, (kind, _) in table.columns.items())
    order = f"ORDER BY {table.sort}" if table.sort else ""
    with trace.cursor() as connection:
        found = connection.execute(f"SELECT '{{' || concat_ws(',', {texts}) || '}}' FROM ({rows}) {order}")
        while chunk := found.fetchmany(ROWS_AT_ONCE):
            yield [text for (text,) in chunk]


def _member(column: str, kind: str) -> str:
    """SQL: one member of an object, `"name":value`; NULL where the value is NULL."""
    value = f'"{column}"'
    if kind == "DOUBLE":
        text = f"CASE WHEN isfinite({value}) THEN to_json({value}) ELSE to_json({value}::VARCHAR) END"
    elif kind in ("JSON", "event_kind"):
        text = f"to_json({value}::VARCHAR)"
    else:
        text = f"to_json({value})"
    return f"CASE WHEN {value} IS NOT NULL THEN '\"{column}\":' || ({text})::VARCHAR END"


def _microseconds(value: str) -> str:
    """SQL: nanoseconds as text in microseconds, exactly."""
    return f"(({value}) // 1000)::VARCHAR || '.' || lpad((({value}) % 1000)::VARCHAR, 3, '0')"


@dataclass(frozen=True)
class _Place:
    """Where viewers draw a track."""

    pid: int
    tid: int
    name: str


class _ViewerEvents:
    """The elements of `traceEvents`."""

    def __init__(self, trace: Trace, selection: Selection, zero_ns: int) -> None:
        self._trace = trace
        self._selection = selection
        self._zero = zero_ns - selection.shift_ns
        self._made_up = MADE_UP_ID
        self._lanes = _native.TrackLanes()
        self._lane_places: dict[tuple[int, int], _Place] = {}
        self._names: list[str] = []
        self._places = self._place_tracks()

    def chunks(self) -> Iterator[list[str]]:
        """All elements, in chunks of JSON texts."""
        yield self._take_names()
        yield from self._slices()
        yield from self._counters()

    def _new_id(self) -> int:
        self._made_up += 1
        return self._made_up

    def _take_names(self) -> list[str]:
        names, self._names = self._names, []
        return names

    def _name(self, what: str, pid: int, tid: int, args: dict[str, Any]) -> None:
        self._names.append(json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}))

    def _place_tracks(self) -> dict[int, _Place]:
        places: dict[int, _Place] = {}
        for order, track in enumerate(drawn_tracks.tracks(self._trace)):
            above = None if track.parent is None else places.get(track.parent)
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
            places[track.key] = place
        return places

    def _lane(self, track: int, lane: int) -> _Place:
        """The place of a lane of a track; a track that nobody described gets one of its own."""
        found = self._lane_places.get((track, lane))
        if found is None:
            base = self._places.get(track) or _Place(self._new_id(), self._new_id(), "unknown track")
            found = base
            if lane > 0:
                found = _Place(base.pid, self._new_id(), f"{base.name} (overlap {lane})")
                self._name("thread_name", found.pid, found.tid, {"name": found.name})
            self._lane_places[track, lane] = found
        return found

    def _slices(self) -> Iterator[list[str]]:
        """Slices and points, and behind each the ends of its arrows."""
        start = f"start_ns - ({self._zero})"
        shown = " || ".join(
            ["'\"name\":' || to_json(name)", "',\"cat\":' || to_json(kind)", "',\"args\":{' || concat_ws(',', " +
             ", ".join(_member(column, "") for column in drawn.ANNOTATIONS) + ") || '}'"]
        )  # fmt: skip
        query = f"""
            SELECT id, track, start_ns, CASE shape WHEN {drawn.SHAPE_SLICE} THEN dur_ns END AS dur_ns, shape,
                   {_microseconds(start)} AS ts, {_microseconds("dur_ns")} AS dur, {shown} AS shown
            FROM ({drawn.slices_sql(self._selection)})"""
        arrows = _Arrows(self._trace, self._selection)
        with self._trace.cursor() as connection:
            found = connection.execute(query)
            while rows := found.fetchmany(ROWS_AT_ONCE):
                lines = self._lines(rows, arrows)
                yield self._take_names()
                yield lines
        arrows.close()

    def _lines(self, rows: list[tuple[Any, ...]], arrows: "_Arrows") -> list[str]:
        lanes = self._lanes_of(rows)
        lines = []
        for (number, track, _, _, shape, ts, dur, shown), lane in zip(rows, lanes, strict=True):
            place = self._lane(track, lane)
            where = f'"pid":{place.pid},"tid":{place.tid},"ts":{ts}'
            if shape == drawn.SHAPE_SLICE:
                lines.append(f'{{"ph":"X",{where},"dur":{dur},{shown}}}')
            elif shape == drawn.SHAPE_OPEN:
                lines.append(f'{{"ph":"B",{where},{shown}}}')
            else:
                lines.append(f'{{"ph":"i","s":"t",{where},{shown}}}')
            for arrow, second in arrows.at(number) if number == arrows.event else ():
                phase = '"f","bp":"e"' if second else '"s"'
                lines.append(f'{{"ph":{phase},"id":{arrow},{where},"name":"flow","cat":"flow"}}')
        return lines

    def _lanes_of(self, rows: list[tuple[Any, ...]]) -> list[int]:
        """A lane for each slice; points need none."""
        lanes = np.zeros(len(rows), np.int64)
        long = [n for n, row in enumerate(rows) if row[4] != drawn.SHAPE_POINT]
        starts = [rows[n][2] for n in long]
        ends = [MAX_NS if rows[n][3] is None else min(rows[n][2] + rows[n][3], MAX_NS) for n in long]
        track = np.array([rows[n][1] for n in long], np.int64)
        lanes[long] = self._lanes.place(track, np.array(starts, np.int64), np.array(ends, np.int64))
        placed: list[int] = lanes.tolist()
        return placed

    def _counters(self) -> Iterator[list[str]]:
        frames = {track.key: self._counter_frame(track) for track in drawn_tracks.counter_tracks(self._trace)}
        for values in (
            drawn_counters.device_values_sql(self._selection),
            drawn_counters.source_values_sql(self._selection),
        ):
            ts = _microseconds(f"ts_ns - ({self._zero})")
            with self._trace.cursor() as connection:
                found = connection.execute(
                    f"SELECT key, {ts}, to_json(value)::VARCHAR FROM ({values}) ORDER BY key, ts_ns"
                )
                while rows := found.fetchmany(ROWS_AT_ONCE):
                    yield [
                        f"{frames[key][0]}{ts}{frames[key][1]}{value}}}}}" for key, ts, value in rows if key in frames
                    ]

    def _counter_frame(self, track: drawn_tracks.CounterTrack) -> tuple[str, str]:
        """What stands before the time of a value, and between it and the value."""
        place = self._lane(-1 if track.parent is None else track.parent, 0)
        name, unit = json.dumps(track.name), json.dumps(track.unit or "value")
        before = f'{{"ph":"C","pid":{place.pid},"tid":{place.tid},"ts":'
        return before, f',"name":{name},"args":{{{unit}:'


class _Arrows:
    """Walks the ends of arrows beside the slices, which come in the same order."""

    def __init__(self, trace: Trace, selection: Selection) -> None:
        self._open: set[int] = set()
        self._connection = trace.connection.cursor()
        self._connection.execute("USE trace")
        self._found = self._connection.execute(drawn.arrows_sql(selection))
        self._rows: Iterator[tuple[int, int]] = iter(())
        self._next: tuple[int, int] | None = None
        self._advance()

    def _advance(self) -> None:
        self._next = next(self._rows, None)
        if self._next is None:
            self._rows = iter(self._found.fetchmany(ROWS_AT_ONCE))
            self._next = next(self._rows, None)

    @property
    def event(self) -> int | None:
        """The next event that an arrow has an end at."""
        return None if self._next is None else self._next[0]

    def at(self, event: int) -> Iterator[tuple[int, bool]]:
        """The arrows that have an end at an event, each with whether the other end has been already."""
        while self._next is not None and self._next[0] == event:
            arrow = self._next[1]
            second = arrow in self._open
            (self._open.discard if second else self._open.add)(arrow)
            self._advance()
            yield arrow, second

    def close(self) -> None:
        """Ends the query."""
        self._connection.close()
