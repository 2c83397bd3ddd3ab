"""`annotate` and `traced` under exceptions, recursion, threads, asyncio and generators."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from ral_trace.tracer import Trace, _native, annotate, open_trace, traced

SUSPENDED = _native.FLAGS["SUSPENDED"]

PROGRAM = """
import asyncio, contextlib, functools, os, sys, threading, time
from ral_trace.tracer import annotate, step, trace, traced

# --- plain ---
def test_plain():
    with annotate("plain outer"):
        with annotate("plain inner"):
            pass

def test_exception():
    with contextlib.suppress(KeyError):
        with annotate("raised outer"), annotate("raised inner"):
            raise KeyError

@traced
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

def test_recursion():
    assert fib(5) == 5
    again = annotate("again")
    with again:
        with again:
            pass

class Model:
    @traced
    def forward(self, x): return x + 1
    @traced("own name")
    @staticmethod
    def static(x): return x + 2
    @classmethod
    @traced
    def of_class(cls, x): return x + 3
    @annotate("annotated")
    def other(self, x): return x + 4

def test_methods():
    model = Model()
    assert (model.forward(1), Model.static(1), model.of_class(1), model.other(1)) == (2, 3, 4, 5)
    assert Model.forward.__name__ == "forward"

shared = annotate("shared")
def test_threads():
    barrier = threading.Barrier(3)
    def work():
        with shared:
            barrier.wait()          # all three are inside
            with annotate("within"):
                pass
            barrier.wait()
    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads: t.start()
    for t in threads: t.join()

def test_out_of_order():
    first, second = annotate("first"), annotate("second")
    with annotate("around"):
        first.__enter__(); second.__enter__()
        first.__exit__(None, None, None); second.__exit__(None, None, None)
    moved = annotate("moved")
    moved.__enter__()
    other = threading.Thread(target=moved.__exit__, args=(None, None, None))
    other.start(); other.join()

def test_never_ended():
    with annotate("around"):
        annotate("abandoned").__enter__()      # and gone
    with annotate("\\ud800"):
        pass

# --- asyncio ---
async def nap(turns=1):
    for _ in range(turns):
        await asyncio.sleep(0)

def test_asyncio():
    async def waits():
        with annotate("async waits"):
            await nap()
    async def works():
        await nap()
        with annotate("async works"):
            with annotate("async nested"):
                pass
    async def ready():
        with annotate("async ready"):          # awaits what does not suspend
            await works_at_once()
    async def works_at_once():
        return 1
    async def both():
        await asyncio.gather(waits(), works(), ready())
    with annotate("loop"):
        asyncio.run(both())

@traced
async def fetch(n):
    with annotate("fetch works"):
        pass
    await nap(2)
    if n == 2:
        raise ValueError(n)
    return n

def test_traced_coroutine():
    async def both():
        assert inspect_is_coroutine(fetch)
        found = await asyncio.gather(*(fetch(n) for n in range(3)), return_exceptions=True)
        assert found[:2] == [0, 1] and isinstance(found[2], ValueError)
        task = asyncio.ensure_future(fetch(3))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
    asyncio.run(both())

def inspect_is_coroutine(f):
    import inspect
    return inspect.iscoroutinefunction(f)

# --- generators ---
@traced
def numbers(n):
    got = []
    for i in range(n):
        with annotate("in generator"):
            pass
        got.append((yield i))
    return got

def test_generators():
    made = numbers(3)
    assert next(made) == 0 and made.send("a") == 1 and made.send("b") == 2
    try:
        made.send("c")
    except StopIteration as end:
        assert end.value == ["a", "b", "c"]
    with contextlib.suppress(ZeroDivisionError):
        thrown = numbers(3)
        next(thrown)
        thrown.throw(ZeroDivisionError)
    closed = numbers(3)
    next(closed)
    closed.close()
    del closed
    assert list(numbers(0)) == []
    numbers(1)                                 # never runs

@traced
async def pages(n):
    for i in range(n):
        await nap()
        try:
            got = yield i
        except KeyError:
            got = "key"
        if got == "stop":
            return

def test_async_generators():
    async def all_of_them():
        assert [page async for page in pages(3)] == [0, 1, 2]
        one = pages(3)
        assert await one.__anext__() == 0
        assert await one.athrow(KeyError) == 1
        with contextlib.suppress(StopAsyncIteration):
            await one.asend("stop")
        left = pages(3)
        await left.__anext__()
        await left.aclose()
    asyncio.run(all_of_them())

def test_context_manager_of_a_generator():
    @contextlib.contextmanager
    def phase():
        with annotate("phase"):
            yield
    with phase():
        with annotate("in phase"):
            pass

assert not annotate("before").__exit__(None, None, None)
tests = [value for name, value in list(globals().items()) if name.startswith("test_")]
for test in tests:
    test()                                     # nobody records
early = annotate("early")
early.__enter__()
with trace(sys.argv[1]):
    early.__exit__(None, None, None)
    for test in tests:
        with annotate(test.__name__):
            test()
    late = annotate("late")
    late.__enter__()
late.__exit__(None, None, None)
with annotate("after"):
    pass
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Every case once, without torch."""
    folder = tmp_path_factory.mktemp("annotations")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAL_TRACE_DIR", str(folder / "rendezvous"))
        words = [sys.executable, "-W", "error", "-c", PROGRAM, str(folder / "run.duckdb")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return open_trace(folder / "run.duckdb")


def names_in(trace: Trace, test: str, category: str = "IS NULL") -> list[tuple[str | None, str | None, bool]]:
    """(name, name of the parent, suspended) of a test's annotations, by their begin."""
    rows = trace.rows(f"""
        SELECT e.name, p.name AS parent, (e.flags & {SUSPENDED}) <> 0 AS suspended FROM event e
        LEFT JOIN event p ON p.id = e.parent
        JOIN event t ON t.name = '{test}' AND e.ts_ns >= t.ts_ns AND e.ts_ns + e.dur_ns <= t.ts_ns + t.dur_ns
             AND e.id <> t.id
        WHERE e.kind = 'annotation' AND e.category {category} ORDER BY e.ts_ns, e.id DESC""")
    return [(row["name"], row["parent"], row["suspended"]) for row in rows]


def test_spans_nest(recorded: Trace) -> None:
    assert names_in(recorded, "test_plain") == [
        ("plain outer", "test_plain", False),
        ("plain inner", "plain outer", False),
    ]


def test_spans_end_on_exceptions(recorded: Trace) -> None:
    assert names_in(recorded, "test_exception") == [
        ("raised outer", "test_exception", False),
        ("raised inner", "raised outer", False),
    ]


def test_recursion(recorded: Trace) -> None:
    """fib(5) is 15 calls; an object may be entered inside itself."""
    found = names_in(recorded, "test_recursion")
    assert [name for name, _, _ in found] == ["fib"] * 15 + ["again"] * 2
    assert found[1] == ("fib", "fib", False)
    assert found[-2:] == [("again", "test_recursion", False), ("again", "again", False)]
    assert not any(suspended for _, _, suspended in found)


def test_methods(recorded: Trace) -> None:
    assert [name for name, _, _ in names_in(recorded, "test_methods")] == [
        "Model.forward",
        "own name",
        "Model.of_class",
        "annotated",
    ]


def test_an_object_that_threads_share(recorded: Trace) -> None:
    found = names_in(recorded, "test_threads")
    assert sorted(found) == sorted([("shared", None, False), ("within", "shared", False)] * 3)


def test_what_ends_out_of_order_encloses_nothing(recorded: Trace) -> None:
    assert names_in(recorded, "test_out_of_order") == [
        ("around", "test_out_of_order", False),
        ("first", None, True),
        ("second", None, True),
        ("moved", None, True),
    ]


def test_what_never_ends_is_not_there_and_disturbs_nobody(recorded: Trace) -> None:
    """A name that is no UTF-8 is none."""
    assert names_in(recorded, "test_never_ended") == [
        ("around", "test_never_ended", False),
        (None, "test_never_ended", False),
    ]


def test_what_awaits_inside_encloses_nothing(recorded: Trace) -> None:
    assert names_in(recorded, "test_asyncio") == [
        ("loop", "test_asyncio", False),
        ("async waits", None, True),
        ("async ready", "loop", False),
        ("async works", "loop", False),
        ("async nested", "async works", False),
    ]


def test_a_coroutine_has_a_row_for_its_life_and_one_for_each_slice(recorded: Trace) -> None:
    """Each `await` of nap(2) suspends twice: three slices; the cancelled one is resumed once, by the cancellation."""
    whole = names_in(recorded, "test_traced_coroutine")
    assert [row for row in whole if row[0] == "fetch"] == [("fetch", None, True)] * 4
    assert [row for row in whole if row[0] == "fetch works"] == [("fetch works", "fetch", False)] * 4
    slices = names_in(recorded, "test_traced_coroutine", "= 'resumed'")
    assert slices == [("fetch", "test_traced_coroutine", False)] * (3 * 3 + 2)


def test_a_generator_too(recorded: Trace) -> None:
    """Slices: four, thrown two, closed two, empty one."""
    whole = names_in(recorded, "test_generators")
    assert [row for row in whole if row[0] == "numbers"] == [("numbers", None, True)] * 4
    assert [row for row in whole if row[0] == "in generator"] == [("in generator", "numbers", False)] * 5
    slices = names_in(recorded, "test_generators", "= 'resumed'")
    assert slices == [("numbers", "test_generators", False)] * (4 + 2 + 2 + 1)


def test_and_an_async_generator(recorded: Trace) -> None:
    """Each page suspends once in nap() and yields once: two slices; an end takes one more."""
    whole = names_in(recorded, "test_async_generators")
    assert whole == [("pages", None, True)] * 3
    slices = names_in(recorded, "test_async_generators", "= 'resumed'")
    assert len(slices) == (3 * 2 + 1) + (2 + 2 + 1) + (2 + 1)
    assert set(slices) == {("pages", "test_async_generators", False)}


def test_a_context_manager_made_of_a_generator_encloses_its_block(recorded: Trace) -> None:
    assert names_in(recorded, "test_context_manager_of_a_generator") == [
        ("phase", "test_context_manager_of_a_generator", False),
        ("in phase", "phase", False),
    ]


def test_what_began_or_ended_outside_the_recording_is_not_in_it(recorded: Trace) -> None:
    rows = recorded.rows("SELECT name FROM event WHERE name IN ('before', 'early', 'late', 'after')")
    assert rows == []


def test_traced_keeps_what_a_function_is() -> None:
    async def coroutine() -> None: ...
    def generator() -> "object":
        yield

    async def async_generator() -> "object":
        yield

    assert inspect.iscoroutinefunction(traced(coroutine))
    assert inspect.isgeneratorfunction(traced("name")(generator))
    assert inspect.isasyncgenfunction(annotate("name")(async_generator))
    assert traced(coroutine).__qualname__ == coroutine.__qualname__
    with pytest.raises(TypeError, match="takes a function"):
        traced(Path)
    with pytest.raises(TypeError):
        annotate(3)  # type: ignore[arg-type]


def test_an_annotation_without_a_recording_does_nothing() -> None:
    span = annotate("off")
    assert span.name == "off"
    with span as entered:
        assert entered is span
    assert not _native.annotating()
