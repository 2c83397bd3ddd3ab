"""Kernels of `sim` in bfloat16, float16 and the integers, and in layouts of every kind, against ATen's on the CPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from ral_trace.tracer import open_trace, trace
from tests.backend.sim_cases import indices, mask, seeded
from tests.backend.sim_network_cases import ADAPTIVE_POOLS, DISTINCT

NARROW = {torch.bfloat16: (8, -133), torch.float16: (11, -24)}
"""Bits of the significand, and the exponent of the smallest step."""

FLOAT32_ERROR = 2e-5
"""Relative, of a kernel's float32 result before it is rounded: what test_sim_kernels allows it."""

INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def half_a_step(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Half the distance between the numbers of `dtype` around each value: how far rounding to nearest may move it."""
    bits, smallest = NARROW[dtype]
    exponent = torch.frexp(value.double())[1]
    return torch.ldexp(torch.ones_like(value, dtype=torch.float64), (exponent - bits).clamp(min=smallest) - 1)


def assert_rounded(actual: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """`exact`, computed in float64, rounded once."""
    assert actual.dtype == dtype
    slack = half_a_step(exact, dtype) + FLOAT32_ERROR * exact.abs().clamp(min=1)
    error = (actual.cpu().double() - exact).abs()
    assert bool(((error <= slack) | (exact.isnan() & actual.cpu().isnan())).all()), (error - slack).max()


ROUNDED: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "add": (torch.add, [seeded(5, 7, grad=False), seeded(7, grad=False)]),
    "add scaled": (lambda a, b: torch.add(a, b, alpha=0.5), [seeded(5, 7, grad=False), seeded(5, 1, grad=False)]),
    "sub": (torch.sub, [seeded(5, 7, grad=False), seeded(7, grad=False)]),
    "mul transposed": (lambda a, b: a.t() * b, [seeded(5, 7, grad=False), seeded(7, 5, grad=False)]),
    "div": (torch.div, [seeded(5, 7, grad=False), seeded(7, grad=False).exp()]),
    "a number": (lambda a: a * 1.5 + 0.25, [seeded(5, 7, grad=False)]),
    "neg": (torch.neg, [seeded(5, 7, grad=False)]),
    "abs": (torch.abs, [seeded(5, 7, grad=False)]),
    "exp": (torch.exp, [seeded(600, grad=False)]),
    "log": (torch.log, [seeded(600, grad=False).abs() + 0.1]),
    "sqrt": (torch.sqrt, [seeded(600, grad=False).abs()]),
    "rsqrt": (torch.rsqrt, [seeded(600, grad=False).abs() + 0.1]),
    "tanh": (torch.tanh, [seeded(600, grad=False)]),
    "sigmoid": (torch.sigmoid, [seeded(600, grad=False)]),
    "gelu": (functional.gelu, [seeded(600, grad=False)]),
    "silu": (functional.silu, [seeded(600, grad=False)]),
    "relu": (torch.relu, [seeded(5, 7, grad=False)[:, ::2]]),
    "leaky_relu": (functional.leaky_relu, [seeded(5, 7, grad=False)]),
    "maximum": (torch.maximum, [seeded(5, 7, grad=False), seeded(7, grad=False)]),
    "minimum": (torch.minimum, [seeded(5, 7, grad=False), seeded(7, grad=False)]),
    "clamp": (lambda a: a.clamp(-0.5, 0.5), [seeded(5, 7, grad=False)]),
    "mul by a mask": (lambda a, b: a * (b > 0), [seeded(5, 7, grad=False), seeded(7, grad=False)]),
    "where": (lambda a, b: torch.where(a > b, a, b), [seeded(5, 7, grad=False), seeded(5, 7, grad=False).flip(0)]),
    "masked_fill": (lambda a: a.masked_fill(a > 0, -2.0), [seeded(5, 7, grad=False)]),
    "fill": (lambda a: torch.full_like(a, 0.3), [seeded(5, 7, grad=False)]),
    "softmax": (lambda a: a.softmax(0), [seeded(5, 7, grad=False)]),
    "log_softmax": (lambda a: a.log_softmax(-1), [seeded(5, 7, grad=False)]),
    "mm": (torch.mm, [seeded(33, 50, grad=False), seeded(50, 41, grad=False)]),
    "mm of transposed": (lambda a, b: a.t() @ b.t(), [seeded(50, 33, grad=False), seeded(41, 50, grad=False)]),
    "mm deep": (torch.mm, [seeded(3, 700, grad=False) / 8, seeded(700, 5, grad=False)]),
    "bmm": (torch.bmm, [seeded(4, 9, 20, grad=False), seeded(4, 20, 13, grad=False)]),
    "addmm": (
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2),
        [seeded(41, grad=False), seeded(33, 50, grad=False), seeded(50, 41, grad=False)],
    ),
    "sum": (lambda a: a.sum(0), [seeded(50, 7, grad=False)]),
    "mean": (lambda a: a.mean(-1), [seeded(50, 7, grad=False)]),
    "amax": (lambda a: a.amax(0), [seeded(50, 7, grad=False)]),
    "conv2d": (
        lambda x, w: functional.conv2d(x, w, padding=1),
        [seeded(2, 3, 6, 5, grad=False), seeded(4, 3, 3, 3, grad=False)],
    ),
    "layer_norm": (lambda a: functional.layer_norm(a, (7,)), [seeded(5, 7, grad=False)]),
    "batch_norm": (lambda a: functional.batch_norm(a, None, None, training=True), [seeded(4, 3, 5, grad=False)]),
    "group_norm": (lambda a: functional.group_norm(a, 2), [seeded(3, 4, 5, grad=False)]),
    "max_pool2d": (lambda a: functional.max_pool2d(a, 2), [DISTINCT / 64]),
    "adaptive_avg_pool2d": (ADAPTIVE_POOLS[0][0], [seeded(2, 4, 9, 8, grad=False)]),
    "mse_loss": (functional.mse_loss, [seeded(5, 7, grad=False), seeded(7, 5, grad=False).t()]),
    "embedding": (
        lambda w: functional.embedding(torch.tensor([[1, 3], [0, 3]], device=w.device), w),
        [seeded(4, 6, grad=False)],
    ),
    "cat": (lambda a, b: torch.cat([a, b], 1), [seeded(5, 7, grad=False), seeded(5, 2, grad=False)]),
    "tril": (torch.tril, [seeded(5, 7, grad=False)]),
}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", ROUNDED)
def test_narrow_floats_are_computed_wide_and_rounded_once(name: str, dtype: torch.dtype) -> None:
    call, inputs = ROUNDED[name]
    narrow = [each.to(dtype) for each in inputs]
    if name in ("a number", "where", "masked_fill", "fill", "log_softmax"):
        actual, expected = call(*[each.to("ral:1") for each in narrow]), call(*narrow)
        torch.testing.assert_close(actual.cpu(), expected, rtol=2.0 ** (1 - NARROW[dtype][0]), atol=1e-6)
    else:
        assert_rounded(call(*[each.to("ral:1") for each in narrow]), call(*[each.double() for each in narrow]), dtype)


def integers(dtype: torch.dtype, *shape: int) -> Tensor:
    """All over the dtype's range, its ends included."""
    info = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(sum(shape))
    numbers = torch.randint(info.min, info.max, shape, generator=generator, dtype=torch.int64).to(dtype)
    numbers.view(-1)[:2] = torch.tensor([info.min, info.max], dtype=torch.int64).to(dtype)
    return numbers


INTEGER_CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "add scaled": lambda a, b: torch.add(a, b, alpha=3),
    "add a number": lambda a, b: a + 7,
    "sub": torch.sub,
    "sub scaled": lambda a, b: torch.sub(a, b, alpha=2),
    "mul": torch.mul,
    "mul in place": lambda a, b: a.clone().mul_(b),
    "neg": lambda a, b: -a,
    "abs": lambda a, b: a.abs(),
    "relu": lambda a, b: a.relu(),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "clamp": lambda a, b: a.clamp(3, 100),
    "clamp from below": lambda a, b: a.clamp(min=5),
    "eq": torch.eq,
    "ne a number": lambda a, b: a != 7,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "transposed": lambda a, b: a.t() + b.t(),
    "sliced": lambda a, b: a[:, ::2] * b[:, ::2],
    "where": lambda a, b: torch.where(a > b, a, b),
    "masked_fill": lambda a, b: a.masked_fill(a > b, 9),
    "sum": lambda a, b: a.sum(0),
    "divided": lambda a, b: a / 4,
    "with floats": lambda a, b: a * 0.5,
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", INTEGER_CALLS)
def test_integers_wrap_around_as_they_do_on_the_cpu(name: str, dtype: torch.dtype) -> None:
    if name in ("neg", "abs") and dtype == torch.uint8:
        pytest.skip("of no negative number")
    a, b = integers(dtype, 5, 8), integers(dtype, 5, 8).flip(0)
    expected = INTEGER_CALLS[name](a, b)
    actual = INTEGER_CALLS[name](a.to("ral:1"), b.to("ral:1")).cpu()
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, rtol=1e-6 if expected.is_floating_point() else 0, atol=0)


@pytest.mark.parametrize(
    "shapes", [((33, 50), (50, 41)), ((4, 9, 20), (4, 20, 13)), ((3, 700), (700, 5)), ((2, 0), (0, 3))]
)
def test_products_of_int8_wrap_around(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in shapes)
    exact = a.long() @ b.long()
    wrapped = ((exact + 128) % 256 - 128).to(torch.int8)
    assert torch.equal((a.to("ral:1") @ b.to("ral:1")).cpu(), wrapped)
    assert torch.equal((b.to("ral:1").mT @ a.to("ral:1").mT).cpu(), wrapped.mT)


def test_dtypes_that_sim_has_kernels_for_do_not_fall_back(tmp_path: Path) -> None:
    with trace(tmp_path / "dtypes.duckdb"):
        for dtype in NARROW:
            for call, inputs in ROUNDED.values():
                call(*[each.to("ral:1", dtype) for each in inputs])
        for dtype in INTEGERS:
            for call in INTEGER_CALLS.values():
                call(integers(dtype, 5, 8).to("ral:1"), integers(dtype, 5, 8).to("ral:1"))
        torch.mm(integers(torch.int8, 5, 8).to("ral:1"), integers(torch.int8, 8, 3).to("ral:1"))
    with open_trace(tmp_path / "dtypes.duckdb") as recorded:
        rows = recorded.rows("SELECT args->>'routed' AS op, reason FROM fallbacks")
    assert {f"{row['op']}: {row['reason']}" for row in rows} == set()


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Two tensors that broadcast to each other, each permuted, sliced and expanded in its own way."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    tensors = []
    for seed in (1, 2):
        own = [1 if draw(st.booleans()) and draw(st.booleans()) else size for size in shape]
        own = own[draw(st.integers(0, len(own))) if seed == 2 else 0 :]
        order = draw(st.permutations(range(len(own))))
        steps = [draw(st.integers(1, 2)) for _ in own]
        base = torch.randn([own[d] * steps[d] for d in order], generator=torch.Generator().manual_seed(seed))
        back = [order.index(d) for d in range(len(own))]
        tensors.append(base.permute(back)[tuple(slice(None, None, step) for step in steps)])
    return tensors[0], tensors[1]


@settings(max_examples=150, deadline=None)
@given(layouts(), st.sampled_from([torch.float32, torch.bfloat16, torch.int8]))
def test_layouts_change_nothing(pair: tuple[Tensor, Tensor], dtype: torch.dtype) -> None:
    a, b = ((each * 20).to(dtype) if dtype == torch.int8 else each.to(dtype) for each in pair)
    there = on_sim(a), on_sim(b)
    assert torch.equal((there[0] + there[1]).cpu(), a + b)
    assert torch.equal((there[0] * there[1]).cpu(), a * b)
    assert torch.equal((there[0] > there[1]).cpu(), a > b)
    assert torch.equal(torch.where(there[0] > there[1], there[0], there[1]).cpu(), torch.where(a > b, a, b))


def on_sim(tensor: Tensor) -> Tensor:
    """The same strides on the device: `to` would keep them only where no element is left out."""
    base = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return base.to("ral:1").as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def test_gradients_of_narrow_floats_reach_float32_parameters() -> None:
    x, w = seeded(5, 8), seeded(3, 8)
    there = [each.detach().to("ral:1").requires_grad_() for each in (x, w)]
    for a, b in ((x, w), there):
        functional.linear(a.bfloat16(), b.bfloat16()).float().pow(2).sum().backward()
    torch.testing.assert_close(there[1].grad.cpu(), w.grad, rtol=2e-2, atol=2e-2)


def test_embedding_and_mask_take_narrow_floats_with_integer_indices() -> None:
    table, at, hidden = seeded(9, 4, grad=False).bfloat16(), indices(9, 2, 3), mask(2, 3)
    rows = functional.embedding(at.to("ral:1"), table.to("ral:1"))
    assert torch.equal(rows.cpu(), table[at])
    assert torch.equal(
        rows.masked_fill(hidden.to("ral:1")[..., None], 0.0).cpu(), table[at].masked_fill(hidden[..., None], 0.0)
    )
