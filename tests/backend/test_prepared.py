"""Prepared launches: what a plan computes, in which order, and what is refused when."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ral_trace.backend import PluginRefused, plugins
from ral_trace.backend.errors import BackendError
from ral_trace.backend.prepared import BadPlan
from ral_trace.tracer import open_trace
from tests.backend import plugin_kit as kit

TEXT = (Path(__file__).resolve().parents[2] / "docs/prepared.md").read_text()

# out = args[0] * number + args[1], element by element; and a function that fails.
SOURCE = r"""
#include <stdio.h>
#include "ral_plugin.h"
static int64_t count(const ral_tensor* t) {
  int64_t n = 1;
  for (int32_t d = 0; d < t->ndim; ++d) n *= t->sizes[d];
  return n;
}
RAL_PLUGIN_EXPORT int scale_add(const ral_call* call) {
  const float* a = (const float*)call->args[0].as.tensors->data;
  const float* b = (const float*)call->args[1].as.tensors->data;
  const ral_value* by = &call->args[2];
  const float scale = by->tag == RAL_INT ? (float)by->as.i : (float)by->as.d;
  float* out = (float*)call->outputs[0].data;
  for (int64_t i = 0, n = count(&call->outputs[0]); i < n; ++i) out[i] = a[i] * scale + b[i];
  return RAL_OK;
}
RAL_PLUGIN_EXPORT int fail(const ral_call* call) {
  snprintf(call->reason, call->reason_size, "no %s today", call->args[0].as.text);
  return RAL_FAILED;
}
"""


def tensor(role: str, *dims: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "dtype": "float32", "dims": list(dims)} | fields


def compute(*args: Any, to: str) -> dict[str, Any]:
    return {"kind": "compute", "function": "scale_add", "args": list(args), "outputs": [to]}


# y = (2 a + b) * 3 + b
PLAN: dict[str, Any] = {
    "name": "twice",
    "vendor": "sim",
    "library": "libkernels.so",
    "symbols": {
        "a": tensor("input", "n", 4),
        "b": tensor("input", "n", 4),
        "t": tensor("temporary", "n", 4),
        "y": tensor("output", "n", 4),
    },
    "operations": [compute("a", "b", 2.0, to="t"), compute("t", "b", 3, to="y")],
}

# The same for tensors of the host.
HOST_PLAN: dict[str, Any] = PLAN | {
    "name": "from_host",
    "symbols": {
        "a": tensor("input", "n", 4, on="host"),
        "b": tensor("input", "n", 4),
        "t": tensor("temporary", "n", 4),
        "y": tensor("output", "n", 4, on="host"),
    },
    "operations": [
        {"kind": "transfer", "from": "a", "to": "t"},
        compute("t", "b", 2.0, to="t"),
        compute("t", "b", 3, to="t"),
        {"kind": "transfer", "from": "t", "to": "y"},
        {"kind": "sync"},
        {"kind": "host", "function": "scale_add", "args": ["y", "y", 0], "outputs": ["y"]},
        {"kind": "sync"},
    ],
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    (folder / "kernels.c").write_text(SOURCE)
    target = folder / "libkernels.so"
    flags = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{plugins.INCLUDE}"]
    subprocess.run([*flags, str(folder / "kernels.c"), "-o", str(target)], check=True)
    return target


@pytest.fixture
def artefact(tmp_path: Path, library: Path) -> Path:
    folder = tmp_path / "artefact"
    folder.mkdir()
    (folder / "libkernels.so").write_bytes(library.read_bytes())
    return folder


def prepare(folder: Path, plan: Any) -> Any:
    (folder / "plan.json").write_text(plan if isinstance(plan, str) else json.dumps(plan))
    return torch.ral.prepare_kernel(folder)


def on_sim(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, device="ral:1")


def test_a_plan_computes_what_its_functions_do(artefact: Path) -> None:
    plan = prepare(artefact, PLAN)
    assert (plan.name, plan.vendor, plan.arguments) == ("prepared:twice", "sim", ["a", "b", "y"])
    for n in (1, 5, 1, 0):
        a, b = on_sim(n, 4), on_sim(n, 4)
        (y,) = torch.ral.launch_jobplan(plan, {"a": a, "b": b})
        assert y.device == a.device
        assert torch.allclose(y.cpu(), (2 * a.cpu() + b.cpu()) * 3 + b.cpu())


def test_an_output_may_be_given(artefact: Path) -> None:
    plan = prepare(artefact, PLAN)
    a, b, y = on_sim(3, 4), on_sim(3, 4), on_sim(3, 4)
    (given,) = torch.ral.launch_jobplan(plan, [a, b, y])
    assert given.data_ptr() == y.data_ptr()
    assert torch.allclose(y.cpu(), (2 * a.cpu() + b.cpu()) * 3 + b.cpu())


def test_transfers_host_work_and_syncs(artefact: Path) -> None:
    plan = prepare(artefact, HOST_PLAN)
    a, b = torch.rand(3, 4), on_sim(3, 4)
    (y,) = torch.ral.launch_jobplan(plan, {"a": a, "b": b})
    assert y.device.type == "cpu"
    assert torch.allclose(y, (2 * a + b.cpu()) * 3 + b.cpu())


@pytest.fixture
def late() -> Iterator[Callable[[], None]]:
    """After it is called each kernel of sim lasts 20 ms."""
    before = torch.ral.device_model("ral:1")
    yield lambda: torch.ral.set_device_model("ral:1", launch_ns=20_000_000)
    torch.ral.synchronize("ral:1")
    torch.ral.set_device_model("ral:1", **before)


def test_the_order_is_the_streams(artefact: Path, late: Callable[[], None]) -> None:
    """Behind what writes its inputs, before what reads its outputs, while all of it is still queued."""
    plan = prepare(artefact, PLAN)
    b = on_sim(3, 4)

    def run(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a.add_(1)
        (y,) = torch.ral.launch_jobplan(plan, {"a": a, "b": b})
        doubled = y * 2
        a.zero_()
        torch.empty(3, 4, device="ral:1").zero_()  # may take the temporary's memory, behind its last use
        return y, doubled

    run(on_sim(3, 4))  # the first call of an operator waits
    a = on_sim(3, 4)
    expected = (2 * (a.cpu() + 1) + b.cpu()) * 3 + b.cpu()
    late()
    y, doubled = run(a)
    done = torch.Event("ral:1")
    done.record(torch.ral.current_stream("ral:1"))
    assert not done.query()
    assert torch.allclose(doubled.cpu(), 2 * expected)
    assert torch.allclose(y.cpu(), expected)


def test_a_failure_surfaces_where_somebody_waits(artefact: Path) -> None:
    failing = PLAN | {
        "operations": [
            {"kind": "compute", "function": "fail", "args": ["=luck"], "outputs": ["t"]},
            compute("t", "b", 3, to="y"),
        ]
    }
    plan = prepare(artefact, failing)
    (y,) = torch.ral.launch_jobplan(plan, {"a": on_sim(1, 4), "b": on_sim(1, 4)})
    with pytest.raises(RuntimeError, match=r"prepared:twice, operation 0 \(fail\) on ral:1.*no luck today"):
        y.cpu()


# --- what is refused when a tensor is bound ---


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: {"a": on_sim(3, 4)}, "'b' is not given"),
        (lambda: {"a": on_sim(3, 4), "b": on_sim(2, 4)}, r"'b' has 2 as its dimension 0 and must have 3 \(n\)"),
        (lambda: {"a": on_sim(3, 5), "b": on_sim(3, 5)}, "'a' has 5 as its dimension 1 and must have 4"),
        (lambda: {"a": on_sim(4), "b": on_sim(3, 4)}, "'a' has 1 dimensions and must have 2"),
        (lambda: {"a": on_sim(3, 4).double(), "b": on_sim(3, 4)}, "'a' is Double and must be Float"),
        (lambda: {"a": on_sim(3, 4), "b": torch.rand(3, 4)}, "'b' is on cpu and must be on ral:1"),
        (lambda: {"a": on_sim(4, 4).t(), "b": on_sim(4, 4)}, "'a' is not contiguous"),
        (lambda: {"a": on_sim(3, 4).requires_grad_(), "b": on_sim(3, 4)}, "'a' requires a gradient"),
        (lambda: {"a": torch.rand(3, 4, device="ral:0"), "b": on_sim(3, 4)}, "is for devices of 'sim'"),
        (lambda: {"a": torch.rand(3, 4), "b": torch.rand(3, 4)}, "none of the tensors is on a ral device"),
        (lambda: [on_sim(3, 4)], "1 tensors are too few"),
        (lambda: [on_sim(3, 4)] * 4, "4 tensors are too many, it takes 3"),
        (lambda: {"a": on_sim(3, 4), "b": on_sim(3, 4), "y": on_sim(2, 4)}, "'y' has 2 as its dimension 0"),
        (lambda: dict.fromkeys(("a", "b", "y"), on_sim(3, 4)), "'y' shares memory with 'a'; give it memory of its own"),
    ],
)
def test_a_tensor_that_does_not_fit_is_refused(artefact: Path, given: Any, words: str) -> None:
    plan = prepare(artefact, PLAN)
    with pytest.raises(RuntimeError, match=words):
        torch.ral.launch_jobplan(plan, given())


def test_an_unknown_name_is_refused(artefact: Path) -> None:
    plan = prepare(artefact, PLAN)
    with pytest.raises(BackendError, match="takes no 'c'; it takes a, b, y"):
        torch.ral.launch_jobplan(plan, {"c": on_sim(3, 4)})


# --- what is refused when it is prepared ---


def changed(path: str, value: Any) -> dict[str, Any]:
    plan = json.loads(json.dumps(PLAN))
    *inner, last = path.split("/")
    place = plan
    for step in inner:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[int(last) if isinstance(place, list) else last] = value
    return dict(plan)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("nmae", "x", "the plan: knows no 'nmae'"),
        ("name", "", "the plan.name: must be a str"),
        ("vendor", "nobody", "vendor: there are no devices of 'nobody'"),
        ("library", "../libkernels.so", "lies outside of the folder"),
        ("library", "libmissing.so", "library: there is no .*libmissing.so; build it"),
        ("symbols/a/role", "in", "symbols.a.role: is 'in' and must be one of input"),
        ("symbols/a/dtype", "float", "symbols.a.dtype: is 'float' and must be one of uint8"),
        ("symbols/a/dims", ["n", -1], "symbols.a.dims: -1 is neither a size nor the name"),
        ("symbols/a/dims", [1] * 65, "has 65 dimensions, there may be 64"),
        ("symbols/y/dims", ["m", 4], "no input before it has a dimension 'm'"),
        ("symbols/a/on", "moon", "symbols.a.on: is 'moon'"),
        ("operations/0/kind", "dance", r"operations\[0\].kind: is 'dance' and must be one of host, transfer"),
        ("operations/0/function", "missing", "has no function 'missing'"),
        ("operations/0/args", ["a", "z", 1], r"operations\[0\].args: there is no symbol 'z'"),
        ("operations/0/args", ["y", "b", 1], "'y' is read before anything is written to it"),
        ("operations/0/args", ["a", [1], 1], r"\[1\] is no symbol, number or text"),
        ("operations/0/outputs", ["a"], "'a' is an input and may not be written"),
        ("operations/1/outputs", ["t"], "nothing is written to the output 'y'"),
        ("operations/1", {"kind": "transfer", "from": "t"}, r"operations\[1\].to: must be a str"),
        ("symbols/b/on", "host", "'b' lies on the host, where a kernel cannot reach it"),
    ],
)
def test_a_bad_plan_is_refused(artefact: Path, path: str, value: Any, words: str) -> None:
    with pytest.raises(BadPlan, match=words) as caught:
        prepare(artefact, changed(path, value))
    assert str(artefact / "plan.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "7"])
def test_no_plan_at_all_is_refused(artefact: Path, text: str) -> None:
    with pytest.raises(BadPlan, match=r"plan\.json"):
        prepare(artefact, text)


def test_a_host_output_that_nobody_waits_for_is_refused(artefact: Path) -> None:
    with pytest.raises(BadPlan, match="'y' is written on the host and nobody waits for it"):
        prepare(artefact, HOST_PLAN | {"operations": HOST_PLAN["operations"][:-1]})


@pytest.mark.parametrize("name", [".", "plan.json", "libkernels.so"])
def test_what_others_may_write_is_refused(artefact: Path, name: str) -> None:
    prepare(artefact, PLAN)
    (artefact / name).chmod(0o777)
    with pytest.raises(PluginRefused, match="may be written by others"):
        torch.ral.prepare_kernel(artefact)


# --- the trace and the page ---

TRACED = """
import sys, torch
from ral_trace.backend import enable
from ral_trace.tracer import trace
enable("sim:1")
plan = torch.ral.prepare_kernel(sys.argv[1])
a, b = torch.rand(3, 4), torch.rand(3, 4, device="ral")
torch.ral.launch_jobplan(plan, [a, b, None])
with trace(sys.argv[2]):
    torch.ral.launch_jobplan(plan, [a, b, None])
"""


def test_a_launch_and_its_work_in_the_trace(artefact: Path, tmp_path: Path) -> None:
    (artefact / "plan.json").write_text(json.dumps(HOST_PLAN))
    environment = kit.clean_environment(tmp_path, RAL_TRACE_DIR=str(tmp_path / "rendezvous"))
    done = kit.python(TRACED, environment, str(artefact), str(tmp_path / "trace.duckdb"))
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "trace.duckdb") as trace:
        (launch,) = trace.rows("SELECT name, args, correlation FROM event WHERE kind = 'launch'")
        assert launch["name"] == "prepared:from_host"
        assert json.loads(launch["args"])["route"] == "prepared"
        work = trace.rows(
            "SELECT e.kind, e.args, e.bytes, s.pipeline FROM event e JOIN stream s ON s.id = e.stream"
            f" WHERE e.correlation = {launch['correlation']} AND e.kind IN ('kernel', 'transfer') ORDER BY e.ts_ns"
        )
    seen = [(row["kind"], row["bytes"], json.loads(row["args"] or "{}").get("vendor")) for row in work]
    size = 3 * 4 * 4
    assert seen == [
        ("transfer", size, None),
        ("kernel", 3 * size, "sim"),
        ("kernel", 3 * size, "sim"),
        ("transfer", size, None),
        ("kernel", 3 * size, "host"),
    ]


def test_the_page_works_from_top_to_bottom(tmp_path: Path) -> None:
    files = re.findall(r"^`([\w./]+)`\n\n```\w+\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == ["bias_gelu/bias_gelu.c", "bias_gelu/plan.json", "use.py"]
    for name, content in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    environment = kit.clean_environment(tmp_path, RAL_TRACE_DIR=str(tmp_path / "rendezvous"))
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    (commands,) = re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        ["bash", "-euc", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = 2 * 3 * torch.nn.functional.gelu(torch.ones(())).item()
    found = re.fullmatch(r"\['x', 'bias', 'sums'\] tensor\(\[([\d.]+), ([\d.]+)\]\)\n", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) == pytest.approx(expected, abs=1e-3)
    assert found[1] == found[2]
