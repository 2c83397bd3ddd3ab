"""What only Python can tell: its garbage collections, calls of modules, uncaught exceptions, waits for data."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ral_trace.tracer import Trace, open_trace
from tests.integration.programs import python, ral_trace, running, start

pytest.importorskip("torch")

STATE = """
import gc, sys, threading
from torch.nn.modules import module
def state():
    return [len(gc.callbacks), len(module._global_forward_pre_hooks), len(module._global_forward_hooks),
            sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__]
OFF = [0, 0, 0, True, True]
"""


def run(folder: Path, program: str, *, code: int = 0) -> Trace:
    words = [sys.executable, "-c", "import sys, torch\n" + STATE + program, str(folder / "run.duckdb")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == code, done.stderr
    return open_trace(folder / "run.duckdb")


COLLECTIONS = """
from ral_trace.tracer import trace
def make_cycle():
    items = []
    items.append(items)
assert state() == OFF, state()
gc.disable()
with trace(sys.argv[1]):
    assert state() == [1, 0, 0, False, False], state()
    torch.ones(2) * 3
    gc.collect()
    for generation in (0, 1, 2, 0):
        [make_cycle() for _ in range(10 * (generation + 1))]
        gc.collect(generation)
assert state() == OFF, state()
gc.collect()
"""


def test_garbage_collections(tmp_path: Path) -> None:
    """A list that holds itself is one object."""
    trace = run(tmp_path, COLLECTIONS)
    rows = trace.rows("SELECT name, args, dur_ns, thread FROM event WHERE kind = 'python' ORDER BY ts_ns")
    assert {row["name"] for row in rows} == {"gc.collect"}
    found = [json.loads(row["args"]) for row in rows]
    assert [(row["generation"], row["collected"]) for row in found[1:]] == [(0, 10), (1, 20), (2, 30), (0, 10)]
    assert all(row["dur_ns"] > 0 and row["thread"] is not None for row in rows)


MODULES = """
import contextlib
from torch import nn
from ral_trace.tracer import annotate, trace

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 4)
    def forward(self, x):
        return self.q(x)

class Block(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.attn, self.norm = Attention(), shared
    def forward(self, x):
        return self.norm(self.attn(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        shared = nn.LayerNorm(4)
        self.layers = nn.ModuleList([Block(shared), Block(shared)])
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

class Deep(nn.Module):
    def forward(self, n):
        return self(n - 1) if n else 0

class Raises(nn.Module):
    def __init__(self, inner, error):
        super().__init__()
        self.inner, self.error = inner, error
    def forward(self, x):
        x = self.inner(x)
        raise self.error

class Uses(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.held = (held,)                     # not registered
    def forward(self, x):
        return self.held[0](x)

net, x = Net(), torch.ones(2, 4)
with trace(sys.argv[1], with_modules=True):
    assert state() == [1, 1, 1, False, False], state()
    with annotate("net"):
        net(x)
    with annotate("part"):
        net.layers[1](x)
    with annotate("recursion"):
        Deep()(2)
    with annotate("raises"), contextlib.suppress(ValueError):
        Raises(nn.ReLU(), ValueError())(x)
    stopped = Raises(nn.ReLU(), KeyboardInterrupt())
    with annotate("interrupted"):
        for _ in range(2):
            with contextlib.suppress(KeyboardInterrupt):
                stopped(x)
    with annotate("afterwards"):
        net.layers[0].attn.q(x)
    with annotate("uses"):
        Uses(nn.Sequential(nn.ReLU()))(x)
    with annotate("changed"):
        net.layers[1].attn.q = nn.Linear(4, 4)
        net.layers[1].attn(x)
    with annotate("threads"):
        threads = [threading.Thread(target=net, args=(x,)) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    with annotate("compiled"):
        compiled = torch.compile(net, backend="eager", fullgraph=True)
        compiled(x)
assert state() == OFF, state()
net(x)
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return run(tmp_path_factory.mktemp("modules"), MODULES)


def calls(trace: Trace, part: str) -> list[str]:
    rows = trace.rows(f"""
        SELECT e.name FROM event e JOIN event t ON t.name = '{part}' AND t.category IS NULL
            AND e.ts_ns BETWEEN t.ts_ns AND t.ts_ns + t.dur_ns
        WHERE e.category = 'module' ORDER BY e.ts_ns, e.id DESC""")
    return [row["name"] for row in rows]


NET = [
    "Net",
    "Net.layers.0",
    "Net.layers.0.attn",
    "Net.layers.0.attn.q",
    "Net.layers.0.norm",
    "Net.layers.1",
    "Net.layers.1.attn",
    "Net.layers.1.attn.q",
    "Net.layers.1.norm",
]
"""A module that two hold is called as the one that calls it has it."""


def test_modules_by_path(modules: Trace) -> None:
    assert calls(modules, "net") == NET
    rows = modules.rows("SELECT DISTINCT name, args->>'class' AS class FROM event WHERE category = 'module'")
    classes = {row["name"]: row["class"] for row in rows}
    assert classes["Net.layers.0.attn"] == "Attention"
    assert classes["Net.layers.0.norm"] == "LayerNorm"


def test_modules_nest_and_hold_their_ops(modules: Trace) -> None:
    rows = modules.rows("""
        SELECT e.name, p.name AS parent FROM event e JOIN event p ON p.id = e.parent
        WHERE e.name IN ('aten::linear', 'Net.layers.0.attn.q') AND e.ts_ns <
              (SELECT ts_ns + dur_ns FROM event WHERE name = 'net') ORDER BY e.ts_ns""")
    assert [(row["name"], row["parent"]) for row in rows][:2] == [
        ("Net.layers.0.attn.q", "Net.layers.0.attn"),
        ("aten::linear", "Net.layers.0.attn.q"),
    ]


def test_the_outermost_that_runs_is_the_root(modules: Trace) -> None:
    assert calls(modules, "part") == ["Block", "Block.attn", "Block.attn.q", "Block.norm"]


def test_a_module_that_calls_itself(modules: Trace) -> None:
    assert calls(modules, "recursion") == ["Deep", "Deep", "Deep"]


def test_modules_and_exceptions(modules: Trace) -> None:
    """An exception that torch tells hooks of ends the call; after another one (Ctrl-C) the next call is right."""
    assert calls(modules, "raises") == ["Raises", "Raises.inner"]
    assert calls(modules, "interrupted") == ["Raises.inner", "Raises.inner"]
    assert calls(modules, "afterwards") == ["Linear"]


def test_a_module_that_its_user_does_not_hold(modules: Trace) -> None:
    assert calls(modules, "uses") == ["Uses", "Sequential", "Sequential.0"]


def test_a_model_that_changes(modules: Trace) -> None:
    assert calls(modules, "changed") == ["Attention", "Attention.q"]


def test_modules_on_threads(modules: Trace) -> None:
    assert sorted(calls(modules, "threads")) == sorted(NET * 4)


def test_a_compiled_model_has_no_modules(modules: Trace) -> None:
    """But for what torch.compile put around it. And it compiles to one graph."""
    assert calls(modules, "compiled") == ["OptimizedModule"]


COMES_AND_GOES = (
    """
import time
import torch
"""
    + STATE
    + """
import json
print("running", flush=True)
seen = [state()]
until = time.monotonic() + 60
while time.monotonic() < until and len(seen) < 3:
    torch.ones(2) * 3
    torch.nn.Identity()(1)
    time.sleep(0.001)
    if state() != seen[-1] and sum(map(bool, state()[:3])) in (0, 3):
        seen.append(state())
print(json.dumps(seen), flush=True)
"""
)


def test_hooks_come_and_go_with_a_recording(tmp_path: Path) -> None:
    """A program that runs already, attached from outside."""
    with running(python(COMES_AND_GOES), stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "running\n"
        recording = start(
            "--duration", "2s", "--with-modules", "--pid", str(program.pid), "-o", "t.duckdb", cwd=tmp_path
        )
        _, errors = recording.communicate(timeout=60)
        assert recording.returncode == 0, errors
        seen = json.loads(program.stdout.readline())
    off = [0, 0, 0, True, True]
    assert [row[:3] for row in seen] == [off[:3], [1, 1, 1], off[:3]]
    with open_trace(tmp_path / "t.duckdb") as trace:
        assert trace.rows("SELECT count(*) > 0 AS some FROM event WHERE name = 'Identity'")[0]["some"]


def test_a_command_has_its_hooks_from_its_first_line(tmp_path: Path) -> None:
    program = (
        "import torch\n" + STATE + "assert state() == [1, 1, 1, False, False], state()\ntorch.nn.ReLU()(torch.ones(2))"
    )
    done = ral_trace("--with-modules", "-o", "t.duckdb", "--", *python(program), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "t.duckdb") as trace:
        assert trace.rows("SELECT count(*) AS n FROM event WHERE name = 'ReLU'") == [{"n": 1}]


FORKS = """
import os, time
from ral_trace.tracer import trace
net = torch.nn.ReLU()
x = torch.ones(2)
with trace(sys.argv[1], with_modules=True):
    net(x)
    child = os.fork()
    if child == 0:                              # recorded like its parent
        assert state() == [1, 1, 1, False, False], state()
        net(x); net(x)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reader, 1)                      # nobody records any more
        until = time.monotonic() + 20
        while state() != OFF and time.monotonic() < until:
            time.sleep(0.001)
        os._exit(0 if state() == OFF else 1)
os.write(writer, b"x")
assert os.waitpid(child, 0)[1] == 0
child = os.fork()
if child == 0:
    net(x)
    os._exit(0 if state() == OFF else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_forked_children(tmp_path: Path) -> None:
    trace = run(tmp_path, FORKS)
    # By their begin: they are numbered as the collector finds them.
    rows = trace.rows("""SELECT p.started_ns, count(*) AS n FROM event e JOIN process p ON p.id = e.process
                         WHERE e.name = 'ReLU' GROUP BY 1 ORDER BY 1""")
    assert [row["n"] for row in rows] == [1, 2]


UNCAUGHT = """
from ral_trace.tracer import _native, trace
before, threads_before = [], []
sys.excepthook = lambda *error: before.append(error)
threading.excepthook = lambda error: threads_before.append(error)
hooks = sys.excepthook, threading.excepthook
with trace(sys.argv[1]) as t:
    torch.ones(2) * 3
    def fail():
        raise KeyError
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert len(threads_before) == 1
    sys.excepthook(ValueError, ValueError(), None)
    assert len(before) == 1
    (process,) = [folder for folder in t._folder.iterdir() if folder.is_dir()]
    reader = _native.ProcessReader.open(str(process))
    assert (reader.alarms(), reader.alarm) == (2, _native.ALARM_UNCAUGHT_EXCEPTION), reader.alarms()
assert hooks == (sys.excepthook, threading.excepthook)
sys.excepthook(ValueError, ValueError(), None)
assert len(before) == 2
"""


def test_exceptions_that_nobody_catches_raise_an_alarm(tmp_path: Path) -> None:
    run(tmp_path, UNCAUGHT)


OUT_OF_MEMORY = """
import ral_trace.backend as backend
from ral_trace.tracer import _native, trace
backend.enable("host:1,sim:1")
with trace(sys.argv[1]) as t:
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="ral:1")
    except torch.OutOfMemoryError:
        pass
    (process,) = [folder for folder in t._folder.iterdir() if folder.is_dir()]
    reader = _native.ProcessReader.open(str(process))
    assert (reader.alarms(), reader.alarm) == (1, _native.ALARM_OUT_OF_MEMORY), reader.alarms()
"""


def test_memory_that_ran_out_raises_an_alarm(tmp_path: Path) -> None:
    assert run(tmp_path, OUT_OF_MEMORY).rows("SELECT count(*) AS n FROM event WHERE kind = 'error'") == [{"n": 1}]


LOADS = """
from torch.utils.data import DataLoader, TensorDataset
from ral_trace.tracer import trace
workers = {workers}
if __name__ == "__main__":
    with trace(sys.argv[1]):
        loader = DataLoader(TensorDataset(torch.arange(12.0)), batch_size=4, num_workers=workers)
        assert len(list(loader)) == 3
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_waits_for_the_data_loader(tmp_path: Path, workers: int) -> None:
    """Three batches, and the call that finds no more."""
    trace = run(tmp_path, LOADS.format(workers=workers))
    rows = trace.rows("""
        SELECT e.category, e.name, t.tid = p.pid AS main FROM event e JOIN thread t ON t.id = e.thread
        JOIN process p ON p.id = e.process WHERE e.name LIKE 'enumerate(DataLoader)%' AND p.id = 0""")
    assert [(row["category"], row["main"]) for row in rows] == [("dataloader", True)] * 4


ENDS = """
import time
from ral_trace.tracer import annotate, trace
def run_on():                                   # no ops: torch itself aborts a program that ends so
    while True:
        with annotate("runs on"):
            gc.collect(0)
threading.Thread(target=run_on, daemon=True).start()
t = trace(sys.argv[1], with_modules=True, with_stack=True)
t.__enter__()
time.sleep(0.05)
"""


def test_the_end_of_the_interpreter_with_a_thread_that_goes_on(tmp_path: Path) -> None:
    trace = run(tmp_path, ENDS)
    assert trace.rows("SELECT count(*) > 0 AS some FROM event WHERE kind = 'python'")[0]["some"]
