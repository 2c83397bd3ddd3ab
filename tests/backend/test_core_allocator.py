"""What the allocator does, case by case; test_core_allocator_model.py has the random ones. And lists of devices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ral_trace.backend import core

KIB = 1024
MIB = 1024 * KIB


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


def places(allocator: core.RegionAllocator) -> list[tuple[int, int, str, int | None]]:
    return [(row["offset"], row["size"], row["state"], row["stream"]) for row in allocator.blocks()]


def test_split_and_merge() -> None:
    allocator = core.RegionAllocator(capacity=1 << 20, region_bytes=1024)
    first, second, third = (allocator.allocate(256) for _ in range(3))
    assert places(allocator) == [
        (0, 256, "used", 0),
        (256, 256, "used", 0),
        (512, 256, "used", 0),
        (768, 256, "free", None),
    ]
    allocator.free(first)
    allocator.free(third)
    assert [size for _, size, _, _ in places(allocator)] == [256, 256, 512]
    allocator.free(second)
    assert places(allocator) == [(0, 1024, "free", None)]


@pytest.fixture
def clock() -> core.ManualClock:
    return core.ManualClock()


def test_the_own_stream_has_a_freed_block_at_once_and_others_when_its_work_is_done(clock: core.ManualClock) -> None:
    allocator = core.RegionAllocator(capacity=1 << 20, region_bytes=1024, clock=clock)
    address = allocator.allocate(1024, stream=1)
    ticket = clock.submit(1)
    allocator.free(address)
    assert places(allocator) == [(0, 1024, "free", 1)]
    assert allocator.allocate(1024, stream=1) == address
    allocator.free(address)
    others = [allocator.allocate(1024, stream=2), allocator.allocate(1024, stream=2)]  # they fill a second range
    assert address not in others, "stream 1 is not done"
    clock.finish(1, ticket)
    assert allocator.allocate(1024, stream=2) == address
    assert allocator.stats()["waits"] == 0


def test_a_block_that_another_stream_uses_is_pending_until_that_is_done(clock: core.ManualClock) -> None:
    allocator = core.RegionAllocator(capacity=1 << 20, region_bytes=1024, clock=clock)
    address = allocator.allocate(1000, stream=0)
    allocator.record_stream(address, 3)
    clock.submit(0)
    ticket = clock.submit(3)
    later = clock.submit(3)
    allocator.free(address)
    later_still = clock.submit(3)
    assert places(allocator) == [(0, 1024, "pending", 0)]
    stats = allocator.stats()
    assert (stats["allocated_bytes"]["current"], stats["active_bytes"]["current"]) == (0, 1024)
    assert (stats["allocations"]["current"], stats["active"]["current"]) == (0, 1)
    clock.finish(3, ticket)
    clock.finish(0, 1)
    assert allocator.collect_garbage() == 0
    clock.finish(3, later)
    assert allocator.collect_garbage() == 1024, "what was submitted after the free does not count"
    assert not clock.done(3, later_still)


def test_a_recorded_stream_that_is_idle_costs_nothing(clock: core.ManualClock) -> None:
    allocator = core.RegionAllocator(capacity=1 << 20, region_bytes=1024, clock=clock)
    address = allocator.allocate(1024)
    allocator.record_stream(address, 3)
    allocator.record_stream(address, 0)
    allocator.free(address)
    assert allocator.allocate(1024) == address


def test_a_region_is_not_given_back_while_its_stream_works(clock: core.ManualClock) -> None:
    allocator = core.RegionAllocator(capacity=1 << 20, region_bytes=1024, clock=clock)
    address = allocator.allocate(1024)
    ticket = clock.submit(0)
    allocator.free(address)
    assert allocator.collect_garbage() == 0
    assert allocator.empty_cache() == 1024, "this waits"
    assert clock.done(0, ticket)


def test_memory_is_waited_for_before_there_is_none(clock: core.ManualClock) -> None:
    allocator = core.RegionAllocator(capacity=4096, region_bytes=4096, clock=clock)
    mine, shared = allocator.allocate(2048, stream=1), allocator.allocate(2048, stream=1)
    allocator.record_stream(shared, 2)
    tickets = {stream: clock.submit(stream) for stream in (1, 2, 3)}
    allocator.free(mine)
    allocator.free(shared)
    assert allocator.allocate(4096, stream=3) == mine
    assert allocator.stats()["waits"] == 1
    assert [clock.done(stream, ticket) for stream, ticket in tickets.items()] == [True, True, False]
    with pytest.raises(core.OutOfMemory):
        allocator.allocate(8192, stream=3)
    assert allocator.stats()["waits"] == 1, "no wait makes room for more than there is"


def test_no_such_stream(clock: core.ManualClock) -> None:
    allocator = core.RegionAllocator(capacity=1 << 20, clock=clock)
    with pytest.raises(ValueError, match="no stream 32; streams are 0 to 31"):
        allocator.allocate(1, stream=core.MAX_STREAMS)


def striped(offset: int, domains: int, stripe: int) -> tuple[int, int]:
    """Domain and offset of one byte, stripe by stripe."""
    number, within = divmod(offset, stripe)
    return number % domains, number // domains * stripe + within


@given(
    domains=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=12),
)
def test_pieces_are_where_the_bytes_are(domains: int, sizes: list[int]) -> None:
    """Against the definition, granule by granule: stripe n lies in domain n modulo D, after the earlier ones of it."""
    granule, stripe = 128, 256
    allocator = core.RegionAllocator(capacity=1 << 20, region_bytes=1 << 15, domains=domains, stripe_bytes=stripe)
    handles: dict[int, int] = {}
    for size in sizes:
        address = allocator.allocate(size * granule)
        (base,) = {region[1] for region in allocator.regions()}
        handles |= {region[3]: region[0] for region in allocator.regions()}
        expected: dict[int, list[int]] = {}
        for byte in range(address - base, address - base + size * granule, granule):
            domain, offset = striped(byte, domains, stripe)
            expected.setdefault(domain, []).append(offset)
        pieces = allocator.pieces(address)
        assert [piece[1] for piece in pieces] == sorted(expected)
        for handle, domain, offset, length in pieces:
            assert handle == handles[domain]
            assert list(range(offset, offset + length, granule)) == expected[domain]


def test_a_range_costs_a_handle_a_domain() -> None:
    allocator = core.RegionAllocator(
        capacity=1 << 20, region_bytes=1024, max_regions=7, domains=3, stripe_bytes=256, settings="max_split_size_mb:1"
    )
    allocator.allocate(1)
    first = allocator.regions()
    assert [(length, domain) for _, _, length, domain in first] == [(512, 0), (512, 1), (512, 2)]
    assert len({handle for handle, _, _, _ in first}) == 3
    assert len({address for _, address, _, _ in first}) == 1
    allocator.allocate(3 << 10)
    assert len(allocator.regions()) == 6
    with pytest.raises(core.OutOfMemory):
        allocator.allocate(1 << 16)


def test_generations_count_allocations() -> None:
    allocator = core.RegionAllocator(capacity=1 << 20)
    address = allocator.allocate(64)
    assert allocator.generation(address) == 1
    allocator.free(address)
    assert allocator.allocate(64) == address
    assert allocator.generation(address) == 2


def test_large_blocks_are_not_split() -> None:
    allocator = core.RegionAllocator(capacity=256 * MIB, region_bytes=2 * MIB, settings="max_split_size_mb:32")
    large = allocator.allocate(64 * MIB)
    small = allocator.allocate(MIB)
    allocator.free(large)
    assert allocator.allocate(2 * MIB) not in range(large, large + 64 * MIB)
    assert allocator.allocate(40 * MIB) != large, "a block of 24 MiB more is too much"
    assert allocator.allocate(50 * MIB) == large
    assert [row["size"] for row in allocator.blocks() if row["requested"] == 50 * MIB] == [64 * MIB]
    allocator.set_settings("")
    allocator.free(large)
    assert allocator.allocate(MIB + 128) in range(large, large + 64 * MIB)
    assert allocator.settings() == ""
    allocator.free(small)


def test_unused_regions_are_given_back_above_the_threshold() -> None:
    """The one that is unused for longest first, and no more than need be."""
    allocator = core.RegionAllocator(
        capacity=1000 * KIB, region_bytes=100 * KIB, settings="garbage_collection_threshold:0.65,max_split_size_mb:1"
    )
    blocks = [allocator.allocate(100 * KIB), allocator.allocate(200 * KIB), allocator.allocate(400 * KIB)]
    assert [length // KIB for _, _, length, _ in allocator.regions()] == [100, 200, 400]
    allocator.free(blocks[1])
    allocator.free(blocks[0])
    allocator.allocate(300 * KIB)  # 700 KiB are reserved, 650 may be
    assert sorted(length // KIB for _, _, length, _ in allocator.regions()) == [100, 400, 400]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("max_split_size:1", '"max_split_size" is no option'),
        ("max_split_size_mb", 'max_split_size_mb is "", not a whole number'),
        ("max_split_size_mb:0", "not a whole number"),
        ("max_split_size_mb:-1", "not a whole number"),
        ("max_split_size_mb:99999999999999999999", "not a whole number"),
        ("garbage_collection_threshold:1.5", "not between 0 and 1"),
        ("garbage_collection_threshold:nan", "not between 0 and 1"),
        ("garbage_collection_threshold:0.8x", "not between 0 and 1"),
        ("max_split_size_mb:1,,", '"" is no option'),
        ("region_size_mb:0", "region_size_mb is .*not a whole number"),
        ("fit:worst", 'fit is "worst", not best or first'),
    ],
)
def test_settings_that_cannot_be(text: str, reason: str) -> None:
    allocator = core.RegionAllocator(capacity=1 << 20, settings="max_split_size_mb:7")
    with pytest.raises(
        core.BadSettings,
        match=f"{reason}.*; options are max_split_size_mb:N .*threshold:X .*region_size_mb:N .*fit:best",
    ):
        allocator.set_settings(text)
    assert allocator.settings() == "max_split_size_mb:7"


def test_settings_round_trip() -> None:
    text = "max_split_size_mb:128,garbage_collection_threshold:0.8,region_size_mb:8,fit:first"
    allocator = core.RegionAllocator(capacity=1 << 20, settings=f" {text.replace(',', ' , ')} ")
    assert allocator.settings() == text


def test_the_settings_region_size_goes_before_the_devices() -> None:
    allocator = core.RegionAllocator(capacity=64 * MIB, region_bytes=16 * MIB, settings="region_size_mb:2")
    for size in (1, 2, 5):
        allocator.allocate(size * MIB)
    assert [length // MIB for _, _, length, _ in allocator.regions()] == [2, 4, 8]


@given(sizes=st.lists(st.integers(1, 900), min_size=2, max_size=30), wanted=st.integers(1, 900))
def test_first_fit(sizes: list[int], wanted: int) -> None:
    """Of several holes that are large enough the first is taken; some are of the sizes that have lists, some not."""
    allocator = core.RegionAllocator(capacity=16 * MIB, settings="fit:first,max_split_size_mb:15")
    holes = []
    for size in sizes:
        holes.append((allocator.allocate(size * 128), size))
        allocator.allocate(128)  # keeps the holes apart
    for address, _ in holes:
        allocator.free(address)
    found = allocator.allocate(wanted * 128)
    fitting = [address for address, size in holes if size >= wanted]
    assert found == fitting[0] if fitting else found not in dict(holes)
    assert allocator.check() == ""


def test_first_fit_prefers_the_older_range() -> None:
    allocator = core.RegionAllocator(capacity=8 * MIB, region_bytes=MIB, max_regions=8, settings="fit:first")
    older, newer = allocator.allocate(MIB), allocator.allocate(2 * MIB)
    allocator.free(newer)
    allocator.free(older)
    assert allocator.allocate(KIB) == older


def steps(*rows: tuple[str, int, int, int]) -> list[np.ndarray]:
    """Columns of (action, block, amount, stream)."""
    action, block, amount, stream = zip(*rows, strict=True)
    numbers = [core.REPLAY_ACTIONS.index(name) for name in action]
    types = (np.uint8, np.uint32, np.uint64, np.uint8)
    return [np.array(column, kind) for column, kind in zip((numbers, block, amount, stream), types, strict=True)]


def test_replay() -> None:
    """Of a range of 1 KiB stream 0 frees 512 bytes; stream 1 may have them when what 0 had begun is done."""
    rows = [
        ("allocate", 7, 500, 0),
        ("allocate", 8, 300, 0),
        ("submit", 0, 0, 0),
        ("free", 7, 0, 0),
        ("free", 99, 0, 0),  # its alloc was lost
        ("finish", 0, 1, 0),
        ("allocate", 7, 512, 1),
    ]
    setup = {"capacity": 2048, "region_bytes": 1024}
    assert core.replay(*steps(*rows), **setup) == {
        "peak_reserved_bytes": 1024,
        "peak_reserved_step": 0,
        "peak_allocated_bytes": 512 + 384,
        "regions_opened": 1,
        "retries": 0,
        "waits": 0,
        "out_of_memory_step": None,
        "end_reserved_bytes": 1024,
        "end_allocated_bytes": 384 + 512,
        "largest_free_bytes": 128,
    }
    waits = core.replay(*steps(*rows[:5], *rows[6:]), **setup)
    assert (waits["peak_reserved_bytes"], waits["peak_reserved_step"], waits["regions_opened"]) == (2048, 5, 2)


def test_a_replay_ends_where_memory_runs_out() -> None:
    rows = [("allocate", 0, 600, 0), ("allocate", 1, 600, 0), ("free", 0, 0, 0)]
    found = core.replay(*steps(*rows), capacity=1024)
    assert (found["out_of_memory_step"], found["end_allocated_bytes"]) == (1, 640)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("allocate", 0, 1, 0), ("allocate", 0, 1, 0)], "step 1: the block is in use already"),
        ([("allocate", 0, 1, 32)], "step 0: there is no such stream"),
    ],
)
def test_replays_that_cannot_be(rows: list[tuple[str, int, int, int]], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        core.replay(*steps(*rows), capacity=1024)
    columns = steps(*rows)
    with pytest.raises(ValueError, match="of one length"):
        core.replay(columns[0], columns[1][:0], *columns[2:], capacity=1024)
    with pytest.raises(ValueError, match="no such action"):
        core.replay(columns[0] * 0 + 4, *columns[1:], capacity=1024)


def test_inactive_split_is_free_memory_beside_something_active() -> None:
    allocator = core.RegionAllocator(capacity=1 << 20, region_bytes=1024)
    first, second = allocator.allocate(256), allocator.allocate(256)
    allocator.allocate(512)
    stats = allocator.stats()
    assert stats["inactive_split_bytes"]["current"] == stats["inactive_split"]["current"] == 0
    assert (stats["inactive_split_bytes"]["peak"], stats["inactive_split"]["peak"]) == (768, 1)
    allocator.free(first)
    stats = allocator.stats()
    assert (stats["inactive_split_bytes"]["current"], stats["inactive_split"]["current"]) == (256, 1)
    allocator.free(second)
    stats = allocator.stats()
    assert (stats["inactive_split_bytes"]["current"], stats["inactive_split"]["current"]) == (512, 1)


def test_out_of_memory_says_what_there_is_and_the_allocator_goes_on() -> None:
    allocator = core.RegionAllocator(capacity=1 << 20, region_bytes=1 << 18)
    address = allocator.allocate(1 << 17)
    with pytest.raises(
        core.OutOfMemory,
        match=r"requested 2097152 bytes; 131072 free of 262144 reserved, capacity 1048576, "
        r"largest free block 131072, fragmentation 0.0%",
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
    "arguments",
    [
        {"capacity": 0},
        {"capacity": 1, "alignment": 100},
        {"capacity": 1, "region_bytes": 0},
        {"capacity": 1, "domains": 0},
        {"capacity": 1, "domains": 17},
        {"capacity": 1, "domains": 2, "stripe_bytes": 100},
    ],
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
