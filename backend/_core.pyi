"""The torch-free core; see native/core/module.cpp. All sizes are in bytes."""

import builtins
from typing import TypedDict

DEVICE_SLOTS: int
MAX_STREAMS: int
KERNEL_ABI_VERSION: int

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

class VendorRow(TypedDict):
    """One vendor that is built in."""

    vendor: str
    name: str
    memory_bytes: int
    max_regions: int
    host_addressable: bool

class DeviceRow(VendorRow):
    """One device of a list."""

    index: int

class RegionAllocator:
    """One caching allocator over a few regions: best fit, split on allocation, merged on free.

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
        """ "max_split_size_mb:N,garbage_collection_threshold:X". Raises BadSettings."""
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

def list_devices(list: str) -> builtins.list[DeviceRow]:
    """What "host:1,sim:2" stands for. Raises BadDeviceList."""

def list_vendors() -> list[VendorRow]: ...
