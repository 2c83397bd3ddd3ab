"""Recording from inside a program: `with trace("run.duckdb") as t:`.

The collector is a child process, so that it cannot slow this one down.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ral_trace.tracer import _native, watch
from ral_trace.tracer.errors import RalTraceError

if TYPE_CHECKING:
    from ral_trace.tracer.reading import Trace

END_TIMEOUT_S = 600
"""For the collector to write its trace: long ones take a while."""


class Capture:
    """A recording of this process. After the `with` block the trace is at `path`; `open()` opens it."""

    def __init__(self, path: Path | str, *, buffer_bytes: int | None = None) -> None:
        self.path = Path(path)
        self._buffer = [] if buffer_bytes is None else ["--buffer", str(buffer_bytes)]

    def __enter__(self) -> Self:
        if reason := watch.start():
            raise RalTraceError(f"this program cannot be recorded: {reason}")
        command = [
            sys.executable,
            "-P",
            "-m",
            "ral_trace.tracer.cli",
            "--pid",
            str(os.getpid()),
            "--output",
            str(self.path),
            *self._buffer,
        ]
        # Its stdin is our leash: a word on it ends the recording, and so does our own death.
        self._collector = subprocess.Popen(
            [*command, "--leash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._collector.stdout is not None
        if not self._collector.stdout.readline().startswith("ready "):
            self._collector.wait()
            raise RalTraceError(f"the collector did not start: {self._error()}")
        _native.sync()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._collector.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._collector.stdin as leash:
            # Not only closed: a child that was forked meanwhile holds a copy of our end.
            leash.write("end\n")
        try:
            code = self._collector.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._collector.kill()
            code = self._collector.wait()
        _native.sync()
        message = self._error()
        if code != 0 and error is None:
            raise RalTraceError(f"the recording failed: {message or f'the collector ended with {code}'}")

    def open(self) -> "Trace":
        """Opens the trace. Only after the `with` block."""
        # Not above: DuckDB is no part of what `import torch` loads.
        from ral_trace.tracer.reading import open_trace

        return open_trace(self.path)

    def _error(self) -> str:
        assert self._collector.stderr is not None
        assert self._collector.stdout is not None
        with self._collector.stderr, self._collector.stdout:
            said = self._collector.stderr.read().strip().splitlines()
        return said[-1].removeprefix("ral-trace: ") if said else ""


def trace(path: Path | str, *, buffer_bytes: int | None = None) -> Capture:
    """Records this process, and its children, into a trace at `path` while the `with` block runs.

    `buffer_bytes` is the ring of one thread. Raises RalTraceError when recording is impossible, or when nothing was
    recorded.
    """
    return Capture(path, buffer_bytes=buffer_bytes)
