"""Track events of a Perfetto trace: slices from their begins and ends, points, counters, arrows.

https://perfetto.dev/docs/reference/trace-packet-proto#TrackEvent
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent

from ral_trace.tracer.forms import ANNOTATED_COLUMNS, ANNOTATED_PLACES, MARK
from ral_trace.tracer.importers.args import args_text
from ral_trace.tracer.importers.perfetto_sequence import Sequence
from ral_trace.tracer.importers.perfetto_tracks import Place, Tracks
from ral_trace.tracer.importers.rows import LIMIT, Frame, Rows
from ral_trace.tracer.schema import FLAGS, KINDS

MAX_OPEN = 4096
"""Slices open at one time on one track; Perfetto's own reader takes 255."""
OUR_COLUMNS = ("event", *ANNOTATED_COLUMNS, "line", *ANNOTATED_PLACES)
"""Debug annotations of a trace of ours that are columns of `event`; `event`, its id there, tells a row of ours."""
UNFINISHED = FLAGS["UNFINISHED"]
PHASES = {ord("B"): 1, ord("E"): 2, ord("b"): 1, ord("e"): 2, ord("I"): 3, ord("i"): 3, ord("n"): 3, ord("R"): 3}
"""Phases of Chrome's JSON, in legacy events: what they are among TrackEvent's types."""


@dataclass(slots=True)
class Slice:
    """A slice or a point on its way. `event` is its id, once it has one."""

    place: Place
    name: str
    category: str
    ts_ns: int
    args: dict[str, Any]
    event: int | None = None
    arrows: list[tuple["Slice", "Slice"]] = field(default_factory=list)
    """Those that wait for the id of this one."""


class Events:
    """Turns track events into rows. `zero_ns` is added to all times."""

    def __init__(self, rows: Rows, tracks: Tracks, zero_ns: int) -> None:
        self._rows = rows
        self._tracks = tracks
        self._zero_ns = zero_ns
        self._open: dict[Any, deque[Slice]] = {}
        self._flows: dict[int, Slice] = {}
        self._counts: dict[int, float] = {}

    def add(self, event: Any, sequence: Sequence, trace_ns: int) -> None:
        """Takes the next track event of a sequence, at a time of the trace's own clock."""
        ts_ns = trace_ns + self._zero_ns
        if not -LIMIT < ts_ns < LIMIT:
            self._rows.bad("events at a time that no clock shows: left out", f"{ts_ns} ns")
            return
        uuid = sequence.track_of(event)
        kind = event.type
        if event.HasField("legacy_event") and kind == TrackEvent.TYPE_UNSPECIFIED:
            if event.legacy_event.phase == ord("X"):
                self._complete(event, sequence, uuid, ts_ns)
                return
            kind = PHASES.get(event.legacy_event.phase, TrackEvent.TYPE_UNSPECIFIED)
        key = sequence.nesting_key(event, uuid)
        if kind == TrackEvent.TYPE_SLICE_BEGIN:
            self._begin(key, self._slice(event, sequence, uuid, ts_ns))
        elif kind == TrackEvent.TYPE_SLICE_END:
            self._end(key, event, sequence, ts_ns)
        elif kind == TrackEvent.TYPE_INSTANT:
            if sequence.category_of(event) == MARK and "fallback" in sequence.annotations_of(event):
                return
            self._emit(self._slice(event, sequence, uuid, ts_ns), None, point=True)
        elif kind == TrackEvent.TYPE_COUNTER:
            self._count(event, uuid, ts_ns)
        else:
            self._rows.bad("track events of a type that is not read", f"type {event.type}")
        self._extra_counts(event, sequence, ts_ns)

    def finish(self) -> None:
        """Keeps slices that never ended, as such."""
        for stack in self._open.values():
            while stack:
                self._emit(stack.pop(), None, flags=UNFINISHED)

    def _slice(self, event: Any, sequence: Sequence, uuid: Any, ts_ns: int) -> Slice:
        place = sequence.place(event, uuid, self._tracks)
        one = Slice(place, sequence.name_of(event), sequence.category_of(event), ts_ns, sequence.annotations_of(event))
        self._link(one, event)
        return one

    def _begin(self, key: Any, one: Slice) -> None:
        stack = self._open.setdefault(key, deque())
        stack.append(one)
        if len(stack) > MAX_OPEN:
            self._emit(stack.popleft(), None, flags=UNFINISHED)

    def _end(self, key: Any, event: Any, sequence: Sequence, ts_ns: int) -> None:
        stack = self._open.get(key)
        if not stack:
            self._rows.bad("ends of slices that never began: left out", f"at {ts_ns} ns")
            return
        ended = stack.pop()
        ended.args.update(sequence.annotations_of(event))
        self._link(ended, event)
        self._emit(ended, ts_ns - ended.ts_ns)

    def _complete(self, event: Any, sequence: Sequence, uuid: Any, ts_ns: int) -> None:
        legacy = event.legacy_event
        known = legacy.HasField("duration_us")
        one = self._slice(event, sequence, uuid, ts_ns)
        self._emit(one, legacy.duration_us * 1000 if known else None, flags=0 if known else UNFINISHED)

    def _emit(self, one: Slice, dur_ns: int | None, *, flags: int = 0, point: bool = False) -> None:
        columns = self._ours(one) if _is_ours(one) else None
        if columns is None:
            kind = "instant" if point else "annotation"
            columns = {"kind": kind, "category": one.category or None, "args": args_text(one.args)}
            columns |= {"thread": one.place.thread, "device": one.place.device, "stream": one.place.stream}
        kind = columns.pop("kind")
        dur_ns = 0 if kind == "instant" and dur_ns is None and not flags else dur_ns
        one.event = self._rows.event(
            kind, one.name or None, one.ts_ns, dur_ns, one.place.process, flags=flags, **columns
        )
        one.args = {"kind": kind, "correlation": columns.get("correlation")}
        arrows, one.arrows = one.arrows, []
        for begin, end in arrows:
            self._connect(begin, end)

    def _ours(self, one: Slice) -> dict[str, Any]:
        """The columns of a row that our exporter wrote."""
        args, place = one.args, one.place
        known = {key: args.pop(key) for key in OUR_COLUMNS if key in args}
        on = self._tracks.ours.row("stream", known.get("on_stream")) or self._tracks.ours.row(
            "device", known.get("on_device")
        )
        if place.device is None and on is not None:
            place = Place(place.process, place.thread, on.device, on.stream)
        category = known.get("category")
        return {
            "kind": one.category,
            "category": category if isinstance(category, str) else None,
            "thread": place.thread,
            "device": place.device,
            "stream": place.stream,
            "stack": self._rows.stack(_frames(known.get("line"))),
            "args": args_text(args),
            **{key: known[key] for key in ("bytes", "step", "correlation") if type(known.get(key)) is int},
        }

    def _link(self, one: Slice, event: Any) -> None:
        """Arrows go from each slice with an id to the next one with the same, until one terminates it."""
        for number in (*event.flow_ids, *event.flow_ids_old):
            before = self._flows.get(number)
            if before is not None and before is not one:
                self._connect(before, one)
            self._flows[number] = one
        for number in (*event.terminating_flow_ids, *event.terminating_flow_ids_old):
            before = self._flows.pop(number, None)
            if before is not None and before is not one:
                self._connect(before, one)

    def _connect(self, begin: Slice, end: Slice) -> None:
        waits = next((one for one in (begin, end) if one.event is None), None)
        if waits is not None:
            waits.arrows.append((begin, end))
        elif begin.event is not None and end.event is not None:
            kind = _flow_kind(begin, end, self._tracks.ours.flow_kinds)
            if kind is not None:
                self._rows.flow(kind, begin.event, end.event)

    def _count(self, event: Any, uuid: Any, ts_ns: int) -> None:
        whole = event.HasField("counter_value")
        if not whole and not event.HasField("double_counter_value"):
            self._rows.bad("counter events without a value: left out", f"at {ts_ns} ns")
            return
        self._value(uuid, ts_ns, event.counter_value if whole else event.double_counter_value)

    def _extra_counts(self, event: Any, sequence: Sequence, ts_ns: int) -> None:
        for values, uuids in sequence.extra_counters(event):
            if len(values) > len(uuids):
                self._rows.bad("extra counter values without a track: left out", count=len(values) - len(uuids))
            for value, uuid in zip(values, uuids, strict=False):
                self._value(uuid, ts_ns, value)

    def _value(self, uuid: Any, ts_ns: int, value: float) -> None:
        if not isinstance(uuid, int):
            self._rows.bad("counter events without a track: left out", f"at {ts_ns} ns")
            return
        counter = self._tracks.counter(uuid)
        if counter is None:
            return
        descriptor = self._tracks.descriptor(uuid)
        if descriptor is not None and descriptor.HasField("counter"):
            if descriptor.counter.is_incremental:
                value = self._counts[uuid] = self._counts.get(uuid, 0) + value
            value *= descriptor.counter.unit_multiplier or 1
        self._rows.value(counter, ts_ns, value)


def _is_ours(one: Slice) -> bool:
    return type(one.args.get("event")) is int and one.category in KINDS


def _frames(line: Any) -> list[Frame]:
    """The innermost frame, from `file:line`: all that a trace of ours says of a stack."""
    file, _, number = line.rpartition(":") if isinstance(line, str) else ("", "", "")
    return [(file, int(number), None)] if file and number.isascii() and number.isdigit() and len(number) < 10 else []


def _flow_kind(begin: Slice, end: Slice, known: Mapping[tuple[str, str], str]) -> str | None:
    """None for arrows of ours that follow from the rows: from an op to its launches, and what a launch started."""
    kinds = (begin.args["kind"], end.args["kind"])
    if {begin.args["correlation"], end.args["correlation"]} != {None} or "op" in kinds:
        correlated = begin.args["correlation"] == end.args["correlation"] and "launch" in kinds
        if correlated or kinds in (("op", "launch"), ("launch", "op")):
            return None
    return known.get(kinds) or known.get(kinds[::-1]) or "flow"
