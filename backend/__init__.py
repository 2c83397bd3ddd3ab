"""The device `ral`: several devices of several vendors behind torch's PrivateUse1, instrumented from the inside.

Importing this changes nothing and does not import torch. `enable()` claims the name.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ral_trace.backend.errors import AdapterMissing, BackendError, BadManifest, NameTaken, PluginRefused

if TYPE_CHECKING:
    from ral_trace.backend.python_backend import register_backend

__all__ = [
    "AdapterMissing",
    "BackendError",
    "BadManifest",
    "NameTaken",
    "PluginRefused",
    "enable",
    "is_enabled",
    "register_backend",
]

DEFAULT_DEVICES = "host:1,sim:1"
"""Where neither an argument nor the environment's RAL_DEVICES names devices."""

_enabled: str | None = None
"""The list of devices, once there are some."""


def enable(devices: str | None = None, manifests: Sequence[Path] | None = None) -> None:
    """Make `torch.device("ral:0")` and `torch.ral` exist in this process. A second call changes nothing; where it
    asks for other devices it warns.

    `devices` lists vendors and how many devices of each ("host:1,sim:2"); None: the environment's RAL_DEVICES, or
    "host:1,sim:1". `manifests` are kernel_manifest.json files that each replace the one of their vendor.

    Raises NameTaken where another backend owns PrivateUse1, AdapterMissing where the adapter does not fit this torch,
    BackendError for a list of devices that cannot be, PluginRefused for a vendor that is named and cannot be loaded,
    and for a bad file among `manifests`. Other plugins and manifests that are bad are warned of. From then on
    `torch.accelerator` answers `ral`, also where there is a CUDA device: torch asks PrivateUse1 first.
    """
    global _enabled
    if _enabled is not None:
        if devices not in (None, _enabled):
            warnings.warn(f"ral is enabled with '{_enabled}' in this process, '{devices}' is ignored", stacklevel=2)
        return
    from ral_trace.backend import registration

    _enabled = registration.register(devices, manifests or ())


def is_enabled() -> bool:
    """Whether `enable()` has succeeded in this process."""
    return _enabled is not None


def __getattr__(name: str) -> Any:
    # Not above: every `import torch` of the user comes through here.
    if name == "register_backend":
        from ral_trace.backend.python_backend import register_backend

        return register_backend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
