"""What recording adds to a small CPU op, against what torch.profiler(CPU) adds to it, in one run.

    python -m tests.benchmarks.bench_torch

Like for like: plain, with an op that allocates nothing; and with shapes and memory, with one that allocates its result.

A sample is the mean over all ops of one recording, or of one profile, in the thread's own CPU time. Not a best case of
short runs: who profiles pays for the pages that the events take, too. Not the wall clock: whoever else is on this
machine would be in it, now in the one case and now in the other. The untraced, the recorded and the profiled loop take
turns many times, and the medians of what each adds to the untraced loops before and after it are compared.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from ral_trace.tracer import _native, watch

AT_MOST = 0.25
OPS = 100_000
ROUNDS = 3
RING_BYTES = 64 << 20
"""Holds all events of a sample: none is dropped, which would be quicker than to write it."""


@dataclass
class Comparison:
    """An op, and how both record it."""

    name: str
    op: Callable[[torch.Tensor, torch.Tensor], object]
    options: list[str]
    profiled: dict[str, bool]
    added_ns: list[float] = field(default_factory=list)
    their_added_ns: list[float] = field(default_factory=list)
    plain_ns: list[float] = field(default_factory=list)


COMPARISONS = [
    Comparison("plain", torch.Tensor.add_, [], {}),
    Comparison("with shapes and memory", torch.add, ["--with-shapes"], {"record_shapes": True, "profile_memory": True}),
]


def op_ns(op: Callable[[torch.Tensor, torch.Tensor], object]) -> float:
    """Nanoseconds of one op on four elements."""
    x, y = torch.ones(4), torch.zeros(4)
    with torch.no_grad():
        begin = time.thread_time_ns()
        for _ in range(OPS):
            op(x, y)
        return (time.thread_time_ns() - begin) / OPS


@contextlib.contextmanager
def recorded(folder: Path, options: list[str]) -> Iterator[None]:
    """`ral-trace` records this process, with options that `trace()` has none for."""
    watch.start()
    command = [sys.executable, "-P", "-m", "ral_trace.tracer.cli", "--pid", str(os.getpid()), "--leash"]
    command += ["--output", str(folder / "bench.duckdb"), "--buffer", str(RING_BYTES), *options]
    collector = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert collector.stdin is not None
    assert collector.stdout is not None
    with collector.stdin, collector.stdout:
        assert collector.stdout.readline().strip() == "ready"
        _native.sync()
        yield
        collector.stdin.write("end\n")
    assert collector.wait() == 0
    _native.sync()


def measure(comparison: Comparison, folder: Path) -> None:
    """One sample of each."""
    before = op_ns(comparison.op)
    with recorded(folder, comparison.options):
        ours = op_ns(comparison.op)
    between = op_ns(comparison.op)
    profiler: AbstractContextManager[object] = profile(activities=[ProfilerActivity.CPU], **comparison.profiled)
    with profiler:
        theirs = op_ns(comparison.op)
    after = op_ns(comparison.op)
    comparison.plain_ns += [before, between, after]
    comparison.added_ns.append(ours - (before + between) / 2)
    comparison.their_added_ns.append(theirs - (between + after) / 2)


def main() -> int:
    """Prints what each adds. Returns 1 when a budget is missed."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for comparison in COMPARISONS:
                measure(comparison, Path(folder))
    missed = False
    for comparison in COMPARISONS:
        plain = statistics.median(comparison.plain_ns)
        added, their_added = statistics.median(comparison.added_ns), statistics.median(comparison.their_added_ns)
        missed |= added > AT_MOST * their_added
        print(
            f"{comparison.name}: an op takes {plain:.0f} ns; recording adds {added:.0f} ns, torch.profiler "
            f"{their_added:.0f} ns: {added / their_added:.2f} of it (budget {AT_MOST})"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
