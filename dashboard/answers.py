"""The analyses' answers, each computed once: a trace does not change while it is open."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from ral_trace.tracer.trace import Trace

Rows = list[dict[str, Any]]
"""What every analysis returns. Shared by all requests: to be read, never changed."""


class Answers:
    """Asks analyses about one trace, for many threads. A DuckDB connection serves one thread at a time, so one analysis runs at a time."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._known: dict[tuple[Any, ...], Rows] = {}
        self._asking = threading.Lock()
        self._closed = False

    def ask(self, analysis: Callable[..., Rows], **arguments: Any) -> Rows:
        """`analysis(trace, **arguments)`. Pass only arguments whose possible values are few (a device of the trace, a fixed choice): all is kept."""
        key = (analysis, *sorted(arguments.items()))
        if key not in self._known:
            with self._asking:
                if key not in self._known and not self._closed:
                    self._known[key] = analysis(self.trace, **arguments)
        return self._known.get(key, [])

    def prefetch(self, questions: list[Callable[[], object]]) -> None:
        """Asks in the background what the other pages will ask, so that they open at once."""

        def work() -> None:
            for question in questions:
                if self._closed:
                    return
                question()

        threading.Thread(target=work, name="prefetch", daemon=True).start()

    def close(self) -> None:
        """Waits for the analysis that runs, and lets no other begin: the connection is about to be closed."""
        with self._asking:
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
