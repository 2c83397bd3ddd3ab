"""Recording from inside a program: `with trace("run.duckdb") as t:`.

The collector is a child process, so that it cannot slow this one down.
"""

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from ral_trace.tracer import _native, watch
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.trace import Trace, open_trace

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
            "-m",
            "ral_trace.tracer.cli",
            "--pid",
            str(os.getpid()),
            "--output",
            str(self.path),
            *self._buffer,
        ]
        # Its stdin is our leash: closing it ends the recording, and so does our own death.
        self._collector = subprocess.Popen(
            [*command, "--leash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._collector.stdout is not None
        if self._collector.stdout.readline().strip() != "ready":
            self._collector.wait()
            raise RalTraceError(f"the collector did not start: {self._error()}")
        _native.sync()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._collector.stdin is not None
        self._collector.stdin.close()
        code = self._collector.wait(END_TIMEOUT_S)
        _native.sync()
        message = self._error()
        if code != 0 and error is None:
            raise RalTraceError(f"the recording failed: {message}")

    def open(self) -> Trace:
        """Opens the trace. Only after the `with` block."""
        return open_trace(self.path)

    def _error(self) -> str:
        assert self._collector.stderr is not None
        assert self._collector.stdout is not None
        with self._collector.stderr, self._collector.stdout:
            return self._collector.stderr.read().strip()


def trace(path: Path | str, *, buffer_bytes: int | None = None) -> Capture:
    """Records this process, and its children, into a trace at `path` while the `with` block runs.

    `buffer_bytes` is the ring of one thread. Raises RalTraceError when recording is impossible, or when nothing was
    recorded.
    """
    return Capture(path, buffer_bytes=buffer_bytes)
