"""Programs that the integration tests trace, and how to run them under ral-trace.

Each counts in a shared page of its own what it did.
"""

import mmap
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ral_trace.tracer import Trace

TRACE_COMMAND = [sys.executable, "-m", "ral_trace.tracer.cli"]

COUNTING = """
import mmap, sys, time
import torch
import ral_trace.backend
ral_trace.backend.enable()
file = open(sys.argv[1], "r+b")
page = memoryview(mmap.mmap(file.fileno(), 4096)).cast("q")
x = torch.ones(8, 8, device="ral:1")
done = 0
while True:
    x.mul_(1.0)                                # one launch, one kernel
    done += 1
    page[0] = done                             # a page of our own: it survives us, and is not the ring
    if done % 500 == 0:
        time.sleep(0.001)
"""
"""Launches `aten::mul_.Tensor`-like work on ral:1 for ever, and counts the launches that returned."""

CPU_LOOP = """
import sys, time, torch
print("running", flush=True)
x = torch.ones(4, 4)
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    x = x + 1
    time.sleep(0.001)
"""
"""Adds on the CPU for a number of seconds; imports nothing of ours."""


LIGHT = """
import ctypes, gc, mmap, os, signal, sys, threading, time
gc.disable()                                   # its pauses are events, too
from ral_trace.tracer import _native, annotate
refused = _native.start("", "")                # what `import torch` does, without its seconds
_file = open(os.environ["RAL_TEST_COUNTS"], "r+b")
_page = memoryview(mmap.mmap(_file.fileno(), 0)).cast("q")

def work(slot, times):
    for done in range(1, times + 1):
        with annotate("work"):
            pass
        _page[2 * slot], _page[2 * slot + 1] = os.getpid(), done
"""
"""Annotates, and counts: `work(slot, times)`, a slot a thread or process that has it for itself.

Each number is written by one store: struct.pack_into() zeroes the bytes first, which others would see.
"""

HEAVY = """
import mmap, os, sys, threading, time
import torch
torch.set_num_threads(1)
_file = open(os.environ["RAL_TEST_COUNTS"], "r+b")
_page = memoryview(mmap.mmap(_file.fileno(), 0)).cast("q")

def work(slot, times):
    x = torch.ones(2)
    for done in range(1, times + 1):
        x * 3
        _page[2 * slot], _page[2 * slot + 1] = os.getpid(), done
"""
"""The same with an op of torch, `aten::mul.Tensor`, and nothing of ours."""


class Counts:
    """A file in which up to 4,096 threads and processes count, each in a slot of its own: its pid, and how often."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(b"\0" * 65536)
        self.path = path
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 0)

    def slot(self, number: int) -> tuple[int, int]:
        """(pid, count)"""
        pid, count = struct.unpack_from("<qq", self._page, 16 * number)
        return pid, count

    def by_pid(self) -> dict[int, int]:
        """The sum of each process."""
        sums: dict[int, int] = {}
        for number in range(4096):
            pid, count = self.slot(number)
            if pid:
                sums[pid] = sums.get(pid, 0) + count
        return sums


def recorded(trace: Trace, name: str = "work") -> dict[int, int]:
    """How many ops or annotations of a name each process has, by pid."""
    kinds = "kind IN ('op', 'annotation')"
    rows = trace.rows(f"SELECT pid, count(*) AS n FROM events WHERE name = ? AND {kinds} GROUP BY pid", [name])
    return {row["pid"]: row["n"] for row in rows}


def assert_every_ring_balances(trace: Trace) -> tuple[int, int]:
    """Returns the sums (dropped, lost)."""
    rows = trace.rows("FROM ledger")
    for row in rows:
        assert row["written"] == row["received"] + row["dropped"] + row["lost"], row
    # One account a ring, not two: its thread, in its process, is named once.
    whose = [(row["process"], row["tid"]) for row in rows]
    assert len(set(whose)) == len(whose)
    return sum(row["dropped"] for row in rows), sum(row["lost"] for row in rows)


class CountPage:
    """The shared page in which a program counts."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(b"\0" * 4096)
        self.path = path
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 4096)

    def count(self) -> int:
        value: int = struct.unpack_from("<q", self._page, 0)[0]
        return value


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Waits until `condition()` holds; fails with `what` when it does not."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"timed out: {what}"
        time.sleep(0.01)


def ral_trace(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ral-trace to its end."""
    return subprocess.run(
        [*TRACE_COMMAND, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def start(*arguments: str | Path, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    """Starts ral-trace, and goes on."""
    return subprocess.Popen(
        [*TRACE_COMMAND, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def running(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program that runs as long as it is needed, whatever happens."""
    with subprocess.Popen(words, text=True, **options) as program:
        try:
            yield program
        finally:
            program.kill()


def python(source: str, *arguments: str | Path) -> Sequence[str]:
    """The words that run `source`."""
    return [sys.executable, "-c", source, *map(str, arguments)]
