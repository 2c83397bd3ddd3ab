"""Which steps of a process are its warm-up, which are outliers, and what was different in them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ral_trace.analysis.base import Row
from ral_trace.analysis.units import duration, human

FEWEST = 4
"""Steps, fewer of which tell nothing about each other."""
SLOW = 1.5
"""Leading steps that take more than this many times what is normal are the warm-up."""
DEVIATIONS, LEAST_EXCESS = 5, 0.1
"""An outlier is above the median by more than so many scaled median absolute deviations, and by this share of it."""
SCALE = 1.4826
"""Makes a median absolute deviation of normal noise its standard deviation."""
WORTH_SAYING = 0.1
"""A difference is said where it is at least this share: a time of the step's excess, another one of what is normal."""

TIMES = {
    "input_wait_ns": "waiting for input",
    "compile_ns": "compiling",
    "gc_ns": "in garbage collections",
    "sync_ns": "waiting for devices",
    "fallback_ns": "in fallbacks",
    "kernel_ns": "in kernels",
}
COUNTS = {
    "fallbacks": ("count", "fallbacks"),
    "syncs": ("count", "syncs"),
    "launches": ("count", "launches"),
    "transferred_bytes": ("bytes", "copied"),
    "allocated_bytes": ("bytes", "allocated"),
    "first_calls": ("count", "ops called for the first time"),
}


@dataclass(frozen=True)
class Pace:
    """How long the steps of one process normally take, in nanoseconds."""

    median_ns: float
    deviation_ns: float
    """Median absolute deviation."""
    warm_up: int
    """Leading steps that are the warm-up."""

    def state(self, number: int, dur_ns: int) -> str:
        """What the process' step of that number, counted from 0, is."""
        if number < self.warm_up:
            return "warm-up"
        excess = max(DEVIATIONS * SCALE * self.deviation_ns, LEAST_EXCESS * self.median_ns)
        return "outlier" if dur_ns > self.median_ns + excess else "steady"


def pace(durations: Sequence[int]) -> Pace | None:
    """The pace of one process' steps, in their order; None: there are too few.

    What is normal is the median of the later half, so that a warm-up of up to half the steps is recognised.
    """
    if len(durations) < FEWEST:
        return None
    half = len(durations) // 2
    normal = statistics.median(durations[half:])
    slow = (number for number, dur_ns in enumerate(durations[:half]) if dur_ns <= SLOW * normal)
    warm_up = next(slow, half)
    steady = durations[warm_up:]
    median = statistics.median(steady)
    return Pace(median, statistics.median(abs(dur_ns - median) for dur_ns in steady), warm_up)


def mark(rows: Sequence[Row]) -> None:
    """Sets `state` and `why` of the steps of one process, which are in order."""
    known = [row for row in rows if row["dur_ns"] is not None]
    found = pace([row["dur_ns"] for row in known])
    if found is None:
        return
    for number, row in enumerate(known):
        row["state"] = found.state(number, row["dur_ns"])
    steady = [row for row in known if row["state"] == "steady"]
    normal = {column: _median(steady, column) for column in (*TIMES, *COUNTS)}
    for row in known:
        if row["state"] != "steady":
            row["why"] = _differences(row, normal, found.median_ns)


def _median(rows: Sequence[Row], column: str) -> float:
    """Of the rows in which it is known; 0: it is in none."""
    values = [row[column] for row in rows if row[column] is not None]
    return statistics.median(values) if values else 0


def _differences(row: Row, normal: dict[str, float], median_ns: float) -> str:
    """What there is more of in a step than normally: times first, the longest first."""
    excess = {column: (row[column] or 0) - normal[column] for column in normal}
    worth_ns = max(WORTH_SAYING * (row["dur_ns"] - median_ns), 1)
    times = sorted((column for column in TIMES if excess[column] >= worth_ns), key=lambda column: -excess[column])
    said = [f"{duration(round(excess[column]))} more {TIMES[column]}" for column in times]
    for column, (unit, what) in COUNTS.items():
        if excess[column] > WORTH_SAYING * normal[column]:
            said.append(f"{human(round(excess[column]), unit)} more {what}")
    return "; ".join(said) or "nothing else that was recorded differs"
