"""What the device records of itself: launches, kernels, fallbacks, transfers, syncs, memory, with their names."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer import Trace, _native, open_trace

pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent.parent

PRELUDE = """
import json, sys
from pathlib import Path
import torch
import ral_trace.backend as backend
from ral_trace.tracer import trace
file, arguments = sys.argv[1], sys.argv[2:]
"""


def record(folder: Path, program: str, *arguments: str) -> Trace:
    """Runs a program that records a part of itself into its first argument, and opens that."""
    file = folder / "trace.duckdb"
    result = subprocess.run(
        [sys.executable, "-c", PRELUDE + program, str(file), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return open_trace(file)


def events(trace: Trace, kind: str, where: str = "true") -> list[dict[str, Any]]:
    rows = trace.rows(
        "SELECT e.*, d.index AS device_index, s.number AS stream_number FROM event e"
        " LEFT JOIN device d ON d.id = e.device LEFT JOIN stream s ON s.id = e.stream"
        f" WHERE e.kind = '{kind}' AND {where} ORDER BY e.ts_ns, e.id"
    )
    return [row | {"args": json.loads(row["args"] or "{}")} for row in rows]


ONE_OF_EACH = """
backend.enable("host:1,sim:1")
before = torch.zeros(1000, device="ral:1")
def work():
    a = torch.ones(4, 4).to("ral:1")          # h2d
    b = a + a                                 # native
    c = torch.roll(b, 1, 0)                   # no kernel on sim
    d = c.to("ral:0")                         # d2d
    e = d + 1                                 # native on host
    a.t(); a[1:]; torch.empty(3, device="ral:1")
    e.clone()                                 # within the device
    c.sum().item()
    b.cpu()
    torch.ral.synchronize("ral:1")
    keep.append(c)
keep = []
work()
keep.clear()
with trace(file):
    work()
    keep.clear()
"""


@pytest.fixture(scope="module")
def one_of_each(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return record(tmp_path_factory.mktemp("one"), ONE_OF_EACH)


def test_native_calls(one_of_each: Trace) -> None:
    """Named as the user called it; what reached the router is in the arguments; one kernel with its correlation."""
    launches = [row for row in events(one_of_each, "launch") if row["name"] == "aten::add.Tensor"]
    assert [(row["device_index"], row["args"]["route"]) for row in launches] == [(1, "native"), (0, "native")]
    assert launches[0]["args"]["routed"] == "aten::add.Tensor"
    for launch in launches:
        (kernel,) = events(one_of_each, "kernel", f"e.correlation = {launch['correlation']}")
        assert kernel["name"] == launch["name"]
        assert kernel["thread"] is None
        assert kernel["device_index"] == launch["device_index"]
        assert kernel["stream_number"] == 0
        assert launch["ts_ns"] <= kernel["ts_ns"]
    assert [row["args"] for row in events(one_of_each, "kernel", "e.name = 'aten::add.Tensor'")] == [
        {"kernel": "ral_sim_add", "vendor": "sim"},
        {"kernel": "aten::add.Tensor", "vendor": "host"},
    ]


BYTES = """
backend.enable("host:1,sim:1")
for device in ("ral:0", "ral:1"):
    x, y = torch.ones(4, 4, device=device), torch.ones(4, 4, device=device)
    row, whole, empty = torch.ones(4, device=device), torch.zeros(4, 4, device=device), torch.empty(0, device=device)
    def work():
        torch.add(x, y)                       # 64 + 64 + 64
        torch.mul(x, x)                       # an argument twice: 64 + 64 + 64
        x.sub_(y)                             # one argument, read and written: 64 + 64
        torch.div(x, y, out=whole)            # 64 + 64 + 64
        torch.maximum(x, row)                 # broadcast by the kernel: 64 + 16 + 64
        torch.pow(x, 2)                       # a number is none of the device's tensors: 64 + 64
        torch.eq(x, y)                        # 64 + 64 + 16
        torch.cat([x, y, row.view(1, 4)])     # a list: 64 + 64 + 16 + 144
        torch.mm(x[:2], y)                    # of a view what it shows: 32 + 64 + 32
        torch.exp(x, out=empty)               # sized by the call: 64 + 64
    work()
    empty.resize_(0)
    with trace(Path(file) if device == "ral:1" else Path(file).with_name("host.duckdb")):
        work()
"""


def test_bytes_of_a_kernel(tmp_path: Path) -> None:
    """What its arguments and results show, each once."""
    expected = [
        ("aten::add.Tensor", 192),
        ("aten::mul.Tensor", 192),
        ("aten::sub_.Tensor", 128),
        ("aten::div.out", 192),
        ("aten::maximum", 144),
        ("aten::pow.Tensor_Scalar", 128),
        ("aten::eq.Tensor", 144),
        ("aten::cat", 288),
        ("aten::mm", 128),
        ("aten::exp.out", 128),
    ]
    sim = record(tmp_path, BYTES)
    host = open_trace(tmp_path / "host.duckdb")
    assert [(row["name"], row["bytes"]) for row in events(host, "kernel")] == expected
    assert [(row["name"], row["bytes"]) for row in events(sim, "kernel")] == expected


def test_the_parent_of_a_launch_is_its_op(one_of_each: Trace) -> None:
    (launch,) = [row for row in events(one_of_each, "launch", "e.name = 'aten::roll'") if row["args"]["route"] == "cpu"]
    assert one_of_each.rows("SELECT name FROM event WHERE id = ?", [launch["parent"]]) == [{"name": "aten::roll"}]


def test_a_fallback(one_of_each: Trace) -> None:
    """Instead of a kernel: what it copied, why; its copies and syncs lie within it."""
    (fallback,) = events(one_of_each, "fallback")
    assert fallback["name"] == "aten::roll"
    assert fallback["bytes"] == 2 * 64
    assert fallback["args"] == {
        "routed": "aten::roll",
        "reason": "native: no entry; reference: the memory is not the host's",
    }
    assert fallback["thread"] is not None
    (launch,) = events(one_of_each, "launch", f"e.correlation = {fallback['correlation']}")
    assert launch["args"]["route"] == "cpu"
    assert events(one_of_each, "kernel", f"e.correlation = {fallback['correlation']}") == []
    inside = one_of_each.rows("SELECT kind FROM event WHERE parent = ? ORDER BY ts_ns, id", [fallback["id"]])
    assert [row["kind"] for row in inside if row["kind"] in ("launch", "sync")] == ["launch", "sync", "launch"]
    syncs = one_of_each.rows("SELECT flags FROM event WHERE kind = 'sync' AND parent = ?", [fallback["id"]])
    assert [row["flags"] & _native.FLAGS["FORCED"] for row in syncs] == [_native.FLAGS["FORCED"]]


def test_copies(one_of_each: Trace) -> None:
    """In the order of the program, which is that of the correlations: two devices copy at the same time."""
    transfers = events(one_of_each, "transfer", "e.name IN ('aten::_to_copy', 'aten::clone')")
    transfers.sort(key=lambda row: row["correlation"])
    seen = [(row["device_index"], row["bytes"], row["args"].get("other_device")) for row in transfers]
    assert seen == [(1, 64, None), (0, 64, "ral:1"), (0, 64, None), (1, 64, None)]
    directions = {row["category"] for row in transfers}
    assert len(directions) == 4
    for transfer in transfers:
        (launch,) = events(one_of_each, "launch", f"e.correlation = {transfer['correlation']}")
        assert launch["args"]["routed"] == "aten::_copy_from"


def test_syncs(one_of_each: Trace) -> None:
    names = [row["name"] for row in events(one_of_each, "sync")]
    assert names == ["aten::roll", "aten::_local_scalar_dense", "aten::_to_copy", "torch.ral.synchronize"]
    assert events(one_of_each, "sync")[1]["args"]["waited_for"] == "aten::sum"


def test_views_and_empty_are_ops_only(one_of_each: Trace) -> None:
    assert {"aten::t", "aten::slice.Tensor", "aten::empty.memory_format"} & {
        row["name"] for row in events(one_of_each, "op")
    }
    launched = {row["name"] for row in events(one_of_each, "launch")}
    assert not launched & {"aten::t", "aten::slice.Tensor", "aten::empty.memory_format", "aten::as_strided"}


def test_memory(one_of_each: Trace) -> None:
    """Blocks that were there before are flagged; each allocation of the part has its free, its op and its uses."""
    old, new = [], []
    for row in one_of_each.rows("""
        SELECT a.*, e.flags FROM allocation a JOIN device d ON d.id = a.device AND d.type = 'ral'
        LEFT JOIN event e ON e.id = a.alloc_event"""):
        (old if row["requested_bytes"] == 4000 else new).append(row)
    assert len(old) == 1
    assert old[0]["size_bytes"] == 4096
    assert old[0]["free_ns"] is None
    assert new
    assert all(row["free_ns"] is not None for row in new)
    assert all(row["address"] % 128 == 0 and row["size_bytes"] % 128 == 0 for row in new)
    regions = one_of_each.rows("SELECT * FROM region")
    assert len(regions) == 2
    assert any(region["address"] <= old[0]["address"] < region["address"] + region["size_bytes"] for region in regions)


def test_devices_describe_themselves(one_of_each: Trace) -> None:
    rows = one_of_each.rows("SELECT type, index, vendor, memory_bytes FROM device WHERE type = 'ral' ORDER BY index")
    assert [(row["index"], row["vendor"]) for row in rows] == [(0, "host"), (1, "sim")]
    assert rows[1]["memory_bytes"] == 4 << 30
    pipelines = one_of_each.rows("SELECT DISTINCT number, pipeline FROM stream ORDER BY pipeline")
    assert [(row["number"], row["pipeline"]) for row in pipelines] == [(0, "compute"), (0, "copy_in"), (0, "copy_out")]


ALL_CASES = """
backend.enable("host:1,sim:1")
from tests.backend.test_sim_kernels import ALL_CASES, results
with trace(file):
    for op, cases in ALL_CASES.items():
        for case in cases:
            results(case, "ral:1")
"""


def test_every_kernel_of_sim_runs_natively(tmp_path: Path) -> None:
    """All the calls that the kernels are tested with, recorded: no entry falls back, each has launches."""
    manifest = json.loads((ROOT / "backend/vendors/sim/kernel_manifest.json").read_text())
    symbols = {entry["kernel_path"].partition(":")[2] for entry in manifest["kernels"]}
    trace = record(tmp_path, ALL_CASES)
    assert {row["args"]["kernel"] for row in events(trace, "kernel")} >= symbols
    own = {entry["op_name"].rstrip("_") for entry in manifest["kernels"]}
    fallen = {
        row["args"]["routed"].partition(".")[0].rstrip("_"): row["args"]["reason"] for row in events(trace, "fallback")
    }
    assert {op: reason for op, reason in fallen.items() if op in own} == {}


WITHOUT_AN_ENTRY = """
import os
backend.enable("host:1,sim:1", manifests=[Path(name) for name in arguments])
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)).to("ral:1")
optimizer = torch.optim.AdamW(model.parameters())
inputs, targets = torch.randn(8, 6).to("ral:1"), torch.tensor([0, 1, 2, 3] * 2).to("ral:1")
def step():
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
step()
with trace(file):
    step()
"""


@pytest.mark.parametrize("deleted", ["aten::gelu", "aten::native_layer_norm", "aten::mm", "aten::_log_softmax"])
def test_deleting_an_entry_adds_exactly_its_launches_to_the_fallbacks(tmp_path: Path, deleted: str) -> None:
    def counts(trace: Trace) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for row in events(trace, "launch"):
            if row["args"]["route"] in ("native", "cpu"):
                key = row["args"]["routed"].partition(".")[0].rstrip("_"), row["args"]["route"]
                found[key] = found.get(key, 0) + 1
        return found

    source = ROOT / "backend/vendors/sim/kernel_manifest.json"
    content = json.loads(source.read_text())
    for entry in content["kernels"]:
        entry["kernel_path"] = str(source.parent / entry["kernel_path"])
    content["kernels"] = [entry for entry in content["kernels"] if entry["op_name"] != deleted]
    changed = tmp_path / "kernel_manifest.json"
    changed.write_text(json.dumps(content))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, less = record(tmp_path / "a", WITHOUT_AN_ENTRY), record(tmp_path / "b", WITHOUT_AN_ENTRY, str(changed))
    native = counts(whole)[deleted, "native"]
    expected = counts(whole) | {(deleted, "cpu"): native}
    del expected[deleted, "native"]
    assert counts(less) == expected
    assert len(events(less, "fallback")) == len(events(whole, "fallback")) + native
    assert all(
        row["args"]["reason"] == "native: no entry; reference: the memory is not the host's"
        for row in events(less, "fallback")
        if row["args"]["routed"].startswith(deleted)
    )


REASONS = """
backend.enable("host:1,sim:1")
x = torch.randn(4, 4, device="ral:1")
with trace(file):
    x.double() + 1                                            # dtype
    x.t().tril()                                              # layout
    torch.zeros(*[1] * 9, device="ral:1") + 1                 # rank
    torch.nn.functional.gelu(x).topk(2)                       # no entry
    torch.div(x, 2, rounding_mode="floor")                    # declined
"""


def test_the_reason_of_a_fallback(tmp_path: Path) -> None:
    trace = record(tmp_path, REASONS)
    reasons = {row["name"]: row["args"]["reason"].partition(";")[0] for row in events(trace, "fallback")}
    assert reasons["aten::topk"] == "native: no entry"
    assert reasons["aten::tril"] == "native: layout: not contiguous"
    assert reasons["aten::div.Tensor_mode"] == "native: kernel declined (rounding)"
    added = [
        row["args"]["reason"].partition(";")[0] for row in events(trace, "fallback", "e.name = 'aten::add.Tensor'")
    ]
    assert added == ["native: dtype Double", "native: rank 9"]


def test_running_out_of_memory_is_an_event(tmp_path: Path) -> None:
    program = f"""
import torch
from ral_trace.backend import enable
from ral_trace.tracer import trace
enable()
with trace({str(tmp_path / "oom.duckdb")!r}):
    kept = torch.ones(4, device="ral:1")
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="ral:1")
    except torch.OutOfMemoryError:
        kept.mul_(2)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    with open_trace(tmp_path / "oom.duckdb") as opened:
        (row,) = opened.rows("SELECT name, bytes, device_label FROM events WHERE kind = 'error'")
        assert row["bytes"] == 1 << 50
        assert row["device_label"] == "ral:1"
        assert len(opened.rows("FROM kernels")) >= 2


def test_kernels_of_a_stream_do_not_overlap_whichever_threads_launch(tmp_path: Path) -> None:
    program = f"""
import threading, torch
from ral_trace.backend import enable
from ral_trace.tracer import trace
enable()
x = torch.rand(32, 32, device="ral:1")
def work():
    for _ in range(200):
        (x @ x).clamp(0, 1)
with trace({str(tmp_path / "threads.duckdb")!r}):
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    with open_trace(tmp_path / "threads.duckdb") as opened:
        rows = opened.rows("""
            SELECT count(*) AS kernels, count(*) FILTER (ts_ns < lag_end) AS overlapping FROM (
                SELECT ts_ns, lag(end_ns) OVER (PARTITION BY stream ORDER BY ts_ns) AS lag_end FROM kernels)""")
    assert rows == [{"kernels": 1600, "overlapping": 0}]
