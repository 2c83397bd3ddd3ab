"""`@register_backend("mychip_v1")`: a vendor in Python. torch is imported only where a class is used.

    @register_backend("mychip_v1")
    class MyChip:
        vendor_id = "mychip"
        version = "1.0"

        def init_runtime(self): ...

        def dispatch(self, op_name, tensors, params):
            if op_name == "aten::add" and params["alpha"] == 1:
                return tensors[0].add(tensors[1])
            return None  # not mine

`op_name` has no overload: the functional, the in-place and the out= variant look alike. `tensors` are the operator's
tensor arguments in schema order, as CPU tensors over the device's memory: a list for a list, None for one not given.
`params` are its other arguments by name. The result is a tensor, or a tuple where the operator has several.

Optional: `device_count()` (default 1), `describe(index)` (a dict, see DEVICE_FIELDS), `allocate(nbytes)` that gives the
address of a device's memory, called once a device for all of it, with `deallocate(address)`; `graph_compile`.
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ral_trace.backend.errors import BackendError, PluginRefused
from ral_trace.backend.plugins import BUILT_IN, LOADED, NAME, Core, Plugin, Status, check_owner

C = TypeVar("C", bound=type)

DTYPES = {
    "uint8": 0,
    "int8": 1,
    "int16": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "float32": 6,
    "float64": 7,
    "bool": 11,
    "bfloat16": 15,
}
"""The numbers of ral_plugin.h's ral_dtype."""
_LAYOUTS = {"NCHW": 0, "NHWC": 1}
_HOST_ADDRESSABLE = 1
_ALL_PIPELINES = 7
_MAPPED_BYTES = 1 << 30
_ALLOCATED_BYTES = 256 << 20
"""Of a device for which the class itself allocates: it does so at once."""

DEVICE_FIELDS: dict[str, Any] = {
    "name": None,
    "memory_bytes": None,
    "alignment": 128,
    "stripe_bytes": 1 << 20,
    "max_handles_pf": 16,
    "max_handles_vf": 8,
    "domains": 1,
    "dtypes": tuple(DTYPES),
    "preferred_layout": "NCHW",
    "host_addressable": True,
    "launch_ns": 0,
    "memory_bytes_per_s": 0,
    "copy_latency_ns": 0,
    "copy_bytes_per_s": 0,
}
"""What `describe` may say, and what holds where it does not: see ral_descriptor in ral_plugin.h."""

_LIKE: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "dtypes": (list, tuple),
    "preferred_layout": str,
    "host_addressable": bool,
}
"""What the fields are that are no numbers."""
_32_BITS = ("max_handles_pf", "max_handles_vf", "domains")

# Methods: how many arguments we give, and whether the class must have it.
_METHODS = {
    "init_runtime": (0, True),
    "dispatch": (3, True),
    "device_count": (0, False),
    "describe": (1, False),
    "allocate": (1, False),
    "deallocate": (1, False),
}

_registered: dict[str, type] = {}
_active: dict[str, Any] = {}


def register_backend(name: str) -> Callable[[C], C]:
    """Class decorator: the class is a vendor under this name in RAL_DEVICES and `enable()`. Before `enable()`.

    Raises BackendError for a name that cannot be one, or a class without what the module's docstring asks for.
    """
    if not isinstance(name, str) or not NAME.match(name) or name == BUILT_IN:
        raise BackendError(
            f"register_backend({name!r}): the name must be a lower-case letter, then lower-case letters, digits or _,"
            f" and not '{BUILT_IN}'"
        )

    def decorate(cls: C) -> C:
        fault = _fault(cls)
        if fault:
            raise BackendError(f"register_backend({name!r}): {getattr(cls, '__name__', cls)} {fault}")
        from ral_trace import backend

        if backend.is_enabled():
            raise BackendError(
                f"register_backend({name!r}): this process has its devices already; register before enable()"
            )
        _registered[name] = cls
        return cls

    return decorate


def registered() -> Mapping[str, type]:
    """The classes by name."""
    return _registered


def active() -> Mapping[str, Any]:
    """The instances whose devices this process has, by name."""
    return _active


def _fault(cls: object) -> str:
    if not isinstance(cls, type):
        return "is no class"
    for attribute in ("vendor_id", "version"):
        value = getattr(cls, attribute, None)
        if not isinstance(value, str) or not value:
            return f"must have a class attribute {attribute}, a text that is not empty; it is {value!r}"
    for method, (count, required) in _METHODS.items():
        function = getattr(cls, method, None)
        if function is None and not required:
            continue
        if not callable(function):
            return f"has no method {method}()"
        try:
            inspect.signature(function).bind(*[None] * (count + 1))
        except TypeError as error:
            given = {"dispatch": "op_name, tensors, params"}.get(method, f"{count} arguments" if count else "nothing")
            return f"has a method {method}() that cannot be called with ({given}): {error}"
    if hasattr(cls, "allocate") != hasattr(cls, "deallocate"):
        return "must have both allocate() and deallocate(), or neither"
    return ""


# --- loading ---


def load_from(plugin: Plugin) -> None:
    """Import the class that plugin.json names, and register it under the plugin's name. Raises PluginRefused."""
    module_name, _, class_name = (plugin.python or "").partition(":")
    file = plugin.folder / (module_name.replace(".", "/") + ".py")
    if not class_name or not file.is_file():
        raise PluginRefused(
            "NO_SYMBOL", f"python is '{plugin.python}', it must be MODULE:CLASS of a file in the folder"
        )
    check_owner(file)
    module = _import(plugin.name, file)
    cls = getattr(module, class_name, None)
    if cls is None:
        raise PluginRefused("NO_SYMBOL", f"{file} has no class {class_name}")
    if _registered.get(plugin.name) is not cls:
        try:
            register_backend(plugin.name)(cls)
        except BackendError as error:
            raise PluginRefused("BAD_DESCRIPTOR", str(error)) from None


def _import(name: str, file: Path) -> ModuleType:
    qualified = f"ral_plugin_{name}"
    if qualified in sys.modules:
        return sys.modules[qualified]
    spec = importlib.util.spec_from_file_location(qualified, file)
    if spec is None or spec.loader is None:
        raise PluginRefused("NO_SYMBOL", f"{file} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[qualified] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        del sys.modules[qualified]
        raise PluginRefused("MISSING_DEPS", f"{file}: {error}") from None
    except Exception as error:  # noqa: BLE001 - a vendor's code: whatever it raises is its fault, and not the program's
        del sys.modules[qualified]
        raise PluginRefused("INIT_FAILED", f"{file}: {type(error).__name__}: {error}") from None
    return module


def try_activate(core: Core, name: str) -> Status:
    """`activate`, and what that came to."""
    try:
        activate(core, name)
    except PluginRefused as error:
        return Status(name, error.status, str(error))
    return Status(name, LOADED)


def activate(core: Core, name: str) -> None:
    """Make an instance, and its devices known to the core. Raises PluginRefused.

    Where a plugin's library has brought devices already, the class only adds operators.
    """
    cls = _registered[name]
    backend = _call(name, cls.__name__, cls)
    _call(name, "init_runtime", backend.init_runtime)
    if name not in core.vendors():
        _add_devices(core, name, backend)
    _active[name] = backend


def _add_devices(core: Core, name: str, backend: Any) -> None:
    count = _call(name, "device_count", backend.device_count) if hasattr(backend, "device_count") else 1
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise PluginRefused("BAD_DESCRIPTOR", f"{name}: device_count() gives {count!r}, it must be a number from 1 up")
    devices = [_descriptor(name, backend, index) for index in range(count)]
    for index, device in enumerate(devices):
        if fault := core.described_fault(device):
            raise PluginRefused("BAD_DESCRIPTOR", f"{name}: device {index}: {fault}")
    arenas = [_arena(name, backend, device) for device in devices]
    if fault := core.add_vendor(name, backend.version, devices, arenas):
        raise PluginRefused("BAD_DESCRIPTOR", f"{name}: {fault}")


def _call(name: str, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:  # a vendor's code: whatever it raises is its fault, and not the program's
        raise PluginRefused("INIT_FAILED", f"{name}: {what}() raised {type(error).__name__}: {error}") from error


def _arena(name: str, backend: Any, device: Mapping[str, Any]) -> int:
    if not hasattr(backend, "allocate"):
        return 0
    address = _call(name, "allocate", backend.allocate, device["memory_bytes"])
    if not isinstance(address, int) or address <= 0 or address % device["alignment"]:
        raise PluginRefused(
            "BAD_DESCRIPTOR",
            f"{name}: allocate() gives {address!r}, it must be an address, a multiple of {device['alignment']}",
        )
    return address


def _descriptor(name: str, backend: Any, index: int) -> dict[str, Any]:
    said = _call(name, "describe", backend.describe, index) if hasattr(backend, "describe") else {}
    if not isinstance(said, Mapping) or not set(said) <= set(DEVICE_FIELDS):
        raise PluginRefused("BAD_DESCRIPTOR", f"{name}: describe() must give a dict of {', '.join(DEVICE_FIELDS)}")
    memory = _ALLOCATED_BYTES if hasattr(backend, "allocate") else _MAPPED_BYTES
    device = DEVICE_FIELDS | {"name": f"{backend.vendor_id} {backend.version}", "memory_bytes": memory} | dict(said)
    for field, value in device.items():
        if field in _LIKE:
            good = isinstance(value, _LIKE[field])
        else:
            good = isinstance(value, int) and 0 <= value < 1 << (32 if field in _32_BITS else 63)
        if not good:
            raise PluginRefused("BAD_DESCRIPTOR", f"{name}: describe(): {field} cannot be {value!r}")
    try:
        device["dtypes"] = sum({1 << DTYPES[str(dtype).removeprefix("torch.")] for dtype in device["dtypes"]})
        device["preferred_layout"] = _LAYOUTS[device["preferred_layout"]]
    except KeyError as error:
        raise PluginRefused("BAD_DESCRIPTOR", f"{name}: describe(): there is no {error}") from None
    device["flags"] = _HOST_ADDRESSABLE if device.pop("host_addressable") else 0
    device["pipelines"] = _ALL_PIPELINES
    return device
