"""The part that needs torch; see native/adapter/module.cpp. Importing it registers operators under PrivateUse1."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

TORCH_VERSION: str

def start(device_list: str) -> None:
    """Make the devices, once in a process. Raises ValueError for a list that cannot be."""

def started() -> bool: ...
def bad_fork() -> bool: ...
def device_count() -> int: ...
def current_device() -> int: ...
def set_device(index: int) -> None: ...
def describe_device(index: int) -> dict[str, Any]: ...
def synchronize(index: int) -> None: ...
def stop() -> None:
    """End the devices' threads; what is queued is not run."""

def device_model(index: int) -> dict[str, int]: ...
def set_device_model(
    index: int, *, launch_ns: int, memory_bytes_per_s: int, copy_latency_ns: int, copy_bytes_per_s: int
) -> None: ...
def record_launch_sites(on: bool) -> None: ...
def dispatch_records() -> list[dict[str, Any]]:
    """See dispatch.py."""

def fallback_thresholds() -> tuple[float, float]: ...
def set_fallback_thresholds(warn: float, shout: float) -> None: ...
def default_generator(index: int) -> torch.Generator: ...
def set_memory_limit(index: int, bytes: int) -> None:
    """Bytes that the device's regions may have together. Raises ValueError for more than it has."""

def memory_limit(index: int) -> int: ...
def empty_cache(index: int) -> int:
    """Bytes given back, after waiting for the work that frees memory."""

def collect_garbage(index: int) -> int:
    """Bytes given back, without a wait."""

def largest_free_block(index: int) -> int: ...
def check_memory(index: int) -> str:
    """What is wrong with the allocator's structure, or an empty text. For tests."""

def buffer_views(index: int) -> list[dict[str, Any]]:
    """See memory.py."""

def set_allocator_settings(settings: str) -> None:
    """Of all devices. Raises ValueError for a text that cannot be."""

def allocator_settings() -> str: ...
def start_memory_history(max_entries: int, stacks_of_frees: bool) -> None:
    """Of all devices; no entries: only the stacks of blocks in use."""

def stop_memory_history() -> None: ...
def memory_snapshot(index: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Segments with their blocks, and the history's events, oldest first."""

def set_kernels(vendor: str, entries: list[dict[str, Any]]) -> None:
    """Replace the vendor's kernels; see manifest.py for the entries."""

def set_python_backend(vendor: str, dispatch: Callable[..., Any]) -> None:
    """Operators on the vendor's devices go to this first: dispatch(op_name, tensors, params)."""

def compiled_on() -> bool: ...
def set_compiled(on: bool) -> None: ...
def set_compiler(library_for: Callable[..., tuple[str, str, int]]) -> None:
    """What makes a compiled kernel; see compiled.py."""

JOB_ROLES: tuple[str, ...]
"""What a symbol of a plan is, in the order of their numbers."""
WORK_KINDS: tuple[str, ...]
"""What an operation of a plan is."""

class JobPlan:
    """An artefact that was prepared; see prepared.py."""

    @property
    def name(self) -> str:
        """As launches are named in a trace."""

    @property
    def vendor(self) -> str:
        """Whose devices it runs on."""

    @property
    def arguments(self) -> list[str]:
        """The symbols that a launch gives tensors for, in order."""

def make_job_plan(
    name: str,
    vendor: str,
    library: str,
    symbols: list[dict[str, Any]],
    dim_names: list[str],
    operations: list[dict[str, Any]],
) -> JobPlan:
    """Raises RuntimeError where the library or one of its functions is not there."""

def launch_job_plan(plan: JobPlan, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]: ...
def keep_device_file(path: str) -> None:
    """Say in this file from now on which devices there are. Raises RuntimeError when it cannot be written."""

def load_plugin(library: str, name: str) -> tuple[str, str]: ...
def add_vendor(name: str, version: str, devices: list[dict[str, Any]], arenas: list[int]) -> str: ...
def described_fault(device: dict[str, Any]) -> str: ...
def vendors() -> list[str]:
    """As in _core; the devices of this process are those of these vendors."""

def kernel_count(vendor: str) -> int: ...
def time_look_ups(index: int, count: int) -> tuple[float, float]:
    """Mean nanoseconds of reading a small add's arguments, and of finding its plan. For benchmarks."""

def route_operators(names: list[str]) -> None:
    """Send these operators to the router although torch has composite kernels for them."""
