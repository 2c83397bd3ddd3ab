"""Every kernel of `sim` against ATen's on the CPU: values, gradients, out=, what is refused."""

import json
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ral_trace.backend import manifest, plugins
from tests.backend.sim_cases import CASES, Case
from tests.backend.sim_network_cases import NETWORK_CASES

ALL_CASES = {**CASES, **NETWORK_CASES}

TOLERANCE = 2e-5
"""Absolute and relative, of float32 against ATen's kernels: sums are taken in another order."""

FILE = plugins.VENDORS / "sim" / manifest.FILE_NAME


def results(case: Case, device: str) -> list[Tensor]:
    """What the call returns, and the gradients of its inputs for fixed gradients of its outputs."""
    function, inputs = case
    there = [each.detach().to(device).requires_grad_(each.requires_grad) for each in inputs]
    outputs = function(*there)
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    leaves = [each for each in there if each.requires_grad]
    backed = [each for each in outputs if each.requires_grad]
    if not backed:
        return outputs
    torch.manual_seed(11)
    seeds = [torch.randn(each.shape).to(device) for each in backed]
    return outputs + [
        each for each in torch.autograd.grad(backed, leaves, seeds, allow_unused=True) if each is not None
    ]


def assert_same(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


@pytest.mark.parametrize("op", ALL_CASES)
def test_kernel_agrees_with_the_cpu(op: str) -> None:
    for case in ALL_CASES[op]:
        for actual, expected in zip(results(case, "ral:1"), results(case, "cpu"), strict=True):
            assert_same(actual, expected)


def test_every_entry_of_the_manifest_has_cases() -> None:
    entries = {entry["op_name"] for entry in json.loads(FILE.read_text())["kernels"]}
    assert entries == set(ALL_CASES)


def test_every_entry_is_accepted() -> None:
    for vendor in ("host", "sim"):
        assert manifest.load(plugins.VENDORS / vendor / manifest.FILE_NAME).refusals == []


@pytest.mark.parametrize(
    "function", [torch.exp, torch.log, torch.tanh, torch.sigmoid, functional.silu, functional.softplus, functional.elu]
)
def test_numbers_at_the_edges(function: Any) -> None:
    values = torch.tensor(
        [
            0.0,
            -0.0,
            1e-30,
            1e-41,
            -1e-8,
            1.0,
            -9.0,
            -17.0,
            88.5,
            89,
            -87,
            -104,
            1e30,
            -1e30,
            torch.inf,
            -torch.inf,
            torch.nan,
        ]
    )
    torch.testing.assert_close(
        function(values.to("ral:1")).cpu(), function(values), rtol=1e-5, atol=1e-37, equal_nan=True
    )


@pytest.mark.parametrize("start", [torch.empty(0), torch.empty(5, 7), torch.empty(7, 5).t(), torch.empty(2, 3)])
def test_out_is_resized_and_kept_otherwise(start: Tensor) -> None:
    a, b = torch.randn(5, 7), torch.randn(7)
    expected = torch.empty_strided(start.shape, start.stride())
    out = torch.empty_strided(start.shape, start.stride(), device="ral:1")
    torch.add(a, b, out=expected)
    given = torch.add(a.to("ral:1"), b.to("ral:1"), out=out)
    assert given is out
    assert out.stride() == expected.stride()
    assert torch.equal(out.cpu(), expected)


def test_out_that_is_also_an_input() -> None:
    square = torch.randn(6, 6)
    there = square.to("ral:1")
    for each in (square.clone(), there):
        with pytest.raises(RuntimeError, match="single memory location"):
            torch.add(each, each.t(), out=each)
    assert torch.equal(torch.add(there, there, out=there).cpu(), square + square)
    there = square.to("ral:1")
    there[1:].mul_(there[:-1].clone())
    assert torch.equal(there.cpu(), torch.cat([square[:1], square[1:] * square[:-1]]))


def test_errors_of_the_program() -> None:
    with pytest.raises(RuntimeError, match="index out of range"):
        functional.embedding(torch.tensor([9], device="ral:1"), torch.randn(4, 2, device="ral:1")).cpu()
    with pytest.raises(RuntimeError, match="out of bounds"):
        functional.cross_entropy(torch.randn(2, 3, device="ral:1"), torch.tensor([0, 3], device="ral:1")).item()
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.mm(torch.randn(2, 3, device="ral:1"), torch.randn(2, 3, device="ral:1"))
    assert torch.ones(2, device="ral:1").sum().item() == 2


@pytest.mark.parametrize("device", ["ral:0", "ral:1"])
def test_tensors_of_two_devices_are_refused(device: str) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(2, device=device) + torch.ones(2)
    other = "ral:1" if device == "ral:0" else "ral:0"
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(2, device=device) * torch.ones(2, device=other)
    indexed = torch.arange(4.0, device=device)[torch.tensor([3, 1])]
    assert indexed.tolist() == [3.0, 1.0]
