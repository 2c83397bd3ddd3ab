"""The analyses' answers, each computed once: a trace does not change while it is open."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import duckdb

from ral_trace.analysis import Rows
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.interrupts import AGAIN_S
from ral_trace.tracer.reading import Trace


class Closed(RalTraceError):
    """The dashboard is ending: no analysis begins, and the one that ran was stopped."""


class Answers:
    """Asks analyses about one trace, for many threads; one runs at a time, as a DuckDB connection serves one thread.

    The rows that it gives are shared by all who ask: to be read, never changed.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._known: dict[tuple[Any, ...], Rows] = {}
        self._asking = threading.Lock()
        self._closed = False

    def ask(self, analysis: Callable[..., Rows], **arguments: Any) -> Rows:
        """`analysis(trace, **arguments)`. Pass only arguments that have few possible values: every answer is kept."""
        key = (analysis, *sorted(arguments.items()))
        if key not in self._known:
            with self._asking:
                if key not in self._known:
                    self._known[key] = self._run(analysis, arguments)
        return self._known[key]

    def _run(self, analysis: Callable[..., Rows], arguments: dict[str, Any]) -> Rows:
        if self._closed:
            raise Closed("the dashboard has ended")
        try:
            return analysis(self.trace, **arguments)
        except duckdb.InterruptException as error:
            raise Closed("the dashboard has ended") from error

    def close(self) -> None:
        """Stops the analysis that runs and lets no other begin, so that the trace can be closed."""
        self._closed = True
        self.trace.connection.interrupt()
        while not self._asking.acquire(timeout=AGAIN_S):
            self.trace.connection.interrupt()
        self._asking.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
