"""The allocator, whatever is asked of it: no overlap, the sums agree, all is merged again at the end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ral_trace.backend import core

KIB = 1024
SIZES = st.one_of(
    st.integers(0, 2048), st.integers(0, 300 * KIB), st.sampled_from([127, 128, 129, 64 * KIB, 1024 * KIB])
)


def rounded(size: int) -> int:
    return max(128, (size + 127) // 128 * 128)


class AllocatorModel(RuleBasedStateMachine):
    """Random allocations and frees against what is known to be live."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = core.RegionAllocator(capacity=4096 * KIB, region_bytes=256 * KIB, max_regions=6)
        self.live: dict[int, int] = {}

    @rule(size=SIZES)
    def allocate(self, size: int) -> None:
        try:
            address = self.allocator.allocate(size)
        except core.OutOfMemory:
            assert self.allocator.largest_free_block() < rounded(size)
            return
        assert address % 128 == 0
        assert address not in self.live
        self.live[address] = size

    @rule(pick=st.randoms())
    def free(self, pick) -> None:
        if self.live:
            address = pick.choice(sorted(self.live))
            self.allocator.free(address)
            del self.live[address]

    @rule()
    def empty_cache(self) -> None:
        before = self.allocator.stats()["reserved_bytes"]["current"]
        given_back = self.allocator.empty_cache()
        assert self.allocator.stats()["reserved_bytes"]["current"] == before - given_back

    @invariant()
    def fits_together(self) -> None:
        assert self.allocator.check() == ""
        stats = self.allocator.stats()
        assert stats["allocated_bytes"]["current"] == sum(rounded(size) for size in self.live.values())
        assert stats["requested_bytes"]["current"] == sum(self.live.values())
        assert stats["allocations"]["current"] == len(self.live)
        assert stats["reserved_bytes"]["current"] <= 4096 * KIB
        assert len(self.allocator.regions()) <= 6
        self.no_overlap()

    def no_overlap(self) -> None:
        end = 0
        for address, size in sorted(self.live.items()):
            assert address >= end
            end = address + rounded(size)

    def teardown(self) -> None:
        for address in self.live:
            self.allocator.free(address)
        free = [block for block in self.allocator.blocks() if block[3] is None]
        assert len(free) == len(self.allocator.blocks()) == len(self.allocator.regions())
        self.allocator.empty_cache()
        assert self.allocator.regions() == []
        assert self.allocator.check() == ""


TestAllocator = AllocatorModel.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


@given(sizes=st.lists(st.integers(1, 40), min_size=2, max_size=30, unique=True), wanted=st.integers(1, 40))
def test_best_fit(sizes: list[int], wanted: int) -> None:
    """Of several holes the smallest that is large enough is taken."""
    allocator = core.RegionAllocator(capacity=1 << 20)
    holes = {}
    for size in sizes:
        holes[allocator.allocate(size * 128)] = size
        allocator.allocate(128)  # keeps the holes apart
    for address in holes:
        allocator.free(address)
    address = allocator.allocate(wanted * 128)
    fitting = [size for size in sizes if size >= wanted]
    if fitting:
        assert holes[address] == min(fitting)
    else:
        assert address not in holes


def test_split_and_merge() -> None:
    allocator = core.RegionAllocator(capacity=1 << 20, region_bytes=1024)
    first, second, third = (allocator.allocate(256) for _ in range(3))
    assert [block[1:] for block in allocator.blocks()] == [
        (0, 256, 256),
        (256, 256, 256),
        (512, 256, 256),
        (768, 256, None),
    ]
    allocator.free(first)
    allocator.free(third)
    assert [block[2] for block in allocator.blocks()] == [256, 256, 512]
    allocator.free(second)
    assert [block[1:] for block in allocator.blocks()] == [(0, 1024, None)]


def test_out_of_memory_says_what_there_is_and_the_allocator_goes_on() -> None:
    allocator = core.RegionAllocator(capacity=1 << 20, region_bytes=1 << 18)
    address = allocator.allocate(1 << 17)
    with pytest.raises(
        core.OutOfMemory, match=r"requested 2097152 bytes; .* capacity 1048576, largest free block 131072"
    ):
        allocator.allocate(1 << 21)
    assert allocator.stats()["ooms"] == 1
    allocator.free(address)
    assert allocator.allocate(1 << 20), "the cached region is given back for one that fits"
    assert allocator.stats()["retries"] == 1


def test_limit() -> None:
    allocator = core.RegionAllocator(capacity=1 << 20, region_bytes=1 << 17)
    allocator.set_limit(1 << 18)
    with pytest.raises(core.OutOfMemory):
        allocator.allocate((1 << 18) + 1)
    with pytest.raises(ValueError, match="above the device's memory"):
        allocator.set_limit(1 << 21)


@pytest.mark.parametrize(
    "arguments", [{"capacity": 0}, {"capacity": 1, "alignment": 100}, {"capacity": 1, "region_bytes": 0}]
)
def test_refused_settings(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        core.RegionAllocator(**arguments)


def test_free_of_an_address_that_is_no_block() -> None:
    allocator = core.RegionAllocator(capacity=1 << 20)
    address = allocator.allocate(1000)
    assert [allocator.touch(address), allocator.touch(address)] == [1, 2]
    with pytest.raises(ValueError, match="no block in use"):
        allocator.free(address + 128)
    allocator.free(address)
    with pytest.raises(ValueError, match="no block in use"):
        allocator.free(address)
