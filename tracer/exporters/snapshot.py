"""`.pickle`: a memory snapshot for PyTorch's own viewer (pytorch.org/memory_viz) and `torch.cuda._memory_viz`.

The form is that of `torch.cuda.memory._snapshot()`. What it has no place for is beside it, under keys that the viewer
passes over and `importers/snapshot.py` reads: `ral_trace` (devices and their processes), `requested_size` and `op` of
an event. An event's `size` is what the block takes, so that the viewer's curve is that of the view memory_curve. Times
are cut to microseconds.

The viewer looks for each block in a segment. A block that lies in no region (host memory) gets a segment of its own,
marked `made_up`; where blocks reach over adjacent regions, the device's segments are expandable ones, which merge.
"""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.exporters.output import Selection, Window, create_private, select
from ral_trace.tracer.reading import Trace

FORMAT = "PyTorch memory snapshot"
ENDINGS: tuple[str, ...] = (".pickle",)

MOST_POSITIONS = 256
"""Devices keep their own numbers as long as the list of devices does not become longer than that."""
PROTOCOL = 4

Entry = dict[str, Any]


def write(trace: Trace, out: Path, window: Window) -> None:
    """Writes the devices' memory; of a window, what happened in it and what there was at its end.

    Raises UsageError, OSError.
    """
    if window.kinds:
        raise UsageError("--kind has no meaning for a .pickle, which shows memory alone; leave it out")
    selection = select(trace, window)
    stacks = _Stacks(trace)
    devices = _devices(trace, selection)
    traces: list[list[Entry]] = [[] for _ in range(1 + max((device.position for device in devices), default=-1))]
    segments: list[Entry] = []
    for device in devices:
        memory = _Memory(trace, device, stacks, selection)
        traces[device.position] = memory.entries()
        segments += memory.segments()
    snapshot = {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {},
        "external_annotations": [],
        "ral_trace": _own(trace, devices),
    }
    with create_private(out) as file:
        pickle.dump(snapshot, file, protocol=PROTOCOL)


@dataclass(frozen=True)
class _Device:
    row: Mapping[str, Any]
    position: int
    """In `device_traces`."""


def _devices(trace: Trace, selection: Selection) -> list[_Device]:
    """The chosen ones with blocks or regions. Their own numbers stay where they tell them apart."""
    rows = trace.rows(f"""
        SELECT * FROM device WHERE id IN (SELECT device FROM allocation UNION SELECT device FROM region)
        AND {selection.on("id")} ORDER BY id""")
    numbers = [row["index"] for row in rows]
    kept = len(set(numbers)) == len(numbers) and all(n is not None and 0 <= n < MOST_POSITIONS for n in numbers)
    return [_Device(row, row["index"] if kept else n) for n, row in enumerate(rows)]


def _own(trace: Trace, devices: list[_Device]) -> Entry:
    """What the format does not say of devices and their processes."""
    columns = ("process", "type", "index", "vendor", "name", "memory_bytes")
    processes = trace.rows("SELECT id AS position, pid, rank, host, name, command_line FROM process ORDER BY id")
    used = {device.row["process"] for device in devices}
    return {
        "version": 1,
        "devices": [{"position": one.position, **{key: one.row[key] for key in columns}} for one in devices],
        "processes": [row for row in processes if row["position"] in used],
    }


class _Stacks:
    """Frames as the format has them; one list a stack, which the pickle then holds once."""

    def __init__(self, trace: Trace) -> None:
        self._lists: dict[tuple[int | None, str | None], list[Entry]] = {}
        self._frames: dict[int, list[Entry]] = {}
        seen: dict[tuple[Any, ...], Entry] = {}
        for number, frames in trace.sql("SELECT id, frames FROM stack WHERE frames IS NOT NULL").fetchall():
            self._frames[number] = [self._frame(seen, frame) for frame in frames if frame is not None]

    @staticmethod
    def _frame(seen: dict[tuple[Any, ...], Entry], frame: Mapping[str, Any]) -> Entry:
        key = (frame["function"], frame["file"], frame["line"])
        shown = {"name": key[0] or "", "filename": key[1] or "", "line": key[2] or 0}
        return seen.setdefault(key, shown)

    def of(self, stack: int | None, op: str | None) -> list[Entry]:
        """Innermost first, below the op that allocated, where one is known."""
        found = self._lists.get((stack, op))
        if found is None:
            above = [] if op is None else [{"name": op, "filename": "op", "line": 0, "is_op": True}]
            found = self._lists[stack, op] = above + self._frames.get(-1 if stack is None else stack, [])
        return found


@dataclass
class _Segment:
    address: int
    size: int
    made_up: bool = False
    blocks: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.address + self.size


class _Memory:
    """The blocks and regions of one device, and the window that is asked for."""

    def __init__(self, trace: Trace, device: _Device, stacks: _Stacks, selection: Selection) -> None:
        self._device = device
        self._stacks = stacks
        self._selection = selection
        number = device.row["id"]
        # The regions of a range that is striped over memory domains are one segment.
        self._regions = trace.rows(
            """SELECT address, sum(size_bytes)::BIGINT AS size, opened_ns, closed_ns FROM region
               WHERE device = $1 AND address IS NOT NULL AND size_bytes > 0 GROUP BY ALL ORDER BY ALL""",
            [number],
        )
        self._blocks = trace.rows(
            """SELECT a.*, s.number AS stream, try_cast(f.args->>'free_requested_ns' AS BIGINT) AS request_ns,
                      f.stack AS free_stack, r.ts_ns AS waits_ns
               FROM allocation a LEFT JOIN event e ON e.id = a.alloc_event LEFT JOIN stream s ON s.id = e.stream
               LEFT JOIN event f ON f.id = a.free_event
               LEFT JOIN event r ON r.kind = 'instant' AND r.name = 'free_requested' AND r.device = a.device
                    AND a.free_ns IS NULL AND try_cast(r.args->>'address' AS UBIGINT) = a.address
                    AND r.ts_ns >= coalesce(a.alloc_ns, r.ts_ns)
               WHERE a.device = $1 AND a.address IS NOT NULL AND a.size_bytes IS NOT NULL ORDER BY a.address, a.id""",
            [number],
        )
        self._errors = trace.rows(
            """SELECT ts_ns, bytes, stack, args->>'device_free_bytes' AS free FROM event
               WHERE kind = 'error' AND device = $1 AND name ILIKE '%out of memory%'""",
            [number],
        )
        placed = "SELECT allocation, count(*) FROM allocation_piece GROUP BY 1"
        self._pieces: dict[int, int] = dict(trace.sql(placed).fetchall())
        whole = "SELECT count(*) FROM region WHERE device = $1 AND address IS NOT NULL AND size_bytes > 0"
        [(rows,)] = trace.sql(whole, [number]).fetchall()
        striped = rows > len(self._regions)
        self._expandable = not striped and any(self._pieces.get(block["id"], 0) > 1 for block in self._blocks)

    def entries(self) -> list[Entry]:
        """The device's events in their order."""
        found = [*self._region_events(), *self._block_events(), *self._error_events()]
        found.sort(key=itemgetter(0))
        return [entry for _, entry in found]

    def _in_window(self, ts_ns: int | None) -> bool:
        """Whether something that happened then is shown as an event."""
        begin, end = self._selection.from_ns, self._selection.to_ns
        return ts_ns is not None and (begin is None or ts_ns >= begin) and (end is None or ts_ns < end)

    def _at_the_end(self, begin_ns: int | None, end_ns: int | None) -> bool:
        """Whether something is there when the window ends."""
        end = self._selection.to_ns
        return (begin_ns is None or end is None or begin_ns < end) and (
            end_ns is None or (end is not None and end_ns >= end)
        )

    def _event(self, action: str, ts_ns: int, address: int, size: int, frames: list[Entry], **more: Any) -> Entry:
        entry = {
            "action": action,
            "addr": address,
            "size": size,
            "stream": 0,
            "time_us": ts_ns // 1000,
            "frames": frames,
        }
        return {**entry, **{key: value for key, value in more.items() if value is not None}}

    def _region_events(self) -> Iterator[tuple[tuple[Any, ...], Entry]]:
        taken, given = ("segment_map", "segment_unmap") if self._expandable else ("segment_alloc", "segment_free")
        for row in self._regions:
            if self._in_window(row["opened_ns"]):
                yield (row["opened_ns"], 0, 0), self._event(taken, row["opened_ns"], row["address"], row["size"], [])
            if self._in_window(row["closed_ns"]):
                yield (row["closed_ns"], 2, 0), self._event(given, row["closed_ns"], row["address"], row["size"], [])

    def _block_events(self) -> Iterator[tuple[tuple[Any, ...], Entry]]:
        for block in self._blocks:
            address, size = block["address"], block["size_bytes"]
            frames = self._stacks.of(block["stack"], block["op"])
            alone = not self._pieces.get(block["id"])
            order = -1 if block["alloc_event"] is None else block["alloc_event"]
            more = {"stream": block["stream"]}
            if self._in_window(block["alloc_ns"]):
                at = block["alloc_ns"]
                if alone and size > 0:
                    yield (at, 1, order - 0.25), self._event("segment_alloc", at, address, size, [], made_up=True)
                said = {**more, "requested_size": block["requested_bytes"], "op": block["op"]}
                yield (at, 1, order), self._event("alloc", at, address, size, frames, **said)
            if block["waits_ns"] is not None and self._in_window(block["waits_ns"]):
                at = block["waits_ns"]
                yield (at, 1, order + 0.25), self._event("free_requested", at, address, size, frames, **more)
            if self._in_window(block["free_ns"]):
                at = block["free_ns"]
                order = order + 0.5 if block["free_event"] is None else block["free_event"]
                freeing = self._stacks.of(block["free_stack"], None) if block["free_stack"] is not None else []
                request = min(block["request_ns"] or at, at)
                request = request if self._in_window(request) else at
                yield (request, 1, order), self._event("free_requested", request, address, size, freeing, **more)
                yield (at, 1, order + 0.25), self._event("free_completed", at, address, size, freeing, **more)
                if alone and size > 0:
                    yield (at, 1, order + 0.3), self._event("segment_free", at, address, size, [], made_up=True)

    def _error_events(self) -> Iterator[tuple[tuple[Any, ...], Entry]]:
        for row in self._errors:
            if self._in_window(row["ts_ns"]):
                free = int(row["free"]) if str(row["free"]).isdigit() else 0
                entry = self._event("oom", row["ts_ns"], 0, row["bytes"] or 0, self._stacks.of(row["stack"], None))
                del entry["addr"]
                yield (row["ts_ns"], 1, 0), {**entry, "device_free": free}

    def segments(self) -> list[Entry]:
        """The segments at the end, filled without gaps by their blocks."""
        open_regions = [row for row in self._regions if self._at_the_end(row["opened_ns"], row["closed_ns"])]
        live = [block for block in self._blocks if self._at_the_end(block["alloc_ns"], block["free_ns"])]
        segments = self._merged(_Segment(row["address"], row["size"]) for row in open_regions)
        alone: list[_Segment] = []
        number = 0
        for block in live:
            address, size = block["address"], block["size_bytes"]
            while number < len(segments) and segments[number].end <= address:
                number += 1
            home = segments[number] if number < len(segments) and segments[number].address <= address else None
            last = home.blocks[-1] if home is not None and home.blocks else None
            taken = (
                home.address
                if home is not None and last is None
                else last["address"] + last["size_bytes"]
                if last
                else 0
            )
            if home is None or address < taken or address + size > home.end:
                home = _Segment(address, size, made_up=True)
                alone.append(home)
            home.blocks.append(block)
        return [self._segment(one) for one in [*segments, *(one for one in alone if one.size > 0)]]

    def _merged(self, ranges: Iterable[_Segment]) -> list[_Segment]:
        """In the order of their addresses; adjacent ones as one where segments are expandable. None overlap."""
        found: list[_Segment] = []
        for one in ranges:
            if found and one.address < found[-1].end:
                continue
            if found and self._expandable and one.address == found[-1].end:
                found[-1].size += one.size
            else:
                found.append(one)
        return found

    def _segment(self, segment: _Segment) -> Entry:
        blocks: list[Entry] = []
        at, used, asked = segment.address, 0, 0
        for block in segment.blocks:
            address, size = block["address"], block["size_bytes"]
            if size == 0:
                continue
            if address > at:
                blocks.append(_free_block(at, address - at))
            requested = min(block["requested_bytes"] or size, size)
            waits = block["waits_ns"] is not None and self._in_window(block["waits_ns"])
            blocks.append({
                "address": address, "size": size, "requested_size": requested,
                "state": "active_awaiting_free" if waits else "active_allocated",
                "frames": self._stacks.of(block["stack"], block["op"]),
            })  # fmt: skip
            at, used, asked = address + size, used + size, asked + requested
        if at < segment.end:
            blocks.append(_free_block(at, segment.end - at))
        return {
            "device": self._device.position, "address": segment.address, "total_size": segment.size,
            "allocated_size": used, "active_size": used, "requested_size": asked, "stream": 0,
            "segment_type": "large" if segment.size > 1 << 21 else "small", "segment_pool_id": (0, 0),
            "is_expandable": self._expandable, "frames": [], "blocks": blocks,
            **({"made_up": True} if segment.made_up else {}),
        }  # fmt: skip


def _free_block(address: int, size: int) -> Entry:
    return {"address": address, "size": size, "requested_size": 0, "state": "inactive", "frames": []}
