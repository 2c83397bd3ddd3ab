"""Where the tracks of a Perfetto trace are: processes, threads, devices, streams, counters.

A track is a thread of the process above it, whether it is one (`thread` in its descriptor) or not. Tracks with no
process above them are those of the track at the top, whose name stands for a process. A trace of ours says itself
what its tracks are: `describe` in exporters/perfetto_places.py.
"""

import json
from dataclasses import dataclass
from typing import Any

from ral_trace.tracer.exporters.perfetto_places import PLACES_KEY
from ral_trace.tracer.importers.perfetto_texts import Texts
from ral_trace.tracer.importers.rows import INTEGER_TYPES, Rows
from ral_trace.tracer.schema import TABLES

MAX_ANCESTORS = 64
UNITS = {1: "ns", 2: "count", 3: "bytes"}
NO_PROCESS = "tracks of no process"
COLUMNS = {table.name: {column: kind for column, (kind, _) in table.columns.items()} for table in TABLES}


@dataclass(frozen=True)
class Place:
    """Ids of what a track shows."""

    process: int
    thread: int | None = None
    device: int | None = None
    stream: int | None = None


class Tracks:
    """The tracks of one trace. `learn` all packets that describe any, then ask."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._described: dict[int, Any] = {}
        self._process_names: dict[int, str] = {}
        self._command_lines: dict[int, str] = {}
        self._thread_names: dict[tuple[int, int], str] = {}
        self._places: dict[int, Place] = {}
        self._counters: dict[int, int] = {}
        self._series: dict[tuple[int | None, int | None, str], int] = {}
        self.ours = OurPlaces(rows)
        self._text = Texts(rows)

    def learn(self, packet: Any) -> None:
        """Takes note of what a packet says about tracks."""
        if packet.HasField("track_descriptor"):
            descriptor = packet.track_descriptor
            if descriptor.uuid in self._described:
                self._described[descriptor.uuid].MergeFrom(descriptor)
            else:
                self._described[descriptor.uuid] = descriptor
            self._learn_names(descriptor)
        elif packet.HasField("process_tree"):
            for process in packet.process_tree.processes:
                self._command_lines.setdefault(process.pid, " ".join(map(self._text, process.cmdline)))
            for thread in packet.process_tree.threads:
                self._thread_names.setdefault((thread.tgid, thread.tid), self._text(thread.name))
        elif packet.HasField("trace_attributes"):
            for attribute in packet.trace_attributes.attribute:
                if self._text(attribute.key) == PLACES_KEY:
                    self.ours.learn(self._text(attribute.string_value))

    def _learn_names(self, descriptor: Any) -> None:
        if descriptor.HasField("process"):
            process = descriptor.process
            self._process_names.setdefault(process.pid, self._text(process.process_name) or self._name(descriptor))
            self._command_lines.setdefault(process.pid, " ".join(map(self._text, process.cmdline)))
        if descriptor.HasField("thread"):
            thread = descriptor.thread
            self._thread_names.setdefault(
                (thread.pid, thread.tid), self._text(thread.thread_name) or self._name(descriptor)
            )

    def descriptor(self, uuid: int) -> Any | None:
        """What the trace says about a track, if anything."""
        return self._described.get(uuid)

    def place(self, uuid: int) -> Place:
        """Where a track's slices are."""
        found = self._places.get(uuid)
        if found is None:
            found = self._places[uuid] = self.ours.place(self._without_lane(uuid)) or self._made(uuid)
        return found

    def _without_lane(self, uuid: int) -> int:
        """The track whose further lane this is, in a trace of ours, else the track itself."""
        descriptor = self._described.get(uuid)
        above = None if descriptor is None else self._described.get(descriptor.parent_uuid)
        if descriptor is not None and above is not None and self.ours.known:
            main = next(
                (
                    name
                    for name in (
                        self._name(above),
                        self._text(above.thread.thread_name),
                        self._text(above.process.process_name),
                    )
                    if name
                ),
                "",
            )
            if self._name(descriptor).startswith(f"{main} (overlap "):
                return int(above.uuid)
        return uuid

    def _ancestors(self, uuid: int) -> list[Any]:
        """The track and those above it; a circle ends where it closes."""
        found: list[Any] = []
        while (descriptor := self._described.get(uuid)) is not None and len(found) < MAX_ANCESTORS:
            found.append(descriptor)
            uuid = descriptor.parent_uuid
        return found

    def _made(self, uuid: int) -> Place:
        line = self._ancestors(uuid)
        thread = next((track.thread for track in line if track.HasField("thread")), None)
        process = next((track.process for track in line if track.HasField("process")), None)
        pid = process.pid if process is not None else thread.pid if thread is not None else None
        if pid is not None:
            number = self.process(pid)
        elif len(line) > 1:
            number = self._rows.process(("track", line[-1].uuid), name=self._name(line[-1]) or NO_PROCESS)
        else:
            number = self._rows.process("none", name=NO_PROCESS)
        if line and line[0].HasField("thread"):
            return Place(number, self.thread(line[0].thread.pid, line[0].thread.tid, number))
        if line and line[0].HasField("process"):
            return Place(number)
        name = self._name(line[0]) if line else ""
        return Place(number, self._rows.thread(number, ("track", uuid), name=name or f"track {uuid}"))

    def _name(self, descriptor: Any) -> str:
        return self._text(descriptor.name or descriptor.static_name or descriptor.atrace_name)

    def process(self, pid: int) -> int:
        """The id of the process with a pid."""
        command = self._command_lines.get(pid) or None
        name = self._process_names.get(pid) or (command or "").split(" ")[0] or None
        return self._rows.process(("pid", pid), pid=pid, name=name, command_line=command)

    def thread(self, pid: int, tid: int, process: int | None = None) -> int:
        """The id of a thread of a process."""
        number = self.process(pid) if process is None else process
        return self._rows.thread(number, ("tid", pid, tid), tid=tid, name=self._thread_names.get((pid, tid)) or None)

    def counter(self, uuid: int) -> int | None:
        """The series that a counter track shows; None: one that follows from the other rows of a trace of ours."""
        if uuid not in self._counters:
            if self.ours.derived(uuid):
                return None
            ours = self.ours.counter(uuid)
            self._counters[uuid] = self._made_counter(uuid) if ours is None else ours
        return self._counters[uuid]

    def _made_counter(self, uuid: int) -> int:
        descriptor = self._described.get(uuid)
        parent = descriptor.parent_uuid if descriptor is not None else 0
        place = self.place(parent) if parent else self._made(uuid) if descriptor is not None else None
        unit = None
        name = f"track {uuid}"
        if descriptor is not None:
            name = self._name(descriptor) or name
            unit = UNITS.get(descriptor.counter.unit) or self._text(descriptor.counter.unit_name) or None
        process = place.process if place is not None else self._rows.process("none", name=NO_PROCESS)
        device = place.device if place is not None else None
        # Two tracks are two series, also where they have one name: of two threads, say.
        if self._series.setdefault((process, device, name), uuid) != uuid:
            name = f"{name} ({uuid})"
        return self._rows.counter(name, unit, process=None if device is not None else process, device=device)


class OurPlaces:
    """What a trace of ours says its tracks are; nothing, for any other. Untrusted, as all that is read."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._entries: dict[int, dict[str, Any]] = {}
        self._tracks: dict[tuple[Any, Any], int] = {}
        self.shift_ns = 0
        """What the exporter took away from all times."""
        self.flow_kinds: dict[tuple[str, str], str] = {}
        """By the kinds of origin and target."""
        self._places: dict[int, Place | None] = {}

    @property
    def known(self) -> bool:
        return bool(self._entries)

    def learn(self, text: str) -> None:
        """Takes the description, if it is one."""
        try:
            described = json.loads(text)
            entries = {number: dict(entry) for number, entry in enumerate(described["tracks"], 1)}
            shift_ns = int(described["shift_ns"])
            facts = _columns("source", described["source"])
            quality = [_columns("quality", row) for row in described["quality"]]
            flows = {(str(origin), str(target)): str(kind) for origin, target, kind in described["flows"]}
        except (ValueError, OverflowError, TypeError, KeyError, RecursionError) as error:
            self._rows.bad("descriptions of the tracks that are damaged: the tracks are taken as they are", error)
            return
        if self._entries:
            return
        self._entries, self.shift_ns, self.flow_kinds = entries, shift_ns, flows
        for uuid, entry in entries.items():
            row = entry.get("row")
            if isinstance(row, dict) and isinstance(row.get("id"), int) and isinstance(entry.get("table"), str):
                self._tracks[entry["table"], row["id"]] = uuid
        self._rows.facts.update({key: value for key, value in facts.items() if key not in ("id", "path", "format")})
        for row in quality:
            if isinstance(row.get("what"), str):
                self._rows.bad(row["what"], row.get("example"), count=row.get("count") or 0)

    def settle(self) -> None:
        """Makes the rows in the order in which they were, those without an event included."""
        for uuid in self._entries:
            self.place(uuid)

    def place(self, uuid: int) -> Place | None:
        """Where a track is; None: not said."""
        if uuid not in self._places:
            self._places[uuid] = self._made(uuid)
        return self._places[uuid]

    def _made(self, uuid: int) -> Place | None:
        line: list[tuple[int, dict[str, Any]]] = []
        entry: Any = self._entries.get(uuid)
        while isinstance(entry, dict) and len(line) < MAX_ANCESTORS:
            line.append((uuid, entry))
            above = entry.get("above")
            uuid = above if isinstance(above, int) else 0
            entry = self._entries.get(uuid)
        if not line or line[-1][1].get("table") != "process":
            return None
        ids: dict[str, int] = {}
        for number, described in reversed(line):
            self._add(number, described, ids)
        return Place(ids["process"], ids.get("thread"), ids.get("device"), ids.get("stream"))

    def _add(self, uuid: int, entry: dict[str, Any], ids: dict[str, int]) -> None:
        """Makes the row that an entry describes, beneath those that are made already."""
        table, rows = entry.get("table"), self._rows
        row = entry.get("row")
        columns = _columns(table, row) if isinstance(table, str) and isinstance(row, dict) else {}
        for refers in ("id", "source", "process", "device"):
            columns.pop(refers, None)
        if table == "process":
            ids[table] = rows.process(("ours", uuid), **columns)
        elif table == "thread" and "process" in ids:
            ids[table] = rows.thread(ids["process"], ("ours", uuid), **columns)
        elif table == "device" and "process" in ids:
            ids[table] = rows.device(ids["process"], columns.pop("type", None), columns.pop("index", None), **columns)
        elif table == "stream" and "device" in ids:
            ids[table] = rows.stream(ids["device"], columns.pop("number", None), **columns)

    def row(self, table: str, original: Any) -> Place | None:
        """Where a row is that had an id in the trace that was exported; None: not known."""
        uuid = self._tracks.get((table, original)) if type(original) is int else None
        return None if uuid is None else self.place(uuid)

    def derived(self, uuid: int) -> bool:
        """Whether a counter follows from other rows that the trace holds as well."""
        return self._entries.get(uuid, {}).get("derived") is True

    def counter(self, uuid: int) -> int | None:
        """The series of a counter track; None: not said."""
        entry = self._entries.get(uuid, {})
        row = entry.get("row")
        if entry.get("table") != "counter" or not isinstance(row, dict):
            return None
        columns = _columns("counter", row)
        above = entry.get("above")
        place = self.place(above) if isinstance(above, int) else None
        device = None if place is None else place.device
        process = None if place is None or (device is not None and "process" not in row) else place.process
        return self._rows.counter(
            str(columns.get("series", "counter")), columns.get("unit"), process=process, device=device
        )


def _columns(table: str, row: Any) -> dict[str, Any]:
    """Those of a row's members that are columns of a table, and of their types."""
    if not isinstance(row, dict):
        raise TypeError(f"a row of {table} is no object")
    kinds = COLUMNS.get(table, {})
    return {
        column: value
        for column, value in row.items()
        if (kinds.get(column) == "VARCHAR" and isinstance(value, str)) or _fits(value, kinds.get(column, ""))
    }


def _fits(value: Any, kind: str) -> bool:
    least, most = INTEGER_TYPES.get(kind, (1, 0))
    return type(value) is int and least <= value <= most
