"""The devices' allocator against having none, and against a plain first fit, in one run.

    python -m tests.benchmarks.bench_allocator

All of it is C++ (allocator_sites.cpp), compiled here with the flags of the package. The first fit gets the same random
sequence, the same alignment and a lock too. What fragmentation costs is how much memory each needs to get through the
sequence, as a multiple of the most that is live at once.
"""

import ctypes
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.native import toolchain

UNPOOLED, FIRST_FIT, EXTRA = 10.0, 2.0, 1.0
"""Pooled at least so much quicker than a region a tensor; at least so much quicker than first fit; memory needed at
most so much of what first fit needs.
"""
PAIRS = 20_000
STEPS = 60_000
SLOTS = 2_000
REPEATS = 7
FOREVER = 1 << 40
SEQUENCES = 8


@dataclass(frozen=True)
class Sequence:
    """Steps on slots: bytes > 0 allocates into the slot, 0 frees what it holds."""

    slots: np.ndarray
    sizes: np.ndarray
    peak_bytes: int

    def arguments(self) -> tuple[ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]:
        slots, sizes = (ctypes.c_void_p(array.ctypes.data) for array in (self.slots, self.sizes))
        return slots, sizes, ctypes.c_size_t(len(self.slots)), ctypes.c_size_t(SLOTS)


def random_sequence(seed: int) -> Sequence:
    """Sizes as a training has them: mostly small, some activations, few large; a third lives long."""
    chance = random.Random(seed)
    free = list(range(SLOTS))
    held: dict[int, int] = {}
    slots, sizes, live, peak = [], [], 0, 0
    for _ in range(STEPS):
        if not free or (held and chance.random() < 0.48):
            slot = chance.choice(list(held)[-200:]) if chance.random() < 0.7 else chance.choice(list(held))
            live -= held.pop(slot)
            free.append(slot)
            slots.append(slot)
            sizes.append(0)
        else:
            size = int(2 ** chance.uniform(6, 22 if chance.random() < 0.3 else 14))
            slot = free.pop()
            held[slot] = (size + 127) // 128 * 128
            live += held[slot]
            peak = max(peak, live)
            slots.append(slot)
            sizes.append(size)
    return Sequence(np.array(slots, np.uint32), np.array(sizes, np.uint64), peak)


def load_sites(folder: Path) -> ctypes.CDLL:
    """Compiles what is timed, the allocator included, as setup.py compiles the package."""
    units = {
        "sites": [Path(__file__).with_name("allocator_sites.cpp")],
        "allocator": toolchain.allocator_sources(),
    }
    sites = ctypes.CDLL(str(toolchain.build(folder / "sites.so", units, ["-O2", "-fPIC", "-shared"])))
    for name in ("region_allocator_ns", "first_fit_ns", "pooled_pair_ns", "unpooled_pair_ns"):
        getattr(sites, name).restype = ctypes.c_double
    return sites


def medians(*calls: Callable[[], float]) -> list[float]:
    """Of each, in turns, so that all see the same machine."""
    taken = [[call() for call in calls] for _ in range(REPEATS)]
    return [statistics.median(column) for column in zip(*taken, strict=True)]


def needed_bytes(fits: Callable[[int], bool], peak_bytes: int) -> int:
    """The least memory that suffices, to one part in 500."""
    low, high = peak_bytes, peak_bytes * 4
    while high - low > peak_bytes // 500:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def compare_with_no_pool(sites: ctypes.CDLL, size: int) -> bool:
    """One size over and over; with the streams' clock, as the devices have it."""
    arguments = (ctypes.c_size_t(size), ctypes.c_size_t(PAIRS))
    pooled, unpooled = medians(
        lambda: sites.pooled_pair_ns(*arguments, 1),
        lambda: sites.unpooled_pair_ns(*arguments),
    )
    print(
        f"allocate, write a byte and free {size >> 10} KiB: {pooled:.0f} ns pooled, {unpooled:.0f} ns with a region"
        f" of its own: {unpooled / pooled:.0f} x (budget {UNPOOLED:.0f})"
    )
    return unpooled >= UNPOOLED * pooled


def compare_speed(sites: ctypes.CDLL, sequence: Sequence) -> bool:
    """The random sequence, with memory to spare."""
    ours, first = medians(
        lambda: sites.region_allocator_ns(ctypes.c_size_t(FOREVER), *sequence.arguments()),
        lambda: sites.first_fit_ns(ctypes.c_size_t(FOREVER), *sequence.arguments()),
    )
    print(
        f"{STEPS} random steps: {ours:.0f} ns each, first fit {first:.0f} ns: {first / ours:.1f} x (budget {FIRST_FIT})"
    )
    return first >= FIRST_FIT * ours


def mean_need(run: Callable[..., float], sequences: list[Sequence]) -> float:
    """Memory needed over memory live, of all sequences."""
    return statistics.mean(
        needed_bytes(lambda capacity: run(ctypes.c_size_t(capacity), *one.arguments()) >= 0, one.peak_bytes)  # noqa: B023
        / one.peak_bytes
        for one in sequences
    )


def compare_fragmentation(sites: ctypes.CDLL, sequences: list[Sequence]) -> bool:
    """How little memory will do."""
    ours, first = (mean_need(run, sequences) for run in (sites.region_allocator_ns, sites.first_fit_ns))
    print(
        f"memory needed, over what is live at once: {ours:.3f} x, first fit {first:.3f} x"
        f" (mean of {len(sequences)} sequences; budget: no more than first fit)"
    )
    return ours <= EXTRA * first


def main() -> int:
    """Prints the comparisons. Returns 1 when a budget is missed."""
    with tempfile.TemporaryDirectory() as folder:
        sites = load_sites(Path(folder))
    sequences = [random_sequence(seed) for seed in range(SEQUENCES)]
    met = [compare_with_no_pool(sites, size) for size in (4 << 10, 1 << 20)]
    met += [compare_speed(sites, sequences[0]), compare_fragmentation(sites, sequences)]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
