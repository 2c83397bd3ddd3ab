"""The steps that say how a program normally runs: without its warm-up, and what is before and after all steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ral_trace.analysis.intervals import Integers
from ral_trace.analysis.remember import once, table
from ral_trace.analysis.steps import steps
from ral_trace.tracer.reading import Trace


@dataclass(frozen=True)
class Steady:
    """Steps of known duration without the warm-up. None of them: the trace has no steps."""

    process: Integers
    step: Integers
    total_ns: int

    def __len__(self) -> int:
        return len(self.step)


@once
def steady_steps(trace: Trace) -> Steady:
    """Those of all processes."""
    known = [row for row in steps(trace) if row["dur_ns"] is not None and row.get("state") != "warm-up"]
    process, step = (np.array([row[name] for row in known], dtype=np.int64) for name in ("process", "step"))
    return Steady(process, step, sum(row["dur_ns"] for row in known))


@contextmanager
def in_steady(trace: Trace, wanted: bool, row: str = "e") -> Iterator[str]:
    """Condition on a row: it is in a steady step. It always holds where that is not wanted, or there are none."""
    steady = steady_steps(trace) if wanted else None
    if not steady:
        yield "true"
        return
    with table(trace, {"process": steady.process, "step": steady.step}) as chosen:
        yield f"({row}.process, {row}.step) IN (SELECT (process, step) FROM {chosen})"
