"""What is different between two recordings of a program, and how sure that is: `compare(trace)`.

Both are matched by op, module, device and step. Steps of the warm-up are left out. A difference in time is told with
the bounds of a bootstrap over steps; what these steps cannot show is not told as a difference.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ral_trace.analysis.base import Column, Rows
from ral_trace.analysis.bootstrap import FEWEST, Difference, means, medians
from ral_trace.analysis.memory import memory_peak
from ral_trace.analysis.step_work import (
    MOST_KEYS,
    WHAT,
    Amount,
    Key,
    Steps,
    by_step,
    gather,
    matched_devices,
    steady_steps,
    totals,
)
from ral_trace.tracer.reading import Trace

MATTERS = 0.005
"""Share of a step that a thing must be slower or faster by to be told."""

COLUMNS = (
    Column("what", "text", "fallback, sync, transfer, kernel, op; memory: the peak of a device"),
    Column(
        "status",
        "text",
        "new, gone: in one recording only; more, less: how often; larger, smaller: its bytes; slower, faster: its time",
    ),
    Column("device", "text", "as people write it, ral:1; none: on the host"),
    Column("name", "text", "op or kernel; of copies their direction"),
    Column("module", "text", "the innermost module that it happened in; none: in no module, or modules not recorded"),
    Column("base_count", "number", "how often in the base: a steady step, or without steps in all"),
    Column("new_count", "number", "the same in the new one"),
    Column("base_total", "count", "how often in the whole recording of the base, warm-up and all"),
    Column("new_total", "count", "the same in the new one"),
    Column("base_ns", "ns", "its time in the base, the same way; none: unknown"),
    Column("new_ns", "ns", "the same in the new one"),
    Column("low_ns", "ns", "least difference of the two times that the steps allow for; none: without enough steps"),
    Column("high_ns", "ns", "the greatest"),
    Column("base_bytes", "bytes", "its bytes in the base, the same way; none: unknown"),
    Column("new_bytes", "bytes", "the same in the new one"),
)
"""Of `Comparison.changes`."""


@dataclass(frozen=True)
class Comparison:
    """What two recordings say of each other.

    `time` is the difference of the steps' medians in ns; None: too few steps. `verdict` is one of slower, faster, same
    (no difference in time that the steps can show), unknown.
    """

    base: str
    new: str
    base_steps: Steps
    new_steps: Steps
    time: Difference | None
    changes: Rows
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        if self.time is None:
            return "unknown"
        if not self.time.certain:
            return "same"
        return "slower" if self.time.low > 0 else "faster"


def compare(trace: Trace) -> Comparison:
    """Compares the trace with the one that is open beside it, which is the new one. Raises UsageError without one."""
    new = trace.other()
    with new:
        sides = trace, new
        steps = steady_steps(trace), steady_steps(new)
        renamed = matched_devices(trace, new)
        gather(trace, {})
        gather(new, renamed)
        enough = min(len(side.numbers) for side in steps) >= FEWEST
        changes = Rows(_memory(trace, new, renamed))
        changes += _changes_by_step(sides, steps) if enough else _changes_in_all(sides)
        changes.sort(key=_importance)
        return Comparison(
            trace.path.name,
            new.path.name,
            *steps,
            medians(steps[0].dur_ns, steps[1].dur_ns) if enough else None,
            changes,
            list(_notes(sides, enough, renamed)),
        )


def _changes_by_step(sides: tuple[Trace, Trace], steps: tuple[Steps, Steps]) -> Rows:
    """What differs in the steady steps beyond what chance can do, and what one recording does not have at all."""
    all_of = [totals(side) for side in sides]
    keys = _most_different(all_of, [len(side.numbers) + side.warm_up for side in steps])
    found = [by_step(side, keys, of_side) for side, of_side in zip(sides, steps, strict=True)]
    differences = {name: means(found[0][name], found[1][name]) if keys else [] for name in ("count", "ns", "bytes")}
    rows = Rows()
    for position, key in enumerate(keys):
        count, ns, size = (differences[name][position] for name in ("count", "ns", "bytes"))
        status = _status(all_of[0].get(key), all_of[1].get(key), count, size, ns)
        matters = abs(ns.new - ns.base) >= MATTERS * float(np.median(steps[0].dur_ns))
        if status is not None and (matters or status not in ("slower", "faster")):
            totals_of_key = [side.get(key, Amount()) for side in all_of]
            rows.append(_row(key, status, totals_of_key, count, ns, size))
    return rows


def _status(base: Amount | None, new: Amount | None, count: Difference, size: Difference, ns: Difference) -> str | None:
    """How a thing changed; None: not that one could tell."""
    if base is None or new is None:
        return "new" if base is None else "gone"
    for difference, more, less in ((count, "more", "less"), (size, "larger", "smaller"), (ns, "slower", "faster")):
        if difference.certain:
            return more if difference.low > 0 else less
    return None


def _changes_in_all(sides: tuple[Trace, Trace]) -> Rows:
    """Without enough steps: what one recording does not have, and what the other did more often or with more bytes."""
    base, new = (totals(side) for side in sides)
    rows = Rows()
    for key in base.keys() | new.keys():
        before, after = base.get(key, Amount()), new.get(key, Amount())
        amounts = [((amount.count, amount.ns or 0, amount.bytes or 0)) for amount in (before, after)]
        exactly = [Difference(a, b, b - a, b - a) for a, b in zip(*amounts, strict=True)]
        same = Difference(0, 0, 0, 0)
        status = _status(base.get(key), new.get(key), exactly[0], exactly[2], same)
        if status is not None:
            rows.append({**_row(key, status, [before, after], *exactly), "low_ns": None, "high_ns": None})
    return rows


def _row(
    key: Key, status: str, all_of: list[Amount], count: Difference, ns: Difference, size: Difference
) -> dict[str, object]:
    """A time or size that no row of a recording states is None there."""
    timed, sized = ([getattr(amount, name) is not None for amount in all_of] for name in ("ns", "bytes"))
    there = [amount.count > 0 for amount in all_of]
    known = all(one or not here for one, here in zip(timed, there, strict=True))
    return {
        "what": key.what,
        "status": status,
        "device": key.device or None,
        "name": key.name or None,
        "module": key.module or None,
        "base_count": _number(count.base),
        "new_count": _number(count.new),
        "base_total": all_of[0].count,
        "new_total": all_of[1].count,
        "base_ns": round(ns.base) if timed[0] or not there[0] else None,
        "new_ns": round(ns.new) if timed[1] or not there[1] else None,
        "low_ns": round(ns.low) if known else None,
        "high_ns": round(ns.high) if known else None,
        "base_bytes": round(size.base) if sized[0] or (sized[1] and not there[0]) else None,
        "new_bytes": round(size.new) if sized[1] or (sized[0] and not there[1]) else None,
    }


def _number(value: float) -> float | int:
    return int(value) if value == int(value) else round(value, 3)


def _most_different(all_of: list[dict[Key, Amount]], steps: list[int]) -> list[Key]:
    """The things whose steps are looked at: what one side does not have, then by time and by how often, a step."""

    def apart(key: Key) -> tuple[int, float, float]:
        base, new = (side.get(key) for side in all_of)
        if base is None or new is None:
            return WHAT.index(key.what), -float("inf"), 0
        count = abs(base.count / steps[0] - new.count / steps[1])
        size = abs((base.bytes or 0) / steps[0] - (new.bytes or 0) / steps[1])
        ns = abs((base.ns or 0) / steps[0] - (new.ns or 0) / steps[1])
        return WHAT.index(key.what), -(count * 1e9 + size * 1e3), -ns

    keys = sorted(all_of[0].keys() | all_of[1].keys(), key=lambda key: (*apart(key), key.device, key.name, key.module))
    return keys[:MOST_KEYS]


def _peaks(trace: Trace, renamed: dict[str, str]) -> dict[str, int]:
    """The highest memory of each device of which allocations were recorded."""
    found: dict[str, int] = {}
    for row in memory_peak(trace):
        if row["peak_bytes"] is not None:
            device = renamed.get(row["device"], row["device"])
            found[device] = max(found.get(device, 0), row["peak_bytes"])
    return found


def _memory(base: Trace, new: Trace, renamed: dict[str, str]) -> Iterator[dict[str, object]]:
    """Peaks of memory that differ, by device, where allocations were recorded in both."""
    peaks = _peaks(base, {}), _peaks(new, renamed)
    for device in sorted(peaks[0].keys() & peaks[1].keys()):
        before, after = peaks[0][device], peaks[1][device]
        if before != after:
            yield {
                **dict.fromkeys(column.name for column in COLUMNS),
                "what": "memory",
                "status": "larger" if after > before else "smaller",
                "device": device,
                "name": "peak",
                "base_bytes": before,
                "new_bytes": after,
            }


def _notes(sides: tuple[Trace, Trace], enough: bool, renamed: dict[str, str]) -> Iterator[str]:
    """What one must know before believing the comparison."""
    for side in sides:
        [(missing,)] = side.sql("SELECT coalesce(sum(dropped + lost + shed), 0)::BIGINT FROM ledger").fetchall()
        if missing:
            yield f"{side.path.name}: {missing:,} events are missing from it, so that counts may be too low"
    for after, before in renamed.items():
        yield f"{after} of the new one is compared with {before} of the base, and told under that name"
    if not enough:
        yield "without enough steps, whole recordings are compared: longer ones have more of everything"


ORDER = ("fallback", "sync", "memory", "transfer", "kernel", "op")
STATUSES = ("new", "gone", "more", "less", "larger", "smaller", "slower", "faster")


def _importance(row: dict[str, object]) -> tuple[object, ...]:
    """Kinds of things first, then what changed most."""
    time, size = (abs((row[f"new_{unit}"] or 0) - (row[f"base_{unit}"] or 0)) for unit in ("ns", "bytes"))  # type: ignore[operator]
    texts = tuple(str(row[name]) for name in ("device", "name", "module"))
    return (ORDER.index(str(row["what"])), -time, -size, STATUSES.index(str(row["status"])), *texts)
