"""`torch.ral.memory`: a device's memory, in bytes, under the names that torch.cuda.memory has."""

import pickle
from pathlib import Path
from typing import Any, Literal

import torch

from ral_trace.backend import _adapter

Device = torch.device | int | str | None


def index_of(device: Device) -> int:
    """The number of a device; None and "ral" are the calling thread's current one. Raises ValueError for others."""
    if device is None:
        return _adapter.current_device()
    if isinstance(device, int):
        return device
    parsed = torch.device(device)
    if parsed.type != "ral":
        raise ValueError(f"expected a ral device, got {parsed}")
    return _adapter.current_device() if parsed.index is None else parsed.index


# --- statistics -------------------------------------------------------------------------------------------------------


def memory_stats(device: Device = None) -> dict[str, Any]:
    """torch's statistics of a device's allocator, under torch.cuda's names.

    `active` is what is allocated, and what is freed but may still be in use by another stream. `inactive_split` is free
    memory in regions where something is active.
    """
    return dict(torch.accelerator.memory_stats(index_of(device)))


def memory_allocated(device: Device = None) -> int:
    """Bytes in blocks that tensors use now."""
    return int(torch.accelerator.memory_allocated(index_of(device)))


def max_memory_allocated(device: Device = None) -> int:
    """The most that `memory_allocated` has been since the start or the last reset."""
    return int(torch.accelerator.max_memory_allocated(index_of(device)))


def memory_reserved(device: Device = None) -> int:
    """Bytes in the regions that the allocator holds."""
    return int(torch.accelerator.memory_reserved(index_of(device)))


def max_memory_reserved(device: Device = None) -> int:
    """The most that `memory_reserved` has been since the start or the last reset."""
    return int(torch.accelerator.max_memory_reserved(index_of(device)))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Let the peaks begin again from what is now."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Let the running totals begin again from zero."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Bytes that no region holds yet, and bytes that the device has."""
    free, total = torch.accelerator.get_memory_info(index_of(device))
    return int(free), int(total)


_SUMMARY = (
    ("Allocated memory", "allocated_bytes", True),
    ("Active memory", "active_bytes", True),
    ("Requested memory", "requested_bytes", True),
    ("Reserved memory", "reserved_bytes", True),
    ("Non-releasable memory", "inactive_split_bytes", True),
    ("Allocations", "allocation", False),
    ("Active allocs", "active", False),
    ("Reserved segments", "segment", False),
    ("Non-releasable allocs", "inactive_split", False),
)


def memory_summary(device: Device = None) -> str:
    """A table of a device's statistics, like torch.cuda.memory_summary's."""
    index = index_of(device)
    stats = memory_stats(index)
    title = f"ral:{index} ({_adapter.describe_device(index)['vendor']}) memory summary"
    counts = f"OOMs: {stats['num_ooms']:<12} retries: {stats['num_alloc_retries']}"
    header = f" {'Metric':<23}|{'Cur Usage':>12} |{'Peak Usage':>12} |{'Tot Alloc':>12} |{'Tot Freed':>12} "
    rule, double = "-" * len(header), "=" * len(header)
    lines = [double, f" {title:<{len(header) - 2}} ", rule, f" {counts}", double, header, rule]
    for label, key, is_size in _SUMMARY:
        values = [stats[f"{key}.all.{column}"] for column in ("current", "peak", "allocated", "freed")]
        texts = [_size(value) if is_size else str(value) for value in values]
        lines.append(f" {label:<23}|" + "|".join(f"{text:>12} " for text in texts))
    return "\n".join(f"|{line:<{len(header)}}|" for line in [*lines, double])


def _size(size_bytes: int) -> str:
    """As torch.cuda.memory_summary writes sizes: whole numbers of the largest unit that keeps four digits."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while size_bytes >= 768 * 1024 and len(units) > 1:
        size_bytes //= 1024
        units.pop(0)
    if size_bytes >= 8192 and len(units) > 1:
        size_bytes //= 1024
        units.pop(0)
    return f"{size_bytes} {units[0]}"


# --- settings, and giving back ----------------------------------------------------------------------------------------


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Let regions take at most this share (0 to 1) of the device's memory. Raises ValueError outside."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction must be from 0 to 1, not {fraction}")
    index = index_of(device)
    _adapter.set_memory_limit(index, int(_adapter.describe_device(index)["memory_bytes"] * fraction))


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The share of the device's memory that regions may take."""
    index = index_of(device)
    return _adapter.memory_limit(index) / int(_adapter.describe_device(index)["memory_bytes"])


def set_settings(settings: str) -> None:
    """Set how the allocators of all devices behave: "max_split_size_mb:128,fit:first".

    `max_split_size_mb`: free blocks above this many MiB are not split, and serve requests above it only.
    `garbage_collection_threshold`: the share of the device's memory above which unused regions are given back before
    another is opened. What is not named has its default: split all, give back only when there is no other way. The
    environment's RAL_ALLOC_CONF sets the same at the start. Raises ValueError for a text that cannot be.
    """
    _adapter.set_allocator_settings(settings)


def get_settings() -> str:
    """What `set_settings` takes to have what is now; empty where all is at its default."""
    return _adapter.allocator_settings()


def empty_cache() -> None:
    """Give back the regions of all devices in which nothing is used, after the work that frees memory is done."""
    for index in range(_adapter.device_count()):
        _adapter.empty_cache(index)


def collect_garbage() -> int:
    """The same without waiting: free what is done, merge, give back unused regions. Returns their bytes."""
    return sum(_adapter.collect_garbage(index) for index in range(_adapter.device_count()))


def buffer_views(device: Device = None) -> list[dict[str, Any]]:
    """The blocks that are used, or freed and still in use by a stream, in address order within each region.

    Each has address, size_bytes, requested_bytes, generation (of all allocations of the device, which one it is), uses,
    stream, state (active_allocated, active_pending_free) and `pieces`: (region handle, memory domain, offset, length).
    """
    return _adapter.buffer_views(index_of(device))


# --- history ----------------------------------------------------------------------------------------------------------


def _record_memory_history(
    enabled: Literal["state", "all"] | None = "all",
    context: Literal["alloc", "all"] | None = "all",
    stacks: Literal["python"] = "python",
    max_entries: int = 1 << 16,
) -> None:
    """Keep what the allocators of all devices do from now on, with Python stacks, for `_snapshot`.

    "state" keeps the stacks of blocks in use only, "all" also the last `max_entries` events of each device, None
    nothing. `context` "all" takes the stacks of frees too. Starting anew forgets the events before. Raises ValueError
    for anything else.
    """
    if enabled not in (None, "state", "all"):
        raise ValueError(f'enabled must be None, "state" or "all", not {enabled!r}')
    if context not in (None, "alloc", "all"):
        raise ValueError(f'context must be None, "alloc" or "all", not {context!r}')
    if stacks != "python":
        raise ValueError(f'stacks must be "python", not {stacks!r}: C++ frames are not recorded')
    if max_entries < 1:
        raise ValueError(f"max_entries must be at least 1, not {max_entries}")
    if enabled is None:
        _adapter.stop_memory_history()
    else:
        _adapter.start_memory_history(max_entries if enabled == "all" else 0, context == "all")


def _snapshot(device: Device = None) -> dict[str, Any]:
    """What torch.cuda._memory_viz takes: segments with their blocks, and the events of each device.

    None: all devices. A segment is a range of addresses; on a device with several memory domains it is several regions.
    """
    wanted = range(_adapter.device_count()) if device is None else [index_of(device)]
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = [[] for _ in range(_adapter.device_count())]
    for index in wanted:
        of_device, traces[index] = _adapter.memory_snapshot(index)
        segments += of_device
    settings = {"RAL_ALLOC_CONF": get_settings()}
    return {"segments": segments, "device_traces": traces, "allocator_settings": settings, "external_annotations": []}


def _dump_snapshot(filename: str | Path = "dump_snapshot.pickle") -> None:
    """Write `_snapshot()` into a file that PyTorch's memory viewer opens (https://pytorch.org/memory_viz)."""
    with Path(filename).open("wb") as file:
        pickle.dump(_snapshot(), file)
