"""What an importer hands over: the rows of one source, on their way into the trace.

An importer says where things happened with its own names for processes, threads, devices and streams, which get ids
here; times are integer nanoseconds of the source's own clock. What single events have wrong is counted with `bad`,
one line of `quality` a kind of fault, never more.
"""

import json
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from ral_trace.tracer.derive import MEMORY_CHANGE_COLUMNS
from ral_trace.tracer.schema import FLAGS, TABLES
from ral_trace.tracer.store import TraceBuilder

ROWS_AT_ONCE = 50_000
FEW_ROWS = 50
"""Up to so many are handed over sooner as values than as columns."""
NULL = -(2**63)
"""Stands for NULL in columns of integers on their way; no time, id or size of a sound source is that."""
INTEGER_TYPES = {"BIGINT": (-(2**63) + 1, 2**63 - 1), "INTEGER": (-(2**31), 2**31 - 1), "UTINYINT": (0, 255)}
LIMIT = 2**61
"""No time, duration (in nanoseconds) or number of bytes of a sound source reaches it, and sums of two stay in 64 bits.
"""
SUM_LIMIT = 2 * LIMIT
"""No sum over many numbers of bytes of a sound source reaches it, and one more number stays in 64 bits."""
TIME_BEYOND = "events at a time that no clock counts: left out"
DURATION_BEYOND = "events with a duration that no clock counts: kept without it, and out of all sums"
BYTES_BEYOND = "numbers of bytes that cannot be: taken as unknown"
EXAMPLE_CHARACTERS = 200
UNREADABLE = re.compile(r"[\0\ud800-\udfff]")
NOT_UTF8 = "parts of the text are not UTF-8: replaced"

FRAMES_FORM = '[{"file": "VARCHAR", "line": "INTEGER", "function": "VARCHAR"}]'
"""Of stack.frames as JSON, which is how stacks are handed over."""

Frame = tuple[str | None, int | None, str | None]
"""(file, line, function)"""


class Rows:
    """The rows of one source. `advance(bytes)` says how much of the file has been read, for whoever shows progress."""

    def __init__(
        self,
        builder: TraceBuilder,
        path: Path,
        format: str,
        *,
        advance: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.builder = builder
        self.path = path
        self.format = format
        self.advance = advance
        self._begin = {table: builder.new_ids(table, 0) for _, table in _OWN.values()}
        self.facts: dict[str, Any] = {}
        """Columns of this source's row, filled in until `finish`: program, producer, rank, clock_zero, ..."""
        self.world_size: int | None = None
        """How many ranks there are in all, where the source says so."""
        self._places: dict[Hashable, int] = {}
        self._batches = {name: _Batch(builder, name, columns) for name, columns in _BATCHED.items()}
        self._bad: dict[tuple[str, int | None], list[Any]] = {}
        self._left_out: set[int] = set()

    @cached_property
    def source(self) -> int:
        """The id of this source. An importer of whole traces, which bring their own, never asks for it."""
        return self.builder.add("source", path=text(str(self.path)), format=self.format)

    def process(self, key: Hashable, **columns: Any) -> int:
        """The id of a process, made when its key is new. A pid that is text goes into `name`."""
        return self._place("process", ("process", key), source=self.source, **columns)

    def thread(self, process: int, key: Hashable, **columns: Any) -> int:
        """The id of a thread of a process: tid, name."""
        return self._place("thread", ("thread", process, key), process=process, **columns)

    def device(self, process: int, type: str, index: int | None, **columns: Any) -> int:
        """The id of a device as a process sees it: vendor, name, memory_bytes."""
        return self._place(
            "device", ("device", process, type, index), process=process, type=type, index=index, **columns
        )

    def stream(self, device: int, number: int | None, **columns: Any) -> int:
        """The id of a stream of a device: pipeline, priority."""
        return self._place("stream", ("stream", device, number), device=device, number=number, **columns)

    def counter(self, series: str, unit: str | None, *, process: int | None = None, device: int | None = None) -> int:
        """The id of a series of numbers."""
        key = ("counter", process, device, series)
        return self._place("counter", key, process=process, device=device, series=series, unit=unit)

    def stack(self, frames: Sequence[Frame]) -> int | None:
        """The id of a stack, innermost line first; None for no frames."""
        if not frames:
            return None
        key = ("stack", tuple(frames))
        found = self._places.get(key)
        if found is None:
            named = [{"file": text(file), "line": line, "function": text(function)} for file, line, function in frames]
            found = self._places[key] = self._batches["stack"].add(frames=json.dumps(named, ensure_ascii=False))
        return found

    def event(self, kind: str, name: str | None, ts_ns: int, dur_ns: int | None, process: int, **columns: Any) -> int:
        """Adds an event (columns of `event`, ids from here; args as a dictionary's JSON text) and returns its id.

        A negative duration, or one of LIMIT, cannot be: it becomes NULL, and the row INVALID. Bytes that cannot be
        become NULL. An event at a time beyond LIMIT is left out; its id is that of none.
        """
        if not -LIMIT < ts_ns < LIMIT:
            self.bad(TIME_BEYOND, f"{name}: {ts_ns} ns")
            number = self.builder.new_ids("event", 1)
            self._left_out.add(number)
            return number
        flags = columns.pop("flags", 0)
        if dur_ns is not None and dur_ns < 0:
            self.bad("events with a negative duration: kept without it, and out of all sums", f"{name}: {dur_ns} ns")
            dur_ns, flags = None, flags | FLAGS["INVALID"]
        elif dur_ns is not None and dur_ns >= LIMIT:
            self.bad(DURATION_BEYOND, f"{name}: {dur_ns} ns")
            dur_ns, flags = None, flags | FLAGS["INVALID"]
        if columns.get("bytes") is not None:
            columns["bytes"] = self._bytes(columns["bytes"])
        return self._batches["event"].add(
            kind=kind, name=name, ts_ns=ts_ns, dur_ns=dur_ns, process=process, flags=flags, **columns
        )

    def flow(self, kind: str, from_event: int, to_event: int) -> None:
        """Adds an arrow. Launches and what they started are tied by `correlation`; they need none."""
        if from_event in self._left_out or to_event in self._left_out:
            return
        self._batches["flow"].add(kind=kind, from_event=from_event, to_event=to_event)

    def value(self, counter: int, ts_ns: int, value: float | None) -> None:
        """Adds a value of a counter; None, and what is not finite, is a gap."""
        self._batches["counter_value"].add(counter=counter, ts_ns=ts_ns, value=value)

    def memory(self, action: str, event: int | None, ts_ns: int, device: int, address: int, **columns: Any) -> None:
        """Adds a change of a device's memory: 'alloc', 'free', 'open' or 'close' (of a region); see `derive`.

        `event` orders changes of the same time. What was there before the recording has none, and `before_trace`.
        """
        if not -LIMIT < ts_ns < LIMIT:
            self.bad("changes of memory at a time that no clock counts: left out", f"{action}: {ts_ns} ns")
            return
        for column in ("size_bytes", "requested_bytes"):
            if columns.get(column) is not None:
                columns[column] = self._bytes(columns[column])
        columns.setdefault("before_trace", False)
        self._batches["memory_change"].add(
            action=action, event=event, ts_ns=ts_ns, device=device, address=address, **columns
        )

    def _bytes(self, number: int) -> int | None:
        if 0 <= number < LIMIT:
            return number
        self.bad(BYTES_BEYOND, number)
        return None

    def bad(self, what: str, example: object = None, *, count: int = 1, process: int | None = None) -> None:
        """Counts something to know before believing the numbers; the first example is kept."""
        found = self._bad.setdefault((what, process), [0, None])
        found[0] += count
        if found[1] is None and example is not None:
            found[1] = text(str(example)[:EXAMPLE_CHARACTERS])

    def flush(self) -> None:
        """Hands over all rows that wait."""
        for batch in self._batches.values():
            batch.flush()

    def discard(self) -> bool:
        """Takes back all that was handed over, of the source that was read last. False: the whole trace is lost."""
        try:
            for table, (number, whose) in _OWN.items():
                self.builder.connection.execute(f"DELETE FROM {table} WHERE {number} >= ?", [self._begin[whose]])
        except duckdb.TransactionException:
            return False
        return True

    def finish(self) -> None:
        """Hands over what is left. Nothing can be added afterwards."""
        self.flush()
        source = None if self.builder.derived else self.source
        self.builder.add_rows("quality", [
            {"source": source, "process": process, "what": what, "count": count, "example": example}
            for (what, process), (count, example) in self._bad.items()
        ])  # fmt: skip
        if self.facts and source is not None:
            sets = ", ".join(f'"{column}" = ?' for column in self.facts)
            values = [_fitting("source", column, value) for column, value in self.facts.items()]
            self.builder.connection.execute(f"UPDATE source SET {sets} WHERE id = ?", [*values, source])

    def _place(self, table: str, key: Hashable, **columns: Any) -> int:
        found = self._places.get(key)
        if found is None:
            row = {column: _fitting(table, column, value) for column, value in columns.items()}
            found = self._places[key] = self._batches[table].add(**row)
        return found


def text(value: str | None) -> str | None:
    """Text as every reader can hold it: without NUL and lone surrogates, which become U+FFFD."""
    if value is None or (value.isascii() and "\0" not in value):
        return value
    return UNREADABLE.sub("\ufffd", value)


def _fitting(table: str, column: str, value: Any) -> Any:
    """A value as its column can hold it: clean text, and no integer beyond its bits, which becomes NULL."""
    if isinstance(value, str):
        return text(value)
    bounds = INTEGER_TYPES.get(_TYPES[table][column])
    fits = bounds is None or type(value) is not int or bounds[0] <= value <= bounds[1]
    return value if fits else None


_TYPES = {table.name: {column: kind for column, (kind, _) in table.columns.items()} for table in TABLES}

_BATCHED: Mapping[str, Mapping[str, str]] = {
    **{name: {column: kind for column, (kind, _) in table.columns.items()}
       for name, table in ((table.name, table) for table in TABLES)
       if name in ("process", "thread", "device", "stream", "counter", "stack", "event", "flow", "counter_value")},
    "memory_change": MEMORY_CHANGE_COLUMNS,
}  # fmt: skip


_OWN = {
    "source": ("id", "source"), "process": ("id", "process"), "thread": ("id", "thread"), "device": ("id", "device"),
    "stream": ("id", "stream"), "stack": ("id", "stack"), "counter": ("id", "counter"), "event": ("id", "event"),
    "flow": ("from_event", "event"), "counter_value": ("counter", "counter"), "memory_change": ("device", "device"),
}  # fmt: skip
"""Tables that an importer fills, and which number in them tells what came last: of which table's rows."""


class _Batch:
    """Rows of one table, which go to the database many at a time, as columns."""

    def __init__(self, builder: TraceBuilder, table: str, columns: Mapping[str, str]) -> None:
        self._builder = builder
        self._table = table
        self._types = columns
        self._rows: list[dict[str, Any]] = []
        self._numbered = "id" in columns

    def add(self, **row: Any) -> int:
        """Returns the row's id, 0 where the table has none."""
        number = 0
        if self._numbered:
            number = row["id"] = self._builder.new_ids(self._table, 1)
        self._rows.append(row)
        if len(self._rows) == ROWS_AT_ONCE:
            self.flush()
        return number

    def flush(self) -> None:
        """Hands over what there is. Columns that no row has are left out."""
        if not self._rows:
            return
        used = [column for column in self._types if any(column in row for row in self._rows)]
        if len(self._rows) <= FEW_ROWS and not any(self._types[column].startswith("STRUCT") for column in used):
            held = [{column: _held(row.get(column), self._types[column]) for column in used} for row in self._rows]
            self._builder.add_numbered(self._table, held)
            self._rows.clear()
            return
        arrays = {column: _array([row.get(column) for row in self._rows], self._types[column]) for column in used}
        connection = self._builder.connection
        connection.register("batch", arrays)
        values = ", ".join(_value(column, self._types[column]) for column in used)
        self._builder.insert(self._table, used, f"SELECT {values} FROM batch")
        connection.unregister("batch")
        self._rows.clear()


def _held(value: Any, kind: str) -> Any:
    """A value as a column can hold it, else None."""
    if kind in INTEGER_TYPES:
        least, most = INTEGER_TYPES[kind]
        return value if value is not None and least <= value <= most else None
    if kind == "DOUBLE":
        return value if value is not None and math.isfinite(value) else None
    return text(value) if isinstance(value, str) else value


def _array(values: list[Any], kind: str) -> np.ndarray:
    held = [_held(value, kind) for value in values]
    if kind in INTEGER_TYPES:
        return np.array([NULL if value is None else value for value in held], np.int64)
    if kind == "DOUBLE":
        return np.array([np.nan if value is None else value for value in held], np.float64)
    return np.array(held, object)


def _value(column: str, kind: str) -> str:
    """SQL: a column of the batch as the table wants it."""
    if kind in INTEGER_TYPES:
        return f'nullif("{column}", {NULL})::{kind}'
    if kind == "DOUBLE":
        return f'CASE WHEN isfinite("{column}") THEN "{column}" END'
    if kind.startswith("STRUCT"):
        return f"""from_json("{column}", '{FRAMES_FORM}')"""
    return f'"{column}"::{kind}'
