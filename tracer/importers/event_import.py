"""From a scanned file to rows of the trace, for every importer of Chrome's format: they say what their events are
(`Dialect`), and the rest is the same.

What rows have in common is decided here, once a label (`meanings`); what follows from one row and the next, natively
(native/trace_events.h). Only what few files have goes through SQL (`phases`).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ral_trace.tracer import _native
from ral_trace.tracer.importers import phases
from ral_trace.tracer.importers.kineto_devices import add_devices, add_memory
from ral_trace.tracer.importers.meanings import Meanings
from ral_trace.tracer.importers.places import Places, Role, add_places, stage_places
from ral_trace.tracer.importers.rows import BYTES_BEYOND, Rows
from ral_trace.tracer.importers.stacks import add_call_stacks
from ral_trace.tracer.importers.trace_events import Field, Group, Scan, rows_of, stage
from ral_trace.tracer.store import ROWS_A_GROUP

UNIX_EPOCH_NS = 946_684_800_000_000_000
"""Times from here on (the year 2000) count from 1970."""
NO_TIME = -(2**63)
STAGED = set("BEbeSFstfC")
"""Phases whose events need others to mean something."""


@dataclass(frozen=True)
class Dialect:
    """What one producer's events mean."""

    role_of: Callable[[Group], Role | None]
    fields: Collection[Field] = ()
    one_process: bool = False
    """The file is of one process, whatever pids it has for devices and spans."""
    arrow_kinds: Mapping[str, str] = field(default_factory=dict)
    """Arrows by category: their kinds, where it is not the category."""
    rounding_ns: int = 0
    """What starts and durations are rounded to: so much a child may end after its parent."""
    inner_first: bool = False
    """Of slices with the same times the inner one was written first."""
    external_parents: bool = False
    """What nesting does not say, the field `external` does: see TraceEvents.state_parents."""


@dataclass(frozen=True)
class Window:
    """When the profiler was on; None: the file does not say."""

    start_ns: int | None = None
    end_ns: int | None = None


@dataclass(frozen=True)
class Imported:
    """What there is to finish: row `n` of the file is event `first + n`."""

    places: Places
    first: int
    first_ns: int | None
    """The first start."""

    @property
    def clock_zero(self) -> str:
        """What ts_ns 0 means."""
        return "unix epoch" if self.first_ns is not None and self.first_ns >= UNIX_EPOCH_NS else "file"


def import_events(
    rows: Rows, scan: Scan, dialect: Dialect, *, window: Window = Window(), facts: Mapping[str, Any] | None = None
) -> Imported:
    """Adds all that the file has; `facts` are columns of the main process."""
    phases.count_ignored(rows, ((group.ph, group.rows) for group in scan.groups))
    places = add_places(rows, scan, dialect.role_of, one_process=dialect.one_process, main_facts=dict(facts or {}))
    meanings = Meanings(scan, places, add_devices(rows, scan, places))
    events = _native.TraceEvents(scan.table, **meanings.columns, inner_first=dialect.inner_first)
    has = {group.ph for group in scan.groups if not group.skipped}
    memory = bool(meanings.memory_groups) and any(column == "address" for _, column, _ in dialect.fields)
    staged = [group for group in scan.groups if group.ph in STAGED and not group.skipped]
    staged += [group for group in scan.groups if memory and group.number in meanings.memory_groups]
    if staged:
        stage(rows, scan, staged)
        stage_places(rows, scan, places)
        scan.staged.update(phases.TABLES)
    amended = phases.pair_slices(rows) if has & set("BE") else []
    amended += phases.pair_async(rows) if has & set("beSF") else []
    for row, dur_ns, flags, args in amended:
        events.amend(row, NO_TIME if dur_ns is None else dur_ns, flags, args or "")
    if meanings.python_calls:
        calls = _mask(scan, meanings.python_calls)
        events.end_overruns(calls, NO_TIME if window.end_ns is None else window.end_ns)
    first, first_ns = _land(rows, scan, dialect, meanings, events, window)
    rows.builder.complete_processes.update(places.process.values())
    if has & set("stf"):
        phases.find_arrow_ends(rows)
        phases.add_arrows(rows, events, first, dict(dialect.arrow_kinds))
    if "C" in has:
        phases.add_counters(rows)
    if memory:
        add_memory(rows, first)
    return Imported(places, first, first_ns)


def _land(
    rows: Rows, scan: Scan, dialect: Dialect, meanings: Meanings, events: _native.TraceEvents, window: Window
) -> tuple[int, int | None]:
    """Adds the rows of `event`, and the flows of launches. Returns the first id, and the first start."""
    events.settle()
    _count_odd(rows, scan, events)
    start_ns = events.first_start(on_threads=True) if window.start_ns is None else window.start_ns
    if start_ns is not None:
        count, row, _ = events.flag_leftovers(start_ns)
        if count:
            what = "rows on devices from before the recording, without a launch: kept, but out of all sums"
            rows.bad(what, scan.table.row(row)[1], count=count)
    events.find_launches()
    tolerance_ns = 1000 if scan.whole_microseconds else dialect.rounding_ns
    events.place(**_step_intervals(scan, meanings), tolerance_ns=tolerance_ns)
    if dialect.external_parents:
        events.state_parents()
    stacks = scan.table.texts("call_stack") if any(column == "call_stack" for _, column, _ in scan.fields) else []
    first = rows.builder.new_ids("event", scan.table.rows)
    stream = events.rows(
        first=first,
        stack_first=add_call_stacks(rows, stacks),
        categories=list(meanings.categories),
        backward=meanings.backward,
        rows_a_batch=ROWS_A_GROUP,
    )
    connection = rows.builder.connection
    connection.register("scanned_event", stream)
    rows.builder.insert("event", stream.columns, "FROM scanned_event")
    connection.unregister("scanned_event")
    _add_launch_flows(rows, events, first)
    rows.builder.step_sources |= meanings.step_sources
    return first, events.first_start(on_threads=False)


def _add_launch_flows(rows: Rows, events: _native.TraceEvents, first: int) -> None:
    launches, started = events.launched(first)
    if len(launches):
        connection = rows.builder.connection
        connection.register("launched", {"launch": launches, "started": started})
        rows.builder.insert(
            "flow", ("kind", "from_event", "to_event"), "SELECT 'launch', launch, started FROM launched"
        )
        connection.unregister("launched")


def _step_intervals(scan: Scan, meanings: Meanings) -> dict[str, NDArray[np.int64]]:
    """When the steps were: from annotations that state them, else from the ends of the optimiser's steps.

    By the rules of `derive.mark_steps`. Sorted by process and start.
    """
    stated = bool(meanings.stated_steps)
    found = rows_of(scan, _mask(scan, meanings.stated_steps or meanings.optimizer_steps))
    ended = found["dur_ns"] >= 0
    label, start_ns, dur_ns = (found[name][ended] for name in ("label", "ts_ns", "dur_ns"))
    process, end_ns = meanings.columns["process"][label], start_ns + dur_ns
    if stated:
        step = meanings.columns["step"][label]
        sound = step >= 0
        process, step, start_ns, end_ns = process[sound], step[sound], start_ns[sound], end_ns[sound]
        order = np.lexsort((start_ns, process))
    else:
        order = np.lexsort((end_ns, process))
        process, end_ns = process[order], end_ns[order]
        begins = np.flatnonzero(np.diff(process, prepend=-1))
        step = np.arange(len(process)) - np.repeat(begins, np.diff(begins, append=len(process)))
        start_ns = np.where(step == 0, NO_TIME, np.roll(end_ns, 1))
        order = np.arange(len(process))
    return {"process": process[order], "step": step[order], "start_ns": start_ns[order], "end_ns": end_ns[order]}


def _mask(scan: Scan, labels: Collection[int]) -> list[bool]:
    """Which labels are among some."""
    mask = [False] * len(scan.table)
    for number in labels:
        mask[number] = True
    return mask


def _count_odd(rows: Rows, scan: Scan, events: _native.TraceEvents) -> None:
    """Says which rows have times or sizes that cannot be."""
    for what, unit, (count, row, value) in [
        ("events without a time: left out", " ns", events.timeless),
        ("events with a negative duration: kept without it, and out of all sums", " ns", events.negative),
        (BYTES_BEYOND, "", events.odd_bytes),
    ]:
        if count:
            name = scan.table.row(row)[1] or ""
            rows.bad(what, name if value is None else f"{name}: {value}{unit}", count=count)
