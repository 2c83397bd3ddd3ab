"""The torch-free core; see native/core/module.cpp. All sizes are in bytes."""

import builtins
from typing import Any, TypedDict

DEVICE_SLOTS: int
PLUGIN_ABI_VERSION: int

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
