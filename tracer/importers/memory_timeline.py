"""Memory timelines of torch.profiler: what `export_memory_timeline` writes as .json, .json.gz or .raw.json.gz.

The plot form is `[times, sizes]`: microseconds, and for each the bytes of every category, led by a 0. The raw form is a
list of `[time, action, bytes, category]`: nanoseconds, -1 for what was there before, and bytes that are negative where
they go. Both become a counter of bytes for each category. Form: torch/profiler/_memory_profiler.py
(`MemoryProfileTimeline`). The .html form holds a picture and no data.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.opening import Head, opened
from ral_trace.tracer.importers.rows import LIMIT, SUM_LIMIT, TIME_BEYOND, Rows
from ral_trace.tracer.importers.snapshot_times import EARLIEST_EPOCH_US

FORMAT = "torch.profiler memory timeline"

CATEGORIES = (
    "parameter", "optimizer state", "input", "temporary", "activation", "gradient", "autograd detail", "unknown",
)  # fmt: skip
"""In the order of `_CATEGORY_TO_COLORS`, by which the file numbers them."""
PREEXISTING, DESTROY = 1, 4
"""The first and last of the actions: pre-existing, create, increment version, destroy."""
AGAIN = "export it again, with torch.profiler.profile.export_memory_timeline"
BLOCK = 1 << 20
LONGEST_TOKEN = 64
TOKEN = re.compile(rb"\s*(-?\d+|\[|\]|,)\s*")


def sniff(head: Head) -> float:
    """Nested lists of whole numbers and nothing else."""
    start = head.data.removeprefix(b"\xef\xbb\xbf")
    if re.match(rb"\s*\[\s*\[\s*(?:-?\d+\s*[,\]]|\]\s*,\s*\[)", start):
        return 0.8
    return 0.0


def read(path: Path, rows: Rows) -> None:
    """Adds a counter for each category. Raises InputRefused."""
    rows.facts["producer"] = "torch.profiler"
    with opened(path, rows.bad) as file:
        tokens = _Tokens(path, rows, file)
        tokens.expect(b"[")
        tokens.expect(b"[")
        first = tokens.numbers()
        following = tokens.take()
        # Four numbers begin either form; only in the plot form a list of lists comes next.
        if following == b"," and tokens.is_list_of_lists():
            points = _plot_points(rows, tokens, first)
        else:
            points = _raw_points(rows, tokens, first, following)
        _add(rows, points)
        tokens.end()


class _Tokens:
    """Numbers, brackets and commas of a file, a block of it at a time."""

    def __init__(self, path: Path, rows: Rows, file: IO[bytes]) -> None:
        self._path = path
        self._rows = rows
        self._file = file
        self._data = b""
        self._at = 0
        self._before = 0
        """Bytes of the file before `_data`."""
        self._more(skip=b"\xef\xbb\xbf")

    def _more(self, skip: bytes = b"") -> bool:
        block = self._file.read(BLOCK)
        self._rows.advance(len(block))
        self._before += self._at
        self._data = (self._data[self._at :] + block).removeprefix(skip)
        self._at = 0
        return bool(block)

    def take(self) -> bytes:
        """The next token; empty at the end of the file."""
        if len(self._data) - self._at < LONGEST_TOKEN:
            self._more()
        found = TOKEN.match(self._data, self._at)
        if found is None:
            if self._data[self._at :].strip():
                raise self.damaged("something that is no whole number, list or comma")
            return b""
        self._at = found.end()
        return found[1]

    def is_list_of_lists(self) -> bool:
        """Whether a list begins here that is empty or holds another; it stays."""
        return re.compile(rb"\[\s*[\[\]]").match(self._data, self._at) is not None

    def expect(self, token: bytes) -> None:
        found = self.take()
        if found != token:
            raise self.damaged(f"{found.decode() or 'the end'} in place of {token.decode()}")

    def numbers(self) -> "array[int]":
        """What is left of a list of numbers, whose bracket has been read; and the bracket that ends it."""
        found = array("q")
        token = self.take()
        while token != b"]":
            if token in (b"[", b",", b"") or len(token) > 20 or abs(int(token)) >= SUM_LIMIT:
                raise self.damaged(f"{token.decode()[:30] or 'the end'} in place of a number")
            found.append(int(token))
            token = self.take()
            if token == b",":
                token = self.take()
                if token == b"]":
                    raise self.damaged("] in place of a number")
            elif token != b"]":
                raise self.damaged(f"{token.decode()[:30] or 'the end'} in place of a comma")
        return found

    def end(self) -> None:
        """Counts what follows the end of the document."""
        left = len(self._data[self._at :].strip())
        if left:
            self._rows.bad(
                "bytes behind the end of the timeline: not read", f"byte {self._before + self._at}", count=left
            )

    def damaged(self, what: str) -> InputRefused:
        place = f"byte {self._before + self._at}"
        return InputRefused(self._path, f"is no memory timeline, or is cut off ({place}: {what})", AGAIN)


Point = tuple[int, Sequence[int]]
"""A time in nanoseconds, and the bytes of each category from then on."""


def _plot_points(rows: Rows, tokens: _Tokens, times: "array[int]") -> Iterator[Point]:
    tokens.expect(b"[")
    for number, time_us in enumerate(times):
        if number:
            tokens.expect(b",")
        tokens.expect(b"[")
        sizes = tokens.numbers()
        if len(sizes) != len(CATEGORIES) + 1:
            raise tokens.damaged(f"{len(sizes)} sizes, and there are {len(CATEGORIES)} categories behind a 0")
        if abs(time_us) >= LIMIT // 1000:
            rows.bad("times that cannot be: left out", time_us)
            continue
        yield time_us * 1000, sizes[1:]
    tokens.expect(b"]")
    tokens.expect(b"]")


def _raw_points(rows: Rows, tokens: _Tokens, first: "array[int]", following: bytes) -> Iterator[Point]:
    sizes = [0] * len(CATEGORIES)
    event = first
    last: int | None = None
    while True:
        if len(event) != 4 or not PREEXISTING <= event[1] <= DESTROY or not 0 <= event[3] < len(CATEGORIES):
            rows.bad("events that are no [time, action, bytes, category]: left out", list(event[:5]))
        else:
            time_ns, _, change, category = event
            if abs(time_ns) >= LIMIT:
                rows.bad(TIME_BEYOND, list(event))
            elif abs(sizes[category] + change) >= SUM_LIMIT:
                rows.bad("events whose bytes cannot be: left out", list(event))
            else:
                sizes[category] += change
                if time_ns >= 0:
                    last = time_ns if last is None else max(last, time_ns)
                    yield last, list(sizes)
        if following != b",":
            break
        tokens.expect(b"[")
        event = tokens.numbers()
        following = tokens.take()
    if following != b"]":
        raise tokens.damaged(f"{following.decode()[:30] or 'the end'} in place of ]")
    if last is None and any(sizes):
        yield 0, sizes


def _add(rows: Rows, points: Iterator[Point]) -> None:
    """A value of each counter at its changes; the last one of a moment, and never below nothing."""
    process: int | None = None
    counters: list[int] = []
    shown: list[int | None] = [None] * len(CATEGORIES)
    waiting: Point | None = None
    first: int | None = None
    for point in points:
        if process is None:
            first = point[0]
            process = rows.process("timeline", started_ns=first)
            counters = [rows.counter(f"memory: {name}", "bytes", process=process) for name in CATEGORIES]
        if waiting is not None and waiting[0] != point[0]:
            _put(rows, counters, shown, waiting)
        waiting = point
    if waiting is not None:
        _put(rows, counters, shown, waiting)
    if first is None:
        rows.bad("no memory events: the profiler recorded none of this device", count=0)
    rows.facts["clock_zero"] = "unix epoch" if first is not None and first >= EARLIEST_EPOCH_US * 1000 else "file"


def _put(rows: Rows, counters: list[int], shown: list[int | None], point: Point) -> None:
    for number, size in enumerate(point[1]):
        if size != shown[number]:
            if size < 0:
                rows.bad("sizes below 0, of blocks whose begin was not seen: shown as gaps", CATEGORIES[number])
            rows.value(counters[number], point[0], size if size >= 0 else None)
            shown[number] = size
