"""What several questions need of one trace, worked out once. A trace is read-only, so that nothing gets stale."""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ral_trace.tracer.reading import Rows, Trace

T = TypeVar("T")
P = ParamSpec("P")


def once(work: Callable[[Trace], T]) -> Callable[[Trace], T]:
    """Remembers the result for as long as the trace is there."""
    known: WeakKeyDictionary[Trace, T] = WeakKeyDictionary()

    @wraps(work)
    def remembered(trace: Trace) -> T:
        if trace not in known:
            known[trace] = work(trace)
        return known[trace]

    return remembered


def answered(question: Callable[Concatenate[Trace, P], Rows]) -> Callable[Concatenate[Trace, P], Rows]:
    """Remembers the rows of a question that others ask, too, for each set of options."""
    known: WeakKeyDictionary[Trace, dict[Any, Rows]] = WeakKeyDictionary()

    @wraps(question)
    def remembered(trace: Trace, /, *args: P.args, **options: P.kwargs) -> Rows:
        answers = known.setdefault(trace, {})
        asked = (args, frozenset(options.items()))
        if asked not in answers:
            answers[asked] = question(trace, *args, **options)
        return Rows(dict(row) for row in answers[asked])

    return remembered


@contextmanager
def table(trace: Trace, columns: Mapping[str, npt.NDArray[np.generic]]) -> Iterator[str]:
    """The name under which the trace's SQL sees these columns, inside the block."""
    name = f"table_{uuid.uuid4().hex}"
    trace.connection.register(name, dict(columns))
    try:
        yield name
    finally:
        trace.connection.unregister(name)
