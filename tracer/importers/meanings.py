"""What the events of a scanned file are, decided once a label: their kind, category, place, and the step they state."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ral_trace.tracer import _native
from ral_trace.tracer.derive import DATA_LOADER, STEP_SOURCES
from ral_trace.tracer.importers.calls import SYNC_CALL, WORDS
from ral_trace.tracer.importers.kineto_devices import Spot
from ral_trace.tracer.importers.places import Places, Role
from ral_trace.tracer.importers.trace_events import INTEGERS, Label, Scan
from ral_trace.tracer.schema import KINDS

RECORDER = "PyTorch Profiler"
"""What the span of category Trace is called that covers the recording."""
MEMORY = "[memory]"
NO_EVENTS = set("EeFCstfM")
"""Phases whose events become no rows of their own."""
TYPES: dict[str, Any] = {
    "kind": np.uint8, "depth": np.uint8, "traits": np.uint8, "category": np.int32, "process": np.int32,
    "thread": np.int32, "device": np.int32, "stream": np.int32, "step": np.int64,
}  # fmt: skip
NAMED = [
    ("host_to_device", re.compile("HtoD|H2D|HostToDevice|M2D|Host *-> *Device")),
    ("device_to_host", re.compile("DtoH|D2H|DeviceToHost|D2M|Device *-> *Host")),
    ("device_to_device", re.compile("PtoP|P2P|PeerToPeer")),
    ("within_device", re.compile("DtoD|D2D|DeviceToDevice|Device *-> *Device")),
    ("memset", re.compile("[Mm]emset")),
]
"""Directions of copies, by their names."""
MOVES = re.compile("DMA|[Mm]em(cpy|set)")
OLD_STEP = "ProfilerStep#"
STATED = [(source, re.compile(pattern, re.ASCII)) for source, pattern in STEP_SOURCES]
OPTIMIZER = "Optimizer.step#"
NO_STEP = _native.TraceEvents.NO_STEP
MOST_DIGITS = 1000
"""Of a number that Python reads."""
MAY_BE_NEGATIVE = _native.TraceEvents.MAY_BE_NEGATIVE
CALL, SYNC_CALL_KIND, LEFT_OUT = (getattr(_native.TraceEvents, name) for name in ("CALL", "SYNC_CALL", "LEFT_OUT"))
NOTHING = (LEFT_OUT, 0, 0, -1, -1, -1, -1, -1, -1)
KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)} | {"call": CALL, "sync_call": SYNC_CALL_KIND}


class Meanings:
    """`columns` are those that _native.TraceEvents takes: a value a label."""

    def __init__(self, scan: Scan, places: Places, spots: dict[int, Spot]) -> None:
        self._places = places
        self._spots = spots
        self.categories: dict[str, int] = {}
        self.memory_groups: set[int] = set()
        """Groups with events of an allocator."""
        self.optimizer_steps: dict[int, int] = {}
        self._stating: dict[str, dict[int, int]] = {source: {} for source, _ in STATED}
        """Labels of annotations that say a step, by where they do: its number, or NO_STEP."""
        self.python_calls: list[int] = []
        self.backward = self._number("backward")
        meanings = [self._of(number, label) if label.rows else NOTHING for number, label in enumerate(scan.labels())]
        self.columns: dict[str, NDArray[Any]] = {
            name: np.array(values, kind)
            for (name, kind), values in zip(TYPES.items(), zip(*meanings, strict=True), strict=True)
        }
        self.stated_steps: dict[int, int] = next((found for found in self._stating.values() if found), {})
        """Labels of annotations that state steps, of the best source that there is."""
        self._mark_steps()

    def _number(self, category: str | None) -> int:
        return -1 if category is None else self.categories.setdefault(category, len(self.categories))

    def _of(self, number: int, label: Label) -> tuple[int, ...]:
        """The values of TYPES."""
        group = label.group
        process = self._places.process.get(group.number)
        if process is None:
            return (LEFT_OUT, 0, MAY_BE_NEGATIVE if label.name == MEMORY else 0, *NOTHING[3:])
        role = self._places.roles.get(group.number)
        spot = self._spots.get(number)
        works = spot is not None and spot.works
        traits = _traits(label, role)
        thread = -1 if works else self._places.thread.get(group.number, -1)
        if role is None or group.ph in NO_EVENTS or _is_recording(label, role):
            return (LEFT_OUT, 0, traits, -1, process, thread, -1, -1, -1)
        kind, category = _kind_of(label, role, works=works)
        if kind == "annotation":
            if category is None and (label.name or "").startswith(DATA_LOADER.rstrip("%")):
                category = "dataloader"
            if label.timed and label.name and (spot is None or spot.stream is None):
                self._find_step(number, label.name)
        if role is Role.PYTHON:
            self.python_calls.append(number)
        if traits & _native.TraceEvents.MEMORY:
            self.memory_groups.add(group.number)
        device, stream = (-1, -1) if spot is None else (spot.device, -1 if spot.stream is None else spot.stream)
        number_of_kind, depth = KIND_NUMBERS[kind], role.value.depth
        return number_of_kind, depth, traits, self._number(category), process, thread, device, stream, -1

    def _find_step(self, number: int, name: str) -> None:
        for source, pattern in STATED:
            if match := pattern.fullmatch(name):
                step = int(match[1]) if len(match[1]) < MOST_DIGITS else NO_STEP
                self._stating[source][number] = step if step in INTEGERS else NO_STEP
        if name.startswith(OPTIMIZER):
            self.optimizer_steps[number] = 0

    def _mark_steps(self) -> None:
        """Annotations that the file itself calls steps keep what they say, whatever states the others."""
        marked = self._number("step")
        own = {number for found in self._stating.values() for number in found
               if self.columns["category"][number] == marked}  # fmt: skip
        self.step_sources = set()
        for source, found in self._stating.items():
            for number, step in found.items():
                if number in self.stated_steps or number in own:
                    self.columns["category"][number] = marked
                    self.columns["step"][number] = step
                    self.step_sources.add(source)


def _traits(label: Label, role: Role | None) -> int:
    group, events = label.group, _native.TraceEvents
    traits: int = events.COUNTED if group.ph != "M" else 0
    if role is Role.INSTANT:
        traits |= events.POINT
    if role is Role.OP:
        traits |= events.OPERATOR
    if group.ph == "X":
        traits |= events.COMPLETE
    if role is None and group.ph in "stf":
        traits |= events.ARROW_END
    if label.name == MEMORY:
        traits |= MAY_BE_NEGATIVE
    if role is not None and _is_memory(label, role):
        traits |= events.MEMORY
    return traits


def _is_recording(label: Label, role: Role) -> bool:
    return role is Role.SPAN and (label.name is None or label.name.startswith(RECORDER))


def _is_memory(label: Label, role: Role) -> bool:
    return role is Role.INSTANT and label.name == MEMORY and label.fields.get("device_type") is not None


def _kind_of(label: Label, role: Role, *, works: bool) -> tuple[str, str | None]:
    """The kind ('call' and 'sync_call' are for `_native.TraceEvents` to tell) and the category."""
    kind, category, name = role.value.kind, role.value.category, label.name or ""
    match role:
        case Role.INSTANT:
            return kind, None if name == MEMORY else label.group.cat
        case Role.OLD_OP:
            step, _, number = name.partition(OLD_STEP)
            is_step = not step and number.isascii() and number.isdigit()
            return "annotation" if is_step else "op", None if name.startswith(OLD_STEP) else category
        case Role.COPY:
            return kind, _direction(name)
        case Role.CALL_OR_KERNEL:
            moves = "transfer" if MOVES.search(name) else "kernel"
            return moves if works else _call(name, waits=False), _direction(name)
        case Role.OTHER:
            return "kernel" if works else kind, label.group.cat
        case Role.CALL:
            return _call(name, waits=True), category
        case _:
            return kind, category


def _call(name: str, *, waits: bool) -> str:
    return "sync_call" if waits and any(word in name for word in WORDS) and SYNC_CALL.search(name) else "call"


def _direction(name: str) -> str | None:
    return next((direction for direction, pattern in NAMED if pattern.search(name)), None)
