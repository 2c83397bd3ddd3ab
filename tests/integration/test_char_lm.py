"""The sample training, really run: what the trace says of it against what other means say of it."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ral_trace.tracer import open_trace

LOSS_TOLERANCE = 2e-3
"""Of float32 losses after at most 50 steps: kernels on `sim` and ATen's sum in different orders, and AdamW
magnifies the last bits.
"""

LOSSES = """
import json, sys, torch
from ral_trace.samples import char_lm
torch.set_num_threads(1)
devices = char_lm.chosen_devices(sys.argv[1])
print(json.dumps(char_lm.train(devices, 50, None, 0, char_lm.Shape(), None, report_every=1000)))
"""

ONE_STEP = """
import collections, json, sys
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from ral_trace.samples import char_lm
from ral_trace.tracer import trace


class Seen(TorchDispatchMode):
    # Counts the calls with a tensor on ral, as a person would write them.
    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()
        self.views = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        leaves = tree_leaves((args, kwargs or {}))
        if any(isinstance(leaf, torch.Tensor) and leaf.device.type == "ral" for leaf in leaves):
            name = func._schema.name + ("" if func._overloadname == "default" else "." + func._overloadname)
            if any(result.alias_info is not None and not result.alias_info.is_write for result in func._schema.returns):
                self.views.add(name)
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


devices = char_lm.chosen_devices("ral:0,ral:1")
data, vocabulary = char_lm.encode(char_lm.standard_library_text(5))
shape = char_lm.Shape(batch=4)
model = char_lm.CharLM(vocabulary, shape, *devices)
optimizer = torch.optim.AdamW(model.parameters())
generator = torch.Generator().manual_seed(0)


def train_one():
    text, target = char_lm.batches(data, shape, generator)
    loss = functional.cross_entropy(model(text).flatten(0, 1), target.to(devices[1]).flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


train_one()
with trace(sys.argv[1]):
    with Seen() as seen:
        train_one()
print(json.dumps({"calls": seen.calls, "views": sorted(seen.views)}))
"""

COPIES = {"aten::clone", "aten::copy_", "aten::_to_copy", "aten::_copy_from"}
UNANNOTATED_VIEWS = {"aten::_unsafe_view"}
"""Returns a view of its argument; its schema does not say so."""


def run(source: str, *arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_losses_on_ral_equal_those_on_the_cpu(tmp_path: Path) -> None:
    on_cpu, on_ral = (json.loads(run(LOSSES, device)) for device in ("cpu", "ral:0,ral:1"))
    assert len(on_cpu) == len(on_ral) == 50
    assert on_ral == pytest.approx(on_cpu, abs=LOSS_TOLERANCE)
    assert on_ral[0] == pytest.approx(on_cpu[0], abs=1e-5)
    assert sum(on_ral[-5:]) < 0.7 * sum(on_ral[:5])


def test_launches_of_a_step_equal_the_calls_that_a_dispatch_mode_sees(tmp_path: Path) -> None:
    said = json.loads(run(ONE_STEP, tmp_path / "step.duckdb"))
    left_out = COPIES | UNANNOTATED_VIEWS | set(said["views"]) | {"aten::_local_scalar_dense"}
    expected = Counter({name: n for name, n in said["calls"].items() if name not in left_out and "::empty" not in name})
    with open_trace(tmp_path / "step.duckdb") as trace:
        rows = trace.rows("SELECT name, count(*) AS n FROM launches WHERE route <> 'copy' GROUP BY name")
    assert {row["name"]: row["n"] for row in rows} == expected
    assert expected["aten::addmm"] > 10
    assert expected["aten::native_layer_norm"] == 9


def test_every_launch_on_sim_is_native(char_lm_trace: Path) -> None:
    with open_trace(char_lm_trace) as trace:
        rows = trace.rows("""
            SELECT route, count(*) AS n FROM launches
            WHERE device_label = 'ral:1' AND route <> 'copy' GROUP BY route""")
    assert [row["route"] for row in rows] == ["native"]


def test_every_launch_has_its_kernel_copy_or_fallback_and_its_op(char_lm_trace: Path) -> None:
    with open_trace(char_lm_trace) as trace:
        per_launch = trace.rows("""
            SELECT l.route, count(d.id) FILTER (d.kind = 'kernel') AS kernels,
                   count(d.id) FILTER (d.kind = 'transfer') AS transfers,
                   count(d.id) FILTER (d.kind = 'fallback') AS fallbacks, any_value(p.kind)::VARCHAR AS parent
            FROM launches l LEFT JOIN flow f ON f.from_event = l.id
            LEFT JOIN event d ON d.id = f.to_event LEFT JOIN event p ON p.id = l.parent
            GROUP BY l.id, l.route""")
        shapes = {(row["route"], row["kernels"], row["transfers"], row["fallbacks"]) for row in per_launch}
        assert shapes <= {("native", 1, 0, 0), ("copy", 0, 1, 0), ("cpu", 0, 0, 1)}
        assert {row["parent"] for row in per_launch} <= {"op", "fallback"}
        assert (
            trace.rows(
                "SELECT count(*) AS n FROM kernels WHERE thread IS NOT NULL OR stream IS NULL OR device IS NULL"
            )[0]["n"]
            == 0
        )
        # A kernel begins when it is launched or later, and the host has mostly gone on by then.
        (kernels,) = trace.rows("""
            SELECT count(*) AS n, count(*) FILTER (k.ts_ns < l.ts_ns) AS too_early,
                   count(*) FILTER (k.ts_ns + k.dur_ns > l.ts_ns + l.dur_ns) AS outlive_it
            FROM flow f JOIN event l ON l.id = f.from_event JOIN event k ON k.id = f.to_event
            WHERE k.kind = 'kernel'""")
        assert kernels["too_early"] == 0
        assert kernels["outlive_it"] > kernels["n"] / 2


def test_steps_and_memory_are_whole(char_lm_trace: Path) -> None:
    with open_trace(char_lm_trace) as trace:
        assert trace.rows("SELECT value FROM trace_info WHERE key = 'steps_from'")[0]["value"] == "step()"
        steps = trace.rows("SELECT DISTINCT step FROM event WHERE kind = 'kernel' AND step IS NOT NULL ORDER BY step")
        assert [row["step"] for row in steps] == list(range(12))
        # The last level of each curve is what is still allocated; the program frees its tensors as it ends, or it is
        # still live.
        for row in trace.rows("""
            SELECT c.device, last(allocated_bytes ORDER BY ts_ns) AS level, min(allocated_bytes) AS lowest,
                   (SELECT coalesce(sum(size_bytes), 0) FROM allocation a
                    WHERE a.device = c.device AND free_ns IS NULL) AS live
            FROM memory_curve c GROUP BY c.device"""):
            assert row["level"] == row["live"]
            assert row["lowest"] >= 0
        # The host's memory has no regions.
        pieces = trace.rows(
            "SELECT count(*) AS n FROM allocation a JOIN device d ON d.id = a.device"
            " LEFT JOIN allocation_piece p ON p.allocation = a.id WHERE p.region IS NULL AND d.type = 'ral'"
        )
        assert pieces[0]["n"] == 0


def test_copies_and_syncs_of_a_fallback_have_it_as_parent(char_lm_without_gelu: Path) -> None:
    with open_trace(char_lm_without_gelu) as trace:
        rows = trace.rows("""
            SELECT f.id, f.bytes, count(t.id) FILTER (t.kind = 'transfer') AS copies,
                   sum(t.bytes) FILTER (t.kind = 'transfer') AS copied,
                   count(t.id) FILTER (t.kind = 'sync') AS syncs
            FROM fallbacks f LEFT JOIN event t ON t.parent = f.id GROUP BY f.id, f.bytes""")
        assert rows
        assert all(row["copies"] >= 2 and row["copied"] == row["bytes"] and row["syncs"] >= 1 for row in rows)


def test_deleting_a_manifest_entry_adds_exactly_its_launches_to_the_fallbacks(
    char_lm_trace: Path, char_lm_without_gelu: Path
) -> None:
    query = "SELECT name, count(*) AS n FROM fallbacks WHERE device_label = 'ral:1' GROUP BY name"
    with open_trace(char_lm_trace) as before, open_trace(char_lm_without_gelu) as after:
        gelus = before.rows("SELECT count(*) AS n FROM launches WHERE name = 'aten::gelu' AND device_label = 'ral:1'")[
            0
        ]["n"]
        expected = {row["name"]: row["n"] for row in before.rows(query)}
        assert gelus == 24
        assert {row["name"]: row["n"] for row in after.rows(query)} == {**expected, "aten::gelu": gelus}
        assert "no entry" in after.rows("SELECT reason FROM fallbacks WHERE name = 'aten::gelu' LIMIT 1")[0]["reason"]
