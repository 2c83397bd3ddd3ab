"""`torch.ral`: what torch and programs expect of a device's module."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ral_trace.backend import _adapter, inductor, memory
from ral_trace.backend.compiled import set_compiled as set_compiled
from ral_trace.backend.dispatch import dispatch_records as dispatch_records
from ral_trace.backend.dispatch import export_dispatch_records as export_dispatch_records
from ral_trace.backend.dispatch import set_fallback_thresholds as set_fallback_thresholds
from ral_trace.backend.memory import Device
from ral_trace.backend.memory import index_of as _index
from ral_trace.backend.prepared import launch_jobplan as launch_jobplan
from ral_trace.backend.prepared import prepare_kernel as prepare_kernel
from ral_trace.backend.reloading import reload_plugins as reload_plugins

# torch.Stream and torch.Event already know the device; here they get its name, as torch.cuda has it.
Stream = torch.Stream
Event = torch.Event
# Gradient checkpointing asks for it before it saves the state of the random numbers.
_initialized = True


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


def record_launch_sites(on: bool = True) -> None:
    """Let the error of a kernel that ran later say which line launched it; costs a few microseconds a launch.

    Also the environment's RAL_LAUNCH_SITES=1.
    """
    _adapter.record_launch_sites(on)


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


# --- memory: all of it is in torch.ral.memory; these are where torch.cuda has them ------------------------------------

memory_stats = memory.memory_stats
memory_summary = memory.memory_summary
memory_allocated = memory.memory_allocated
max_memory_allocated = memory.max_memory_allocated
memory_reserved = memory.memory_reserved
max_memory_reserved = memory.max_memory_reserved
reset_peak_memory_stats = memory.reset_peak_memory_stats
reset_accumulated_memory_stats = memory.reset_accumulated_memory_stats
mem_get_info = memory.mem_get_info
set_per_process_memory_fraction = memory.set_per_process_memory_fraction
empty_cache = memory.empty_cache
gc = memory.collect_garbage


def __getattr__(name: str) -> type[inductor.NoCode]:
    """What Inductor asks for and is not here."""
    return inductor.answer(name)
