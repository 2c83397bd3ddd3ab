"""Programs that the integration tests trace, and how to run them under ral-trace.

Each counts in a shared page of its own what it did.
"""

import mmap
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

TRACE_COMMAND = [sys.executable, "-m", "ral_trace.tracer.cli"]

COUNTING = """
import mmap, struct, sys, time
import torch
import ral_trace.backend
ral_trace.backend.enable()
file = open(sys.argv[1], "r+b")
page = mmap.mmap(file.fileno(), 4096)
x = torch.ones(8, 8, device="ral:1")
done = 0
while True:
    x.mul_(1.0)                                # one launch, one kernel
    done += 1
    struct.pack_into("<q", page, 0, done)      # a page of our own: it survives us, and is not the ring
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


def python(source: str, *arguments: str | Path) -> Sequence[str]:
    """The words that run `source`."""
    return [sys.executable, "-c", source, *map(str, arguments)]
