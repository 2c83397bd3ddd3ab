"""Makes this process one that a recording can find: starts the watcher, and joins the recordings that run already."""

import sys
from pathlib import Path

from ral_trace.tracer import _native

TORCH_VERSION = "2.13"
"""The adapter and the hooks are built against this minor version (setup.py says the same and refuses any other)."""

SESSION_VARIABLE = _native.SESSION_VARIABLE
"""In the environment of a command that is recorded: which session is its own."""

HOOKS = Path(__file__).with_name("libral_torch_hooks.so")


def start() -> str | None:
    """Starts the watcher of this process, once.

    Returns why recording is impossible, or None. Loads nothing that is built against torch.
    """
    hooks, note = hooks_library()
    return _native.start(hooks, note)


def hooks_library() -> tuple[str, str]:
    """The library with torch's callbacks, or an empty text and why ops cannot be recorded.

    Versions are compared before anything is loaded.
    """
    torch = sys.modules.get("torch")
    found = str(getattr(torch, "__version__", ""))
    if not found.startswith(f"{TORCH_VERSION}."):
        built = f"this ral-trace is built for torch {TORCH_VERSION}, the program has {found or 'none'}"
        return "", f"ops are not recorded: {built}"
    if not HOOKS.exists():
        remedy = "install it again with --no-build-isolation"
        return "", f"ops are not recorded: ral-trace was installed where torch was not; {remedy}"
    return str(HOOKS), ""
