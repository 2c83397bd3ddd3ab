"""`torch.ral`: what torch and programs expect of a device's module."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ral_trace.backend import _adapter
from ral_trace.backend.reloading import reload_plugins as reload_plugins

Device = torch.device | int | str | None

# torch.Stream and torch.Event already know the device; here they get its name, as torch.cuda has it.
Stream = torch.Stream
Event = torch.Event


def _index(device: Device) -> int:
    if device is None:
        return _adapter.current_device()
    if isinstance(device, int):
        return device
    parsed = torch.device(device)
    if parsed.type != "ral":
        raise ValueError(f"expected a ral device, got {parsed}")
    return _adapter.current_device() if parsed.index is None else parsed.index


def is_available() -> bool:
    """Whether there is at least one device."""
    return _adapter.device_count() > 0


def is_initialized() -> bool:
    """Whether the devices exist in this process."""
    return _adapter.started()


def init() -> None:
    """Make the devices ready. They are, from `ral_trace.backend.enable()` on."""
    _lazy_init()


def _lazy_init() -> None:
    if _is_in_bad_fork():
        raise RuntimeError(
            "the ral device cannot be used in a forked process whose parent used it;"
            " start workers with torch.multiprocessing's 'spawn' method"
        )


def _is_in_bad_fork() -> bool:
    return _adapter.bad_fork()


def device_count() -> int:
    """One more than the highest number of a device that is online; one below it may have been withdrawn."""
    return _adapter.device_count()


def current_device() -> int:
    """The calling thread's current device."""
    return _adapter.current_device()


def set_device(device: Device) -> None:
    """Make a device the calling thread's current one. Raises RuntimeError where there is no such device."""
    _adapter.set_device(_index(device))


class device:
    """Context manager: inside it the device is the current one. None or a negative index changes nothing."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else _index(device)
        self.prev_idx = -1

    def __enter__(self) -> "device":
        self.prev_idx = _adapter.current_device()
        if self.idx >= 0:
            _adapter.set_device(self.idx)
        return self

    def __exit__(self, *exception: object) -> None:
        _adapter.set_device(self.prev_idx)


class device_of(device):
    """Context manager: inside it the device of a tensor is the current one; another device's tensor changes nothing."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device if obj.device.type == "ral" else None)


def get_device_name(device: Device = None) -> str:
    """What kind of device it is, in words."""
    return str(_adapter.describe_device(_index(device))["name"])


def get_device_properties(device: Device = None) -> dict[str, Any]:
    """index, vendor, name, memory (`memory_bytes`) and what else the vendor says of a device."""
    return _adapter.describe_device(_index(device))


def synchronize(device: Device = None) -> None:
    """Wait until all work on the device is done."""
    _lazy_init()
    _adapter.synchronize(_index(device))


def device_model(device: Device = None) -> dict[str, int]:
    """What a modelled device adds to real work: launch_ns a kernel, memory_bytes_per_s of what it touches,
    copy_latency_ns a copy, copy_bytes_per_s of its link; 0 is no limit.
    """
    return dict(_adapter.device_model(_index(device)))


def set_device_model(device: Device = None, **changes: int) -> None:
    """Change parts of `device_model` from now on, say to make every copy late. Raises TypeError for an unknown part."""
    index = _index(device)
    _adapter.set_device_model(index, **(_adapter.device_model(index) | changes))


def current_stream(device: Device = None) -> torch.Stream:
    """The stream on which the calling thread's next work for the device goes."""
    return torch.accelerator.current_stream(torch.device("ral", _index(device)))


def set_stream(stream: torch.Stream) -> None:
    """Make a stream the calling thread's current one on its device."""
    torch.accelerator.set_stream(stream)


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Context manager: inside it the stream is the current one of its device."""
    if stream is None:
        yield
        return
    with stream:
        yield


# --- random numbers ---------------------------------------------------------------------------------------------------

default_generators: tuple[torch.Generator, ...] = ()


def _generators() -> tuple[torch.Generator, ...]:
    global default_generators
    if len(default_generators) != device_count():
        default_generators = tuple(_adapter.default_generator(index) for index in range(device_count()))
    return default_generators


def manual_seed(seed: int) -> None:
    """Seed the current device's random numbers."""
    _generators()[current_device()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the random numbers of all devices."""
    for generator in _generators():
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seed the current device's random numbers from the system's entropy."""
    _generators()[current_device()].seed()


def seed_all() -> None:
    """Seed the random numbers of all devices, all alike, from the system's entropy."""
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    """The seed that the current device's random numbers began with."""
    return _generators()[current_device()].initial_seed()


def get_rng_state(device: Device = "ral") -> torch.Tensor:
    """The state of a device's random numbers, as a CPU byte tensor."""
    return _generators()[_index(device)].get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = "ral") -> None:
    """Put a device's random numbers into a state that `get_rng_state` gave."""
    _generators()[_index(device)].set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """`get_rng_state` of every device."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """`set_rng_state` of every device."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


# --- automatic mixed precision ----------------------------------------------------------------------------------------


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What `torch.autocast("ral")` may compute in."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 works: it does on every device, natively or by fallback."""
    return including_emulation


# --- memory, in bytes -------------------------------------------------------------------------------------------------


def memory_stats(device: Device = None) -> dict[str, Any]:
    """torch's statistics of a device's allocator, under torch.cuda's names."""
    return dict(torch.accelerator.memory_stats(_index(device)))


def memory_allocated(device: Device = None) -> int:
    """Bytes in blocks that tensors use now."""
    return int(torch.accelerator.memory_allocated(_index(device)))


def max_memory_allocated(device: Device = None) -> int:
    """The most that `memory_allocated` has been since the start or the last reset."""
    return int(torch.accelerator.max_memory_allocated(_index(device)))


def memory_reserved(device: Device = None) -> int:
    """Bytes in the regions that the allocator holds."""
    return int(torch.accelerator.memory_reserved(_index(device)))


def max_memory_reserved(device: Device = None) -> int:
    """The most that `memory_reserved` has been since the start or the last reset."""
    return int(torch.accelerator.max_memory_reserved(_index(device)))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Let the peaks begin again from what is now."""
    torch.accelerator.reset_peak_memory_stats(_index(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Let the running totals begin again from zero."""
    torch.accelerator.reset_accumulated_memory_stats(_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Bytes that no region holds yet, and bytes that the device has."""
    free, total = torch.accelerator.get_memory_info(_index(device))
    return int(free), int(total)


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Let regions take at most this share (0 to 1) of the device's memory. Raises ValueError outside."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"the fraction must be from 0 to 1, not {fraction}")
    index = _index(device)
    _adapter.set_memory_limit(index, int(_adapter.describe_device(index)["memory_bytes"] * fraction))


def empty_cache() -> None:
    """Give back the regions of all devices in which nothing is used."""
    for index in range(device_count()):
        _adapter.empty_cache(index)
