"""What two series of steps say of each other: how sure a difference is.

Steps that follow each other are alike (caches, a neighbour on the machine), so that whole stretches of them are drawn
again, not single ones: the circular block bootstrap (Politis and Romano, 1992).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

FEWEST = 8
"""Steady steps that each side needs for a statement about time."""
MOST = 5_000
"""Steps that are looked at: the last ones of a longer recording."""
DRAWS = 4_000
CONFIDENCE = 0.95
SEED = 20_240_229
"""Fixed: the same two traces give the same answer."""


@dataclass(frozen=True)
class Difference:
    """How much larger the second series is than the first, and between which bounds that lies with CONFIDENCE."""

    base: float
    new: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """Whether no difference at all lies outside the bounds."""
        return self.low > 0 or self.high < 0

    def percent(self, value: float) -> float | None:
        """`value` as a share of the first series; None where that is 0."""
        return 100 * value / self.base if self.base else None


def medians(base: Integers, new: Integers) -> Difference:
    """The difference of the medians. Neither may be empty."""
    generator = np.random.default_rng(SEED)
    drawn = [_in_parts(series, generator) for series in (base, new)]
    low, high = _bounds(drawn[1] - drawn[0], 1)
    return Difference(float(np.median(base)), float(np.median(new)), float(low), float(high))


def means(base: Numbers, new: Numbers) -> list[Difference]:
    """The differences of the means of many series, a column each; a row is a step, and steps are drawn whole.

    The bounds hold for all columns at once (Bonferroni): of fifty ops one would look changed by chance otherwise.
    """
    generator = np.random.default_rng(SEED)
    drawn = [_means_drawn(series, generator) for series in (base, new)]
    low, high = _bounds(drawn[1] - drawn[0], max(base.shape[1], 1))
    return [
        Difference(float(a), float(b), float(least), float(most))
        for a, b, least, most in zip(base.mean(axis=0), new.mean(axis=0), low, high, strict=True)
    ]


def _in_parts(series: Integers, generator: np.random.Generator) -> Numbers:
    """Medians of redrawn series, so many at a time that memory is bounded."""
    each = max(1, 4_000_000 // len(series))
    parts = [
        np.median(series[_draws(len(series), min(each, DRAWS - done), generator)], axis=1)
        for done in range(0, DRAWS, each)
    ]
    return np.concatenate(parts)


def _draws(steps: int, rows: int, generator: np.random.Generator) -> Integers:
    """Rows of step numbers: stretches of steps, from anywhere, each about the cube root of all long."""
    length = max(1, round(steps ** (1 / 3)))
    begins = generator.integers(0, steps, (rows, -(-steps // length), 1))
    drawn = (begins + np.arange(length)).reshape(rows, -1)[:, :steps] % steps
    return np.asarray(drawn, dtype=np.int64)


def _means_drawn(series: Numbers, generator: np.random.Generator) -> Numbers:
    """Means of redrawn steps: a row a draw. Steps are counted in whole numbers, so that what is the same in every step
    comes out the same in every draw.
    """
    steps = len(series)
    each = max(1, 4_000_000 // steps)
    parts = []
    for done in range(0, DRAWS, each):
        drawn = _draws(steps, min(each, DRAWS - done), generator)
        rows = np.arange(len(drawn))[:, None] * steps
        times = np.bincount((drawn + rows).ravel(), minlength=drawn.size).reshape(drawn.shape)
        parts.append(times.astype(np.float64) @ series / steps)
    return np.concatenate(parts)


def _bounds(drawn: Numbers, series: int) -> tuple[Numbers, Numbers]:
    tail = (1 - CONFIDENCE) / series / 2
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    return np.asarray(low), np.asarray(high)
