"""PyTorch's memory snapshots: `torch.cuda.memory._dump_snapshot`, and those of other devices in the same form.

A snapshot says two things of each device: what its allocator did (`device_traces`, a ring of the last events) and what
there was when it was taken (`segments` with their blocks). Forms: torch/cuda/memory.py (`_snapshot`) and
torch/csrc/cuda/memory_snapshot.cpp; how their own viewer reads them: torch/utils/viz/MemoryViz.js.

What is in use at the end and in no event was there before the recording began. A free without its alloc was, too: the
ring keeps the newest events only.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.opening import Head
from ral_trace.tracer.importers.plain_pickle import AGAIN, read_pickle, without_collections
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.importers.snapshot_annotations import add_annotations
from ral_trace.tracer.importers.snapshot_device import DeviceHistory, Place
from ral_trace.tracer.importers.snapshot_fields import Stacks, integer, texts
from ral_trace.tracer.importers.snapshot_times import EPOCH, Times, times_of

FORMAT = "PyTorch memory snapshot"

BINARY_PICKLE = re.compile(rb"\x80[\x02-\x05]")
TEXT_PICKLE = re.compile(rb"c[A-Za-z_][\w.]*\n[\w.]+\n|\((?:[dli](?:p?\d*\n|\b)|[SVI].*\n)|\]q|\}q")
MOST_DEVICES = 1 << 15
OWN_KEY = "ral_trace"
"""Of what `exporters/snapshot.py` adds to say more of devices than the format does."""


def sniff(head: Head) -> float:
    """1 for a pickle that begins with the keys of a snapshot; less for any pickle, so that a refusal says why."""
    if BINARY_PICKLE.match(head.data):
        return 1.0 if b"segments" in head.data or b"device_traces" in head.data else 0.5
    return 0.3 if TEXT_PICKLE.match(head.data) else 0.0


def read(path: Path, rows: Rows) -> None:
    """Adds the devices, events, blocks and regions of a snapshot. Raises InputRefused."""
    with without_collections():
        _read(path, rows)


def _read(path: Path, rows: Rows) -> None:
    value, size_bytes = read_pickle(path, rows)
    snapshot = _Snapshot.of(path, value, size_bytes)
    times = times_of(rows, snapshot.traces)
    rows.facts |= {"clock_zero": "unix epoch" if times.zero == EPOCH else "file", "producer": snapshot.producer}
    if times.zero == EPOCH:
        rows.facts["clock_offset_ns"] = 0
    stacks = Stacks(path, rows, most_frames=size_bytes)
    places = _places(rows, snapshot, times)
    used = 0
    for index, place in places.items():
        history = DeviceHistory(rows, place, stacks, snapshot.segments_of(index), rounded=snapshot.rounded)
        used += history.add(snapshot.traces.get(index, []), times.of_device.get(index, []), times.begin_ns)
    used += add_annotations(rows, snapshot.annotations, places)
    if not used and snapshot.entries:
        raise InputRefused(path, "holds nothing that could be read as an event or a segment", AGAIN)
    if not any(snapshot.traces.values()):
        rows.bad("no history: it was not recorded; begin with torch.cuda.memory._record_memory_history()", count=0)


@dataclass(frozen=True)
class _Snapshot:
    """The parts of a snapshot, each of the right type; what is in them may not be."""

    segments: Sequence[Any] = ()
    traces: Mapping[int, Sequence[Any]] = field(default_factory=dict)
    """By device."""
    annotations: Sequence[Any] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    own: Mapping[str, Any] | None = None
    entries: int = 0
    """All that is listed in it: events, segments, blocks."""

    @classmethod
    def of(cls, path: Path, value: object, size_bytes: int) -> "_Snapshot":
        # The oldest form is the list of segments alone.
        found = {"segments": value} if isinstance(value, list) else value
        if not isinstance(found, dict) or not {"segments", "device_traces"} & found.keys():
            raise InputRefused(path, "is a pickle, but of no memory snapshot", AGAIN)
        segments, traces = found.get("segments", []), found.get("device_traces", [])
        if not isinstance(segments, list) or not isinstance(traces, list | tuple):
            raise InputRefused(path, "is damaged (its segments or device_traces are no list)", AGAIN)
        lists = {index: trace for index, trace in enumerate(traces) if isinstance(trace, list | tuple)}
        if len(lists) < len(traces) or len(traces) > MOST_DEVICES:
            raise InputRefused(path, "is damaged (its device_traces are no lists of events)", AGAIN)
        entries = sum(map(len, lists.values())) + len(segments) + sum(len(_blocks(segment)) for segment in segments)
        annotations, settings, own = (found.get(key) for key in ("external_annotations", "allocator_settings", OWN_KEY))
        annotations = annotations if isinstance(annotations, list) else []
        if entries + len(annotations) > size_bytes:
            # One list may stand in many places; no recording writes that.
            raise InputRefused(path, f"lists {entries} entries, more than its bytes can hold", AGAIN)
        return cls(
            segments, lists, annotations, settings if isinstance(settings, dict) else {},
            own if isinstance(own, dict) else None, entries,
        )  # fmt: skip

    def segments_of(self, index: int) -> list[Mapping[str, Any]]:
        return [segment for segment in self.segments if _device_of(segment) == index]

    @property
    def rounded(self) -> bool:
        """Whether the sizes of events are those of blocks; PyTorch's own events have what was asked for."""
        return self.own is not None or "RAL_ALLOC_CONF" in self.settings

    @property
    def producer(self) -> str:
        said = [f"{key}={text}" for key, text in texts(self.settings) if key.endswith("ALLOC_CONF") and text]
        return ", ".join(["torch.cuda.memory" if not self.rounded else "ral-trace", *said])

    def devices(self) -> list[int]:
        """Of all that is listed; a device of which nothing is known is none."""
        named = {index for index, trace in self.traces.items() if trace}
        named |= {index for segment in self.segments if (index := _device_of(segment)) is not None}
        if self.own is not None:
            named |= {row["position"] for row in _own_rows(self.own, "devices")}
        return sorted(named)


def _blocks(segment: Any) -> Sequence[Any]:
    blocks = segment.get("blocks", []) if isinstance(segment, dict) else []
    return blocks if isinstance(blocks, list) else []


def _device_of(segment: Any) -> int | None:
    """The device of a segment; forms from before there were several have none, which is the first."""
    return integer(segment, "device", 0, MOST_DEVICES, missing=0) if isinstance(segment, dict) else None


def _places(rows: Rows, snapshot: _Snapshot, times: Times) -> dict[int, Place]:
    """A device and its process for each number of a device; the process is not known by more than that."""
    own = {row["position"]: row for row in _own_rows(snapshot.own or {}, "devices")}
    processes = {row["position"]: row for row in _own_rows(snapshot.own or {}, "processes")}
    places = {}
    for index in snapshot.devices():
        said = own.get(index, {})
        number = integer(said, "process", 0, MOST_DEVICES, missing=0)
        of_process = processes.get(number, {})
        process = rows.process(
            number,
            started_ns=times.begin_ns,
            pid=integer(of_process, "pid", 0, 2**63 - 1),
            rank=integer(of_process, "rank", 0, 2**31 - 1),
            **{key: text for key, text in texts(of_process) if key in ("name", "host", "command_line")},
        )
        type = said.get("type") if isinstance(said.get("type"), str) else None
        device = rows.device(
            process,
            type or ("ral" if snapshot.rounded else "cuda"),
            integer(said, "index", 0, 2**31 - 1) if "index" in said else index,
            memory_bytes=integer(said, "memory_bytes", 0, 2**63 - 1),
            **{key: text for key, text in texts(said) if key in ("vendor", "name")},
        )
        places[index] = Place(process, device)
    return places


def _own_rows(own: Mapping[str, Any], key: str) -> Iterator[dict[str, Any]]:
    listed = own.get(key)
    for row in listed if isinstance(listed, list) else []:
        if isinstance(row, dict) and integer(row, "position", 0, MOST_DEVICES) is not None:
            yield row
