"""Operators without a vendor's kernel, and those that torch asks of devices only: against the CPU, with gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.backend.sim_cases import indices, mask, positive, seeded
from tests.backend.test_sim_kernels import assert_same, results

CALLS: dict[str, tuple[Callable[..., Any], list[Tensor]]] = {
    "conv1d": (functional.conv1d, [seeded(2, 3, 8), seeded(4, 3, 3), seeded(4)]),
    "conv2d": (
        lambda a, w, b: functional.conv2d(a, w, b, padding=1),
        [seeded(2, 3, 8, 8), seeded(4, 3, 3, 3), seeded(4)],
    ),
    "conv2d without bias": (lambda a, w: functional.conv2d(a, w, stride=2), [seeded(2, 3, 8, 8), seeded(4, 3, 3, 3)]),
    "conv_transpose2d": (functional.conv_transpose2d, [seeded(2, 3, 8, 8), seeded(3, 4, 3, 3), seeded(4)]),
    "grouped conv2d": (lambda a, w: functional.conv2d(a, w, groups=2), [seeded(2, 4, 8, 8), seeded(6, 2, 3, 3)]),
    "batch_norm": (lambda a: functional.batch_norm(a, None, None, training=True), [seeded(2, 4, 3, 3)]),
    "group_norm": (lambda a: functional.group_norm(a, 2), [seeded(2, 4, 3, 3)]),
    "max_pool2d": (lambda a: functional.max_pool2d(a, 2), [seeded(2, 3, 8, 8)]),
    "interpolate": (lambda a: functional.interpolate(a, scale_factor=2, mode="bilinear"), [seeded(1, 2, 4, 4)]),
    "attention": (
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        [seeded(2, 3, 8, 4), positive(2, 3, 8, 4), seeded(2, 3, 8, 4)],
    ),
    "sort": (lambda a: a.sort(1), [seeded(5, 7)]),
    "topk": (lambda a: a.topk(3)[0], [seeded(5, 7)]),
    "cumsum": (lambda a: a.cumsum(0), [seeded(5, 7)]),
    "index": (lambda a, i: a[i], [seeded(5, 7), indices(5, 3)]),
    "index by mask": (lambda a, m: a[m], [seeded(5, 7), mask(5, 7)]),
    "gather": (lambda a, i: a.gather(1, i), [seeded(5, 7), indices(7, 5, 2)]),
    "scatter_add": (lambda a, i, b: a.scatter_add(1, i, b), [seeded(5, 7), indices(7, 5, 2), seeded(5, 2)]),
    "nonzero": (lambda a: a.nonzero(), [mask(5, 7)]),
    "unique": (torch.unique, [indices(4, 9)]),
    "argmax": (lambda a: a.argmax(1), [seeded(5, 7, grad=False)]),
    "max with indices": (lambda a: a.max(1)[0], [seeded(5, 7)]),
    "logsumexp": (lambda a: a.logsumexp(1), [seeded(5, 7)]),
    "std": (lambda a: a.std(1), [seeded(5, 7)]),
    "norm": (lambda a: a.norm(), [seeded(5, 7)]),
    "einsum": (lambda a, b: torch.einsum("ij,kj->ik", a, b), [seeded(5, 7), positive(5, 7)]),
    "matmul with a vector": (torch.matmul, [seeded(5, 7), seeded(7)]),
    "float64": (lambda a: (a.double() + 1).float(), [seeded(5, 7)]),
    "integers": (lambda a: a * 3 + 1, [indices(9, 5)]),
    "embedding_bag": (functional.embedding_bag, [indices(10, 3, 4), seeded(10, 6)]),
    "view_as_complex": (lambda a: torch.view_as_real(torch.view_as_complex(a) * 2j), [seeded(4, 2)]),
    "fft": (lambda a: torch.fft.rfft(a).abs(), [seeded(5, 8)]),
    "inverse": (lambda a: torch.linalg.inv(a + 5 * torch.eye(4, device=a.device)), [seeded(4, 4)]),
    "foreach": (lambda a, b: torch._foreach_mul([a, b], 2.0), [seeded(5, 7), seeded(3)]),
    "dropout in evaluation": (lambda a: functional.dropout(a, 0.5, training=False), [seeded(5, 7)]),
    "pad": (lambda a: functional.pad(a, (1, 2)), [seeded(5, 7)]),
    "smooth_l1_loss": (functional.smooth_l1_loss, [seeded(5, 7), positive(5, 7)]),
    "addr": (torch.addr, [seeded(5, 7), seeded(5), seeded(7)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_agrees_with_the_cpu(device: str, name: str) -> None:
    for actual, expected in zip(results(CALLS[name], device), results(CALLS[name], "cpu"), strict=True):
        assert_same(actual, expected)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers(device: str, kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    layer = kind(4, 5, num_layers=2)
    there = kind(4, 5, num_layers=2)
    there.load_state_dict(layer.state_dict())
    there.to(device)
    inputs = torch.randn(3, 2, 4)
    expected, actual = layer(inputs)[0], there(inputs.to(device))[0]
    assert_same(actual, expected)
    expected.square().sum().backward()
    actual.square().sum().backward()
    for mine, theirs in zip(there.parameters(), layer.parameters(), strict=True):
        assert_same(mine.grad, theirs.grad)


def test_dropout_keeps_what_it_says(device: str) -> None:
    out = functional.dropout(torch.ones(1000, device=device), 0.25)
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert 600 < (out != 0).sum().item() < 900


def test_in_place_on_views_and_lists(device: str) -> None:
    values = torch.arange(12.0).reshape(3, 4)
    there = values.to(device)
    for each in (values, there):
        each[1:].cumsum_(0)
        each[:, 1].sort()
        torch._foreach_add_([each[0], each[2]], 1.0)
        each.index_put_((torch.tensor([0], device=each.device),), torch.tensor(9.0, device=each.device))
    assert torch.equal(there.cpu(), values)


def test_out_of_operators_without_a_kernel(device: str) -> None:
    source = torch.randn(4, 4)
    out = torch.empty(0, dtype=torch.int64, device=device)
    torch.nonzero(source.to(device) > 0, out=out)
    assert torch.equal(out.cpu(), (source > 0).nonzero())
    values, order = torch.empty(0, device=device), torch.empty(0, dtype=torch.int64, device=device)
    torch.sort(source.to(device), out=(values, order))
    assert torch.equal(values.cpu(), source.sort()[0])


def test_an_operator_without_any_kernel_is_refused_in_words(device: str) -> None:
    with pytest.raises(NotImplementedError, match="none for the CPU to fall back to"):
        torch.ops.aten._cudnn_init_dropout_state(0.5, True, 1, dtype=torch.uint8, device=torch.device(device))


@pytest.mark.parametrize("devices", [("ral:0", "ral:0"), ("ral:1", "ral:1"), ("ral:0", "ral:1")])
def test_training_across_devices_gives_the_cpus_losses(devices: tuple[str, str]) -> None:
    def losses(first: str, second: str) -> list[float]:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU()).to(first), nn.Linear(16, 4).to(second)
        optimizer = torch.optim.AdamW([p for layer in layers for p in layer.parameters()], lr=1e-2)
        inputs, targets = seeded(8, 6, grad=False), indices(4, 8)
        found = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = functional.cross_entropy(layers[1](layers[0](inputs.to(first)).to(second)), targets.to(second))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    expected = losses("cpu", "cpu")
    assert losses(*devices) == pytest.approx(expected, rel=1e-4)
    assert expected[-1] < expected[0]
