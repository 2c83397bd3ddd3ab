"""When the events of a memory snapshot happened: `time_us`, in their order, which is certain where times are not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ral_trace.tracer.importers.rows import LIMIT, Rows
from ral_trace.tracer.importers.snapshot_fields import integer

EPOCH = "epoch"
FILE = "file"
MOST_US = LIMIT // 1000
FREES = ("free_completed", "free")
EARLIEST_EPOCH_US = 946_684_800_000_000
"""2000-01-01: no snapshot is older, and clocks that count from the machine's start do not reach it."""


@dataclass(frozen=True)
class Times:
    """A time for every entry, integer nanoseconds. `begin_ns` is just before the first: what was there before."""

    of_device: Mapping[int, list[int]]
    begin_ns: int
    zero: str


def times_of(rows: Rows, traces: Mapping[int, Sequence[Any]]) -> Times:
    """The times of each device's entries, which never go back. Counts what had none, or one that cannot be."""
    traces = {device: trace for device, trace in traces.items() if trace}
    said = {device: [_stated(entry) for entry in trace] for device, trace in traces.items()}
    known = [time for times in said.values() for time in times if time is not None]
    entries = sum(map(len, said.values()))
    if not known:
        if entries:
            what = "events without a time: each is given a nanosecond, in their order"
            rows.bad(what, count=entries)
        return Times({device: list(range(len(times))) for device, times in said.items()}, -1 if entries else 0, FILE)
    ordered = {device: _ordered(rows, traces[device], times, min(known)) for device, times in said.items()}
    begin = min(times[0] for times in ordered.values())
    return Times(ordered, begin - 1, EPOCH if begin >= EARLIEST_EPOCH_US * 1000 else FILE)


def _stated(entry: Any) -> int | None:
    time_us = integer(entry, "time_us", -MOST_US, MOST_US) if isinstance(entry, dict) else None
    return None if time_us is None else time_us * 1000


def _ordered(rows: Rows, trace: Sequence[Any], said: list[int | None], first: int) -> list[int]:
    """Times that never go back. One that is late alone, with earlier ones behind it, is wrong itself.

    A free in the microsecond of an alloc is a nanosecond later, so that the level between the two is not lost.
    """
    known = [time for time in said if time is not None]
    following = iter([*known[1:], None])
    ordered = []
    stated = known[0] if known else first
    now = stated
    allocated: int | None = None
    for entry, time in zip(trace, said, strict=True):
        if time is None:
            rows.bad("events without a time: given that of the event before")
        else:
            after = next(following)
            late_alone = after is not None and stated <= after < time
            if time < stated or late_alone:
                rows.bad("events whose time is out of their order: given that of the event before", f"{time} ns")
            else:
                stated = time
        now = max(now, stated)
        action = entry.get("action") if isinstance(entry, dict) else None
        if action == "alloc":
            allocated = now
        elif action in FREES and allocated == now:
            now += 1
        ordered.append(now)
    return ordered
