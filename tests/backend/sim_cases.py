"""For each operator in `sim`'s manifest: calls that its kernel takes, with inputs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Case = tuple[Callable[..., Any], list[Tensor]]


def seeded(*shape: int, grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + 7 * len(shape))
    return torch.randn(shape, generator=generator).requires_grad_(grad)


def positive(*shape: int) -> Tensor:
    return (seeded(*shape, grad=False).abs() + 0.1).requires_grad_()


def indices(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high))


def mask(*shape: int) -> Tensor:
    return seeded(*shape, grad=False) > 0


def unary(op: Callable[..., Any], *inputs: Tensor) -> list[Case]:
    return [(op, [each]) for each in inputs]


def binary(op: Callable[..., Any]) -> list[Case]:
    """Same shapes, broadcasting both ways, transposed, with a number, and a number of no dimension on the device."""
    a, b = seeded(5, 7), positive(5, 7)
    return [
        (op, [a, b]),
        (op, [a, positive(7)]),
        (op, [seeded(3, 1, 7), positive(5, 1)]),
        (lambda x, y: op(x.t(), y.t()), [a, b]),
        (lambda x, y: op(x[:, ::2], y[:, 1::2]), [seeded(5, 8), positive(5, 8)]),
        (lambda x: op(x, torch.tensor(2.5)), [a]),
        (op, [a, positive()]),
    ]


def comparison(op: Callable[..., Any]) -> list[Case]:
    a = seeded(5, 7, grad=False)
    return [(op, [a, a.roll(1)]), (op, [a, a[0]]), (lambda x: op(x, 0.5), [a]), (lambda x: op(x.t(), x.t()), [a])]


WIDE = torch.linspace(-12, 12, 1001)
LEAVES = seeded(5, 7), seeded(4, 3, 6)


def losses(reduction: str) -> Case:
    target = indices(9, 6)
    target[2] = -100
    return (lambda x, t: functional.cross_entropy(x, t, reduction=reduction), [seeded(6, 9), target])


def in_place(op: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: op(x.clone())


MATRICES = [seeded(33, 50), seeded(50, 41)]
BATCHES = [seeded(4, 9, 20), seeded(4, 20, 13)]

CASES: dict[str, list[Case]] = {
    "aten::add": [
        *binary(torch.add),
        (lambda a, b: torch.add(a, b, alpha=2.5), [seeded(5, 7), seeded(5, 7)]),
        (in_place(lambda x: x.add_(1.5)), [seeded(5, 7)]),
    ],
    "aten::sub": [*binary(torch.sub), (lambda a, b: torch.sub(a, b, alpha=0.5), [seeded(5, 7), seeded(5, 7)])],
    "aten::mul": [*binary(torch.mul), (in_place(lambda x: x.mul_(3.0)), [seeded(5, 7)])],
    "aten::div": [*binary(torch.div), (lambda a: 3 / a, [positive(5, 7)])],
    "aten::neg": unary(torch.neg, *LEAVES),
    "aten::abs": unary(torch.abs, *LEAVES),
    "aten::exp": unary(torch.exp, *LEAVES, WIDE),
    "aten::log": unary(torch.log, positive(5, 7)),
    "aten::sin": unary(torch.sin, *LEAVES),
    "aten::cos": unary(torch.cos, *LEAVES),
    "aten::sqrt": unary(torch.sqrt, positive(5, 7)),
    "aten::rsqrt": unary(torch.rsqrt, positive(5, 7)),
    "aten::reciprocal": unary(torch.reciprocal, positive(5, 7)),
    "aten::tanh": unary(torch.tanh, *LEAVES, WIDE),
    "aten::sigmoid": unary(torch.sigmoid, *LEAVES, WIDE),
    "aten::relu": [*unary(torch.relu, *LEAVES), (in_place(torch.relu_), [seeded(5, 7)])],
    "aten::silu": unary(functional.silu, *LEAVES, WIDE),
    "aten::pow": [(lambda a, e=e: a**e, [positive(5, 7)]) for e in (2, 3, 1, 0.5, -0.5, -1, 1.7)]
    + [(torch.pow, [positive(5, 7), seeded(5, 7)])],
    "aten::maximum": binary(torch.maximum)[:5],
    "aten::minimum": binary(torch.minimum)[:5],
    "aten::clamp": [
        (lambda a: a.clamp(-0.5, 0.5), [seeded(5, 7, grad=False)]),
        (lambda a: a.clamp(max=0.1), [seeded(5, 7, grad=False)]),
    ],
    "aten::gelu": [(lambda a, how=how: functional.gelu(a, approximate=how), [WIDE]) for how in ("none", "tanh")],
    "aten::gelu_backward": [
        (lambda a, how=how: functional.gelu(a, approximate=how), [WIDE.clone().requires_grad_()])
        for how in ("none", "tanh")
    ],
    "aten::tanh_backward": unary(torch.tanh, seeded(5, 7)),
    "aten::sigmoid_backward": unary(torch.sigmoid, seeded(5, 7)),
    "aten::silu_backward": unary(functional.silu, seeded(5, 7)),
    "aten::threshold_backward": unary(torch.relu, seeded(5, 7)),
    "aten::addcmul": [(lambda a, b, c: torch.addcmul(a, b, c, value=0.3), [seeded(5, 7), seeded(7), positive(5, 1)])],
    "aten::addcdiv": [(lambda a, b, c: torch.addcdiv(a, b, c, value=0.3), [seeded(5, 7), seeded(7), positive(5, 1)])],
    "aten::lerp": [(lambda a, b, w=w: torch.lerp(a, b, w), [seeded(5, 7), positive(5, 7)]) for w in (0.1, 0.9)]
    + [(torch.lerp, [seeded(5, 7), positive(5, 7), seeded(5, 7)])],
    "aten::eq": comparison(torch.eq),
    "aten::ne": comparison(torch.ne),
    "aten::lt": comparison(torch.lt),
    "aten::le": comparison(torch.le),
    "aten::gt": comparison(torch.gt),
    "aten::ge": comparison(torch.ge),
    "aten::where": [
        (torch.where, [mask(5, 7), seeded(5, 7), positive(5, 7)]),
        (torch.where, [mask(5, 1), seeded(7), positive(5, 7)]),
    ],
    "aten::masked_fill": [
        (lambda a, m: a.masked_fill(m, -1e9), [seeded(5, 7), mask(5, 7)]),
        (lambda a, m: a.masked_fill(m, float("-inf")).softmax(-1), [seeded(2, 5, 7), mask(5, 1)]),
    ],
    "aten::fill": [
        (lambda a: torch.full_like(a, 2.5), [seeded(5, 7, grad=False)]),
        (lambda a: torch.full_like(a, 3), [indices(5, 4)]),
        (lambda a: torch.full_like(a, True), [mask(3)]),
        (in_place(lambda a: a[:, ::2].fill_(1)), [seeded(5, 7, grad=False)]),
    ],
    "aten::zero": [(torch.zeros_like, [seeded(5, 7, grad=False)]), (torch.zeros_like, [indices(5, 4)])],
    "aten::tril": [(lambda a, k=k: a.tril(k), [seeded(2, 5, 7)]) for k in (-2, 0, 3)],
    "aten::triu": [(lambda a, k=k: a.triu(k), [seeded(2, 5, 7)]) for k in (-2, 0, 3, 9)],
    "aten::mm": [
        (torch.mm, MATRICES),
        (lambda a, b: torch.mm(b.t(), a.t()), MATRICES),
        (lambda a, b: torch.mm(a / 17, b / 17), [seeded(200, 300), seeded(300, 1100)]),
        (torch.mm, [seeded(1, 1), seeded(1, 1)]),
        (torch.mm, [seeded(3, 0), seeded(0, 4)]),
    ],
    "aten::bmm": [(torch.bmm, BATCHES), (lambda a, b: torch.bmm(b.mT, a.mT), BATCHES)],
    "aten::addmm": [
        (torch.addmm, [seeded(41), *MATRICES]),
        (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), [seeded(33, 41), *MATRICES]),
        (functional.linear, [seeded(6, 8), seeded(5, 8), seeded(5)]),
    ],
    "aten::baddbmm": [(torch.baddbmm, [seeded(4, 9, 13), *BATCHES])],
    "aten::_softmax": [(lambda a, d=d: a.softmax(d), [seeded(4, 5, 6)]) for d in (0, 1, -1)]
    + [(lambda a: a.t().softmax(1), [seeded(5, 7)]), (lambda a: a.softmax(0), [seeded()])],
    "aten::_log_softmax": [(lambda a, d=d: a.log_softmax(d), [seeded(4, 5, 6)]) for d in (0, 1, -1)],
    "aten::_softmax_backward_data": [(lambda a: a.softmax(-1), [seeded(5, 300)])],
    "aten::_log_softmax_backward_data": [(lambda a: a.log_softmax(-1), [seeded(5, 300)])],
    "aten::native_layer_norm": [
        (lambda a, w, b: functional.layer_norm(a, (7,), w, b), [seeded(3, 5, 7), seeded(7), positive(7)]),
        (lambda a: functional.layer_norm(a, (5, 7)), [seeded(3, 5, 7)]),
        (lambda a, w: functional.layer_norm(a, (7,), w), [seeded(3, 7), seeded(7)]),
    ],
    "aten::native_layer_norm_backward": [
        (lambda a, w, b: functional.layer_norm(a, (7,), w, b), [seeded(3, 7, grad=False), seeded(7), positive(7)]),
    ],
    "aten::sum": [(lambda a, d=d: a.sum(d), [seeded(3, 4, 5)]) for d in (0, 1, -1, (0, 1), (0, 2), ())]
    + [(lambda a: a.transpose(0, 2).sum((0, 1), keepdim=True), [seeded(3, 4, 5)]), (torch.sum, [seeded(2000)])],
    "aten::mean": [(lambda a, d=d: a.mean(d, keepdim=True), [seeded(3, 4, 5)]) for d in (0, -1, (0, 2))]
    + [(torch.mean, [seeded(3, 4)])],
    "aten::index_select": [
        (functional.embedding, [indices(10, 3, 4), seeded(10, 6)]),
        (lambda a, i: a.index_select(1, i), [seeded(5, 7, grad=False), indices(7, 4)]),
    ],
    "aten::embedding_dense_backward": [
        (lambda i, w: functional.embedding(i, w, padding_idx=2), [indices(10, 3, 4), seeded(10, 6)]),
    ],
    "aten::cat": [
        (lambda a, b: torch.cat([a, b, a]), [seeded(5, 7), positive(5, 7)]),
        (lambda a, b: torch.cat([a.t(), b.t()], 1), [seeded(5, 7), positive(3, 7)]),
        (lambda a, b: torch.stack([a, b], 1), [seeded(5, 7), positive(5, 7)]),
        (lambda a: torch.cat([a, a]), [indices(5, 3)]),
    ],
    "aten::nll_loss_forward": [losses("mean"), losses("sum"), losses("none")],
    "aten::nll_loss_backward": [
        losses("mean"),
        (functional.cross_entropy, [seeded(9), torch.tensor(3)]),
    ],
}
