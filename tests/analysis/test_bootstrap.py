"""How sure a difference between two series of steps is."""

import numpy as np

from ral_trace.analysis.bootstrap import means, medians


def whole(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_steps_that_do_not_vary_leave_no_doubt() -> None:
    found = medians(whole(*[100_000] * 9), whole(*[110_000] * 12))
    assert (found.base, found.new, found.low, found.high) == (100_000, 110_000, 10_000, 10_000)
    assert found.certain
    assert found.percent(found.low) == 10


def test_the_same_steps_are_no_difference() -> None:
    found = medians(whole(*[7] * 20), whole(*[7] * 8))
    assert (found.low, found.high) == (0, 0)
    assert not found.certain


def test_means_of_counts_are_exact() -> None:
    """A third of a step's counts cannot be written in binary; what never varies must still not seem to."""
    base = np.full((9, 3), 3.0)
    new = np.full((14, 3), 3.0)
    new[:, 2] = 4
    found = means(base, new)
    assert [(each.low, each.high) for each in found] == [(0, 0), (0, 0), (1, 1)]


def test_bounds_are_kept_about_as_often_as_they_say() -> None:
    """Of pairs of series of the same distribution one in twenty may look different."""
    generator = np.random.default_rng(1)
    wrong = 0
    for _ in range(100):
        base, new = (generator.gamma(4, 1e6, 30).astype(np.int64) for _ in range(2))
        wrong += medians(base, new).certain
    assert wrong <= 12


def test_steps_that_depend_on_the_ones_before_have_wider_bounds() -> None:
    """Slow phases of ten steps each: forty steps say less than forty independent ones."""
    phases = np.repeat(whole(100, 200, 100, 200), 10)
    shuffled = np.random.default_rng(0).permutation(phases)
    widths = []
    for series in (phases, shuffled):
        [found] = means(series[:, None].astype(float), series[:, None].astype(float))
        widths.append(found.high - found.low)
    assert widths[0] > 1.3 * widths[1]


def test_the_answer_is_the_same_each_time() -> None:
    base, new = whole(*range(100, 130)), whole(*range(110, 150))
    assert medians(base, new) == medians(base, new)
