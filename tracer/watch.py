"""Makes this process one that a recording can find: starts the watcher, and joins the recordings that run already."""

import atexit
import functools
import os
import sys
from pathlib import Path

from ral_trace.tracer import _native, agent

TORCH_VERSION = "2.13"
"""The adapter and the hooks are built against this minor version (setup.py says the same and refuses any other)."""

SESSION_VARIABLE = _native.SESSION_VARIABLE
"""In the environment of a command that is recorded: which session is its own."""

HOOKS = Path(__file__).with_name("libral_torch_hooks.so")


def start() -> str | None:
    """Starts the watcher of this process, once. What recordings that run already want of Python is there when it
    returns.

    Returns why recording is impossible, or None. Loads nothing that is built against torch.
    """
    hooks, note = hooks_library()
    if reason := _native.start(hooks, note):
        return reason
    _follow_python()
    agent.apply()
    return None


@functools.cache
def _follow_python() -> None:
    """Once: what Python does to itself concerns those who call it from other threads."""
    os.register_at_fork(after_in_child=agent.forked)
    atexit.register(_native.close)


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
