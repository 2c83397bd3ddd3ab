"""The torch-free core: the devices' allocator and the list of devices. `analysis` may import this module, for replay.

RegionAllocator is the one allocator that the devices use; here it runs over imaginary addresses unless `backed` is
true, and over streams that a ManualClock moves. All sizes are in bytes. `allocate` raises OutOfMemory (a MemoryError
that says requested, free, reserved, capacity, the largest free block and the fragmentation), `free` and `touch` raise
ValueError for an address at which no used block begins. `replay` does a whole sequence of steps to such an allocator.
"""

from typing import TYPE_CHECKING

from ral_trace.backend._core import (
    DEVICE_SLOTS,
    MAX_STREAMS,
    REPLAY_ACTIONS,
    BadDeviceList,
    BadSettings,
    ManualClock,
    OutOfMemory,
    RegionAllocator,
    list_devices,
    list_vendors,
    replay,
)

if TYPE_CHECKING:
    from ral_trace.backend._core import Replayed as Replayed

__all__ = [
    "DEVICE_SLOTS",
    "MAX_STREAMS",
    "REPLAY_ACTIONS",
    "BadDeviceList",
    "BadSettings",
    "ManualClock",
    "OutOfMemory",
    "RegionAllocator",
    "list_devices",
    "list_vendors",
    "replay",
]
