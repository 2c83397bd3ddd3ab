"""A plugin for pytest: a test may say what it does on its devices, and fails where it does something else.

    @pytest.mark.ral_trace("fallbacks == 0", "syncs_per_step <= 2")
    def test_training_step(): ...

    def test_decode(ral_trace):
        decode()
        ral_trace.check("syncs == 1")

pytest loads this file in every run of whoever has ral-trace installed: it imports nothing before a test asks for it.
"""

import contextlib
import importlib.util
import re
import shlex
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from ral_trace.tracer.capture import Capture
    from ral_trace.tracer.reading import Trace

Answer = TypeVar("Answer")
MARKER = (
    "ral_trace(*assertions, skip_steps=0, allow_missing=False, **recording): record the test with ral-trace, and fail "
    "it where an assertion about the trace does not hold; `recording` are arguments of ral_trace.tracer.trace, such as "
    "with_modules=True"
)
FIXTURE = "ral_trace"
"""The fixture's name, and the marker's."""
CHECKING = ("skip_steps", "allow_missing")
"""Arguments of the marker that are not the recording's."""
MOST_NAME = 80
"""Characters of a test's name in its trace's."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """--ral-trace-dir."""
    parser.getgroup("ral-trace").addoption(
        "--ral-trace-dir",
        metavar="FOLDER",
        help="Where traces of failed tests are kept. Default: in pytest's folder for temporary files.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known, for --strict-markers."""
    config.addinivalue_line("markers", MARKER)


class Recorder:
    """The recording of a test: the fixture `ral_trace`. It runs from the fixture's setup until it is first asked."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path = path
        self.failed = False
        """Whether the test failed: the trace is kept then."""
        self._options = options
        self._capture: Capture | None = None

    def keep(self) -> str:
        """Ends the recording, and says where its trace is: the test has failed."""
        from ral_trace.tracer.errors import RalTraceError

        self.failed = True
        try:
            self.stop()
        except RalTraceError as error:
            return f"there is no trace: {error}"
        if not self.path.exists():
            return "there is no trace"
        return f"the trace is kept; read it with: ral-trace --report {shlex.quote(str(self.path))}"

    def give_up(self) -> None:
        """Ends the recording, and removes its trace: it is of no more use."""
        from ral_trace.tracer.errors import RalTraceError

        # A test that never asked may have recorded nothing, and nobody wants to know.
        with contextlib.suppress(RalTraceError):
            self.stop()
        self.path.unlink(missing_ok=True)

    def start(self) -> None:
        """Begins to record, anew where it has ended: what was recorded before is replaced."""
        if importlib.util.find_spec("torch") is not None:
            # Its ops are recorded where it was there first.
            importlib.import_module("torch")
        from ral_trace.tracer.capture import trace

        self.stop()
        self._capture = trace(self.path, **self._options)
        self._capture.__enter__()

    def stop(self) -> None:
        """Ends the recording; the trace is at `path` then. Raises RalTraceError where nothing was recorded."""
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.__exit__(None, None, None)

    def open(self) -> "Trace":
        """Ends the recording and opens the trace, for what no assertion can say."""
        from ral_trace.tracer.reading import open_trace

        self.stop()
        return open_trace(self.path)

    def measure(self, metric: str, *, skip_steps: int = 0, allow_missing: bool = False) -> int | float:
        """Ends the recording, and gives one value of it: `measure("syncs")`. Fails the test where it has none."""
        from ral_trace.analysis.check import measure

        return self._ask(lambda trace: measure(trace, metric, skip_steps=skip_steps, allow_missing=allow_missing))

    def _ask(self, question: Callable[["Trace"], Answer]) -> Answer:
        """Asks the trace; what refuses to answer fails the test in words, not with a traceback."""
        from ral_trace.tracer.errors import RalTraceError

        try:
            with self.open() as trace:
                return question(trace)
        except RalTraceError as error:
            refused = str(error)
        pytest.fail(f"ral-trace: {refused}", pytrace=False)

    def check(self, *assertions: str, skip_steps: int = 0, allow_missing: bool = False) -> None:
        """Ends the recording, and fails the test with the rows that broke an assertion."""
        from ral_trace.analysis.check import check, failures, told

        _must_be_readable(assertions)
        outcomes = self._ask(lambda trace: check(trace, assertions, skip_steps=skip_steps, allow_missing=allow_missing))
        failed = failures(outcomes)
        if failed:
            head = f"ral-trace: {len(failed)} of {len(outcomes)} assertions failed"
            pytest.fail("\n".join([head, *map(told, failed)]), pytrace=False)


@pytest.fixture
def ral_trace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    """Records the test with ral-trace: `ral_trace.check("fallbacks == 0")` ends that, and checks it."""
    asked = request.config.getoption("--ral-trace-dir")
    folder = tmp_path_factory.mktemp("ral-trace") if asked is None else Path(asked)
    folder.mkdir(parents=True, exist_ok=True)
    options = _options(request.node)
    recorder = Recorder(
        folder / _file_name(request.node.nodeid),
        **{name: value for name, value in options.items() if name not in CHECKING},
    )
    recorder.start()
    yield recorder
    if not recorder.failed:
        recorder.give_up()


def pytest_itemcollected(item: pytest.Item) -> None:
    """A marked test is recorded as if it asked for the fixture."""
    names = getattr(item, "fixturenames", None)
    if names is not None and FIXTURE not in names and item.get_closest_marker(FIXTURE) is not None:
        # A list of its own: tests with parameters share theirs, and one of them may be marked alone.
        item.fixturenames = [*names, FIXTURE]  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Checks what a test's markers assert once it has passed; the trace of one that fails is kept."""
    recorder = getattr(item, "funcargs", {}).get(FIXTURE)
    if not isinstance(recorder, Recorder):
        return (yield)
    assertions = [text for marker in item.iter_markers(FIXTURE) for text in marker.args]
    checking = {name: value for name, value in _options(item).items() if name in CHECKING}
    try:
        _must_be_readable(assertions)
        result = yield
        if assertions:
            recorder.check(*assertions, **checking)
    except pytest.skip.Exception:
        raise
    except BaseException:
        item.add_report_section("call", "ral-trace", recorder.keep())
        raise
    return result


def _options(item: pytest.Item) -> dict[str, Any]:
    """The arguments of a test's markers; those of the closest one count."""
    found: dict[str, Any] = {}
    for marker in item.iter_markers(FIXTURE):
        found = {**marker.kwargs, **found}
    return found


def _must_be_readable(assertions: Sequence[str]) -> None:
    """Fails the test, with a mark under the place, where an assertion cannot be read."""
    if not assertions:
        return
    from ral_trace.analysis.check import read
    from ral_trace.analysis.expressions import BadExpression

    pointed = None
    try:
        read(assertions)
    except BadExpression as error:
        pointed = error.pointed()
    if pointed is not None:
        pytest.fail(f"ral-trace: an assertion cannot be read:\n{pointed}", pytrace=False)


def _file_name(nodeid: str) -> str:
    """Of the trace of a test: readable, and no two tests' the same."""
    readable = re.sub(r"[^\w.-]+", "_", nodeid.replace("::", "."))[-MOST_NAME:]
    return f"{readable}-{zlib.crc32(nodeid.encode()):08x}.duckdb"
