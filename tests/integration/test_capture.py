"""Recording from inside a program: whatever the block does, its trace is there afterwards."""

import os
import subprocess
import sys
from html import escape
from pathlib import Path

import pytest

from ral_trace.tracer import Trace, open_trace

pytest.importorskip("torch")

COUNT = "SELECT count(*) AS n FROM event WHERE kind = 'op' AND name = 'aten::mul.Tensor'"
PRELUDE = f"""
import os, sys, threading, time
from pathlib import Path
import torch
from ral_trace.tracer import RalTraceError, annotate, trace
from ral_trace.tracer import _native
folder = Path(sys.argv[1])
COUNT = {COUNT!r}
def work(times=1):
    for _ in range(times):
        torch.ones(2) * 3
"""


def run(folder: Path, program: str, code: int = 0, **how: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", PRELUDE + program, str(folder)]
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        words, capture_output=True, text=True, timeout=200, check=False, **how
    )
    assert done.returncode == code, done.stderr
    return done


def products(trace: Trace) -> int:
    count: int = trace.rows(COUNT)[0]["n"]
    return count


def products_in(path: Path) -> int:
    with open_trace(path) as trace:
        return products(trace)


def test_a_query_while_it_runs_and_the_same_afterwards(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
t = trace(folder / "run.duckdb")
assert "not begun" in repr(t)
try:
    t.query(COUNT)
    raise SystemExit("asked before it began")
except RalTraceError as error:
    assert "has not begun" in str(error)
with t as same:
    assert same is t and "recording" in repr(t)
    assert t.query(COUNT) == (["n"], [(0,)])
    work(7)
    assert t.rows(COUNT) == [{"n": 7}]
    work(3)
    assert t.rows(COUNT) == [{"n": 10}]
    for sql in ("DROP TABLE event", "SELECT nothing FROM event"):
        try:
            t.query(sql)
            raise SystemExit("was not refused")
        except RalTraceError as error:
            assert "query" in str(error)
    try:
        t.__enter__()
        raise SystemExit("entered twice")
    except RalTraceError as error:
        assert "runs already" in str(error)
assert t.rows(COUNT) == [{"n": 10}]
assert not _native.annotating()
""",
    )
    assert products_in(tmp_path / "run.duckdb") == 10


def test_an_exception_of_the_block_comes_through_and_the_trace_is_written(tmp_path: Path) -> None:
    done = run(tmp_path, "with trace(folder / 'raised.duckdb'):\n    work(4)\n    raise KeyError('mine')", code=1)
    assert done.stderr.rstrip().endswith("KeyError: 'mine'")
    assert "ral-trace" not in done.stderr
    assert products_in(tmp_path / "raised.duckdb") == 4


def test_a_failure_of_ours_is_a_note_beside_the_program_s(tmp_path: Path) -> None:
    """Nothing was recorded, and that is not what ended the program."""
    done = run(tmp_path, "with trace(folder / 'none.duckdb'):\n    raise KeyError('mine')", code=1)
    assert "KeyError: 'mine'" in done.stderr
    assert "ral-trace: the recording failed: nothing was recorded" in done.stderr
    assert "RalTraceError" not in done.stderr


def test_nothing_recorded_is_an_error(tmp_path: Path) -> None:
    done = run(tmp_path, "with trace(folder / 'none.duckdb'):\n    pass", code=1)
    assert "RalTraceError: the recording failed: nothing was recorded" in done.stderr


def test_the_end_of_the_program_inside_the_block(tmp_path: Path) -> None:
    """A recording that nobody leaves, and a thread that goes on."""
    run(
        tmp_path,
        """
t = trace(folder / "exit.duckdb")
t.__enter__()
work(5)
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
""",
    )
    assert products_in(tmp_path / "exit.duckdb") == 5


def test_two_at_once_and_one_after_the_other(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
with trace(folder / "outer.duckdb") as outer:
    work(2)
    with trace(folder / "inner.duckdb", with_shapes=True, with_modules=True) as inner:
        work(3)
        assert outer.rows(COUNT) == [{"n": 5}]
    work(4)
with trace(folder / "later.duckdb", buffer_bytes=1 << 20, on_full="overwrite"):
    work(6)
""",
    )
    counts = [products_in(tmp_path / f"{name}.duckdb") for name in ("outer", "inner", "later")]
    assert counts == [9, 3, 6]


def test_several_threads_record_at_once(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
together = threading.Barrier(3)
def record(number):
    with trace(folder / f"{number}.duckdb"):
        together.wait()
        work(number)
        together.wait()
threads = [threading.Thread(target=record, args=(n,)) for n in (1, 2, 3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    )
    assert [products_in(tmp_path / f"{n}.duckdb") for n in (1, 2, 3)] == [6, 6, 6]


def test_asyncio(tmp_path: Path) -> None:
    """The loop goes on while the collector starts, and while it writes."""
    run(
        tmp_path,
        """
import asyncio
async def main():
    ticks = 0
    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1
    ticking = asyncio.ensure_future(tick())
    async with trace(folder / "async.duckdb") as t:
        begun = ticks
        with annotate("works"):
            work(3)
        found = await asyncio.to_thread(t.rows, COUNT)
        assert found == [{"n": 3}]
    ticking.cancel()
    assert begun > 0
asyncio.run(main())
""",
    )
    assert products_in(tmp_path / "async.duckdb") == 3


def test_a_forked_child_that_leaves_the_block_ends_nothing(tmp_path: Path) -> None:
    """It is recorded with its parent, and may record itself."""
    run(
        tmp_path,
        """
with trace(folder / "parent.duckdb") as t:
    work(1)
    child = os.fork()
    if child == 0:
        work(2)
if child == 0:
    with trace(folder / "child.duckdb"):
        work(4)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
""",
    )
    assert products_in(tmp_path / "child.duckdb") == 4
    with open_trace(tmp_path / "parent.duckdb") as trace:
        rows = trace.rows(
            """SELECT p.started_ns, count(*) AS n FROM event e JOIN process p ON p.id = e.process
               WHERE e.kind = 'op' AND e.name = 'aten::mul.Tensor' GROUP BY 1 ORDER BY 1"""
        )
        assert rows[0]["n"] == 1


def test_a_program_whose_streams_are_closed(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
for stream in (0, 1, 2): os.close(stream)
with trace(folder / "closed.duckdb") as t:
    work(3)
    assert t.rows("SELECT 1 AS one") == [{"one": 1}]
""",
    )
    assert products_in(tmp_path / "closed.duckdb") == 3


NOTEBOOK = """
def backward(context, gradient):
    time.sleep(0.1)
    return gradient
Slow = type("<i>Slow", (torch.autograd.Function,), {
    "forward": staticmethod(lambda context, x: x.clone()), "backward": staticmethod(backward)})
x = torch.ones(64, 64)
t = trace(folder / "<b>run.duckdb")
assert "not begun" in t._repr_html_()
with t:
    Slow.apply(torch.ones(2, requires_grad=True)).sum().backward()
    for _ in range(3):
        x @ x
    for n in range(6):
        getattr(torch, ["sin", "cos", "exp", "neg", "abs", "sqrt"][n])(x)
print(t)
print(t._repr_html_())
"""


def test_a_notebook_shows_the_result(tmp_path: Path) -> None:
    said = run(tmp_path, NOTEBOOK).stdout.splitlines()
    with open_trace(tmp_path / "<b>run.duckdb") as trace:
        ((events,),) = trace.query("SELECT count(*) FROM event")[1]
        top = trace.rows(
            "SELECT name, count(*) AS calls FROM event WHERE kind = 'op' GROUP BY name ORDER BY sum(dur_ns) DESC"
        )[:5]
    assert said[0].startswith("<trace ")
    assert f"<b>run.duckdb: {events:,} events over " in said[0]
    assert said[0].endswith(" s, 0 dropped, 0 lost>")
    html = said[1]
    assert "&lt;b&gt;run.duckdb" in html
    assert "<b>run.duckdb" not in html
    assert html.count("<tr>") == 1 + 5
    assert "<tr><td>&lt;i&gt;SlowBackward</td><td>1</td>" in html
    for row in top:
        assert f"<tr><td>{escape(row['name'])}</td><td>{row['calls']}</td>" in html


def test_it_imports_neither_analysis_nor_torch() -> None:
    program = "import sys, ral_trace.tracer as t; t.trace('x.duckdb')._repr_html_(); print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "duckdb", "rich", "click", "numpy", "asyncio"} & set(said)
    assert not [name for name in said if name.startswith(("ral_trace.analysis", "ral_trace.dashboard"))]


def test_import_torch_pays_little(tmp_path: Path) -> None:
    """Which modules of ours `import torch` loads; `-X importtime` says what they take."""
    program = "import sys, torch; print(*sorted(name for name in sys.modules if name.startswith('ral_trace')))"
    words = [sys.executable, "-c", program]
    said = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ}).stdout.split()
    assert "ral_trace.tracer.capture" in said
    assert not {"ral_trace.tracer.control", "ral_trace.tracer.reading", "ral_trace.tracer.recording"} & set(said)
