"""One device of a memory snapshot: its events in their order, then what they leave unsaid and its segments show."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ral_trace.tracer.importers.rows import Rows, text
from ral_trace.tracer.importers.snapshot_fields import MOST_BYTES, MOST_SIZE, Stacks, integer, shown
from ral_trace.tracer.importers.snapshot_regions import Regions

MOST_ADDRESS = 2**64 - 1
IN_USE = ("active_allocated", "active_awaiting_free", "active_pending_free")
"""States of a block that is not free: the last two, by their names in Python and in C++, wait for another stream."""
UNREADABLE = "events without an address or a size that can be, or of an unknown kind: left out"
NO_CONTEXT = ("", "N/A")
DEFAULT_POOL = (0, 0)

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Rows of `process` and `device`."""

    process: int
    device: int


@dataclass(frozen=True)
class _Block:
    """A block in use when the snapshot was taken."""

    size: int
    requested: int
    entry: Entry


class DeviceHistory:
    """Adds the events, blocks and regions of one device.

    `rounded`: sizes of events are those of blocks. Else they are what was asked for, as PyTorch's allocator has them
    (c10/cuda/CUDACachingAllocator.cpp), and so are those of blocks here, lest one curve mix the two.
    """

    def __init__(self, rows: Rows, place: Place, stacks: Stacks, segments: list[Entry], *, rounded: bool) -> None:
        self._rows = rows
        self._place = place
        self._stacks = stacks
        self._rounded = rounded
        self._bytes = 0
        real = (self._segment_of(segment) for segment in segments if not segment.get("made_up"))
        self._segments = [segment for segment in real if segment is not None]
        self._blocks = self._blocks_in_use(segments)
        self._pending: dict[int, tuple[int, Entry]] = {}
        """By address: when the free of a block was requested, and with what entry."""
        self._in_use: dict[int, int] = {}
        """By address: the size of each block that the events so far leave in use."""
        self._freed: dict[int, None] = {}
        """Addresses whose last event is a free."""
        self._before = 0
        self._add: dict[str, Callable[[Entry, int], bool]] = {
            "alloc": self._alloc,
            "free_requested": self._free_requested,
            "free_completed": self._free,
            "free": self._free,
            "segment_alloc": self._region_opens,
            "segment_map": self._region_opens,
            "segment_free": self._region_closes,
            "segment_unmap": self._region_closes,
            "oom": self._out_of_memory,
            "snapshot": self._snapshot,
        }

    def add(self, entries: Sequence[Any], times: Sequence[int], begin_ns: int) -> int:
        """Adds all of it. Returns how many entries, and segments, could be used."""
        self._regions = Regions(self._rows, self._place.device, begin_ns)
        used = 0
        for entry, ts_ns in zip(entries, times, strict=True):
            action = entry.get("action") if isinstance(entry, dict) else None
            add = self._add.get(action) if isinstance(action, str) else None
            if add is None or not add(entry, ts_ns):
                self._rows.bad(UNREADABLE, _shown(entry))
            else:
                used += 1
        self._say_what_is_pending()
        self._regions.at_the_end(self._segments)
        self._blocks_at_the_end(begin_ns)
        return used + len(self._segments)

    # --- events ---

    def _alloc(self, entry: Entry, ts_ns: int) -> bool:
        where = self._where(entry)
        if where is None:
            return False
        address, size = where
        requested = integer(entry, "requested_size", 0, size)
        if requested is None and not self._rounded:
            requested = size
        op = entry.get("op")
        event = self._event(
            "alloc", op if isinstance(op, str) else None, entry, ts_ns, bytes=size, args=self._context(entry)
        )
        self._rows.memory(
            "alloc", event, ts_ns, self._place.device, address, size_bytes=size, requested_bytes=requested
        )
        self._in_use[address] = size
        self._pending.pop(address, None)
        self._freed.pop(address, None)
        return True

    def _free_requested(self, entry: Entry, ts_ns: int) -> bool:
        where = self._where(entry)
        if where is not None:
            self._pending[where[0]] = (ts_ns, entry)
        return where is not None

    def _free(self, entry: Entry, ts_ns: int) -> bool:
        where = self._where(entry)
        if where is None:
            return False
        address, size = where
        requested_ns, request = self._pending.pop(address, (None, entry))
        waited = requested_ns is not None and ts_ns - requested_ns >= 1000
        args = {"free_requested_ns": requested_ns} if waited else {}
        event = self._event("free", None, entry if entry.get("frames") else request, ts_ns, bytes=size, args=args)
        self._rows.memory("free", event, ts_ns, self._place.device, address, size_bytes=size, requested_bytes=size)
        if self._in_use.pop(address, None) is None and address not in self._freed:
            self._before += 1
        self._freed[address] = None
        return True

    def _region_opens(self, entry: Entry, ts_ns: int) -> bool:
        where = self._where(entry)
        if where is not None and not entry.get("made_up"):
            event = self._event("region", str(entry["action"]), entry, ts_ns, bytes=where[1])
            self._regions.open(event, ts_ns, *where)
        return where is not None

    def _region_closes(self, entry: Entry, ts_ns: int) -> bool:
        where = self._where(entry)
        if where is not None and not entry.get("made_up"):
            event = self._event("region", str(entry["action"]), entry, ts_ns, bytes=where[1])
            self._regions.close(event, ts_ns, *where)
        return where is not None

    def _out_of_memory(self, entry: Entry, ts_ns: int) -> bool:
        size = integer(entry, "size", 0, MOST_SIZE)
        free = integer(entry, "device_free", 0, MOST_BYTES)
        args = {} if free is None else {"device_free_bytes": free}
        self._event("error", "out of memory", entry, ts_ns, bytes=size, args=args)
        return True

    def _snapshot(self, entry: Entry, ts_ns: int) -> bool:
        self._event("instant", "snapshot", entry, ts_ns)
        return True

    def _event(self, kind: str, name: str | None, entry: Entry, ts_ns: int, **columns: Any) -> int:
        args = columns.pop("args", None)
        number = integer(entry, "stream", -(2**63) + 1, 2**64 - 1)
        stream = None if number is None else self._rows.stream(self._place.device, _signed(number))
        return self._rows.event(
            kind, name, ts_ns, 0, self._place.process, device=self._place.device, stream=stream,
            stack=self._stacks.of(entry), args=_as_json(args) if args else None, **columns,
        )  # fmt: skip

    def _context(self, entry: Entry) -> dict[str, Any]:
        """What else an alloc's entry says: who compiled it, what the program noted, a pool of its own, its category."""
        said: dict[str, Any] = dict(self._stacks.fx_of(entry))
        for key in ("compile_context", "user_metadata", "category"):
            value = entry.get(key)
            if isinstance(value, str) and value not in NO_CONTEXT:
                said[key] = value
        pool = entry.get("pool_id", entry.get("segment_pool_id"))
        if isinstance(pool, tuple | list) and tuple(pool) != DEFAULT_POOL and _is_pool(pool):
            said["pool_id"] = list(pool)
        return said

    def _where(self, entry: Entry) -> tuple[int, int] | None:
        """The address and size of an entry, where they can be."""
        address = integer(entry, "addr", 0, MOST_ADDRESS)
        size = integer(entry, "size", 0, MOST_SIZE)
        if address is None or size is None or self._bytes + size > MOST_BYTES or address + size > MOST_ADDRESS + 1:
            return None
        self._bytes += size
        return address, size

    # --- the state at the end ---

    def _segment_of(self, segment: Entry) -> tuple[int, int] | None:
        address, size = integer(segment, "address", 0, MOST_ADDRESS), integer(segment, "total_size", 0, MOST_SIZE)
        if address is None or size is None or self._bytes + size > MOST_BYTES or address + size > MOST_ADDRESS + 1:
            self._rows.bad("segments without an address or a size that can be: left out", _shown(segment))
            return None
        self._bytes += size
        return address, size

    def _blocks_in_use(self, segments: list[Entry]) -> dict[int, _Block]:
        """By address. Forms from before blocks had one say it by their order."""
        found: dict[int, _Block] = {}
        for segment in segments:
            at = integer(segment, "address", 0, MOST_ADDRESS)
            blocks = segment.get("blocks", [])
            for block in blocks if isinstance(blocks, list) else []:
                size = integer(block, "size", 0, MOST_SIZE) if isinstance(block, dict) else None
                address = integer(block, "address", 0, MOST_ADDRESS, missing=at) if isinstance(block, dict) else None
                if size is None or address is None or self._bytes + size > MOST_BYTES:
                    self._rows.bad("blocks without an address or a size that can be: left out", _shown(block))
                    continue
                self._bytes += size
                if block.get("state") in IN_USE:
                    found[address] = _block(size, block)
                at = address + size
        return found

    def _blocks_at_the_end(self, begin_ns: int) -> None:
        unexplained = larger = more = 0
        for address, block in self._blocks.items():
            size = self._in_use.get(address)
            if size is not None:
                larger, more = larger + (block.size > size), more + max(block.size - size, 0)
            elif address in self._freed:
                unexplained += 1
            else:
                self._before += 1
                self._rows.memory(
                    "alloc", None, begin_ns, self._place.device, address, before_trace=True,
                    size_bytes=block.size if self._rounded else block.requested, requested_bytes=block.requested,
                    stack=self._stacks.of(block.entry),
                )  # fmt: skip
        missing = len(self._in_use.keys() - self._blocks.keys()) if self._segments else 0
        for count, what, example in (
            (self._before, "blocks without their alloc: from before the recording, or overwritten in its ring", None),
            (unexplained, "blocks in use at the end that the events leave freed: left out", None),
            (missing, "blocks in use by the events that no segment holds", None),
            (larger, "blocks in use at the end that take more than was asked for: sizes are what was asked for",
             f"{more} bytes more in all"),
        ):  # fmt: skip
            if count:
                self._rows.bad(what, example, count=count, process=self._place.process)

    def _say_what_is_pending(self) -> None:
        for address, (ts_ns, entry) in self._pending.items():
            size = integer(entry, "size", 0, MOST_BYTES)
            self._event("instant", "free_requested", entry, ts_ns, bytes=size, args={"address": address})
            self._rows.bad("blocks whose free waits for another stream: in use until it is completed")


def _block(size: int, block: Entry) -> _Block:
    """A block with what was asked for, and an entry with its stack, in any form."""
    history = block.get("history")
    said = history[0] if isinstance(history, list) and history and isinstance(history[0], dict) else block
    requested = integer(block, "requested_size", 1, size) or integer(said, "real_size", 1, size) or size
    return _Block(size, requested, block if "frames" in block else said)


def _as_json(args: Mapping[str, Any]) -> str:
    return json.dumps(
        {key: text(value) if isinstance(value, str) else value for key, value in args.items()}, ensure_ascii=False
    )


def _is_pool(pool: Sequence[Any]) -> bool:
    return len(pool) == 2 and all(isinstance(part, int) and -(2**63) <= part < 2**64 for part in pool)


def _signed(number: int) -> int | None:
    """A stream's handle as 64 bits with a sign hold it; the one number that stands for NULL does not occur."""
    return number if number < 2**63 else number - 2**64


def _shown(entry: object) -> str:
    """An entry as an example: what it is and where, without what makes it long."""
    if not isinstance(entry, dict):
        return type(entry).__name__
    keys = ("action", "addr", "address", "size", "total_size")
    return ", ".join(f"{key} {shown(entry[key])[:40]}" for key in keys if key in entry)
