"""The torch-free core; see native/core/module.cpp. All sizes are in bytes."""

import builtins
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

DEVICE_SLOTS: int
PLUGIN_ABI_VERSION: int
MAX_STREAMS: int

class OutOfMemory(MemoryError): ...
class BadDeviceList(ValueError): ...
class BadSettings(ValueError): ...

class Amount(TypedDict):
    """`current` and its `peak`; `allocated` and `freed` since the last reset."""

    current: int
    peak: int
    allocated: int
    freed: int

class Stats(TypedDict):
    """Bytes in use (block sizes, and as asked for), active (in use, or pending), in regions, free beside something
    active; how many of each; and how often an allocation had to give regions back, wait, or fail.
    """

    allocated_bytes: Amount
    requested_bytes: Amount
    reserved_bytes: Amount
    active_bytes: Amount
    inactive_split_bytes: Amount
    allocations: Amount
    regions: Amount
    active: Amount
    inactive_split: Amount
    retries: int
    waits: int
    ooms: int

class BlockRow(TypedDict):
    """A block: its range's first handle, its offset there, its state (free, used, pending). `stream` is the one that
    may use a free block at once, None where all may; `requested` is None where free.
    """

    handle: int
    offset: int
    size: int
    requested: int | None
    state: str
    stream: int | None

class ManualClock:
    """Streams without work: tickets are done when somebody says so, or waits for them."""

    def submit(self, stream: int) -> int:
        """The ticket of one more item."""
    def finish(self, stream: int, ticket: int) -> None:
        """All up to the ticket is done."""
    def done(self, stream: int, ticket: int) -> bool: ...

class DeviceRow(TypedDict):
    """One device as its vendor describes it; `dtypes` has a bit of each ral_dtype."""

    vendor: str
    name: str
    memory_bytes: int
    max_regions: int
    alignment: int
    domains: int
    host_addressable: bool
    preferred_layout: str
    dtypes: int

class IndexedDeviceRow(DeviceRow):
    """The same with its number."""

    index: int

class VendorRow(TypedDict):
    """A vendor that is loaded in this copy of the core."""

    vendor: str
    version: str
    devices: builtins.list[DeviceRow]

class RegionAllocator:
    """One caching allocator over a few regions: best (or first) fit, split on allocation, merged on free.

    `capacity`: what all regions together may have; `region_bytes`: the first range's length, later ones grow up to
    8 times that; `alignment`: of addresses and block sizes, a power of two; `domains`: each range is striped over so
    many memory domains, and costs a handle of `max_regions` for each; `settings`: like set_settings; `clock`: how far
    the streams are, None: all streams are one. Raises ValueError for what cannot be.
    """

    def __init__(
        self,
        capacity: int,
        region_bytes: int = ...,
        max_regions: int = 16,
        alignment: int = 128,
        backed: bool = False,
        domains: int = 1,
        stripe_bytes: int = ...,
        settings: str = "",
        clock: ManualClock | None = None,
    ) -> None: ...
    def allocate(self, bytes: int, stream: int = 0) -> int:
        """The address of a block of at least this size. Raises OutOfMemory."""
    def record_stream(self, address: int, stream: int) -> None:
        """Another stream uses the block too."""
    def free(self, address: int) -> None: ...
    def touch(self, address: int) -> int:
        """Count one more use of a block; returns the count."""
    def generation(self, address: int) -> int:
        """Of all allocations, which one this block is."""
    def pieces(self, address: int) -> list[tuple[int, int, int, int]]:
        """(region's handle, memory domain, offset, length) of each piece of a block."""
    def empty_cache(self) -> int:
        """Wait for what frees memory, and give back regions in which nothing is used; returns their bytes."""
    def collect_garbage(self) -> int:
        """The same without the wait."""
    def set_limit(self, bytes: int) -> None:
        """Let regions have at most this together from now on. Raises ValueError for more than the capacity."""
    def set_settings(self, settings: str) -> None:
        """ "max_split_size_mb:N,garbage_collection_threshold:X,region_size_mb:N,fit:first". Raises BadSettings."""
    def settings(self) -> str: ...
    def stats(self) -> Stats: ...
    def reset_peaks(self) -> None: ...
    def reset_totals(self) -> None: ...
    def largest_free_block(self) -> int: ...
    def regions(self) -> list[tuple[int, int, int, int]]:
        """(handle, the range's address, length, memory domain) of each."""
    def blocks(self) -> list[BlockRow]:
        """Range by range in address order."""
    def check(self) -> str:
        """What is wrong with the structure, or an empty text. For tests."""

class Replayed(TypedDict):
    """What became of a sequence: the most bytes in regions and in use at one time, and at which step that was first so;
    regions opened; allocations for which cached memory had to be given back, or that had to wait; the step that ran out
    of memory, where the replay ends; and what is reserved, allocated, and the largest free block after the last step.
    """

    peak_reserved_bytes: int
    peak_reserved_step: int | None
    peak_allocated_bytes: int
    regions_opened: int
    retries: int
    waits: int
    out_of_memory_step: int | None
    end_reserved_bytes: int
    end_allocated_bytes: int
    largest_free_bytes: int

def replay(
    action: npt.NDArray[np.uint8],
    block: npt.NDArray[np.uint32],
    amount: npt.NDArray[np.uint64],
    stream: npt.NDArray[np.uint8],
    capacity: int,
    region_bytes: int = ...,
    max_regions: int = 16,
    alignment: int = 128,
    domains: int = 1,
    stripe_bytes: int = ...,
    settings: str = "",
) -> Replayed:
    """Does to an allocator over imaginary addresses what a sequence of steps says. `action` (an index of
    REPLAY_ACTIONS): allocate (`block` is the number by which it is freed, `amount` its bytes), free, submit (one more
    item to `stream`), finish (all items of `stream` up to the ticket `amount` are done; tickets count from 1).

    Raises ValueError for columns of unequal length, a block that is in use already, and what RegionAllocator refuses.
    A free of a block that is not in use does nothing.
    """

REPLAY_ACTIONS: tuple[str, ...]

def list_devices(list: str) -> builtins.list[IndexedDeviceRow]:
    """What "host:1,sim:2" stands for. Raises BadDeviceList."""

def list_vendors() -> list[VendorRow]: ...
def load_plugin(library: str, name: str) -> tuple[str, str]:
    """("LOADED", ""), or a code and why the library cannot be used. Its code runs in this process."""

def add_vendor(name: str, version: str, devices: builtins.list[dict[str, Any]], arenas: builtins.list[int]) -> str:
    """Adds a vendor that is described; returns the fault, or "".

    `arenas`: where the memory of each device begins, 0: it is mapped.
    """

def described_fault(device: dict[str, Any]) -> str: ...
def vendors() -> builtins.list[str]:
    """Names of those that are loaded."""
