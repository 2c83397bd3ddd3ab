"""Which line of the program an event comes from: exactly, wherever it runs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer import Trace, open_trace

pytest.importorskip("torch")

SITES = """
import contextlib, os, sys, threading
import torch
import ral_trace.backend as backend
from ral_trace.tracer import _native, trace

backend.enable("host:1,sim:1")
_native.use_public_frames(os.environ.get("FRAMES") == "public")
x = torch.ones(8, device="ral:1")

class Model:
    def loss(self):
        return x.sum().item()                                   # sync

def fall_back():
    return torch.roll(x, 1, 0)                                  # fallback

def allocate():
    return torch.empty(1 << 18, device="ral:1")                 # large

def small():
    return torch.empty(1 << 17, device="ral:1")                 # half as large

def too_much():
    torch.empty(1 << 40, dtype=torch.uint8, device="ral:1")     # oom

def batches():
    for _ in range(2):
        yield x.min().item()                                    # generator

def burn(ready, done):
    ready.set()
    while not done.is_set():
        sum(range(1000))

def again():
    for _ in range(200):
        x.max().item()                                          # busy

def warm():
    Model().loss(); fall_back(); list(batches())

def work():
    Model().loss()                                              # calls loss
    fall_back()                                                 # calls fall_back
    keep = allocate(), small()
    with contextlib.suppress(torch.OutOfMemoryError):
        too_much()                                              # calls too_much
    list(batches())                                             # calls batches

warm()
with trace(sys.argv[1]):
    work()                                                      # main
    thread = threading.Thread(target=work, name="worker")
    thread.start()
    thread.join()
    ready, done = threading.Event(), threading.Event()
    other = threading.Thread(target=burn, args=(ready, done))
    other.start()
    ready.wait()
    again()                                                     # calls again
    done.set()
    other.join()
"""


def line_of(source: str, marker: str) -> int:
    (line,) = [number for number, text in enumerate(source.splitlines(), 1) if text.rstrip().endswith(f"  # {marker}")]
    return line


def run(folder: Path, source: str, **environment: str) -> Trace:
    import os

    (folder / "program.py").write_text(source)
    words = [sys.executable, "program.py", "trace.duckdb"]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=200, check=False, cwd=folder, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return open_trace(folder / "trace.duckdb")


def stacks(trace: Trace, where: str) -> list[list[tuple[str, int]]]:
    """Functions and lines of the events' stacks in the program, innermost first."""
    rows = trace.rows(
        "SELECT s.frames FROM event e LEFT JOIN stack s ON s.id = e.stack LEFT JOIN thread t ON t.id = e.thread "
        f"WHERE {where} ORDER BY e.ts_ns"
    )
    return [frames_in_program(row["frames"]) for row in rows]


def frames_in_program(frames: list[dict[str, Any]] | None) -> list[tuple[str, int]]:
    return [(frame["function"], frame["line"]) for frame in frames or [] if Path(frame["file"]).name == "program.py"]


@pytest.fixture(scope="module", params=["own", "public"])
def sites(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return run(tmp_path_factory.mktemp("sites"), SITES, FRAMES=request.param)


MAIN = "t.tid = (SELECT pid FROM process) AND "
WORKER = "t.tid <> (SELECT pid FROM process) AND "


def at(*calls: tuple[str, str]) -> list[tuple[str, int]]:
    return [(function, line_of(SITES, marker)) for function, marker in calls]


def test_a_sync(sites: Trace) -> None:
    (first, *_) = stacks(sites, f"{MAIN} e.kind = 'sync' AND e.name = 'aten::_local_scalar_dense'")
    assert first == at(("Model.loss", "sync"), ("work", "calls loss"), ("<module>", "main"))


def test_the_file_is_whole(sites: Trace) -> None:
    files = sites.rows("SELECT DISTINCT unnest(frames).file AS file FROM stack")
    assert str(Path(str(sites.path)).parent / "program.py") in {
        str(Path(str(sites.path)).parent / row["file"]) for row in files
    }


def test_a_fallback_and_its_launch(sites: Trace) -> None:
    expected = at(("fall_back", "fallback"), ("work", "calls fall_back"), ("<module>", "main"))
    assert stacks(sites, f"{MAIN} e.kind = 'fallback'") == [expected]
    launches = f"{MAIN} e.kind = 'launch' AND e.args->>'route' = 'cpu'"
    assert stacks(sites, launches) == [expected]
    assert stacks(sites, f"{MAIN} e.kind = 'launch' AND e.name = 'aten::sum'") == [[]]


def test_a_large_allocation_and_not_a_small_one(sites: Trace) -> None:
    """1 MiB and more."""
    of_size = "e.kind = 'alloc' AND e.bytes = {} AND t.tid = (SELECT pid FROM process)"
    (large,) = stacks(sites, of_size.format(1 << 20))
    assert large[0] == at(("allocate", "large"))[0]
    assert stacks(sites, of_size.format(1 << 19)) == [[]]
    rows = sites.rows("SELECT count(*) AS n FROM allocation WHERE size_bytes = 1 << 20 AND stack IS NOT NULL")
    assert rows == [{"n": 2}]


def test_memory_that_ran_out(sites: Trace) -> None:
    expected = at(("too_much", "oom"), ("work", "calls too_much"), ("<module>", "main"))
    assert stacks(sites, f"{MAIN} e.kind = 'error'") == [expected]


def test_inside_a_generator(sites: Trace) -> None:
    found = stacks(sites, f"{MAIN} e.kind = 'sync' AND e.args->>'waited_for' = 'aten::min'")
    assert found == [at(("batches", "generator"), ("work", "calls batches"), ("<module>", "main"))] * 2


def test_in_another_thread(sites: Trace) -> None:
    """Its outermost lines are those of `threading`."""
    (sync, *_) = stacks(sites, f"{WORKER} e.kind = 'sync' AND e.name = 'aten::_local_scalar_dense'")
    assert sync == at(("Model.loss", "sync"), ("work", "calls loss"))
    (frames,) = sites.rows(
        "SELECT frames FROM stack s JOIN event e ON e.stack = s.id JOIN thread t ON t.id = e.thread "
        f"WHERE {WORKER} e.kind = 'fallback'"
    )
    assert [frame["function"] for frame in frames["frames"]] == [
        "fall_back",
        "work",
        "Thread.run",
        "Thread._bootstrap_inner",
        "Thread._bootstrap",
    ]


def test_while_another_thread_has_the_gil(sites: Trace) -> None:
    found = stacks(sites, "e.kind = 'sync' AND e.args->>'waited_for' = 'aten::max'")
    assert found == [at(("again", "busy"), ("<module>", "calls again"))] * 200


CODE_THAT_COMES_AND_GOES = """
import gc, sys
import torch
import ral_trace.backend as backend
from ral_trace.tracer import annotate, trace

backend.enable("host:1,sim:1")
x = torch.ones(8, device="ral:1")
with trace(sys.argv[1]):
    for n in range(1500):
        source = "\\n" * (n % 700) + f"def made_{n % 700}():\\n    return x.sum().item()\\nmade_{n % 700}()"
        scope = {"x": x}
        with annotate(f"turn {n % 700}"):
            exec(compile(source, f"made-{n % 700}.py", "exec"), scope)
        del scope
"""


def test_a_code_object_that_took_the_place_of_another(tmp_path: Path) -> None:
    """Far more of them than a thread's cache has room for, each destroyed before the next is made."""
    trace = run(tmp_path, CODE_THAT_COMES_AND_GOES)
    rows = trace.rows("""
        SELECT a.name AS turn, s.frames FROM event e JOIN stack s ON s.id = e.stack
        JOIN event a ON a.kind = 'annotation' AND e.ts_ns BETWEEN a.ts_ns AND a.ts_ns + a.dur_ns
        WHERE e.kind = 'sync' AND e.name = 'aten::_local_scalar_dense'""")
    assert len(rows) == 1500
    for row in rows:
        n = int(row["turn"].split()[1])
        inner, outer, *_ = row["frames"]
        assert (inner["function"], inner["file"], inner["line"]) == (f"made_{n}", f"made-{n}.py", n + 2)
        assert (outer["function"], outer["file"], outer["line"]) == ("<module>", f"made-{n}.py", n + 3)


DEEP = """
import sys
import torch
import ral_trace.backend as backend
from ral_trace.tracer import trace

backend.enable("host:1,sim:1")
x = torch.ones(8, device="ral:1")

def down(n):
    if n == 0:
        return x.sum().item()                                   # bottom
    return down(n - 1)                                          # down

with trace(sys.argv[1]):
    for depth in (253, 254, 255, 256, 600):
        down(depth)                                             # calls down
"""


def test_of_a_deep_stack_the_innermost_256_lines(tmp_path: Path) -> None:
    trace = run(tmp_path, DEEP)
    found = stacks(trace, "e.kind = 'sync' AND e.name = 'aten::_local_scalar_dense'")
    bottom, above = ("down", line_of(DEEP, "bottom")), ("down", line_of(DEEP, "down"))
    main = ("<module>", line_of(DEEP, "calls down"))
    assert found[:2] == [[bottom, *[above] * 253, main], [bottom, *[above] * 254, main]]
    assert found[2:] == [[bottom, *[above] * 255]] * 3


WITHOUT_PYTHON = """
import sys
import torch
import ral_trace.backend as backend
from ral_trace.tracer import trace

backend.enable("host:1,sim:1")
x = torch.ones(1 << 18, device="ral:1", requires_grad=True)
loss = (x * x).sum()
with trace(sys.argv[1]):
    loss.backward()                                             # backward
"""


def test_a_thread_without_python_has_no_stack(tmp_path: Path) -> None:
    """Autograd runs the nodes of a device on a thread of its own."""
    trace = run(tmp_path, WITHOUT_PYTHON)
    allocs = trace.rows(
        "SELECT t.tid = (SELECT pid FROM process) AS main, e.stack FROM event e JOIN thread t ON t.id = e.thread "
        "JOIN device d ON d.id = e.device AND d.type = 'ral' WHERE e.kind = 'alloc' AND e.bytes = 1 << 20"
    )
    others = [row for row in allocs if not row["main"]]
    assert others
    assert {row["stack"] for row in others} == {None}


THAT_END = """
import sys, threading
import torch
import ral_trace.backend as backend
from ral_trace.tracer import trace

backend.enable("host:1,sim:1")
x = torch.ones(8, device="ral:1")

def work():
    for _ in range(3):
        x.sum().item()                                          # sync

with trace(sys.argv[1]):
    for _ in range(40):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
"""


def test_threads_that_come_and_go(tmp_path: Path) -> None:
    trace = run(tmp_path, THAT_END)
    found = stacks(trace, "e.kind = 'sync' AND e.name = 'aten::_local_scalar_dense'")
    assert found == [[("work", line_of(THAT_END, "sync"))]] * 480
