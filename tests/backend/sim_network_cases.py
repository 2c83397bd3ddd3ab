"""Cases like those of sim_cases.py, for the operators that networks and optimisers are made of."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.backend.sim_cases import WIDE, Case, in_place, indices, mask, positive, seeded, unary

IMAGES = seeded(2, 4, 9, 8)
DISTINCT = torch.randperm(2 * 3 * 9 * 8, generator=torch.Generator().manual_seed(0)).float().view(2, 3, 9, 8)
"""No two numbers equal: which of two equal ones is the largest is nobody's to say."""


def away_from(*points: float) -> Tensor:
    """Numbers around zero, none of them near a point where a gradient jumps."""
    numbers = torch.linspace(-8, 8, 401)
    for point in points:
        numbers = numbers[(numbers - point).abs() > 1e-2]
    return numbers.requires_grad_()


def activation(op: Callable[..., Any], *points: float) -> list[Case]:
    return [(op, [away_from(*points)]), (lambda x: op(x.t()), [seeded(5, 7)])]


def convolution(**options: Any) -> Callable[..., Tensor]:
    return lambda x, w, *b: functional.conv2d(x, w, *b, **options)


CONVOLUTIONS: list[Case] = [
    (convolution(), [IMAGES, seeded(6, 4, 3, 3), seeded(6)]),
    (convolution(padding=1), [IMAGES, seeded(6, 4, 3, 3)]),
    (convolution(padding=(2, 1), stride=(2, 3)), [IMAGES, seeded(6, 4, 3, 2), seeded(6)]),
    (convolution(dilation=2, padding=2), [IMAGES, seeded(6, 4, 3, 3), seeded(6)]),
    (convolution(groups=2, padding=1), [IMAGES, seeded(6, 2, 3, 3), seeded(6)]),
    (convolution(groups=4), [IMAGES, seeded(8, 1, 3, 3)]),
    (convolution(), [IMAGES, seeded(5, 4, 1, 1), seeded(5)]),
    (convolution(stride=2, padding=4), [IMAGES, seeded(5, 4, 7, 7), seeded(5)]),
    (convolution(padding=1), [seeded(2, 16, 40, 40) / 50, seeded(4, 16, 3, 3)]),
    (convolution(stride=2), [seeded(2, 16, 60, 90) / 50, seeded(4, 16, 3, 3)]),
    (lambda x, w: functional.conv2d(x.transpose(2, 3), w.flip(2)), [IMAGES, seeded(6, 4, 3, 3)]),
    (functional.conv1d, [seeded(2, 3, 8), seeded(4, 3, 3), seeded(4)]),
    (functional.conv2d, [seeded(4, 9, 8), seeded(6, 4, 3, 3), seeded(6)]),
]

MAX_POOLS: list[Case] = [
    (lambda x, o=options: functional.max_pool2d(x, return_indices=True, **o), [DISTINCT.clone().requires_grad_()])
    for options in (
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (2, 3), "stride": 1, "dilation": 2},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    )
]

AVERAGE_POOLS: list[Case] = [
    (lambda x, o=options: functional.avg_pool2d(x, **o), [IMAGES])
    for options in (
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
        {"kernel_size": 2, "divisor_override": 3},
    )
]

ADAPTIVE_POOLS: list[Case] = [
    (lambda x, size=size: functional.adaptive_avg_pool2d(x, size), [IMAGES]) for size in ((2, 3), (5, 5), (9, 1))
]


def batch_norm(training: bool, *shape: int) -> list[Case]:
    channels = shape[1]

    def call(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, variance: Tensor) -> list[Tensor]:
        mean, variance = mean.clone(), variance.clone()
        y = functional.batch_norm(x, mean, variance, w, b, training, momentum=0.3)
        return [y, mean, variance]

    statistics = [seeded(channels, grad=False), positive(channels).detach()]
    return [
        (call, [seeded(*shape), seeded(channels), positive(channels), *statistics]),
        (lambda x: functional.batch_norm(x, None, None, training=True), [seeded(*shape)]),
    ]


def group_norm(groups: int, *shape: int) -> Case:
    return (
        lambda x, w, b: functional.group_norm(x, groups, w, b),
        [seeded(*shape), seeded(shape[1]), positive(shape[1])],
    )


def pair_losses(op: Callable[..., Any], *others: Any) -> list[Case]:
    """Each reduction, of numbers and targets in (0, 1)."""
    x, y = seeded(5, 7, grad=False).sigmoid().requires_grad_(), seeded(7, 5, grad=False).sigmoid().t()
    return [
        (lambda x, y, *rest, how=how: op(x, y, *rest, reduction=how), [x, y, *others])
        for how in ("mean", "sum", "none")
    ]


def picked(reduction: str, *shape: int, weighted: bool = False) -> Case:
    """nll_loss of [N, classes, …]."""
    target = indices(shape[1], shape[0], *shape[2:])
    target.view(-1)[1] = -100
    weight = [positive(shape[1]).detach()] if weighted else []
    return (lambda x, t, *w: functional.nll_loss(x, t, *w, reduction=reduction), [seeded(*shape), target, *weight])


def reductions(op: Callable[..., Any], x: Tensor) -> list[Case]:
    calls: list[Callable[..., Any]] = [
        lambda a: op(a, 0),
        lambda a: op(a, -1, keepdim=True),
        lambda a: op(a.transpose(0, 2), 1),
        lambda a: op(a[:, ::2], 0),
    ]
    return [(call, [x]) for call in calls]


def over_lists(lists: int, op: Callable[..., Any]) -> Case:
    """`op` is called with so many lists of three tensors, the second and third of numbers that are not 0."""

    def call(*tensors: Tensor) -> list[Tensor]:
        given = [[each.clone() for each in tensors[3 * n : 3 * n + 3]] for n in range(lists)]
        result = op(*given)
        return list(result) if result is not None else given[0]

    first = [seeded(5, 7, grad=False), seeded(9, grad=False), seeded(3, 4, grad=False).t().contiguous().t()]
    others = [each.abs() + 0.5 for each in first]
    return (call, (first + others * (lists - 1))[: 3 * lists])


def fused(op: Callable[..., Any], states: int, **options: Any) -> Case:
    """Two steps of an optimiser over two parameters."""

    def call(*tensors: Tensor) -> list[Tensor]:
        lists = [[each.clone() for each in tensors[2 * n : 2 * n + 2]] for n in range(2 + states)]
        device = tensors[0].device
        given = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in options.items()}
        for step in (1.0, 2.0):
            steps = [[torch.tensor(step, device=device) for _ in range(2)]] if op is not torch._fused_sgd_ else []
            if steps:
                padding = [] if options.get("amsgrad") else [[]]
                op(*lists, *padding, *steps, **given)
            else:
                op(*lists, is_first_step=step == 1.0, **given)
        return [each for part in lists for each in part]

    parameters = [seeded(5, 7, grad=False), seeded(9, grad=False)]
    gradients = [seeded(7, 5, grad=False).reshape(5, 7), seeded(9, grad=False) * 0.5]
    return (call, [*parameters, *gradients, *[torch.zeros_like(each) for _ in range(states) for each in parameters]])


ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}
SGD = {"weight_decay": 0.1, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False, "maximize": False}
UNIQUE = torch.randperm(60, generator=torch.Generator().manual_seed(1)).float().view(3, 4, 5)
AT = torch.stack([torch.randperm(7, generator=torch.Generator().manual_seed(n))[:3] for n in range(5)])
"""For each of five rows three different places among seven."""

NETWORK_CASES: dict[str, list[Case]] = {
    "aten::convolution_overrideable": CONVOLUTIONS,
    "aten::convolution_backward_overrideable": CONVOLUTIONS,
    "aten::max_pool2d_with_indices": MAX_POOLS,
    "aten::max_pool2d_with_indices_backward": MAX_POOLS,
    "aten::avg_pool2d": AVERAGE_POOLS,
    "aten::avg_pool2d_backward": AVERAGE_POOLS,
    "aten::_adaptive_avg_pool2d": ADAPTIVE_POOLS,
    "aten::_adaptive_avg_pool2d_backward": ADAPTIVE_POOLS,
    "aten::native_batch_norm": batch_norm(True, 4, 3, 5, 7) + batch_norm(False, 4, 3, 5, 7) + batch_norm(True, 6, 3),
    "aten::native_batch_norm_backward": batch_norm(True, 4, 3, 5, 7) + batch_norm(False, 4, 3, 5, 7),
    "aten::native_group_norm": [group_norm(2, 3, 4, 5, 7), group_norm(4, 3, 4, 5), group_norm(1, 3, 4, 2, 2, 3)],
    "aten::native_group_norm_backward": [group_norm(2, 3, 4, 5, 7), group_norm(4, 3, 4, 5)],
    "aten::nll_loss2d_forward": [picked(how, 2, 5, 3, 4) for how in ("mean", "sum", "none")]
    + [picked("mean", 2, 5, 3, 4, weighted=True)],
    "aten::nll_loss2d_backward": [picked(how, 2, 5, 3, 4) for how in ("mean", "sum", "none")],
    "aten::mse_loss": pair_losses(functional.mse_loss),
    "aten::mse_loss_backward": pair_losses(functional.mse_loss),
    "aten::smooth_l1_loss": pair_losses(lambda x, y, **how: functional.smooth_l1_loss(x, y, beta=0.2, **how)),
    "aten::smooth_l1_loss_backward": pair_losses(functional.smooth_l1_loss),
    "aten::huber_loss": pair_losses(lambda x, y, **how: functional.huber_loss(x, y, delta=0.2, **how)),
    "aten::huber_loss_backward": pair_losses(functional.huber_loss),
    "aten::binary_cross_entropy": pair_losses(functional.binary_cross_entropy)
    + pair_losses(functional.binary_cross_entropy, positive(5, 7).detach()),
    "aten::binary_cross_entropy_backward": pair_losses(functional.binary_cross_entropy),
    "aten::log_sigmoid_forward": [
        *activation(functional.logsigmoid),
        *pair_losses(functional.binary_cross_entropy_with_logits),
    ],
    "aten::log_sigmoid_backward": activation(functional.logsigmoid),
    "aten::threshold": activation(lambda x: functional.threshold(x, 0.5, -1.0), 0.5),
    "aten::hardtanh": activation(functional.hardtanh, -1, 1) + activation(functional.relu6, 0, 6),
    "aten::hardtanh_backward": activation(functional.hardtanh, -1, 1),
    "aten::leaky_relu": activation(lambda x: functional.leaky_relu(x, 0.2), 0),
    "aten::leaky_relu_backward": activation(functional.leaky_relu, 0),
    "aten::elu": activation(lambda x: functional.elu(x, 0.7), 0) + activation(functional.selu, 0),
    "aten::elu_backward": [
        *activation(functional.celu, 0),
        (in_place(lambda x: functional.elu(x, inplace=True)), [away_from(0)]),
    ],
    "aten::softplus": activation(lambda x: functional.softplus(x, beta=2, threshold=5), 2.5),
    "aten::softplus_backward": activation(functional.softplus),
    "aten::hardswish": [(functional.hardswish, [WIDE]), (in_place(functional.hardswish), [seeded(5, 7, grad=False)])],
    "aten::hardsigmoid": [(functional.hardsigmoid, [WIDE])],
    "aten::native_dropout_backward": [
        (lambda g, m: torch.ops.aten.native_dropout_backward(g, m, 2.0), [seeded(5, 7, grad=False), mask(5, 7)])
    ],
    "aten::floor": unary(torch.floor, WIDE),
    "aten::ceil": unary(torch.ceil, WIDE),
    "aten::sign": unary(torch.sign, WIDE, torch.zeros(3)),
    "aten::erf": unary(torch.erf, WIDE),
    "aten::log1p": unary(torch.log1p, positive(5, 7)),
    "aten::expm1": unary(torch.expm1, seeded(5, 7)),
    "aten::isposinf": unary(torch.isposinf, torch.tensor([1.0, torch.inf, -torch.inf, torch.nan])),
    "aten::isneginf": unary(torch.isneginf, torch.tensor([1.0, torch.inf, -torch.inf, torch.nan])),
    "aten::logical_not": unary(torch.logical_not, mask(5, 7)),
    "aten::logical_and": [(torch.logical_and, [mask(5, 7), mask(7)])],
    "aten::logical_or": [(torch.logical_or, [mask(5, 7), mask(5, 1)])],
    "aten::bitwise_not": unary(torch.bitwise_not, mask(5, 7)),
    "aten::bitwise_and": [(lambda a, b: a & b, [mask(5, 7), mask(7)])],
    "aten::bitwise_or": [(lambda a, b: a | b, [mask(5, 7), mask(5, 1)])],
    "aten::amax": [
        *reductions(torch.amax, UNIQUE.clone().requires_grad_()),
        (lambda a: a.amax(), [torch.tensor([1.0, torch.nan, 3.0])]),
    ],
    "aten::amin": reductions(torch.amin, UNIQUE.clone().requires_grad_()),
    "aten::max": [*reductions(torch.max, UNIQUE.clone().requires_grad_()), (torch.max, [UNIQUE])],
    "aten::min": [*reductions(torch.min, UNIQUE.clone().requires_grad_()), (torch.min, [UNIQUE])],
    "aten::argmax": [
        *reductions(torch.argmax, UNIQUE),
        (torch.argmax, [UNIQUE]),
        (torch.argmax, [torch.tensor([2.0, 5.0, 5.0, 1.0])]),
    ],
    "aten::argmin": [*reductions(torch.argmin, UNIQUE), (torch.argmin, [torch.tensor([2.0, torch.nan, 1.0])])],
    "aten::all": [*reductions(torch.all, mask(3, 4, 5)), (torch.all, [torch.ones(3)])],
    "aten::any": [*reductions(torch.any, mask(3, 4, 5)), (torch.any, [torch.zeros(3)])],
    "aten::var": [*reductions(torch.var, seeded(3, 4, 5)), (lambda a: a.var(correction=0), [seeded(300) + 50])],
    "aten::std": reductions(torch.std, seeded(3, 4, 5)),
    "aten::linalg_vector_norm": [
        (lambda a, o=order: torch.linalg.vector_norm(a, o, 1), [seeded(5, 7)]) for order in (1, 2, torch.inf)
    ],
    "aten::cumsum": [(lambda a, d=d: a.cumsum(d), [seeded(3, 4, 5)]) for d in (0, 1, -1)],
    "aten::gather": [
        (lambda a, i: a.gather(1, i), [seeded(5, 7), AT]),
        (lambda a, i: a.t().gather(0, i.t()), [seeded(5, 7), AT]),
    ],
    "aten::scatter": [
        (lambda a, i, b: a.scatter(1, i, b), [seeded(5, 7), AT, seeded(5, 3)]),
        (lambda a, i: a.scatter(1, i, 2.5), [seeded(5, 7), AT]),
        (lambda i: functional.one_hot(i, 9), [indices(9, 4)]),
    ],
    "aten::scatter_add": [(lambda a, i, b: a.scatter_add(1, i, b), [seeded(5, 7), indices(7, 5, 2), seeded(5, 2)])],
    "aten::_foreach_add": [
        over_lists(1, lambda a: torch._foreach_add_(a, 1.5)),
        over_lists(2, lambda a, b: torch._foreach_add_(a, b, alpha=0.3)),
        over_lists(2, torch._foreach_add),
        over_lists(1, lambda a: torch._foreach_add_(a, [1.0, 2.0, 3.0])),
    ],
    "aten::_foreach_sub": [over_lists(2, lambda a, b: torch._foreach_sub_(a, b, alpha=0.3))],
    "aten::_foreach_mul": [
        over_lists(1, lambda a: torch._foreach_mul_(a, 1.5)),
        over_lists(2, torch._foreach_mul),
        over_lists(1, lambda a: torch._foreach_mul_(a, torch.tensor(2.5, device=a[0].device))),
    ],
    "aten::_foreach_div": [
        over_lists(2, torch._foreach_div),
        over_lists(1, lambda a: torch._foreach_div_(a, [1.0, 2.0, 4.0])),
    ],
    "aten::_foreach_neg": [over_lists(1, torch._foreach_neg)],
    "aten::_foreach_abs": [over_lists(1, torch._foreach_abs_)],
    "aten::_foreach_exp": [over_lists(1, torch._foreach_exp_)],
    "aten::_foreach_sqrt": [over_lists(2, lambda a, b: torch._foreach_sqrt(b))],
    "aten::_foreach_rsqrt": [over_lists(2, lambda a, b: (torch._foreach_rsqrt_(b), b)[1])],
    "aten::_foreach_reciprocal": [over_lists(1, torch._foreach_reciprocal_)],
    "aten::_foreach_pow": [over_lists(1, lambda a: torch._foreach_pow_(a, 2))],
    "aten::_foreach_maximum": [over_lists(2, torch._foreach_maximum_)],
    "aten::_foreach_minimum": [over_lists(2, torch._foreach_minimum_)],
    "aten::_foreach_lerp": [over_lists(2, lambda a, b: torch._foreach_lerp_(a, b, 0.1))],
    "aten::_foreach_addcmul": [
        over_lists(3, lambda a, b, c: torch._foreach_addcmul_(a, b, c, value=0.3)),
        over_lists(3, lambda a, b, c: torch._foreach_addcmul_(a, b, c, [0.1, 0.2, 0.3])),
    ],
    "aten::_foreach_addcdiv": [
        over_lists(3, lambda a, b, c: torch._foreach_addcdiv_(a, b, c, value=0.3)),
        over_lists(3, lambda a, b, c: torch._foreach_addcdiv_(a, b, c, [0.1, 0.2, 0.3])),
    ],
    "aten::_foreach_zero": [over_lists(1, torch._foreach_zero_)],
    "aten::_foreach_copy": [over_lists(2, torch._foreach_copy_)],
    "aten::_foreach_norm": [over_lists(1, torch._foreach_norm)],
    "aten::_fused_adam_": [
        fused(torch._fused_adam_, 2, amsgrad=False, **ADAM),
        fused(torch._fused_adam_, 3, amsgrad=True, **{**ADAM, "maximize": True}),
    ],
    "aten::_fused_adamw_": [
        fused(torch._fused_adamw_, 2, amsgrad=False, **ADAM),
        fused(torch._fused_adamw_, 3, amsgrad=True, **ADAM),
        fused(torch._fused_adamw_, 2, amsgrad=False, **{**ADAM, "lr": torch.tensor(0.1)}),
    ],
    "aten::_fused_sgd_": [
        fused(torch._fused_sgd_, 1, **SGD),
        fused(torch._fused_sgd_, 1, **{**SGD, "nesterov": True, "maximize": True}),
    ],
}
