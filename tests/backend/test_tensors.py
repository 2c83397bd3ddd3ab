"""Tensors on a device: making, viewing, copying, saving."""

import copy
import io
import os
import pickle

import pytest
import torch
from torch import Tensor

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
PLACES = ["cpu", "ral:0", "ral:1"]


def sample(dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = (3, 4)) -> Tensor:
    values = torch.arange(-4, -4 + int(torch.Size(shape).numel()))
    return values.reshape(shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("there", PLACES)
@pytest.mark.parametrize("here", PLACES)
def test_copies_between_all_places(here: str, there: str, dtype: torch.dtype) -> None:
    value = sample(dtype)
    moved = value.to(here).to(there)
    assert moved.device == torch.device(there)
    assert torch.equal(moved.cpu(), value)


@pytest.mark.parametrize("there", PLACES)
@pytest.mark.parametrize("here", PLACES)
def test_copies_that_follow_strides_broadcast_and_convert(here: str, there: str) -> None:
    value = sample()
    target = torch.zeros(4, 6, device=there)
    target[:, ::2].copy_(value.to(here).t())
    expected = torch.zeros(4, 6)
    expected[:, ::2].copy_(value.t())
    assert torch.equal(target.cpu(), expected)
    ints = torch.zeros(2, 3, 4, dtype=torch.int64, device=there)
    ints.copy_(value.to(here))
    assert torch.equal(ints.cpu(), torch.zeros(2, 3, 4, dtype=torch.int64).copy_(value))
    assert torch.equal(value.to(here).expand(2, 3, 4).to(there).cpu(), value.expand(2, 3, 4))


def test_overlapping_copies_are_refused_as_on_the_cpu(device: str) -> None:
    tensor = sample().to(device)
    with pytest.raises(RuntimeError, match="single memory location"):
        tensor[1:].copy_(tensor[:-1])


def test_lazily_conjugated_and_negated(device: str) -> None:
    value = torch.view_as_complex(torch.randn(3, 2))
    assert torch.equal(value.to(device).conj().cpu(), value.conj())
    assert torch.equal(value.to(device).conj().clone().cpu().resolve_conj(), value.conj().resolve_conj())
    assert torch.equal(value.to(device).conj().imag.cpu(), value.conj().imag)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)])
def test_nothing(device: str, shape: tuple[int, ...]) -> None:
    tensor = torch.empty(shape, device=device)
    assert (tensor + 1).shape == shape
    assert tensor.cpu().shape == shape
    assert tensor.sum().item() == 0
    assert torch.cat([tensor, tensor]).numel() == 0
    assert tensor.data_ptr() == 0


VIEWS = {
    "transpose": lambda t: t.t(),
    "slice": lambda t: t[1:, ::2],
    "select": lambda t: t[1],
    "view": lambda t: t.view(2, 6),
    "reshape": lambda t: t.reshape(12),
    "expand": lambda t: t[:1].expand(5, 4),
    "as_strided": lambda t: t.as_strided((2, 2), (4, 1), 1),
    "unfold": lambda t: t.unfold(1, 2, 1),
    "diagonal": lambda t: t.diagonal(),
    "squeeze": lambda t: t[:, :1].squeeze(1),
    "split": lambda t: t.split(2, 1)[1],
    "chunk": lambda t: t.chunk(2)[1],
    "detach": lambda t: t.detach(),
    "view_dtype": lambda t: t.view(torch.int32),
    "movedim": lambda t: t.unsqueeze(0).movedim(0, 2),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(device: str, name: str) -> None:
    """A view shows the tensor, and what is written to the one is in the other."""
    base, expected = sample().to(device), sample()
    view, expected_view = VIEWS[name](base), VIEWS[name](expected)
    assert view.stride() == expected_view.stride()
    assert view.storage_offset() == expected_view.storage_offset()
    assert torch.equal(view.cpu(), expected_view)
    assert view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    if name != "expand":
        view.zero_()
        expected_view.zero_()
        assert torch.equal(base.cpu(), expected)


def test_complex_views_write_through(device: str) -> None:
    pairs = torch.ones(3, 2, device=device)
    torch.view_as_complex(pairs).mul_(2)
    assert torch.equal(pairs.cpu(), torch.full((3, 2), 2.0))
    numbers = torch.ones(3, dtype=torch.complex64, device=device)
    torch.view_as_real(numbers)[:, 1] = 5
    assert torch.equal(numbers.cpu(), torch.full((3,), 1 + 5j))


def test_view_that_cannot_be(device: str) -> None:
    with pytest.raises(RuntimeError, match="reshape"):
        sample().to(device).t().view(12)
    with pytest.raises(RuntimeError, match="storage has"):
        sample().to(device).as_strided((100,), (1,))


def test_resize_and_set(device: str) -> None:
    tensor = torch.arange(4.0, device=device)
    tensor.resize_(2, 3)
    assert tensor.shape == (2, 3)
    assert torch.equal(tensor.flatten()[:4].cpu(), torch.arange(4.0))
    other = torch.empty(0, device=device).set_(tensor)
    assert other.is_set_to(tensor)
    again = torch.empty(0, device=device).set_(tensor.untyped_storage(), 1, (2,), (2,))
    assert torch.equal(again.cpu(), tensor.flatten()[1:4:2].cpu())
    assert again.set_().numel() == 0
    storage = tensor.untyped_storage()
    storage.resize_(1000)
    assert storage.nbytes() == 1000
    assert tensor.flatten()[1].item() == 1.0


def test_channels_last(device: str) -> None:
    tensor = torch.randn(2, 3, 4, 5)
    there = tensor.to(device, memory_format=torch.channels_last)
    assert there.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(there.cpu(), tensor)
    assert torch.empty(2, 3, 4, 5, device=device, memory_format=torch.channels_last).stride() == there.stride()


def test_making(device: str) -> None:
    assert torch.equal(torch.arange(5, device=device).cpu(), torch.arange(5))
    assert torch.equal(torch.full((2, 2), 7, device=device).cpu(), torch.full((2, 2), 7))
    assert torch.equal(torch.eye(3, device=device).cpu(), torch.eye(3))
    assert torch.equal(torch.linspace(0, 1, 5, device=device).cpu(), torch.linspace(0, 1, 5))
    assert torch.tensor([1.5, 2.5], device=device).tolist() == [1.5, 2.5]
    assert torch.zeros_like(sample().to(device)).device == torch.device(device)
    assert sample().to(device).new_tensor([3]).item() == 3
    assert "ral" in repr(torch.ones(2, device=device))


def test_item_and_truth(device: str) -> None:
    assert torch.tensor(2.5, device=device).item() == 2.5
    assert bool(torch.tensor(True, device=device))
    assert torch.equal(torch.ones(2, device=device), torch.ones(2, device=device))
    with pytest.raises(RuntimeError, match="2 elements"):
        torch.ones(2, device=device).item()
    with pytest.raises(TypeError, match="numpy"):
        torch.ones(2, device=device).numpy()


def test_saving_and_loading(device: str) -> None:
    value = sample().to(device)
    file = io.BytesIO()
    torch.save({"a": value, "view": value[1:]}, file)
    for place in (None, "cpu", "ral:0", "ral:1"):
        file.seek(0)
        loaded = torch.load(file, map_location=place)
        assert loaded["a"].device == torch.device(place or device)
        assert torch.equal(loaded["a"].cpu(), sample())
        assert loaded["view"].untyped_storage().data_ptr() == loaded["a"].untyped_storage().data_ptr()


def test_loading_what_a_device_that_is_not_here_saved() -> None:
    file = io.BytesIO()
    torch.save(torch.ones(2, device="ral:1"), file)
    file.seek(0)
    with pytest.raises(RuntimeError, match=r"no ral:7|device 7"):
        torch.load(file, map_location="ral:7")


def test_pickle_and_deepcopy(device: str) -> None:
    value = sample().to(device)
    for again in (pickle.loads(pickle.dumps(value)), copy.deepcopy(value)):
        assert again.device == value.device
        assert torch.equal(again.cpu(), value.cpu())
    layer = torch.nn.Linear(2, 2).to(device)
    assert next(copy.deepcopy(layer).parameters()).device == torch.device(device)


def test_generated_methods(device: str) -> None:
    value = sample().to(device)
    assert value.is_ral
    assert sample().ral(torch.device(device)).device == torch.device(device)
    assert torch.nn.Linear(2, 2).ral(torch.device(device).index).weight.device == torch.device(device)
    assert value.untyped_storage().is_ral


def test_fork_is_refused() -> None:
    torch.ones(1, device="ral:1")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.ones(1, device="ral:1")
            text = "no error"
        except RuntimeError as error:
            text = str(error)
        os.write(write, text.encode()[:1000])
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    message = os.read(read, 2000).decode()
    os.close(read)
    assert "forked process" in message
    assert "'spawn'" in message
