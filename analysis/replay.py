"""What the same program would have taken under other settings of the allocator: its allocations and frees again, on the
real allocator of `ral` devices (docs/memory.md), over imaginary addresses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import DEVICE, NAMED_DEVICE, TIME_NS, WANTED, Analysis, Column, Need, Row, Rows
from ral_trace.analysis.block_category import BEFORE
from ral_trace.analysis.block_use import find_peaks
from ral_trace.backend.core import MAX_STREAMS, REPLAY_ACTIONS, replay
from ral_trace.tracer.reading import Trace

if TYPE_CHECKING:
    from ral_trace.backend.core import Replayed

ALTERNATIVES = (
    "",
    "fit:first",
    "region_size_mb:16",
    "region_size_mb:256",
    "max_split_size_mb:32",
    "garbage_collection_threshold:0.8",
)
"""Settings that the report tries; the first are the allocator's own."""
RECORDED = "as recorded"
MOST_CHANGES = 400_000
"""Steps of a device that the report replays under each setting; a longer sequence it leaves to the command."""
UNBOUNDED = 2**62
"""The capacity of a device of which none is known."""
RAL_HANDLES, MANY_HANDLES = 16, 1 << 20
"""Regions that a device may have: few on `ral`; what other devices call a segment is no scarce handle."""

SOME_BLOCKS_OF_DEVICES = Need(
    "EXISTS (FROM allocation a JOIN device d ON d.id = a.device WHERE d.type <> 'cpu')",
    "no allocation of a device was recorded",
)

ALLOCATE, FREE, SUBMIT, FINISH = (REPLAY_ACTIONS.index(name) for name in ("allocate", "free", "submit", "finish"))

CHANGES = f"""
WITH block AS (
    SELECT row_number() OVER (ORDER BY a.alloc_ns NULLS FIRST, a.address, a.id) - 1 AS number, a.id,
           coalesce(a.requested_bytes, a.size_bytes) AS bytes, a.alloc_ns, a.free_ns, a.alloc_event, a.free_event,
           coalesce(s.number, 0) AS stream
    FROM allocation a LEFT JOIN event e ON e.id = a.alloc_event
    LEFT JOIN event p ON p.id = e.parent AND p.kind = 'launch' AND p.device = a.device
    LEFT JOIN stream s ON s.id = p.stream
    WHERE a.device = $1 AND coalesce(a.requested_bytes, a.size_bytes) >= 0)
SELECT coalesce(alloc_ns, {BEFORE}) AS ts_ns, {ALLOCATE} AS action, number, bytes, stream,
       coalesce(alloc_event, number) AS position FROM block
UNION ALL
SELECT free_ns, {FREE}, number, 0, 0, coalesce(free_event, 0) FROM block WHERE free_ns IS NOT NULL"""

WORK = f"""
SELECT coalesce(s.number, 0) AS stream, least(coalesce(l.ts_ns + l.dur_ns, e.ts_ns), e.ts_ns) AS submit_ns,
       e.ts_ns + e.dur_ns AS end_ns, e.id AS position
FROM event e LEFT JOIN stream s ON s.id = e.stream
LEFT JOIN (SELECT process, correlation, min(ts_ns) AS ts_ns, arg_min(dur_ns, (ts_ns, id)) AS dur_ns FROM event
           WHERE kind = 'launch' AND correlation IS NOT NULL GROUP BY ALL) l
  ON l.process = e.process AND l.correlation = e.correlation
WHERE e.device = $1 AND e.kind IN ('kernel', 'transfer') AND {TIME_NS} IS NOT NULL"""


@dataclass(frozen=True)
class Setup:
    """What an allocator is given: its device's memory, the number and the layout of its regions, its settings."""

    capacity: int
    max_regions: int
    alignment: int
    domains: int = 1
    stripe_bytes: int = 1 << 20
    region_bytes: int = 64 << 20
    settings: str = ""


@dataclass(frozen=True)
class Steps:
    """The steps of one device in the order of time, as `replay` takes them, and when each of them was."""

    action: npt.NDArray[np.uint8]
    block: npt.NDArray[np.uint32]
    amount: npt.NDArray[np.uint64]
    stream: npt.NDArray[np.uint8]
    ts_ns: npt.NDArray[np.int64]

    def under(self, setup: Setup) -> "Replayed":
        """What becomes of it. Raises BadSettings, and ValueError for a setup that cannot be."""
        return replay(
            self.action, self.block, self.amount, self.stream, setup.capacity, setup.region_bytes, setup.max_regions,
            setup.alignment, setup.domains, setup.stripe_bytes, setup.settings,
        )  # fmt: skip

    def time(self, step: int | None) -> int | None:
        """When a step was; what was there before the recording has no time."""
        return None if step is None or self.ts_ns[step] == BEFORE else int(self.ts_ns[step])


def count_steps(trace: Trace, device: int) -> int:
    """How many steps `steps_of` would give, at most."""
    [(found,)] = trace.sql(
        """SELECT (SELECT 2 * count(*) FROM allocation WHERE device = $1)
                + (SELECT 2 * count(*) FROM event WHERE device = $1 AND kind IN ('kernel', 'transfer'))""",
        [device],
    ).fetchall()
    return int(found)


def steps_of(trace: Trace, device: int) -> Steps:
    """The allocations and frees of a device, and the work on its streams, which says when freed memory may go to
    another stream. What was there before the recording is allocated first, by address.
    """
    changes = _columns(trace, CHANGES, device)
    submits, finishes = _work(trace, device)
    # At one moment: work ends, then memory changes in the order of its events, then work begins.
    rank = np.repeat([1, 2, 0], [len(changes["ts_ns"]), len(submits["ts_ns"]), len(finishes["ts_ns"])])
    joined = {name: np.concatenate([changes[name], submits[name], finishes[name]]) for name in changes}
    order = np.lexsort((joined["position"], rank, joined["ts_ns"]))
    return Steps(
        joined["action"][order].astype(np.uint8),
        joined["number"][order].astype(np.uint32),
        joined["bytes"][order].astype(np.uint64),
        (joined["stream"][order] % MAX_STREAMS).astype(np.uint8),
        joined["ts_ns"][order],
    )


def _columns(trace: Trace, query: str, device: int) -> dict[str, npt.NDArray[np.int64]]:
    return {name: np.asarray(column, np.int64) for name, column in trace.sql(query, [device]).fetchnumpy().items()}


def _work(trace: Trace, device: int) -> tuple[dict[str, npt.NDArray[np.int64]], dict[str, npt.NDArray[np.int64]]]:
    """Each item of work twice: submitted, and finished with its ticket; a stream finishes in order of submission."""
    work = _columns(trace, WORK, device)
    stream = work["stream"] % MAX_STREAMS
    order = np.lexsort((work["position"], work["submit_ns"], stream))
    stream, submit_ns, end_ns = stream[order], work["submit_ns"][order], work["end_ns"][order]
    ticket, done_ns = np.zeros(len(order), np.int64), end_ns.copy()
    for number in np.unique(stream):
        ours = np.flatnonzero(stream == number)
        ticket[ours] = np.arange(1, len(ours) + 1)
        done_ns[ours] = np.maximum.accumulate(end_ns[ours])
    none = np.zeros(len(order), np.int64)
    submits = {"ts_ns": submit_ns, "action": none + SUBMIT, "number": none, "bytes": none}
    finishes = {"ts_ns": done_ns, "action": none + FINISH, "number": none, "bytes": ticket}
    both = {"stream": stream, "position": work["position"][order]}
    return {**submits, **both}, {**finishes, **both}


def setup_of(trace: Trace, device: int) -> Setup:
    """The allocator's configuration as far as the trace tells it; its settings are not in a trace."""
    [(kind, capacity)] = trace.sql("SELECT type, memory_bytes FROM device WHERE id = $1", [device]).fetchall()
    [(bits, domains, stripe_bytes)] = trace.sql(
        """SELECT (SELECT bit_or(size_bytes) FROM allocation WHERE device = $1),
                  (SELECT max(n) FROM (SELECT count(*) AS n FROM region WHERE device = $1
                                       GROUP BY address, opened_ns, closed_ns)),
                  (SELECT max(try_cast(args->>'stripe_bytes' AS BIGINT)) FROM event
                   WHERE device = $1 AND kind = 'region')""",
        [device],
    ).fetchall()
    max_regions = RAL_HANDLES if kind == "ral" else MANY_HANDLES
    # Blocks are multiples of the alignment; what all of them are multiples of rounds alike.
    alignment = bits & -bits if bits and bits > 0 else 128
    striped = stripe_bytes and 1 < domains <= max_regions and stripe_bytes > 0
    return Setup(
        capacity=capacity if capacity and capacity > 0 else UNBOUNDED,
        max_regions=max_regions,
        # A stripe holds whole units of the device's own alignment, which is the smaller one then.
        alignment=min(alignment, stripe_bytes & -stripe_bytes) if striped else alignment,
        domains=domains if striped else 1,
        stripe_bytes=stripe_bytes if striped else max(1 << 20, alignment),
    )


def allocator_replay(
    trace: Trace,
    *,
    device: str | None = None,
    settings: Sequence[str] = ALTERNATIVES,
    most_changes: int | None = MOST_CHANGES,
    **setup: Any,
) -> Rows:
    """A row a device and setting: how much would have been reserved, and whether memory would have run out; the first
    row of each device is what was recorded. `setup`: fields of Setup that are to be other than the trace tells.

    Devices with more than `most_changes` steps have one row more in place of these, which says so. Raises BadSettings.
    """
    find_peaks(trace)
    rows = Rows()
    for found in trace.rows(RECORDED_PEAKS, [device]):
        number, recorded = found.pop("number"), _row(found)
        rows.append(recorded)
        steps = count_steps(trace, number)
        if most_changes is not None and steps > most_changes:
            note = f"up to {steps:,} steps, more than {most_changes:,}: use ral-trace replay"
            rows.append(_row({"device": found["device"], "settings": None, "note": note}))
            continue
        sequence, known = steps_of(trace, number), replace(setup_of(trace, number), **setup)
        rows += [_replayed(recorded, sequence, replace(known, settings=text)) for text in settings]
    return rows


RECORDED_PEAKS = f"""
WITH {NAMED_DEVICE},
reserved AS (
    SELECT device, max(reserved_bytes) AS bytes, arg_max(ts_ns, (reserved_bytes, -ts_ns::HUGEINT)) AS at_ns
    FROM reserved_curve WHERE ts_ns IS NOT NULL GROUP BY device),
opened AS (SELECT device, count(*) AS regions FROM region GROUP BY device)
SELECT d.device AS number, d.shown AS device, '{RECORDED}' AS settings, r.bytes AS peak_reserved_bytes,
       r.at_ns, p.bytes AS peak_allocated_bytes, o.regions
FROM named_device d JOIN device_peak p ON p.device = d.device LEFT JOIN reserved r ON r.device = d.device
LEFT JOIN opened o ON o.device = d.device
WHERE d.type <> 'cpu' AND {WANTED} ORDER BY d.position"""


def _replayed(recorded: Row, steps: Steps, setup: Setup) -> Row:
    found = steps.under(setup)
    before = recorded["peak_reserved_bytes"]
    failed = found["out_of_memory_step"]
    row = {
        "device": recorded["device"],
        "settings": setup.settings,
        "peak_reserved_bytes": found["peak_reserved_bytes"],
        "ratio": round(found["peak_reserved_bytes"] / before, 3) if before else None,
        "at_ns": steps.time(found["peak_reserved_step"]),
        "peak_allocated_bytes": found["peak_allocated_bytes"],
        "regions": found["regions_opened"],
        "retries": found["retries"],
        "out_of_memory_ns": steps.time(failed),
    }
    if failed is not None:
        row["note"] = f"out of memory: {int(steps.amount[failed]):,} bytes asked for; the replay ends there"
    return _row(row)


def _row(known: Row) -> Row:
    return {column.name: known.get(column.name) for column in COLUMNS}


COLUMNS = (
    DEVICE,
    Column("settings", "text", "as RAL_ALLOC_CONF takes them; empty: none; the first row is what was recorded"),
    Column("peak_reserved_bytes", "bytes", "most in regions at one time; none: not recorded", "peak reserved"),
    Column("ratio", "ratio", "how many times what was recorded", "of recorded"),
    Column("at_ns", "time", "when that was first so", "at"),
    Column("peak_allocated_bytes", "bytes", "most in blocks at one time", "peak allocated"),
    Column("regions", "count", "regions that were opened"),
    Column("retries", "count", "allocations for which unused regions had to be given back"),
    Column("out_of_memory_ns", "time", "when memory would have run out; none: it would not", "out of memory"),
    Column("note", "text", "what else there is to know"),
)

ALLOCATOR_REPLAY = Analysis(
    "allocator_replay",
    "Other settings of the allocator",
    "The recorded allocations and frees again, on the allocator of ral devices, in the order of time and of the "
    "streams, under its own settings and others. What the program gave back by hand (empty_cache) and blocks that it "
    "lent to other streams are not in a trace. `ral-trace replay` tries any setting.",
    COLUMNS,
    allocator_replay,
    chapter="memory",
    detail=True,
    shown="settings peak_reserved_bytes ratio out_of_memory_ns peak_allocated_bytes regions retries at_ns note",
    per_device=True,
    needs=(SOME_BLOCKS_OF_DEVICES,),
)
