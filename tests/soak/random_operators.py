"""What random programs do to tensors: the same on a device and on its shadow on the CPU, with equal results."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

EXACT = 2**22
"""Whole numbers up to here, and sums of two of them, are exact in float32."""
LARGE = 2**16


def small(tensor: Tensor) -> float:
    """The largest magnitude in it."""
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and small(a) + small(b) < EXACT


def multiplies(a: Tensor, b: Tensor) -> bool:
    return a.dim() == b.dim() == 2 and a.dtype == b.dtype and a.shape[1] == b.shape[0] and a.is_floating_point()


def squares(a: Tensor) -> bool:
    return multiplies(a, a.t()) and small(a) ** 2 * a.shape[1] < EXACT


Pair = Callable[[Tensor, Tensor], Tensor]
Condition = Callable[[Tensor, Tensor], bool]
OPERATORS: list[tuple[str, Pair, Condition]] = [
    ("add", lambda a, b: a + b, alike),
    ("sub", lambda a, b: a - b, alike),
    ("maximum", torch.maximum, alike),
    ("where", lambda a, b: torch.where(a > b, a, b), alike),
    ("mul", lambda a, b: a * b, lambda a, b: alike(a, b) and small(a) * small(b) < EXACT),
    ("scale", lambda a, b: a * 3, lambda a, b: small(a) * 3 < EXACT),
    ("relu", lambda a, b: torch.relu(a), lambda a, b: True),
    ("neg", lambda a, b: -a, lambda a, b: True),
    ("abs", lambda a, b: a.abs(), lambda a, b: True),
    ("clone", lambda a, b: a.clone(), lambda a, b: True),
    ("sum", lambda a, b: a.sum(0), lambda a, b: a.dim() > 1 and small(a) * a.shape[0] < EXACT),
    ("amax", lambda a, b: a.amax(-1), lambda a, b: a.dim() > 1),
    ("matmul", lambda a, b: a @ b, lambda a, b: multiplies(a, b) and small(a) * small(b) * a.shape[1] < EXACT),
    (
        "gram",
        lambda a, b: a @ a.t(),
        lambda a, b: a.dim() == 2 and multiplies(a, a.t()) and small(a) ** 2 * a.shape[1] < EXACT,
    ),
    ("cat", lambda a, b: torch.cat([a, b]), lambda a, b: alike(a, b) and a.numel() < LARGE),
    ("cumsum", lambda a, b: a.cumsum(0), lambda a, b: small(a) * a.shape[0] < EXACT),
    ("flip", lambda a, b: a.flip(0), lambda a, b: True),
    ("sort", lambda a, b: a.sort(-1).values, lambda a, b: a.numel() < 4096),
    ("nonzero", lambda a, b: a.nonzero(), lambda a, b: int(a.count_nonzero()) > 0 and a.numel() < 4096),
    ("to_float", lambda a, b: a.to(torch.float32, copy=True), lambda a, b: True),
    ("to_long", lambda a, b: a.to(torch.int64, copy=True), lambda a, b: True),
]
"""What is made of two tensors, the second often for nothing; only where all that comes out is exact."""
CHANGES: list[tuple[str, Callable[[Tensor], Any]]] = [
    ("remainder_", lambda t: t.remainder_(97)),
    ("add_", lambda t: t.add_(3)),
    ("mul_", lambda t: t.mul_(-2)),
    ("zero_", lambda t: t.zero_()),
    ("fill_", lambda t: t.fill_(5)),
    ("clamp_", lambda t: t.clamp_(-40, 60)),
    ("twice_", lambda t: t.add_(t)),
    ("relu_", torch.relu_),
    ("abs_", lambda t: t.abs_()),
]
"""In place; the first makes large numbers small again."""
