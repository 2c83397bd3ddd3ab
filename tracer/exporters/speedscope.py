"""`.speedscope.json`: a flame graph over time for https://www.speedscope.app, a profile for each thread and stream.

Form: https://www.speedscope.app/file-format-schema.json, evented profiles. Times are nanoseconds from the first slice,
so that they are exact in JavaScript. Slices that overlap without nesting get profiles of their own; see `nested.py` for
what is left out."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ral_trace.tracer.exporters.nested import Nested, Step
from ral_trace.tracer.exporters.output import Window, create_private, select
from ral_trace.tracer.reading import Trace

FORMAT = "speedscope"
ENDINGS: tuple[str, ...] = (".speedscope.json",)

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(trace: Trace, out: Path, window: Window) -> None:
    """Writes the slices of a trace. Raises duckdb.Error, OSError."""
    nested = Nested(trace, select(trace, window))
    with create_private(out) as file:
        _Document(file, nested, trace.path.name).write()


class _Document:
    """The file; one profile after the other, then the frames that they share."""

    def __init__(self, file: IO[bytes], nested: Nested, name: str) -> None:
        self._file = file
        self._nested = nested
        self._name = name
        self._frames: dict[str, int] = {}
        self._profiles = 0

    def write(self) -> None:
        head = {"$schema": SCHEMA, "exporter": "ral-trace", "name": self._name, "activeProfileIndex": 0}
        self._put(f'{json.dumps(head)[:-1]}, "profiles": [\n')
        for track, steps in self._nested.tracks():
            self._write_track(track, steps)
        if not self._profiles:
            self._write_profile("no slices", [])
        frames = ",\n".join(json.dumps({"name": name}) for name in self._frames)
        self._put(f'\n], "shared": {{"frames": [\n{frames}\n]}}}}\n')

    def _write_track(self, track: int, steps: Iterator[Step]) -> None:
        """The events of the first lane go to the file as they come; those of further lanes, which are few, wait."""
        opened: dict[int, list[int]] = {}
        others: dict[int, list[str]] = {}
        name = " \u00b7 ".join(self._nested.path(track))
        self._begin(name)
        separator = ""
        for step in steps:
            frames = opened.setdefault(step.lane, [])
            if step.begins is not None:
                frames.append(self._frame(step.begins.name))
            kind, frame = ("C", frames.pop()) if step.begins is None else ("O", frames[-1])
            event = f'{{"type": "{kind}", "frame": {frame}, "at": {step.at_ns - self._nested.first_ns}}}'
            if step.lane == 0:
                self._put(separator + event)
                separator = ",\n"
            else:
                others.setdefault(step.lane, []).append(event)
        self._put("]}")
        for lane in sorted(others):
            self._write_profile(f"{name} (overlap {lane})", others[lane])

    def _write_profile(self, name: str, events: list[str]) -> None:
        self._begin(name)
        self._put(",\n".join(events) + "]}")

    def _begin(self, name: str) -> None:
        end = self._nested.last_ns - self._nested.first_ns
        head = {"type": "evented", "name": name, "unit": "nanoseconds", "startValue": 0, "endValue": end}
        separator = ",\n" if self._profiles else ""
        self._put(f'{separator}{json.dumps(head)[:-1]}, "events": [\n')
        self._profiles += 1

    def _frame(self, name: str) -> int:
        return self._frames.setdefault(name, len(self._frames))

    def _put(self, text: str) -> None:
        self._file.write(text.encode())
