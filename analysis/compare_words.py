"""What a comparison says, in sentences: the verdict, what changed, what became worse."""

from collections.abc import Iterator

from ral_trace.analysis.base import Row, Rows
from ral_trace.analysis.bootstrap import CONFIDENCE, FEWEST, Difference
from ral_trace.analysis.compare import ORDER, Comparison
from ral_trace.analysis.units import duration, human, percent
from ral_trace.tracer.text import plain

PLURALS = {"sync": "syncs", "fallback": "fallbacks", "transfer": "directions", "kernel": "kernels", "op": "ops"}
MOST_NAME = 48
"""Characters of a name in a sentence: those of kernels fill a page."""
NAMED = {"transfer": "copies", "memory": "memory"}


def said(found: Comparison) -> str:
    """The verdict in a sentence or two. Names in it are made harmless to look at."""
    return f"{said_of_time(found)} {said_of_changes(found.changes)}"


def said_of_time(found: Comparison) -> str:
    """Whether a step takes longer, and how sure that is."""
    time = found.time
    if time is None:
        counts = f"{len(found.base_steps.numbers)} and {len(found.new_steps.numbers)}"
        return f"Too few steps to compare times: {counts} steady ones, and {FEWEST} each are needed."
    old, new = duration(round(time.base)), duration(round(time.new))
    bounds = f"{CONFIDENCE:.0%} confidence: {_signed(time, time.low)} to {_signed(time, time.high)}"
    if not time.certain:
        return f"No difference in time that these data can show: steps took {old} and {new} ({bounds})."
    change = _signed(time, time.new - time.base)
    return f"The new one is {found.verdict}: a step took {new} in place of {old}, {change} ({bounds})."


def said_of_changes(changes: Rows) -> str:
    """What changed in what the program does, other than time: a sentence."""
    parts = [part for what in ORDER for part in _said_of(what, [row for row in changes if row["what"] == what])]
    if not parts:
        return "What the program does is the same, as far as was recorded."
    return f"What it does has changed: {'; '.join(parts)}."


def _said_of(what: str, rows: list[Row]) -> Iterator[str]:
    for status in ("new", "gone", "more", "less", "larger", "smaller"):
        found = [row for row in rows if row["status"] == status]
        if found:
            others = f" and {len(found) - 1} more {PLURALS.get(what, what)}" if len(found) > 1 else ""
            yield f"{status} {NAMED.get(what, what)}: {_named(found[0])} ({changed(found[0])}){others}"


def _named(row: Row) -> str:
    where = f" on {plain(str(row['device']))}" if row["device"] else ""
    name = plain(str(row["name"]))
    return f"{name if len(name) <= MOST_NAME else name[: MOST_NAME - 1] + '…'}{where}"


def changed(row: Row) -> str:
    """`12 → 14`: what the row's status speaks of, in both recordings. What no steady step has is told of all of it."""
    unit = {"larger": "bytes", "smaller": "bytes", "slower": "ns", "faster": "ns"}.get(row["status"], "count")
    values = [row[f"{side}_{unit}"] for side in ("base", "new")]
    if unit == "count" and values[0] == values[1]:
        return f"{row['base_total']:,} → {row['new_total']:,} in all"
    told = [human(value, unit) if value is None or unit != "count" else f"{value:,}" for value in values]
    return " → ".join(told)


def regressions(found: Comparison, tolerance: float) -> list[str]:
    """What became worse by more than `tolerance`, a share: a sentence each. A time only where the steps are sure.

    New fallbacks and syncs are worse whatever the tolerance.
    """
    worse = []
    if found.time is not None and found.time.base > 0 and found.time.low > tolerance * found.time.base:
        worse.append(said_of_time(found).rstrip("."))
    for row in found.changes:
        grown = _grown(row, tolerance)
        if grown:
            worse.append(f"{row['status']} {NAMED.get(row['what'], row['what'])}: {_named(row)} ({grown})")
    return worse


def _grown(row: Row, tolerance: float) -> str | None:
    """How a fallback, a sync, copied bytes or a peak grew beyond what is tolerated; None: they did not."""
    if row["what"] in ("fallback", "sync"):
        more = row["status"] == "more" and row["new_count"] > (1 + tolerance) * row["base_count"]
        return changed(row) if more or row["status"] == "new" else None
    if row["what"] not in ("transfer", "memory") or row["new_bytes"] is None:
        return None
    before = row["base_bytes"] or 0
    grown = row["new_bytes"] > (1 + tolerance) * before
    return f"{human(before, 'bytes')} → {human(row['new_bytes'], 'bytes')}" if grown else None


def _signed(difference: Difference, value: float) -> str:
    share = difference.percent(value)
    if share is None:
        return duration(round(value))
    return f"{'+' if share >= 0 else '-'}{percent(abs(share))}"
