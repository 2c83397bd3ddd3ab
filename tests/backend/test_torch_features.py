"""What programs do with torch beside calling operators: modes, transforms, compilation, other processes."""

from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, hessian, jacfwd, jacrev, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from ral_trace.backend.errors import NotShared
from tests.backend.sim_cases import seeded
from tests.backend.test_sim_kernels import assert_same


def test_the_type_of_an_argument_counts(device: str) -> None:
    """torch numbers dtypes, and bool is 11: it is not None."""
    ones = torch.ones(4, 5, device=device)
    for dtype in (None, torch.bool, torch.int64, None, torch.bool):
        assert ones.sum(dtype=dtype).dtype == (dtype or torch.float32)


def test_results_that_are_born_in_each_others_place(device: str) -> None:
    scores, target = seeded(2, 3, 1, 1, grad=False), torch.tensor([[[1]], [[0]]])
    expected = torch.ops.aten.nll_loss2d_forward(scores, target, None, 1, -100)
    for _ in range(3):
        actual = torch.ops.aten.nll_loss2d_forward(scores.to(device), target.to(device), None, 1, -100)
        for mine, theirs in zip(actual, expected, strict=True):
            assert_same(mine, theirs)


def test_out_inside_a_larger_storage(device: str) -> None:
    values = torch.arange(3.0, device=device)
    torch.add(values, values, out=torch.empty(0, device=device))
    buffer = torch.zeros(20, device=device)
    out = buffer[7:7]
    torch.add(values, values, out=out)
    assert out.storage_offset() == 7
    assert buffer[6:11].tolist() == [0, 0, 2, 4, 0]


def test_out_in_place_is_not_resized(device: str) -> None:
    for call in (torch.logical_and, torch.mul, torch.ldexp):
        narrow = torch.ones(5, 1, device=device)
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            call(narrow, torch.ones(5, 7, device=device), out=narrow)
        assert narrow.shape == (5, 1)


CONJUGATED = {
    "mm": lambda x, y: x.conj() @ y,
    "addmm": lambda x, y: torch.addmm(x.conj(), x.mH, y.conj()),
    "negated": lambda x, y: x.conj().imag @ y.real,
    "dot": lambda x, y: torch.dot(x[0].conj(), y[0]),
    "unfold": lambda x, y: x.conj().unfold(0, 2, 1) * 1,
    "in place": lambda x, y: x.clone().conj().mul_(y),
    "out": lambda x, y: torch.mm(x, y, out=torch.empty_like(x).conj()),
    "number": lambda x, y: x * torch.tensor(1 + 2j).conj(),
}


@pytest.mark.parametrize("name", CONJUGATED)
def test_lazy_conjugation_reaches_kernels(device: str, name: str) -> None:
    x, y = (torch.view_as_complex(seeded(4, 4, 2, grad=False) * scale) for scale in (1, 2))
    expected = CONJUGATED[name](x, y)
    for _ in range(2):
        assert_same(CONJUGATED[name](x.to(device), y.to(device)), expected)


def test_dropout_takes_the_devices_random_numbers(device: str) -> None:
    ones = torch.ones(64, device=device)
    before = torch.get_rng_state()
    torch.manual_seed(3)
    torch.set_rng_state(before)
    first = nn.functional.dropout(ones)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    assert torch.equal(nn.functional.dropout(ones).cpu(), first.cpu())


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_draws_the_same_numbers_again(device: str, reentrant: bool) -> None:
    layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(device)
    gradients = []
    for call in (layers, lambda x: checkpoint(layers, x, use_reentrant=reentrant)):
        inputs = torch.ones(8, 4, device=device, requires_grad=True)
        torch.manual_seed(3)
        call(inputs).sum().backward()
        gradients.append(inputs.grad.cpu())
    assert_same(gradients[0], gradients[1])


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.ones(3, 3, device=device).to_sparse(),
        lambda device: torch.eye(3).to_sparse().to(device),
        lambda device: torch.quantize_per_tensor(torch.ones(3, device=device), 0.1, 0, torch.qint8),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_a_device_does_not_hold(device: str, make: Any) -> None:
    with pytest.raises(NotImplementedError, match=r"aten::\w+.* ral devices hold strided tensors only"):
        make(device)


def test_padded_attention_in_evaluation(device: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    inputs, padding = seeded(2, 5, 16, grad=False), torch.zeros(2, 5, dtype=torch.bool)
    padding[1, 3:] = True
    with torch.no_grad():
        expected = encoder(inputs, src_key_padding_mask=padding)
        actual = encoder.to(device)(inputs.to(device), src_key_padding_mask=padding.to(device))
    assert_same(actual[~padding.to(device)], expected[~padding])


def test_dispatch_modes_see_every_operator(device: str) -> None:
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watch():
        weights = torch.ones(3, 3, device=device, requires_grad=True)
        (weights @ weights).relu().sum().backward()
    assert {"aten.mm.default", "aten.relu.default", "aten.threshold_backward.default"} <= set(seen)


def energy(x: Tensor) -> Tensor:
    return (x.sin() ** 2).sum()


@pytest.mark.parametrize(
    "transformed", [grad(energy), vmap(grad(energy)), hessian(energy), jacrev(torch.tanh), jacfwd(torch.tanh)]
)
def test_function_transforms(device: str, transformed: Any) -> None:
    inputs = seeded(4, 3, grad=False)
    for _ in range(2):
        assert_same(transformed(inputs.to(device)), transformed(inputs))


def test_compiling(device: str) -> None:
    layer = nn.Linear(4, 8).to(device)
    inputs = torch.ones(2, 4, device=device)
    torch._dynamo.reset()
    assert_same(torch.compile(layer, backend="aot_eager")(inputs).cpu(), layer(inputs).cpu())
    torch._dynamo.reset()
    with pytest.raises(Exception, match="Inductor, generates no code for ral devices"):
        torch.compile(layer)(inputs)


def test_other_processes(device: str) -> None:
    with pytest.raises(NotShared, match=r"send tensor\.cpu\(\)"):
        ForkingPickler.dumps(torch.ones(3, device=device))
    data = TensorDataset(torch.arange(40.0).view(20, 2))
    total = 0.0
    for (batch,) in DataLoader(data, batch_size=4, num_workers=2, pin_memory=True):
        total += batch.to(device, non_blocking=True).sum().item()
    assert total == sum(range(40))
