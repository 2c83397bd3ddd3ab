"""What a packet sequence of a Perfetto trace remembers from packet to packet: interned texts, defaults, clocks.

https://perfetto.dev/docs/reference/synthetic-track-event#incremental-state
"""

from collections.abc import Iterator
from collections.abc import Sequence as Several
from typing import Any

from ral_trace.tracer.importers.perfetto_clocks import Clocks, SequenceClocks
from ral_trace.tracer.importers.perfetto_texts import Texts
from ral_trace.tracer.importers.perfetto_tracks import Place, Tracks

INTERNED = ("event_categories", "event_names", "debug_annotation_names", "debug_annotation_string_values")
MAX_DEPTH = 32
"""Of what annotations hold."""


class Sequence:
    """One `trusted_packet_sequence_id`."""

    def __init__(self, number: int, clocks: Clocks, text: Texts) -> None:
        self.number = number
        self.valid = True
        """Whether what it remembers is whole: false from a lost packet to the next clearing."""
        self._all_clocks = clocks
        self._text = text
        self._thread: tuple[int, int] | None = None
        """Process and thread of events that name no track, in traces from before there were tracks."""
        self._thread_us = 0
        self.clear()

    def clear(self) -> None:
        """Forgets what was interned, and the defaults."""
        self.valid = True
        self._interned: dict[str, dict[int, str]] = {kind: {} for kind in INTERNED}
        self._defaults: Any = None
        self._clocks = SequenceClocks(self._all_clocks)

    def learn(self, packet: Any) -> None:
        """Takes note of all but the packet's own event."""
        if packet.HasField("clock_snapshot"):
            self._clocks.learn(packet.clock_snapshot)
        if packet.HasField("trace_packet_defaults"):
            self._defaults = packet.trace_packet_defaults
        if packet.HasField("interned_data"):
            for kind in INTERNED:
                for entry in getattr(packet.interned_data, kind):
                    self._interned[kind][entry.iid] = self._text(entry.str if hasattr(entry, "str") else entry.name)
        thread = packet.thread_descriptor if packet.HasField("thread_descriptor") else None
        if thread is None and packet.HasField("track_descriptor") and packet.track_descriptor.HasField("thread"):
            thread = packet.track_descriptor.thread if packet.track_descriptor.thread.reference_timestamp_us else None
        if thread is not None:
            self._thread = (thread.pid, thread.tid)
            self._thread_us = thread.reference_timestamp_us

    def trace_ns(self, packet: Any) -> int | None:
        """When a packet is, in the trace's own clock; to be called for each packet in order. None: not known."""
        if packet.HasField("timestamp"):
            clock = packet.timestamp_clock_id
            if not clock and self._defaults is not None:
                clock = self._defaults.timestamp_clock_id
            return self._clocks.to_trace(clock or self._all_clocks.trace_clock, packet.timestamp)
        event = packet.track_event
        if event.HasField("timestamp_absolute_us"):
            return int(event.timestamp_absolute_us * 1000)
        if event.HasField("timestamp_delta_us"):
            self._thread_us += event.timestamp_delta_us
            return self._thread_us * 1000
        return None

    def track_of(self, event: Any) -> Any:
        """The uuid of an event's track; None: that of the thread of which the sequence is."""
        if event.HasField("track_uuid"):
            return event.track_uuid
        if self._defaults is not None and self._defaults.track_event_defaults.HasField("track_uuid"):
            return self._defaults.track_event_defaults.track_uuid
        return None

    def nesting_key(self, event: Any, uuid: Any) -> Any:
        """What names the stack on which an event's slice lies."""
        legacy = event.legacy_event if event.HasField("legacy_event") else None
        if legacy is not None:
            for kind in ("unscoped_id", "local_id", "global_id"):
                if legacy.HasField(kind):
                    return (kind, getattr(legacy, kind), legacy.id_scope, self.category_of(event))
        if uuid is not None:
            return uuid
        return ("thread", self.number, *self._thread_of(event))

    def place(self, event: Any, uuid: Any, tracks: Tracks) -> Place:
        """Where an event is."""
        thread = self._thread_of(event)
        legacy = event.legacy_event if event.HasField("legacy_event") else None
        overridden = legacy is not None and (legacy.pid_override or legacy.tid_override)
        if uuid is not None and not overridden:
            return tracks.place(uuid)
        if thread == (0, 0):
            return tracks.place(0)
        process = tracks.process(thread[0])
        return Place(process, tracks.thread(*thread, process))

    def _thread_of(self, event: Any) -> tuple[int, int]:
        pid, tid = self._thread or (0, 0)
        if event.HasField("legacy_event"):
            return event.legacy_event.pid_override or pid, event.legacy_event.tid_override or tid
        return pid, tid

    def name_of(self, event: Any) -> str:
        """Of a slice or a point; empty: it has none."""
        if event.HasField("name"):
            return self._text(event.name)
        number = event.name_iid or (event.legacy_event.name_iid if event.HasField("legacy_event") else 0)
        return self._interned["event_names"].get(number, "")

    def category_of(self, event: Any) -> str:
        """All its categories, joined by commas."""
        known = self._interned["event_categories"]
        return ",".join(
            [*(known.get(number, "") for number in event.category_iids), *map(self._text, event.categories)]
        )

    def annotations_of(self, event: Any) -> dict[str, Any]:
        """Debug annotations by name, as JSON would hold them."""
        return {self._annotation_name(one): self._value(one, 0) for one in event.debug_annotations}

    def _annotation_name(self, annotation: Any) -> str:
        return self._text(annotation.name or self._interned["debug_annotation_names"].get(annotation.name_iid, ""))

    def _value(self, annotation: Any, depth: int) -> Any:
        if depth == MAX_DEPTH:
            return None
        if annotation.dict_entries:
            return {self._annotation_name(one): self._value(one, depth + 1) for one in annotation.dict_entries}
        if annotation.array_values:
            return [self._value(one, depth + 1) for one in annotation.array_values]
        kind = annotation.WhichOneof("value")
        if kind == "string_value_iid":
            return self._interned["debug_annotation_string_values"].get(annotation.string_value_iid)
        if kind == "nested_value":
            return self._nested(annotation.nested_value, depth)
        value = None if kind is None else getattr(annotation, kind)
        return self._text(value) if isinstance(value, bytes) else value

    def extra_counters(self, event: Any) -> Iterator[tuple[Several[float], Several[int]]]:
        """Values of further counters that come with an event, and their tracks."""
        defaults = self._defaults.track_event_defaults if self._defaults is not None else None
        if event.extra_counter_values:
            own = event.extra_counter_track_uuids
            yield event.extra_counter_values, own or (defaults.extra_counter_track_uuids if defaults else ())
        if event.extra_double_counter_values:
            own = event.extra_double_counter_track_uuids
            yield (
                event.extra_double_counter_values,
                own or (defaults.extra_double_counter_track_uuids if defaults else ()),
            )

    def _nested(self, value: Any, depth: int) -> Any:
        """DebugAnnotation.NestedValue, of older traces."""
        if depth == MAX_DEPTH:
            return None
        if value.dict_keys:
            members = zip(value.dict_keys, value.dict_values, strict=False)
            return {self._text(key): self._nested(member, depth + 1) for key, member in members}
        if value.array_values:
            return [self._nested(member, depth + 1) for member in value.array_values]
        kind = next(
            (kind for kind in ("int_value", "double_value", "bool_value", "string_value") if value.HasField(kind)), ""
        )
        found = getattr(value, kind) if kind else None
        return self._text(found) if isinstance(found, bytes) else found
