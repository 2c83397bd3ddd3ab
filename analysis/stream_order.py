"""Kernels that overlap on one stream, where one runs after the other: whose times cannot be."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import (
    DEVICE,
    NAMED_DEVICE,
    SOME_KERNELS,
    TIME_NS,
    WANTED,
    Analysis,
    Column,
    Rows,
)
from ral_trace.analysis.intervals import Union, groups
from ral_trace.analysis.units import duration
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

Integers = npt.NDArray[np.int64]

MOST_SUSPECTS = 0.1
"""Where more of a stream's kernels end out of order, the stream is not in order (graphs with branches, merged
streams): then none of them is suspect by that.
"""


@dataclass(frozen=True)
class Overlaps:
    """The overlaps of one stream: sums in ns; suspects are ids of events, the longest first."""

    stream: int
    kernels: int
    overlapping: int
    sum_ns: int
    union_ns: int
    suspects: list[int]
    run_over: int
    """Kernels that ended while an earlier one still ran."""
    in_order: bool


def overlaps(trace: Trace) -> list[Overlaps]:
    """The streams on which kernels overlap.

    A stream runs its kernels in order, so that they end in the order in which they begin. (With programmatic launches
    the begin of one may overlap the end of the one before.) A kernel that ends after a later one has a wrong duration.
    """
    rows = trace.sql(f"""
        SELECT e.stream, e.id, e.ts_ns, e.ts_ns + e.dur_ns AS end_ns FROM event e
        WHERE e.kind = 'kernel' AND e.stream IS NOT NULL AND {TIME_NS} > 0
        ORDER BY e.stream, e.ts_ns, end_ns, e.id""").fetchnumpy()
    stream, number, start, end = (np.asarray(rows[name]) for name in ("stream", "id", "ts_ns", "end_ns"))
    touching = (stream[1:] == stream[:-1]) & (start[1:] < end[:-1])
    if not touching.any():
        return []
    odd = set(np.unique(stream[1:][touching]).tolist())
    return [_of_stream(key, number[part], start[part], end[part]) for key, part in groups(stream) if key in odd]


def _of_stream(stream: int, number: Integers, start: Integers, end: Integers) -> Overlaps:
    latest = np.maximum.accumulate(end)
    over_earlier, over_later = np.zeros(len(start), bool), np.zeros(len(start), bool)
    over_earlier[1:] = start[1:] < latest[:-1]
    over_later[:-1] = end[:-1] > start[1:]
    ends_first = np.minimum.accumulate(end[::-1])[::-1]
    late = np.zeros(len(start), bool)
    late[:-1] = end[:-1] > ends_first[1:]
    run_over = np.zeros(len(start), bool)
    run_over[1:] = end[1:] < latest[:-1]
    in_order = int(late.sum()) <= MOST_SUSPECTS * len(start)
    suspects = np.flatnonzero(late) if in_order else np.array([], np.int64)
    suspects = suspects[np.lexsort((number[suspects], start[suspects] - end[suspects]))]
    return Overlaps(
        stream,
        len(start),
        int((over_earlier | over_later).sum()),
        int((end - start).sum()),
        Union.of(start, end).total_ns,
        number[suspects].tolist(),
        int(run_over.sum()),
        in_order,
    )


def suspects(trace: Trace) -> Integers:
    """The ids of kernels whose durations cannot be: they end after a later one of the same stream."""
    return np.array(sorted(event for found in overlaps(trace) for event in found.suspects), np.int64)


def stream_order(trace: Trace, *, device: str | None = None) -> Rows:
    """A row for each stream on which kernels overlap, most kernels first."""
    found = overlaps(trace)
    if not found:
        return Rows()
    named = {
        stream: (shown, number)
        for stream, shown, number in trace.sql(
            f"WITH {NAMED_DEVICE} SELECT s.id, d.shown, s.number FROM stream s JOIN named_device d USING (device) "
            f"WHERE {WANTED}",
            [device],
        ).fetchall()
    }
    longest = _longest(trace, [each.suspects[0] for each in found if each.suspects])
    rows = Rows()
    for each in sorted(found, key=lambda one: (-one.overlapping, one.stream)):
        if each.stream in named:
            shown, number = named[each.stream]
            name, took = longest[each.suspects[0]] if each.suspects else (None, None)
            rows.append({
                "device": shown,
                "stream": number,
                "kernels": each.kernels,
                "overlapping": each.overlapping,
                "sum_ns": each.sum_ns,
                "union_ns": each.union_ns,
                "suspects": len(each.suspects),
                "suspect_name": name,
                "suspect_ns": took,
                "run_over": each.run_over,
                "in_order": "yes" if each.in_order else "no",
            })  # fmt: skip
    return rows


def _longest(trace: Trace, events: list[int]) -> dict[int, tuple[str | None, int]]:
    found = trace.sql(
        "SELECT id, coalesce(args->>'kernel', name), dur_ns FROM event WHERE id IN (SELECT unnest($1::BIGINT[]))",
        [events],
    ).fetchall()
    return {number: (name, took) for number, name, took in found}


def said(rows: Rows) -> str | None:
    """How much overlaps where nothing should, and the one kernel that explains most of it."""
    ordered = [row for row in rows if row["in_order"] == "yes"]
    if not ordered:
        return None
    count = sum(row["overlapping"] for row in ordered)
    streams = "one in-order stream" if len(ordered) == 1 else f"{len(ordered)} in-order streams"
    text = f"{count:,} kernels overlap on {streams}"
    worst = max(ordered, key=lambda row: row["suspect_ns"] or 0)
    if worst["suspect_ns"] is not None:
        name = plain(str(worst["suspect_name"]))
        text += f": {name} on {plain(str(worst['device']))} is said to take {duration(worst['suspect_ns'])}"
        text += ", and later kernels ended before it; do not believe its duration"
    return f"{text}."


STREAM_ORDER = Analysis(
    "stream_order",
    "Overlaps on one stream",
    "A stream runs one kernel after the other. Where kernels overlap on it, durations are wrong (some firmware lets a "
    "kernel's end run over its successors), or the stream is not in order. A kernel that ends after a later one is "
    "suspect, unless more than a tenth of the stream's do.",
    (
        DEVICE,
        Column("stream", "count", "number of the stream, as the source counts them"),
        Column("kernels", "count", "its kernels with a known duration"),
        Column("overlapping", "count", "of these, those that overlap another one"),
        Column("sum_ns", "ns", "sum of the durations", "sum"),
        Column("union_ns", "ns", "time in which at least one of them ran", "union"),
        Column("suspects", "count", "kernels that end after a later one"),
        Column("suspect_name", "text", "the longest of them; none: none is suspect", "longest suspect"),
        Column("suspect_ns", "ns", "its duration, as recorded", "suspect's time"),
        Column("run_over", "count", "kernels that ended while an earlier one still ran"),
        Column("in_order", "text", "yes, or no where too many end out of order for the stream to be in order"),
    ),
    stream_order,
    chapter="trust",
    shown="device stream overlapping kernels sum_ns union_ns suspect_name suspect_ns suspects run_over in_order",
    needs=(SOME_KERNELS,),
    remark=said,
    notable=lambda row: ["suspect_name"] if row["suspects"] else [],
)  # fmt: skip
