"""A vendor's `kernel_manifest.json`: which operators it has kernels for. Each entry is checked; a bad one is refused.

    {"vendor": "sim", "kernels": [
      {"op_name": "aten::add", "backend": "sim", "supported_dtypes": ["float32"], "min_shape_rank": 0,
       "max_shape_rank": 8, "requires_contiguous": false, "kernel_path": "libral_sim.so:ral_sim_add"}]}

`op_name` without an overload covers the functional, the in-place and the out= variants of all overloads; "*" every
operator. `supported_dtypes` must hold the dtype of every tensor argument ("*": any; numbers from the host have none);
the largest rank among them must lie between the two ranks. `kernel_path` is a library beside the manifest and a
function in it (include/ral_plugin.h), or "aten": ATen's CPU kernel, in place on the device's memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ral_trace.backend import plugins
from ral_trace.backend.errors import BadManifest, PluginRefused
from ral_trace.backend.python_backend import DTYPES

FILE_NAME = plugins.MANIFEST_FILE
MAX_RANK = 64

_FIELDS = {
    "op_name": str,
    "backend": str,
    "supported_dtypes": list,
    "min_shape_rank": int,
    "max_shape_rank": int,
    "requires_contiguous": bool,
    "kernel_path": str,
}

# What torch expands a composite operator to: the names that a vendor should write instead.
_BENEATH = {
    "batch_norm": "aten::native_batch_norm",
    "binary_cross_entropy_with_logits": "aten::log_sigmoid_forward",
    "conv1d": "aten::convolution_overrideable",
    "conv2d": "aten::convolution_overrideable",
    "conv3d": "aten::convolution_overrideable",
    "cross_entropy_loss": "aten::_log_softmax and aten::nll_loss_forward",
    "dropout": "aten::bernoulli and aten::mul",
    "einsum": "aten::bmm",
    "feature_dropout": "aten::bernoulli and aten::mul",
    "group_norm": "aten::native_group_norm",
    "layer_norm": "aten::native_layer_norm",
    "linear": "aten::addmm",
    "log_softmax": "aten::_log_softmax",
    "matmul": "aten::mm",
    "max_pool2d": "aten::max_pool2d_with_indices",
    "multi_head_attention_forward": "aten::bmm and aten::_softmax",
    "nll_loss": "aten::nll_loss_forward",
    "scaled_dot_product_attention": "aten::bmm and aten::_softmax",
    "softmax": "aten::_softmax",
}


@dataclass(frozen=True)
class Refusal:
    """One entry that is not used: which file and entry, and why."""

    file: Path
    entry: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}: entry {self.entry} refused: {self.reason}"


@dataclass
class Manifest:
    """What one file says. `entries` are in the form that the adapter takes."""

    vendor: str
    file: Path
    entries: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)


class Loaded(NamedTuple):
    """Manifests by vendor, and the files that are none."""

    manifests: dict[str, Manifest]
    problems: dict[Path, PluginRefused]


class _Refused(Exception):
    pass


_loaded: dict[str, Manifest] = {}


def load_all(overrides: Sequence[Path] = (), *, strict: bool = True) -> Loaded:
    """The manifests on the plugins' search path, then `overrides`; the last of a vendor counts.

    A file that is no manifest, or that others could write, is one of `problems`; if it is among `overrides`, and
    `strict`, PluginRefused is raised.
    """
    result = Loaded({}, {})
    for file in (*(folder / FILE_NAME for folder in plugins.folders_with(FILE_NAME)), *map(Path, overrides)):
        try:
            manifest = load(file)
        except PluginRefused as error:
            if strict and file in overrides:
                raise
            result.problems[file] = error
        else:
            result.manifests[manifest.vendor] = manifest
    return result


def load(file: Path) -> Manifest:
    """Read and check one manifest. Raises PluginRefused where it is no manifest at all, or may not be trusted."""
    plugins.check_owner(file.parent)
    content = plugins.read_json(file)
    if (
        not isinstance(content, dict)
        or not isinstance(content.get("vendor"), str)
        or not isinstance(content.get("kernels"), list)
    ):
        raise BadManifest(f'{file}: is no kernel manifest; it must be {{"vendor": NAME, "kernels": [ENTRIES]}}')
    manifest = Manifest(content["vendor"], file)
    for number, entry in enumerate(content["kernels"]):
        try:
            manifest.entries.append(_checked(manifest, entry))
        except _Refused as refused:
            label = str(entry.get("op_name", f"#{number}")) if isinstance(entry, dict) else f"#{number}"
            manifest.refusals.append(Refusal(file, label, str(refused)))
    return manifest


def install(vendor: str, manifest: Manifest) -> None:
    """Give the router these kernels for the vendor, in place of those it has; also while programs run."""
    from ral_trace.backend import _adapter

    _adapter.set_kernels(vendor, manifest.entries)
    _loaded[vendor] = manifest


def installed() -> Mapping[str, Manifest]:
    """What `install` was given last, by vendor."""
    return _loaded


def _checked(manifest: Manifest, entry: object) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise _Refused("it is not an object")
    for name, kind in _FIELDS.items():
        if not isinstance(entry.get(name), kind) or (kind is int and isinstance(entry[name], bool)):
            raise _Refused(f"{name} must be a {kind.__name__}")
    if entry["backend"] != manifest.vendor:
        raise _Refused(f"it is for backend '{entry['backend']}', the file is for '{manifest.vendor}'")
    if not 0 <= entry["min_shape_rank"] <= entry["max_shape_rank"] <= MAX_RANK:
        raise _Refused(f"ranks must be 0 <= min_shape_rank <= max_shape_rank <= {MAX_RANK}")
    if entry["op_name"] != "*":
        _check_operator(entry["op_name"])
    library, symbol = _kernel_path(manifest.file, entry["kernel_path"])
    return {
        "op_name": entry["op_name"],
        "dtypes": _dtypes(entry["supported_dtypes"]),
        "min_rank": entry["min_shape_rank"],
        "max_rank": entry["max_shape_rank"],
        "requires_contiguous": entry["requires_contiguous"],
        "library": library,
        "symbol": symbol,
    }


def _check_operator(op_name: str) -> None:
    overloads = overloads_of(op_name)
    if not overloads:
        raise _Refused("torch has no such operator")
    composite = [name for name in overloads if _is_composite(name)]
    if len(composite) == len(overloads):
        base = op_name.removeprefix("aten::").partition(".")[0]
        beneath = _BENEATH.get(base, "the operators that torch expands it to")
        raise _Refused(
            f"torch composes {op_name} from other operators, a kernel for it would lose gradients; write {beneath}"
        )


def _is_composite(name: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))


def overloads_of(op_name: str) -> list[str]:
    """All operators that an `op_name` covers: itself, or all overloads of its functional and in-place variants."""
    namespace, _, rest = op_name.partition("::")
    if not rest:
        return []
    base, dot, overload = rest.partition(".")
    if dot:
        return [op_name] if torch._C._dispatch_has_kernel(op_name) and overload else []
    base = base.removesuffix("_") if not base.endswith("__") else base
    found = []
    for name in (base, base + "_"):
        packet = getattr(getattr(torch.ops, namespace), name, None)
        for each in packet.overloads() if packet is not None else ():
            found.append(f"{namespace}::{name}" + ("" if each == "default" else f".{each}"))
    return [name for name in found if torch._C._dispatch_has_kernel(name)]


def _dtypes(names: list[object]) -> list[int]:
    if names == ["*"]:
        return []
    if not names:
        raise _Refused("supported_dtypes is empty")
    numbers = []
    for name in names:
        dtype = getattr(torch, name, None) if isinstance(name, str) else None
        if dtype not in _DTYPE_NUMBERS:
            raise _Refused(f"{name!r} is no dtype of torch")
        numbers.append(_DTYPE_NUMBERS[dtype])
    return numbers


# Those of the plugin header, and two that only ATen's kernels know; all as c10::ScalarType numbers them.
_DTYPE_NUMBERS = {
    **{getattr(torch, name): number for name, number in DTYPES.items()},
    torch.complex64: 9,
    torch.complex128: 10,
}


def _kernel_path(file: Path, kernel_path: str) -> tuple[str, str]:
    if kernel_path == "aten":
        return "", "aten"
    name, colon, symbol = kernel_path.rpartition(":")
    library = (file.parent / name).resolve()
    if not colon or not symbol.isidentifier():
        raise _Refused(f"kernel_path '{kernel_path}' must be LIBRARY:FUNCTION or aten")
    if not library.is_file():
        raise _Refused(f"there is no library {library}")
    try:
        plugins.check_owner(library)
    except PluginRefused as error:
        raise _Refused(str(error)) from None
    return str(library), symbol
