"""One operator of PyTorch's own operator database on a `ral` device, against the CPU.

Each sample runs three times: the first call learns the layout of what comes out, the second is launched without
waiting, the third has other values in tensors that look the same.
"""

import copy
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_flatten, tree_map

SEEDS = (0, 0, 1)
SEED_OF_CALLS = 42
NO_VALUE = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
"""What these hold is left to chance."""
TOLERANCE = {
    torch.float32: 2e-4,
    torch.complex64: 2e-4,
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
    torch.bfloat16: 2e-2,
    torch.float16: 4e-3,
}


@dataclasses.dataclass(frozen=True)
class Difference:
    """What differs from the CPU: `kind` is value, layout, dtype, error, no error, warning, gradient or alias."""

    op: str
    variant: str
    dtype: str
    kind: str
    what: str


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to call an operator: (sample) -> results, or an exception."""

    name: str
    call: Callable[[SampleInput], Any]


def name_of(op: OpInfo) -> str:
    return op.name + ("." + op.variant_test_name if op.variant_test_name else "")


def differences(op: OpInfo, device: str, dtype: torch.dtype, limit: int = 30) -> Iterator[Difference]:
    """All that differs, over at most `limit` samples of each way to call the operator."""
    grad = dtype.is_floating_point or dtype.is_complex
    samples = [_samples(op, dtype, seed, grad and op.supports_autograd, limit) for seed in (0, 1)]
    for variant in variants(op, grad):
        for index, sample in enumerate(samples[0]):
            for seed in SEEDS:
                if index < len(samples[seed]):
                    yield from _differences_of(op, variant, samples[seed][index] if seed else sample, device, dtype)
    yield from _errors_differ(op, device)


def variants(op: OpInfo, grad: bool) -> Iterator[Variant]:
    yield Variant("forward", lambda sample: op(sample.input, *sample.args, **sample.kwargs))
    if (inplace := op.inplace_variant) is not None:
        yield Variant("in place", lambda sample: inplace(_fresh(sample.input), *sample.args, **sample.kwargs))
    if op.supports_out:
        yield Variant("out", lambda sample: _call_out(op, sample, torch.empty_like))
        yield Variant("out resized", lambda sample: _call_out(op, sample, lambda like: like.new_empty(0)))
        yield Variant("out strided", lambda sample: _call_out(op, sample, _with_gaps))
    if grad and op.supports_autograd:
        yield Variant("backward", lambda sample: _call_backward(op, sample))


def _samples(op: OpInfo, dtype: torch.dtype, seed: int, grad: bool, limit: int) -> list[SampleInput]:
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), 4 * limit))
    return found[:: max(1, len(found) // limit)][:limit]


def _fresh(tensor: Any) -> Any:
    return tree_map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, tensor)


def _with_gaps(like: Tensor) -> Tensor:
    return like.new_zeros((*like.shape, 2))[..., 0]


def _call_out(op: OpInfo, sample: SampleInput, make: Callable[[Tensor], Tensor]) -> Any:
    """None where there is nothing to compare: results that are no tensors, or a torch that is itself wrong."""
    with torch.no_grad():
        like = op(sample.input, *sample.args, **sample.kwargs)
        tensors = [like] if isinstance(like, Tensor) else list(like) if isinstance(like, tuple) else [None]
        if not all(isinstance(each, Tensor) for each in tensors):
            return None
        outs = [make(each) for each in tensors]
        torch.manual_seed(SEED_OF_CALLS)
        result = op(
            sample.input, *sample.args, **sample.kwargs, out=outs[0] if isinstance(like, Tensor) else tuple(outs)
        )
        if outs[0].device.type == "cpu" and not all(map(_is_close, outs, tensors)):
            return None
        return result, outs


def _is_close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b.to(a.dtype), rtol=1e-2, atol=1e-2, equal_nan=True)


def _call_backward(op: OpInfo, sample: SampleInput) -> Any:
    inputs = [x for x in _tensors((sample.input, sample.args, sample.kwargs)) if x.requires_grad]
    result = op(sample.input, *sample.args, **sample.kwargs)
    if sample.output_process_fn_grad is not None:
        result = sample.output_process_fn_grad(result)
    outputs = [x for x in _tensors(result) if x.requires_grad]
    if not outputs or not inputs:
        return None
    weights = [torch.linspace(0.5, 1.5, x.numel()).reshape(x.shape).to(x.dtype).to(x.device) for x in outputs]
    return torch.autograd.grad(outputs, inputs, weights, allow_unused=True)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, Tensor)]


def moved(sample: SampleInput, device: str) -> SampleInput:
    """The same on the device: strides, offsets, shared memory, conjugation, and tensors that appear twice are one."""
    tensors: dict[int, Tensor] = {}
    storages: dict[int, torch.UntypedStorage] = {}

    def move(x: Any) -> Any:
        if isinstance(x, torch.device):
            return torch.device(device)
        if not isinstance(x, Tensor):
            return device if isinstance(x, str) and x == "cpu" else x
        if x.device.type != "cpu":
            return x
        if id(x) not in tensors:
            tensors[id(x)] = _moved_tensor(x, device, storages)
        return tensors[id(x)]

    result = copy.copy(sample)
    result.input, result.args, result.kwargs = tree_map(move, (sample.input, sample.args, sample.kwargs))
    return result


def _moved_tensor(x: Tensor, device: str, storages: dict[int, torch.UntypedStorage]) -> Tensor:
    plain = x.detach()
    if x.layout is not torch.strided:
        return plain.to(device).requires_grad_(x.requires_grad)
    storage = plain.untyped_storage()
    if storage._cdata not in storages:
        whole = torch.empty(0, dtype=torch.uint8).set_(storage)
        storages[storage._cdata] = whole.to(device).clone().untyped_storage()
    there = torch.empty(0, dtype=x.dtype, device=device).set_(
        storages[storage._cdata], plain.storage_offset(), plain.size(), plain.stride()
    )
    there = torch._conj(there) if x.is_conj() else there
    return (torch._neg_view(there) if x.is_neg() else there).requires_grad_(x.requires_grad)


@dataclasses.dataclass
class _Run:
    result: Any = None
    error: Exception | None = None
    warned: tuple[str, ...] = ()


def _run(variant: Variant, sample: SampleInput, device: str) -> _Run:
    sample = moved(sample, device)
    torch.manual_seed(SEED_OF_CALLS)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = variant.call(sample)
            for each in _tensors(result):
                if each.device.type == "ral":
                    torch.ral.synchronize(each.device)
                    break
        except Exception as error:  # noqa: BLE001  whatever the CPU raises is the right answer
            return _Run(error=error)
    return _Run(result, None, tuple(sorted({str(each.message)[:80] for each in warned})))


def _differences_of(
    op: OpInfo, variant: Variant, sample: SampleInput, device: str, dtype: torch.dtype
) -> Iterator[Difference]:
    expected, actual = _run(variant, sample, "cpu"), _run(variant, sample, device)

    def differs(kind: str, what: str) -> Difference:
        return Difference(name_of(op), variant.name, str(dtype).removeprefix("torch."), kind, what)

    if expected.error is not None and actual.error is None:
        yield differs("no error", _in_words(expected.error))
    elif actual.error is not None and expected.error is None:
        yield differs("error", _in_words(actual.error))
    elif actual.error is not None and type(actual.error) is not type(expected.error):
        yield differs("other error", f"{_in_words(actual.error)} | {_in_words(expected.error)}")
    elif expected.error is None and expected.result is not None:
        yield from itertools.starmap(differs, compare(op, expected.result, actual.result, device))
        if new := {each for each in set(actual.warned) - set(expected.warned) if "launches ran on the CPU" not in each}:
            yield differs("warning", min(new))


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error).strip() else ''}"


def compare(op: OpInfo, expected: Any, actual: Any, device: str) -> Iterator[tuple[str, str]]:
    """What differs between two results, as (kind, words)."""
    mine, shape_mine = tree_flatten(actual)
    theirs, shape_theirs = tree_flatten(expected)
    if shape_mine != shape_theirs:
        yield "structure", f"{shape_mine} | {shape_theirs}"
        return
    for a, e in zip(mine, theirs, strict=True):
        if isinstance(e, Tensor) and isinstance(a, Tensor):
            yield from _compare_tensors(op, e, a, device)
        elif isinstance(e, float):
            if not (a == e or (a != a and e != e) or abs(a - e) < 1e-4 * max(1, abs(e))):
                yield "value", f"{a} | {e}"
        elif type(a) is not type(e) or (not isinstance(e, torch.device) and a != e):
            yield "value", f"{a!r} | {e!r}"


def _compare_tensors(op: OpInfo, expected: Tensor, actual: Tensor, device: str) -> Iterator[tuple[str, str]]:
    if str(actual.device) != device:
        yield "device", f"{actual.device}"
    if actual.dtype != expected.dtype:
        yield "dtype", f"{actual.dtype} | {expected.dtype}"
        return
    if actual.shape != expected.shape or actual.layout != expected.layout:
        yield "shape", f"{tuple(actual.shape)} {actual.layout} | {tuple(expected.shape)} {expected.layout}"
        return
    if expected.layout is torch.strided and _strides(actual) != _strides(expected):
        yield "layout", f"{tuple(actual.shape)}: {actual.stride()} | {expected.stride()}"
    for flag in ("requires_grad", "is_conj", "is_neg"):
        a, e = (getattr(x, flag) for x in (actual, expected))
        a, e = (x() if callable(x) else x for x in (a, e))
        if a != e:
            yield flag, f"{a} | {e}"
    if op.name not in NO_VALUE:
        tolerance = TOLERANCE.get(expected.dtype, 0)
        try:
            torch.testing.assert_close(
                actual.detach().cpu(), expected.detach(), rtol=tolerance, atol=tolerance, equal_nan=True
            )
        except AssertionError as error:
            yield "value", " ".join(str(error).split())[:160]


def _strides(tensor: Tensor) -> list[int]:
    """Of the dimensions that have steps."""
    if tensor.numel() == 0:
        return []
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _errors_differ(op: OpInfo, device: str) -> Iterator[Difference]:
    """Calls that the CPU refuses must be refused here too."""
    if op.error_inputs_func is None:
        return
    torch.manual_seed(0)
    for each in op.error_inputs("cpu"):
        sample = each.sample_input
        variant = Variant("error", lambda sample: op(sample.input, *sample.args, **sample.kwargs))
        expected, actual = _run(variant, sample, "cpu"), _run(variant, sample, device)
        if expected.error is not None and actual.error is None:
            yield Difference(name_of(op), "error", "", "no error", _in_words(expected.error))
        elif actual.error is not None and expected.error is not None and type(actual.error) is not type(expected.error):
            words = f"{_in_words(actual.error)} | {_in_words(expected.error)}"
            yield Difference(name_of(op), "error", "", "other error", words)
