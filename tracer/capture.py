"""Recording from inside a program: `with trace("run.duckdb") as t:`.

The collector is a child process, so that it cannot slow this one down. It also answers `t.query` while it records.
"""

import atexit
import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from ral_trace.tracer import _native, agent, watch
from ral_trace.tracer.errors import RalTraceError

if TYPE_CHECKING:
    from ral_trace.tracer.reading import Trace

END_TIMEOUT_S = 600
"""For the collector to write its trace: long ones take a while."""

SUMMARY = """
SELECT (SELECT count(*) FROM event), (SELECT max(ts_ns + coalesce(dur_ns, 0)) - min(ts_ns) FROM event),
       (SELECT coalesce(sum(dropped), 0) FROM ledger), (SELECT coalesce(sum(lost), 0) FROM ledger)"""

TOP_OPS = """
SELECT name, count(*), sum(dur_ns) FROM event WHERE kind = 'op' AND name IS NOT NULL AND dur_ns IS NOT NULL
GROUP BY name ORDER BY 3 DESC, 1 LIMIT 5"""


class Capture:
    """A recording of this process, with `with` or `async with`. It can be asked while it runs, and afterwards, when the
    trace is at `path`; `open()` opens that. In a notebook it shows what it recorded.
    """

    def __init__(self, path: Path | str, options: list[str]) -> None:
        self.path = Path(path)
        self._options = options
        self._collector: subprocess.Popen[str] | None = None
        self._folder = Path()
        self._pid = 0
        self._ended = False

    def __enter__(self) -> Self:
        if self._collector is not None:
            raise RalTraceError(f"{self.path}: this recording runs already; make another one with trace()")
        if reason := watch.start():
            raise RalTraceError(f"this program cannot be recorded: {reason}")
        self._ended, self._pid = False, os.getpid()
        self._folder = self._start()
        atexit.register(self._end_at_exit)
        _native.sync()
        agent.apply()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._pid != os.getpid():
            return  # a forked child left the block: the recording is its parent's
        failure = self._end()
        if failure is not None and error is None:
            raise failure
        if failure is not None and error is not None:
            error.add_note(f"ral-trace: {failure}")

    async def __aenter__(self) -> Self:
        """The collector takes a moment to start: the event loop goes on meanwhile."""
        import asyncio

        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        import asyncio

        await asyncio.to_thread(self.__exit__, kind, error, traceback)

    def query(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """The columns and rows of one SELECT: over what was recorded so far, or over the trace.

        Raises RalTraceError with DuckDB's words, and where nothing is being recorded.
        """
        if self._collector is None and not self._ended:
            raise RalTraceError(f"{self.path}: the recording has not begun; it does with: with trace(...)")
        if self._ended:
            with self.open() as trace:
                return trace.query(sql)
        # Not above: it is no part of what `import torch` needs.
        from ral_trace.tracer.control import ask

        answer = ask(self._folder, do="query", sql=sql)
        return answer["columns"], [tuple(row) for row in answer["rows"]]

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The rows of one SELECT, a dictionary each; like `query`."""
        columns, rows = self.query(sql)
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def open(self) -> "Trace":
        """Opens the trace. Only after the `with` block."""
        # Not above: DuckDB is no part of what `import torch` loads.
        from ral_trace.tracer.reading import open_trace

        return open_trace(self.path)

    def __repr__(self) -> str:
        if not self._ended:
            return f"<trace {self.path}: {'not begun' if self._collector is None else 'recording'}>"
        try:
            return f"<trace {self.path}: {self._summary()}>"
        except RalTraceError as error:
            return f"<trace {error}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: how much was recorded, whether anything is missing, and what took longest."""
        # Not above: its table of entities is no part of what `import torch` needs.
        from html import escape

        try:
            said, (_, top) = self._summary(), self.query(TOP_OPS)
        except RalTraceError as error:
            return f"<p>{escape(str(error))}</p>"
        begin = f"<p><b>{escape(str(self.path))}</b>: {escape(said)}</p>"
        rows = "".join(
            f"<tr><td>{escape(str(name))}</td><td>{calls:,}</td><td>{total_ns / 1e6:,.3f}</td></tr>"
            for name, calls, total_ns in top
        )
        head = "<tr><th>op</th><th>calls</th><th>total ms</th></tr>"
        return begin + (f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>" if rows else "")

    def _summary(self) -> str:
        ((events, span_ns, dropped, lost),) = self.query(SUMMARY)[1]
        span = "" if span_ns is None else f" over {span_ns / 1e9:,.3f} s"
        return f"{events:,} events{span}, {dropped:,} dropped, {lost:,} lost"

    def _start(self) -> Path:
        """Starts the collector, and returns its session's folder."""
        command = [sys.executable, "-P", "-m", "ral_trace.tracer.cli", "--pid", str(os.getpid())]
        # Its stdin is our leash: a word on it ends the recording, and so does our own death.
        collector = subprocess.Popen(
            [*command, "--output", str(self.path), *self._options, "--leash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert collector.stdout is not None
        word, _, folder = collector.stdout.readline().rstrip("\n").partition(" ")
        if word != "ready":
            collector.wait()
            raise RalTraceError(f"the collector did not start: {_last_words(collector)}")
        self._collector = collector
        return Path(folder)

    def _end(self) -> RalTraceError | None:
        """Ends the recording and waits for the trace. Returns what went wrong."""
        collector, self._collector = self._collector, None
        if collector is None:
            return None
        atexit.unregister(self._end_at_exit)
        self._ended = True
        assert collector.stdin is not None
        with contextlib.suppress(BrokenPipeError), collector.stdin as leash:
            # Not only closed: a child that was forked meanwhile holds a copy of our end.
            leash.write("end\n")
        try:
            code = collector.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            collector.kill()
            code = collector.wait()
        _native.sync()
        agent.apply()
        message = _last_words(collector)
        if code == 0:
            return None
        return RalTraceError(f"the recording failed: {message or f'the collector ended with {code}'}")

    def _end_at_exit(self) -> None:
        """The program ends inside the block: what was recorded is kept."""
        if self._pid == os.getpid() and (failure := self._end()):
            sys.stderr.write(f"ral-trace: {failure}\n")


def _last_words(collector: "subprocess.Popen[str]") -> str:
    assert collector.stderr is not None
    assert collector.stdout is not None
    with collector.stderr, collector.stdout:
        said = collector.stderr.read().strip().splitlines()
    return said[-1].removeprefix("ral-trace: ") if said else ""


def trace(
    path: Path | str,
    *,
    buffer_bytes: int | None = None,
    with_shapes: bool = False,
    with_stack: bool = False,
    with_modules: bool = False,
    with_access: bool = False,
    on_full: Literal["drop", "overwrite"] = "drop",
    max_overhead: float | None = None,
) -> Capture:
    """Records this process, and its children, into a trace at `path` while the `with` block runs.

    `buffer_bytes` is the ring of one thread; `on_full` says what a full one loses: the newest events, or the oldest.
    `max_overhead` is a share: 0.01 leaves out detail to stay within 1 %. The rest asks for more: shapes of inputs,
    Python stacks of all ops, calls of torch.nn modules, uses of memory. Entering it raises RalTraceError when recording
    is impossible, leaving it when nothing was recorded; an exception of the block is never hidden by one of ours.
    """
    wanted = {
        "--with-shapes": with_shapes,
        "--with-stack": with_stack,
        "--with-modules": with_modules,
        "--with-access": with_access,
    }
    options = ["--on-full", on_full, *(option for option, on in wanted.items() if on)]
    if buffer_bytes is not None:
        options += ["--buffer", str(buffer_bytes)]
    if max_overhead is not None:
        options += ["--max-overhead", f"{max_overhead:%}"]
    return Capture(path, options)
