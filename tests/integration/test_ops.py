"""What is recorded of any PyTorch program, against what the program itself counts, or torch.profiler says."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer import open_trace
from ral_trace.tracer.reading import Trace
from tests.integration.programs import python, ral_trace

pytest.importorskip("torch")


def recorded(tmp_path: Path, source: str, *options: str, **environment: str) -> Trace:
    """The trace of a program, which may write to the file that is its first argument."""
    program = python(source, tmp_path / "said.json")
    done = ral_trace(*options, "-o", "run.duckdb", "--", *program, cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert "0 dropped, 0 lost" in done.stderr
    return open_trace(tmp_path / "run.duckdb")


def said(tmp_path: Path) -> Any:
    """What the program wrote."""
    return json.loads((tmp_path / "said.json").read_text())


# --- autograd ---

TWO_THREADS = """
import threading, torch
def work():
    x = torch.ones(3, 3, requires_grad=True)
    for _ in range(5):
        torch.mm(torch.mm(x, x), x).sum().backward()
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""

ARROWS = """
SELECT t.id AS node, t.name AS backward, f.name AS forward, f.thread AS thread, t.ts_ns - f.ts_ns AS later
FROM flow JOIN event f ON f.id = flow.from_event JOIN event t ON t.id = flow.to_event WHERE flow.kind = 'autograd'"""


def test_each_backward_node_hangs_on_the_op_that_made_it(tmp_path: Path) -> None:
    """Two products and a sum make a node each; five times in two threads that count alike."""
    with recorded(tmp_path, TWO_THREADS) as trace:
        nodes = trace.rows(f"SELECT * FROM ({ARROWS}) WHERE backward IN ('MmBackward0', 'SumBackward0')")
        assert sorted({(row["backward"], row["forward"]) for row in nodes}) == [
            ("MmBackward0", "aten::mm"),
            ("SumBackward0", "aten::sum"),
        ]
        per_thread: dict[tuple[int, str], int] = {}
        for row in nodes:
            key = (row["thread"], row["backward"])
            per_thread[key] = per_thread.get(key, 0) + 1
        assert sorted(per_thread.values()) == [5, 5, 10, 10]
        assert len({row["node"] for row in nodes}) == len(nodes) == 30
        assert all(row["later"] > 0 for row in nodes)
        # AccumulateGrad is the node of no op.
        assert trace.rows(f"SELECT * FROM ({ARROWS}) WHERE backward LIKE '%AccumulateGrad%'") == []
        assert len(trace.rows("FROM event WHERE name = 'torch::autograd::AccumulateGrad'")) == 10


AGAINST_THE_PROFILER = """
import json, sys, torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
block = torch.nn.Linear(8, 8)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for _ in range(2):
        x = checkpoint(block, torch.randn(4, 8), use_reentrant=False)
        (model(x) ** 2).mean().backward()
profiler.export_chrome_trace(sys.argv[1])
"""


def test_its_arrows_are_the_profilers(tmp_path: Path) -> None:
    """torch.profiler draws an arrow from the same op to the same node, each as often."""
    with recorded(tmp_path, AGAINST_THE_PROFILER) as trace:
        # It has no names of overloads.
        ours = [(row["forward"].split(".")[0], row["backward"]) for row in trace.rows(ARROWS)]
    assert sorted(ours) == sorted(profilers_arrows(said(tmp_path)["traceEvents"]))


def profilers_arrows(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(op, node) of each arrow of the sort `fwdbwd`, which ends where its rows begin."""
    ends: dict[int, dict[str, tuple[int, float]]] = {}
    for event in events:
        if event.get("cat") == "fwdbwd":
            ends.setdefault(event["id"], {})[event["ph"]] = (event["tid"], event["ts"])
    ops = [event for event in events if event.get("cat") == "cpu_op"]
    found = []
    for pair in ends.values():
        names = []
        for phase in ("s", "f"):
            tid, ts = pair[phase]
            names.append([op["name"] for op in ops if op["tid"] == tid and op["ts"] == ts])
        found += [(forward, backward) for forward in names[0] for backward in names[1]]
    return found


# --- shapes ---

SHAPES = """
import torch
x, y = torch.ones(4, 2), torch.ones(2, 3, dtype=torch.float64)
for _ in range(3):
    torch.mm(x, y.float())
torch.cat([x, torch.ones(1, 2)])
torch.add(x, 2.5)
torch.ops.aten.index(x, [None, torch.tensor([0])])
torch.cat([torch.ones(1, 1, 1, 1)] * 400)
torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).clone()
torch.sparse_coo_tensor([[0]], [1.0], (5,)).neg()
"""


def test_shapes_and_types_of_inputs(tmp_path: Path) -> None:
    with recorded(tmp_path, SHAPES, "--with-shapes") as trace:

        def args(name: str) -> list[Any]:
            rows = trace.rows(f"SELECT args FROM event WHERE kind = 'op' AND name = '{name}' ORDER BY ts_ns")
            return [json.loads(row["args"]) for row in rows]

        assert args("aten::mm") == [{"shapes": [[4, 2], [2, 3]], "dtypes": ["float32", "float32"]}] * 3
        small, large = args("aten::cat")
        assert small == {"shapes": [[[4, 2], [1, 2]], []], "dtypes": [["float32", "float32"], "Scalar"]}
        # Four hundred tensors do not fit into a name: neither the list nor what is after it is there.
        assert large == {"shapes": [], "dtypes": [], "more": 2}
        # The number is a tensor by the time that the op is called.
        assert args("aten::add.Tensor") == [{"shapes": [[4, 2], [], []], "dtypes": ["float32", "float64", "Scalar"]}]
        assert args("aten::index.Tensor") == [{"shapes": [[4, 2], [[], [1]]], "dtypes": ["float32", ["", "int64"]]}]
        assert args("aten::neg")[-1] == {"shapes": [[5]], "dtypes": ["float32"]}
        # Python tells no shape of a nested tensor without running.
        assert [] in [shown["shapes"][0] for shown in args("aten::clone")]
        assert trace.rows("FROM event WHERE kind = 'op' AND args IS NULL") == []


# --- the host's memory ---

BLOCKS = """
import json, sys, threading, torch
before = torch.ones(1000)                       # a block of its own, from before: freed in the middle, never allocated
torch.ones(1)
def work(sizes):
    held = []
    for size in sizes:
        held.append(torch.empty(size, dtype=torch.uint8))
        if size % 3 == 0:
            held.pop(0)
    kept.append(held)
kept = []
threads = [threading.Thread(target=work, args=(range(5000 + 1000 * i, 5300 + 1000 * i),)) for i in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
kept[0][0].resize_(9000)                        # by the storage's own allocator: a new block, and the old one freed
del before
live = sorted(tensor.untyped_storage().nbytes() for held in kept for tensor in held)
with open(sys.argv[1], "w") as file:
    json.dump({"live": live}, file)
import os, signal
os.kill(os.getpid(), signal.SIGKILL)            # what is held is not given back
"""


def test_blocks_of_the_hosts_memory_are_those_of_the_program(tmp_path: Path) -> None:
    program = python(BLOCKS, tmp_path / "said.json")
    done = ral_trace("-o", "run.duckdb", "--", *program, cwd=tmp_path)
    assert "0 dropped, 0 lost" in done.stderr
    with open_trace(tmp_path / "run.duckdb") as trace:
        rows = trace.rows("""
            SELECT a.size_bytes, a.requested_bytes, a.free_ns, a.op FROM allocation a JOIN device d ON d.id = a.device
            WHERE d.type = 'cpu' AND a.size_bytes BETWEEN 5000 AND 9000""")
        assert all(row["size_bytes"] == row["requested_bytes"] for row in rows)
        # Of each thread 300, of which every third freed one; one of them was made anew.
        assert len([row for row in rows if row["op"] == "aten::empty.memory_format"]) == 900
        live = sorted(row["size_bytes"] for row in rows if row["free_ns"] is None)
        assert live == said(tmp_path)["live"]
        assert len(live) == 900 - 300
        assert trace.rows("FROM quality WHERE what LIKE '%block%'") == []
        assert trace.rows("FROM allocation WHERE size_bytes IS NULL OR before_trace") == []


TWICE = """
import sys, torch
from ral_trace.tracer import trace
def blocks(n):
    return [torch.empty(7000, dtype=torch.uint8) for _ in range(n)]
earlier = blocks(3)
with trace(sys.argv[1] + ".first.duckdb"):
    known = blocks(5)
    del earlier                                  # torch's own blocks: nobody was told of them
del known[0]                                     # nobody records now
with trace(sys.argv[1] + ".second.duckdb"):
    del known                                    # blocks of the first recording
    more = blocks(2)
    more.pop()
del more
"""


def test_blocks_that_outlive_their_recording(tmp_path: Path) -> None:
    """They are given back rightly, and are no blocks of the next one."""
    subprocess.run(python(TWICE, tmp_path / "run"), check=True, timeout=300)
    for name, made, freed in [("first", 5, 0), ("second", 2, 1)]:
        with open_trace(tmp_path / f"run.{name}.duckdb") as trace:
            rows = trace.rows("SELECT free_ns FROM allocation WHERE size_bytes = 7000")
            assert (len(rows), len([row for row in rows if row["free_ns"] is not None])) == (made, freed)
            assert trace.rows("FROM allocation WHERE size_bytes IS NULL OR before_trace") == []
            assert trace.rows("FROM quality WHERE what LIKE '%free%'") == []


# --- what uses a block ---

ACCESSES = """
import json, sys, torch
DEVICE = {device!r}
if DEVICE != "cpu":
    import ral_trace.backend
    ral_trace.backend.enable("sim:1")
a, b, out = (torch.full((64, 64), 2.0, device=DEVICE) for _ in range(3))
c = torch.mm(a, b)
a.mul_(b)
torch.mm(a, b, out=out)
view = c.view(-1)
torch._foreach_mul_([a, c], 1.0)
d = torch.cat([a, b])
if DEVICE != "cpu":
    torch.ral.synchronize()
names = dict(a=a, b=b, c=c, out=out, d=d)
json.dump({{name: tensor.untyped_storage().data_ptr() for name, tensor in names.items()}}, open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize("device", ["cpu", "ral:0"])
def test_an_access_names_the_block(tmp_path: Path, device: str) -> None:
    with recorded(tmp_path, ACCESSES.format(device=device), "--with-access") as trace:
        tensors = {address: name for name, address in said(tmp_path).items()}
        rows = trace.rows("""
            SELECT e.name, a.address, x.mode, d.type FROM access x JOIN event e ON e.id = x.event
            JOIN allocation a ON a.id = x.allocation JOIN device d ON d.id = a.device
            WHERE a.free_ns IS NULL OR a.size_bytes >= 16384 ORDER BY e.id""")

        def used(op: str) -> list[tuple[str, str]]:
            return sorted(
                (tensors[row["address"]], row["mode"])
                for row in rows
                if row["name"] == op and row["address"] in tensors
            )

        assert {row["type"] for row in rows if row["address"] in tensors} == {device.split(":")[0]}
        assert used("aten::mm") == [("a", "read"), ("b", "read"), ("c", "write")]
        assert used("aten::mul_.Tensor") == [("a", "read_write"), ("b", "read")]
        assert used("aten::mm.out") == [("a", "read"), ("b", "read"), ("out", "write")]
        assert used("aten::_foreach_mul_.Scalar") == [("a", "read_write"), ("c", "read_write")]
        assert used("aten::view") == [("c", "read")]
        assert used("aten::cat") == [("a", "read"), ("b", "read"), ("d", "write")]


# --- awkward programs ---

ODD = """
import sys, threading, torch
def depth(n):
    # Ops within ops: a Python implementation that calls itself.
    return torch.ops.odd.nest(torch.ones(1), n)
library = torch.library.Library("odd", "DEF")
library.define("nest(Tensor x, int n) -> Tensor")
library.impl("nest", lambda x, n: x + x if n == 0 else torch.ops.odd.nest(x, n - 1), "CPU")
library.define("fail(Tensor x) -> Tensor")
def fail(x):
    raise ValueError("as asked")
library.impl("fail", fail, "CPU")
sys.setrecursionlimit(100000)
threading.stack_size(512 << 20)
def work():
    depth(600)
    for _ in range(10):
        try:
            torch.ops.odd.fail(torch.ones(1))
        except ValueError:
            pass
    torch.sub(torch.ones(2), 1)
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_ops_that_fail_and_ops_too_deep_are_told_of(tmp_path: Path) -> None:
    """601 calls within each other and an addition: 512 are recorded, and that 90 are not is said."""
    with recorded(tmp_path, ODD) as trace:
        counts = {
            row["name"]: row["n"]
            for row in trace.rows("SELECT name, count(*) AS n FROM event WHERE kind <> 'alloc' GROUP BY 1")
        }
        assert counts["odd::nest"] == 512
        assert counts["odd::fail"] == 10
        assert counts["90 ops were nested deeper than 512: not recorded"] == 1
        # After all that, an op is at the top again.
        assert [
            row["parent"]
            for row in trace.rows("SELECT parent FROM event WHERE kind = 'op' AND name = 'aten::sub.Tensor'")
        ] == [None]


FORKED = """
import os, torch
torch.ones(1)
if os.fork() == 0:
    for _ in range(7): torch.neg(torch.ones(3))
    os._exit(0)
os.wait()
for _ in range(3): torch.neg(torch.ones(3))
"""


def test_a_fork_goes_on(tmp_path: Path) -> None:
    with recorded(tmp_path, FORKED) as trace:
        rows = trace.rows(
            "SELECT process, count(*) AS n FROM event WHERE kind = 'op' AND name = 'aten::neg' GROUP BY process"
        )
        assert sorted(row["n"] for row in rows) == [3, 7]


# --- what is left out, and what recording takes ---

WITHOUT_SMALL_OPS = """
import ral_trace.tracer.cli as cli
cli.DEFAULT_DETAILS = tuple(name for name in cli.DEFAULT_DETAILS if name != "SMALL_OPS")
cli.main()
"""

SMALL_AND_LARGE = """
import json, sys, torch
torch.set_num_threads(1)
x, large = torch.ones(4), torch.ones(700, 700)
for _ in range(20000): x.neg_()
for _ in range(40): large.exp_()
for _ in range(30): torch.neg(x)
"""


def test_small_ops_are_left_out_and_counted(tmp_path: Path) -> None:
    """Where they are not wanted: what is recorded and what is counted is together what the program did."""
    program = python(SMALL_AND_LARGE)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SMALL_OPS, "-o", "run.duckdb", "--", *program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert "0 dropped, 0 lost" in done.stderr
    with open_trace(tmp_path / "run.duckdb") as trace:
        counts = {
            row["name"]: row["n"]
            for row in trace.rows("SELECT name, count(*) AS n FROM event WHERE kind = 'op' GROUP BY name")
        }
        # Half a million exponentials are no small op.
        assert counts["aten::exp_"] == 40
        # Until a name is known to be small, its ops are recorded.
        assert 4 <= counts["aten::neg_"] < 20000
        shed = trace.rows("SELECT sum(shed) AS n FROM ledger")[0]["n"]
        # ones: empty, fill_; each once a tensor. The others have none beneath them.
        others = 2 * 3
        assert shed + sum(counts.values()) == 20000 + 40 + 30 + others
        # A block is named after the op that made it, recorded or not.
        assert len(trace.rows("FROM allocation WHERE op = 'aten::neg'")) == 30


IN_PROCESS = """
import json, os, sys, tempfile, threading, torch
from pathlib import Path
from ral_trace.tracer import _native, watch
torch.set_num_threads(1)
watch.start()
sessions, bits = _native.Sessions(), _native.DETAILS
everything = sum(bits.values())
os.mkdir(Path(sessions.folder) / "session", 0o700)
slot = sessions.begin(session=1, target_pid=os.getpid(), ring_records=1 << 12, folder="session", details=everything,
                      overwrite=True)
_native.sync()
place = next(entry.path for entry in os.scandir(Path(sessions.folder) / "session") if entry.is_dir())
reader = _native.ProcessReader.open(place)
def want(*names):
    reader.shed(everything & ~sum(bits[name] for name in names))
    _native.sync()
spool = _native.Spool(str(Path(sessions.folder) / "spool"))
def written():
    reader.drain(0, spool)
    return sum(ring.account.written for ring in reader.rings())
x = torch.ones(3)
OPS = ("OPS", "SMALL_OPS")
"""
"""A program that says itself what is recorded of it, at any moment, and can ask how many records it wrote."""

CHANGING = """
stop = False
def busy():
    while not stop:
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
threads = [threading.Thread(target=busy) for _ in range(4)]
for thread in threads: thread.start()
sets = [(), OPS, ("OPS",), (*OPS, "SHAPES"), (*OPS, "ACCESSES", "HOST_BLOCKS"), ("HOST_BLOCKS",), (*OPS, "OP_STACKS")]
for i in range(300):
    want(*sets[i % len(sets)])
stop = True
for thread in threads: thread.join()
want(*OPS)
def count():
    before = written()
    for _ in range(100): torch.neg(x)
    counted.append(written() - before)
counted = []
count()
threads = [threading.Thread(target=count) for _ in range(1)]
for thread in threads: thread.start()
for thread in threads: thread.join()
before = written()
want()
torch.neg(x)
counted.append(written() - before)
json.dump(counted, open(sys.argv[1], "w"))
"""

IN_THE_MIDDLE = """
library = torch.library.Library("odd", "DEF")
library.define("call(Tensor x) -> Tensor")
library.impl("call", lambda x: (inside(), x.clone())[1], "CPU")
counted = []
def around():
    before = written()
    torch.ops.odd.call(x)
    torch.neg(x)
    counted.append(written() - before)
def inside():
    want(*OPS)
    torch.neg(x)
want(); around()               # begins in the middle of a call: neg, clone, what clone calls, and neg after it
def inside():
    want()
    torch.neg(x)
want(*OPS); around()           # ends in the middle of a call, which is recorded to its end
def inside():
    raise ValueError
want(*OPS)
before = written()
for _ in range(1000):
    try:
        torch.ops.odd.call(x)
    except ValueError:
        pass
counted.append(written() - before)
def inside():
    want(*OPS, "SHAPES", "ACCESSES")
want(*OPS)
before = written()
torch.ops.odd.call(x)
want()
json.dump(counted, open(sys.argv[1], "w"))
"""


OWN_COST = """
def spent():
    reader.drain(0, spool)
    return sum(ring.spent_ticks for ring in reader.rings())
want(*OPS)
begin = spent()
for _ in range(200): torch.neg(x)
few = spent() - begin
for _ in range(1000): torch.neg(x)
json.dump([few, spent() - begin], open(sys.argv[1], "w"))
"""


def in_process(tmp_path: Path, source: str) -> Any:
    subprocess.run([*python(IN_PROCESS + source, tmp_path / "said.json")], check=True, timeout=300)
    return said(tmp_path)


def test_own_cost_is_estimated_from_a_sample(tmp_path: Path) -> None:
    """Of every 256th op. What torch's part of it takes is a constant, so that no machine is too fast for this."""
    few, many = in_process(tmp_path, OWN_COST)
    # The sample may fall among the first ones, because those before them count.
    assert many > few >= 0


OLD_HOOKS = """
import sys
from pathlib import Path
from ral_trace.tracer import watch
watch.HOOKS = Path(sys.argv[1])
import torch
torch.ones(1)
"""


def test_hooks_of_another_version_are_told_of(tmp_path: Path) -> None:
    """A library that was left by another installation records nothing, and the trace says why."""
    source, library = tmp_path / "old.c", tmp_path / "old.so"
    source.write_text("void ral_trace_install_hooks(void* api, void* add) { __builtin_trap(); }")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    program = python(OLD_HOOKS, library)
    done = ral_trace("-o", "run.duckdb", "--", *program, cwd=tmp_path)
    assert "was built for another ral-trace" in done.stderr


def test_what_is_wanted_changes_under_busy_threads(tmp_path: Path) -> None:
    """Three hundred times, while four threads run ops; after that, an op is one record, and none when unwanted."""
    assert in_process(tmp_path, CHANGING) == [100, 100, 0]


def test_a_recording_begins_and_ends_in_the_middle_of_an_op(tmp_path: Path) -> None:
    clone = 3  # itself, empty_like and empty_strided or the like, copy_
    began, ended, failed = in_process(tmp_path, IN_THE_MIDDLE)
    assert (began, ended, failed) == (1 + clone + 1, 1, 1000)
