"""Claims PrivateUse1 for `ral` and hands torch everything that hangs on the name. Once in a process."""

import atexit
import importlib.metadata
import importlib.util
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from ral_trace.backend import DEFAULT_DEVICES, plugins, python_backend, reloading, sharing
from ral_trace.backend.errors import AdapterMissing, BackendError, NameTaken
from ral_trace.tracer.watch import TORCH_VERSION

NAME = "ral"

# torch composes these from others although it also has a CPU kernel for the whole; a device's own kernel is the whole.
# The two convolutions exist for devices only: torch composes them into an error.
_PREFERRED_WHOLE = (
    "aten::native_layer_norm",
    "aten::native_group_norm",
    "aten::addr",
    "aten::addr.out",
    "aten::all.dims",
    "aten::any.dims",
    "aten::convolution_backward_overrideable",
    "aten::convolution_overrideable",
    "aten::linalg__powsum",
    "aten::conj_physical_",
    "aten::mode.values",
)


def register(devices: str | None, manifests: Sequence[Path]) -> str:
    """Do all of `ral_trace.backend.enable`, without its memory of having done it. Returns the list of devices."""
    _check_owner()
    adapter = _load_adapter()
    from ral_trace.backend import compiled, dispatch

    listed = devices or os.environ.get("RAL_DEVICES") or DEFAULT_DEVICES
    found = plugins.load_named(adapter, listed)
    for refused in found.refused:
        warnings.warn(f"plugin refused: {refused.status}: {refused.reason}", stacklevel=3)
    reloading.install_all(adapter.vendors(), manifests)
    try:
        adapter.start(listed)
    except ValueError as error:
        raise BackendError(str(error)) from None
    dispatch.thresholds_from_environment()
    adapter.record_launch_sites(os.environ.get("RAL_LAUNCH_SITES") == "1")
    compiled.compiled_from_environment()
    for vendor, backend in python_backend.active().items():
        adapter.set_python_backend(vendor, backend.dispatch)
    rename_privateuse1_backend(NAME)
    atexit.register(adapter.stop)
    _register_module()
    adapter.route_operators(_routed_operators())
    reloading.publish()
    return listed


def _check_owner() -> None:
    owner = torch._C._get_privateuse1_backend_name()
    if owner not in ("privateuseone", NAME):
        raise NameTaken(
            f"torch's PrivateUse1 device already belongs to '{owner}'{_module_of(owner)}; one process can have only one"
            " such backend: run without it, or without ral_trace.backend.enable() (recording works either way)"
        )
    module = getattr(torch, NAME, None)
    if module is not None and getattr(module, "__name__", "") != "ral_trace.backend.ral":
        raise NameTaken(f"torch.{NAME} already belongs to {module!r}; it cannot be registered twice")


def _module_of(owner: str) -> str:
    module = getattr(torch, owner, None)
    return f" (torch.{owner} is {module.__name__})" if isinstance(module, ModuleType) else ""


def _load_adapter() -> ModuleType:
    if not torch.__version__.startswith(f"{TORCH_VERSION}."):
        raise AdapterMissing(
            f"ral_trace.backend is built for torch {TORCH_VERSION}, this is torch {torch.__version__}:"
            f" pip install 'torch=={TORCH_VERSION}.*' and install ral-trace again with --no-build-isolation"
        )
    if importlib.util.find_spec("ral_trace.backend._adapter") is None:
        raise AdapterMissing(
            "the ral adapter was not built, because torch was not there when ral-trace was installed:"
            f" pip install 'torch=={TORCH_VERSION}.*', then install ral-trace again with --no-build-isolation"
        )
    try:
        from ral_trace.backend import _adapter
    except (ImportError, RuntimeError) as error:
        raise AdapterMissing(f"the ral adapter cannot be loaded: {error}") from error
    return _adapter


def _register_module() -> None:
    from ral_trace.backend import ral

    if getattr(torch, NAME, None) is None:
        torch._register_device_module(NAME, ral)  # type: ignore[no-untyped-call]
        generate_methods_for_privateuse1_backend(for_storage=True)
    sharing.install()


def _routed_operators() -> list[str]:
    """Operators that torch would compose for us, and that the router wants whole: one call instead of two."""
    structured = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeExplicitAutogradNonFunctional")
    on_cpu = set(torch._C._dispatch_get_registrations_for_dispatch_key("CPU"))
    lists = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::_foreach_")]
    whole = [name for name in structured if name.startswith("aten::") and name in on_cpu]
    return [*whole, *(name for name in lists if not name.endswith("_out") and ".out" not in name), *_PREFERRED_WHOLE]
