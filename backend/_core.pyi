"""The torch-free core; see native/core/module.cpp. All sizes are in bytes."""

import builtins
from typing import TypedDict

DEVICE_SLOTS: int
KERNEL_ABI_VERSION: int

class OutOfMemory(MemoryError): ...
class BadDeviceList(ValueError): ...

class Amount(TypedDict):
    """`current` and its `peak`; `allocated` and `freed` since the last reset."""

    current: int
    peak: int
    allocated: int
    freed: int

class Stats(TypedDict):
    """Bytes in use (block sizes, and as asked for), bytes in regions, and how many of each."""

    allocated_bytes: Amount
    requested_bytes: Amount
    reserved_bytes: Amount
    allocations: Amount
    regions: Amount
    inactive_split_bytes: int
    retries: int
    ooms: int

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

    `capacity`: what all regions together may have; `region_bytes`: the first region's length, later ones grow up to
    8 times that; `alignment`: of addresses and block sizes, a power of two. Raises ValueError for sizes of zero and
    other alignments.
    """

    def __init__(
        self, capacity: int, region_bytes: int = ..., max_regions: int = 16, alignment: int = 128, backed: bool = False
    ) -> None: ...
    def allocate(self, bytes: int) -> int:
        """The address of a block of at least this size. Raises OutOfMemory."""
    def free(self, address: int) -> None: ...
    def touch(self, address: int) -> int:
        """Count one more use of a block; returns the count."""
    def empty_cache(self) -> int:
        """Give back regions in which nothing is used; returns their bytes."""
    def set_limit(self, bytes: int) -> None:
        """Let regions have at most this together from now on. Raises ValueError for more than the capacity."""
    def stats(self) -> Stats: ...
    def reset_peaks(self) -> None: ...
    def largest_free_block(self) -> int: ...
    def regions(self) -> list[tuple[int, int, int]]:
        """(handle, address, length) of each."""
    def blocks(self) -> list[tuple[int, int, int, int | None]]:
        """(region's handle, offset, size, bytes asked for or None where free), region by region in address order."""
    def check(self) -> str:
        """What is wrong with the structure, or an empty text. For tests."""

def list_devices(list: str) -> builtins.list[DeviceRow]:
    """What "host:1,sim:2" stands for. Raises BadDeviceList."""

def list_vendors() -> list[VendorRow]: ...
