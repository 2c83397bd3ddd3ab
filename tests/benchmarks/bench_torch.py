"""What recording adds to a small CPU op, against what torch.profiler(CPU) adds to it, in one run.

    python -m tests.benchmarks.bench_torch

The untraced, the recorded and the profiled loop take turns several times; medians are compared.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from ral_trace.tracer import trace

AT_MOST = 0.25
OPS = 1000
RUNS = 100
ROUNDS = 7


def op_ns() -> float:
    """Nanoseconds of one op on four elements: the lower quartile of short runs, in which nobody else had the core."""
    x, y = torch.ones(4), torch.ones(4)
    taken = []
    with torch.no_grad():
        for _ in range(RUNS):
            begin = time.perf_counter_ns()
            for _ in range(OPS):
                x.add_(y)
            taken.append((time.perf_counter_ns() - begin) / OPS)
    return statistics.quantiles(taken, n=4)[0]


def recorded_ns(folder: Path) -> float:
    with trace(folder / "bench.duckdb", buffer_bytes=64 << 20):
        return op_ns()


def profiled_ns() -> float:
    with profile(activities=[ProfilerActivity.CPU]):
        return op_ns()


def main() -> int:
    """Prints what each adds. Returns 1 when the budget is missed."""
    torch.set_num_threads(1)
    plain, ours, theirs = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            plain.append(op_ns())
            ours.append(recorded_ns(Path(folder)))
            plain.append(op_ns())
            theirs.append(profiled_ns())
    base = statistics.median(plain)
    added, their_added = statistics.median(ours) - base, statistics.median(theirs) - base
    print(f"an op takes {base:.0f} ns; recording adds {added:.0f} ns, torch.profiler {their_added:.0f} ns")
    print(f"recording adds {added / their_added:.2f} of what torch.profiler adds (budget {AT_MOST})")
    return 0 if added <= AT_MOST * their_added else 1


if __name__ == "__main__":
    sys.exit(main())
