"""What recording adds to a small CPU op, against what torch.profiler(CPU) adds to it, in one run.

    python -m tests.benchmarks.bench_torch

Like for like: plain, with an op that allocates nothing; and with shapes and memory, with one that allocates its result.

Every recorded run of ops is compared with the two untraced ones beside it, milliseconds away: the machine's moods are
slower than that. The median of the differences counts. For that the recording, which goes on, is told to want nothing
and all again; a profile cannot be, and is one for every run. A run is long enough that who profiles pays for the memory
that its events take. In the thread's own CPU time: whoever else is on this machine would be in the wall clock, now in
the one case and now in the other.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from ral_trace.tracer import _native, watch

AT_MOST = 0.25
OPS = 2000
"""Of a run."""
RUNS = 40
ROUNDS = 3
RING_BYTES = 16 << 20

Op = Callable[[torch.Tensor, torch.Tensor], object]
Switch = Callable[[bool], None]


@dataclass
class Comparison:
    """An op, how both record it, and what that added to it."""

    name: str
    op: Op
    options: list[str]
    profiled: dict[str, bool]
    plain_ns: list[float] = field(default_factory=list)
    ours_ns: list[float] = field(default_factory=list)
    theirs_ns: list[float] = field(default_factory=list)


COMPARISONS = [
    Comparison("plain", torch.Tensor.add_, [], {}),
    Comparison("with shapes and memory", torch.add, ["--with-shapes"], {"record_shapes": True, "profile_memory": True}),
]


def op_ns(op: Op) -> float:
    """Nanoseconds of one op on four elements."""
    x, y = torch.ones(4), torch.zeros(4)
    op(x, y)
    begin = time.thread_time_ns()
    for _ in range(OPS):
        op(x, y)
    return (time.thread_time_ns() - begin) / OPS


def added_ns(op: Op, switch: Switch, plain_ns: list[float]) -> Iterator[float]:
    """What each recorded run takes longer than those beside it; these go into `plain_ns`."""
    switch(False)
    before = op_ns(op)
    for _ in range(RUNS):
        switch(True)
        recorded_ns = op_ns(op)
        switch(False)
        after = op_ns(op)
        plain_ns.append(after)
        yield recorded_ns - (before + after) / 2
        before = after


@contextlib.contextmanager
def recorded(folder: Path, options: list[str]) -> Iterator[Switch]:
    """`ral-trace` records this process; what it gives takes back all that is recorded, or wants it again."""
    watch.start()
    command = [sys.executable, "-P", "-m", "ral_trace.tracer.cli", "--pid", str(os.getpid()), "--leash"]
    command += ["--output", str(folder / "bench.duckdb"), "--buffer", str(RING_BYTES), *options]
    collector = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert collector.stdin is not None
    assert collector.stdout is not None
    with collector.stdin, collector.stdout:
        assert collector.stdout.readline().startswith("ready ")
        _native.sync()
        (process,) = Path(_native.Sessions().folder).glob(f"session-*/{os.getpid()}-*/process")
        reader = _native.ProcessReader.open(str(process.parent))
        assert reader is not None

        def switch(on: bool) -> None:
            reader.shed(0 if on else sum(_native.DETAILS.values()))
            _native.sync()

        yield switch
        collector.stdin.write("end\n")
    assert collector.wait() == 0
    _native.sync()


def profiled(options: dict[str, bool]) -> Switch:
    profilers: list[profile] = []

    def switch(on: bool) -> None:
        if on:
            profilers.append(profile(activities=[ProfilerActivity.CPU], **options))
            profilers[0].start()
        elif profilers:
            profilers.pop().stop()

    return switch


def measure(comparison: Comparison, folder: Path) -> None:
    """One recording and one profile."""
    with recorded(folder, comparison.options) as switch:
        comparison.ours_ns += added_ns(comparison.op, switch, comparison.plain_ns)
    switch = profiled(comparison.profiled)
    comparison.theirs_ns += added_ns(comparison.op, switch, comparison.plain_ns)


def main() -> int:
    """Prints what each adds. Returns 1 when a budget is missed."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for _ in range(ROUNDS):
            for comparison in COMPARISONS:
                measure(comparison, Path(folder))
    missed = False
    for comparison in COMPARISONS:
        plain = statistics.median(comparison.plain_ns)
        added, their_added = statistics.median(comparison.ours_ns), statistics.median(comparison.theirs_ns)
        missed |= added > AT_MOST * their_added
        print(
            f"{comparison.name}: an op takes {plain:.0f} ns; recording adds {added:.0f} ns, torch.profiler "
            f"{their_added:.0f} ns: {added / their_added:.2f} of it (budget {AT_MOST})"
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
