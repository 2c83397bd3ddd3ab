"""What a program says of itself: named spans and steps. Costs one load while nobody records."""

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar, overload

from ral_trace.tracer import _native

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

RESUMED = _native.ANNOTATION_SORTS.index("resumed")


class annotate(_native.Annotation):
    """Gives the time inside it a name: `with annotate("evaluate"):`, or `@annotate("evaluate")` on a function.

    Ends on exceptions too; may be nested, entered again, and shared by threads. What was suspended in between (an
    `await` inside), ends on another thread, or ends before what began inside it has the flag SUSPENDED and encloses
    nothing.
    """

    __slots__ = ()

    def __call__(self, function: F) -> F:
        """The function, annotated; see `traced`."""
        return traced(self.name)(function)


def step() -> None:
    """Ends a training step: from the last call (the first time: from the import of torch) to now.

    Call it once at the end of every iteration.
    """
    _native.step()


@overload
def traced(function: F, /) -> F: ...
@overload
def traced(name: str, /) -> Callable[[F], F]: ...


def traced(what: Any) -> Any:
    """Annotates each call of a function: `@traced`, or `@traced("a name of its own")`.

    Takes functions, methods (above or below @staticmethod and @classmethod), async functions, generators and async
    generators. Of those that are suspended there is one row for the whole life of a call, from when it first runs, and
    one of category `resumed` for each time that it really ran. Without a name it has the function's own.
    """
    if isinstance(what, str):
        return lambda function: _traced(function, what)
    return _traced(what, None)


def _traced(function: Any, name: str | None) -> Any:
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_traced(function.__func__, name))
    if not callable(function) or isinstance(function, type):
        raise TypeError(f"traced: takes a function, not {function!r}")
    called = name or str(getattr(function, "__qualname__", type(function).__qualname__))
    if inspect.iscoroutinefunction(function):
        return _traced_coroutine(function, called)
    if inspect.isasyncgenfunction(function):
        return _traced_async_generator(function, called)
    if inspect.isgeneratorfunction(function):
        return _traced_generator(function, called)
    return _traced_function(function, called)


def _traced_function(function: Callable[P, R], name: str) -> Callable[P, R]:
    span = _native.Annotation(name)

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        with span:
            return function(*arguments, **keywords)

    return call


def _traced_coroutine(function: Callable[P, Coroutine[Any, Any, Any]], name: str) -> Callable[P, Awaitable[Any]]:
    @functools.wraps(function)
    async def call(*arguments: P.args, **keywords: P.kwargs) -> Any:
        if not _native.annotating():
            return await function(*arguments, **keywords)
        with _Life(name):
            return await _Slices(name, function(*arguments, **keywords).__await__())

    return call


def _traced_generator(
    function: Callable[P, Generator[Any, Any, Any]], name: str
) -> Callable[P, Generator[Any, Any, Any]]:
    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> Generator[Any, Any, Any]:
        if not _native.annotating():
            return (yield from function(*arguments, **keywords))
        with _Life(name):
            return (yield from _Slices(name, function(*arguments, **keywords)))

    return call


def _traced_async_generator(
    function: Callable[P, AsyncGenerator[Any, Any]], name: str
) -> Callable[P, AsyncGenerator[Any, Any]]:
    @functools.wraps(function)
    async def call(*arguments: P.args, **keywords: P.kwargs) -> AsyncGenerator[Any, Any]:
        inner = function(*arguments, **keywords)
        with _Life(name):
            turn: Awaitable[Any] = inner.__anext__()
            while True:
                try:
                    item = await _Slices(name, turn.__await__())
                except StopAsyncIteration:
                    return
                try:
                    turn = inner.asend((yield item))
                except GeneratorExit:
                    await _Slices(name, inner.aclose().__await__())
                    raise
                except BaseException as error:  # noqa: BLE001 - thrown in: the generator's, as all that comes
                    turn = inner.athrow(error)

    return call


class _Life:
    """The whole life of a call that is suspended in between."""

    __slots__ = ("name", "start_ticks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.start_ticks = _native.now() if _native.annotating() else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _native.end_whole(self.name, self.start_ticks)


class _Resumable(Protocol):
    """What `yield from` and `await` drive: generators, coroutines, and the awaitables of async generators."""

    def send(self, value: Any, /) -> Any: ...
    def throw(self, *error: Any) -> Any: ...
    def close(self) -> None: ...


class _Slices:
    """Drives what is suspended now and then, and annotates each time that it really runs."""

    __slots__ = ("_annotation", "_inner")

    def __init__(self, name: str, inner: Any) -> None:
        self._annotation = _native.Annotation(name, RESUMED)
        self._inner: _Resumable = inner

    def __await__(self) -> "Generator[Any, Any, Any]":
        return self  # type: ignore[return-value]

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        with self._annotation:
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        with self._annotation:
            return self._inner.throw(*error)

    def close(self) -> None:
        with self._annotation:
            self._inner.close()
