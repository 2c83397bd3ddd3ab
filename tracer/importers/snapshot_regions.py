"""The regions of one device in a memory snapshot: what the allocator took from the driver, and gave back.

`segment_alloc` and `segment_free` are whole regions; `segment_map` and `segment_unmap` (expandable segments) are parts
of a range of addresses, and what is unmapped need not be what was mapped. So regions are ranges here: a part of one
that is given back ends it, and what is left of it goes on as another.
"""

from bisect import bisect_right
from collections.abc import Iterator

from ral_trace.tracer.importers.rows import Rows


class Regions:
    """The ranges that are open, and the changes of them on their way to `rows`."""

    def __init__(self, rows: Rows, device: int, begin_ns: int) -> None:
        self._rows = rows
        self._device = device
        self._begin_ns = begin_ns
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def open(self, event: int, ts_ns: int, address: int, size: int) -> None:
        """A range was taken. What was open there must have been given back unseen. One without bytes is none."""
        if size == 0:
            return
        for start, length in list(self._overlapping(address, size)):
            self._rows.bad("regions whose end was not seen before their address was used again: ended there")
            self._close(event, ts_ns, start, length)
        self._open(self._rows.builder.new_ids("event", 1), ts_ns, address, size)

    def close(self, event: int, ts_ns: int, address: int, size: int) -> None:
        """A range was given back. What of it was not open was there before the recording."""
        if size == 0:
            return
        at = address
        for start, length in list(self._overlapping(address, size)):
            self._close_unseen(event, ts_ns, at, start - at)
            self._close(event, ts_ns, start, length)
            self._reopen(ts_ns, start, address - start)
            self._reopen(ts_ns, address + size, start + length - address - size)
            at = start + length
        self._close_unseen(event, ts_ns, at, address + size - at)

    def at_the_end(self, segments: list[tuple[int, int]]) -> None:
        """The regions that there were when the snapshot was taken: those that nothing opened were there before."""
        if not segments:
            return
        held = end = 0
        for address, size in sorted(segments):
            if size == 0:
                continue
            if address < end:
                self._rows.bad("segments that overlap another: left out", f"address {address}")
                continue
            end = address + size
            at = address
            for start, length in list(self._overlapping(address, size)):
                self._was_there(at, start - at)
                at = max(at, start + length)
                held += 1
            self._was_there(at, address + size - at)
        if held < len(self._starts):
            what = "regions that are open by the events, and not among the segments"
            self._rows.bad(what, count=len(self._starts) - held)

    def _overlapping(self, address: int, size: int) -> Iterator[tuple[int, int]]:
        at = max(bisect_right(self._starts, address) - 1, 0)
        for place in range(at, len(self._starts)):
            start = self._starts[place]
            if start >= address + size:
                return
            if start + self._sizes[start] > address:
                yield start, self._sizes[start]

    def _close_unseen(self, event: int, ts_ns: int, address: int, size: int) -> None:
        if size > 0:
            self._was_there(address, size)
            self._change("close", event, ts_ns, address, size)

    def _reopen(self, ts_ns: int, address: int, size: int) -> None:
        if size > 0:
            # Changes are ordered by their event, and that of what is left comes after the end of the whole.
            self._open(self._rows.builder.new_ids("event", 1), ts_ns, address, size)

    def _open(self, event: int, ts_ns: int, address: int, size: int) -> None:
        self._change("open", event, ts_ns, address, size)
        self._starts.insert(bisect_right(self._starts, address), address)
        self._sizes[address] = size

    def _close(self, event: int, ts_ns: int, start: int, length: int) -> None:
        self._change("close", event, ts_ns, start, length)
        del self._starts[bisect_right(self._starts, start) - 1]
        del self._sizes[start]

    def _was_there(self, address: int, size: int) -> None:
        if size > 0:
            self._rows.memory("open", None, self._begin_ns, self._device, address, size_bytes=size, before_trace=True)

    def _change(self, action: str, event: int, ts_ns: int, address: int, size: int) -> None:
        self._rows.memory(action, event, ts_ns, self._device, address, size_bytes=size)
