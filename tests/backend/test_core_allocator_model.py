"""The allocator, whatever is asked of it: no overlap, no reuse before a stream is done, the sums agree, and all is
given back at the end.
"""

import itertools
from dataclasses import dataclass
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ral_trace.backend import core

KIB = 1024
CAPACITY = 4096 * KIB
STREAMS = 3
ONE_STREAM = st.integers(0, STREAMS - 1)
SIZES = st.one_of(
    st.integers(0, 2048), st.integers(0, 300 * KIB), st.sampled_from([127, 128, 129, 64 * KIB, 1024 * KIB])
)


def rounded(size: int) -> int:
    return max(128, (size + 127) // 128 * 128)


@dataclass(frozen=True)
class Freed:
    """A block that was freed: its own stream may have it when `others` are done, all may when `own` is done too."""

    address: int
    size: int
    own: tuple[int, int]
    others: tuple[tuple[int, int], ...]


class AllocatorModel(RuleBasedStateMachine):
    """Random allocations, frees and work on three streams against what is known to be live and what is not done yet."""

    domains = 1
    max_regions = 6

    def __init__(self) -> None:
        super().__init__()
        self.clock = core.ManualClock()
        self.allocator = core.RegionAllocator(
            capacity=CAPACITY, region_bytes=256 * KIB, max_regions=self.max_regions, domains=self.domains,
            stripe_bytes=64 * KIB, clock=self.clock,
        )  # fmt: skip
        self.live: dict[int, tuple[int, int, frozenset[int]]] = {}  # address: size, stream, recorded streams
        self.freed: list[Freed] = []
        self.submitted = [0] * STREAMS

    @rule(size=SIZES, stream=ONE_STREAM)
    def allocate(self, size: int, stream: int) -> None:
        before = self.allocator.stats()["ooms"]
        try:
            address = self.allocator.allocate(size, stream)
        except core.OutOfMemory:
            assert self.allocator.stats()["ooms"] == before + 1
            # A block that is too large to be split for this is the only one that may be left.
            assert self.allocator.largest_free_block() < rounded(size) or "split" in self.allocator.settings()
            return
        assert address % 128 == 0
        assert address not in self.live
        self.live[address] = (size, stream, frozenset())
        for freed in self.freed:
            if freed.address < address + rounded(size) and address < freed.address + freed.size:
                assert all(self.clock.done(*ticket) for ticket in freed.others)
                assert freed.own[0] == stream or self.clock.done(*freed.own)

    @rule(pick=st.randoms(), stream=ONE_STREAM)
    def record_stream(self, pick: Random, stream: int) -> None:
        if self.live:
            address = pick.choice(sorted(self.live))
            self.allocator.record_stream(address, stream)
            size, own, recorded = self.live[address]
            self.live[address] = (size, own, recorded | {stream})

    @rule(pick=st.randoms())
    def free(self, pick: Random) -> None:
        if self.live:
            address = pick.choice(sorted(self.live))
            size, own, recorded = self.live.pop(address)
            others = tuple((stream, self.submitted[stream]) for stream in recorded - {own})
            self.freed.append(Freed(address, rounded(size), (own, self.submitted[own]), others))
            self.allocator.free(address)

    @rule(stream=ONE_STREAM)
    def submit(self, stream: int) -> None:
        self.submitted[stream] = self.clock.submit(stream)

    @rule(stream=ONE_STREAM, behind=st.integers(0, 3))
    def finish(self, stream: int, behind: int) -> None:
        self.clock.finish(stream, max(0, self.submitted[stream] - behind))

    @rule()
    def empty_cache(self) -> None:
        before = self.allocator.stats()["reserved_bytes"]["current"]
        given_back = self.allocator.empty_cache()
        assert self.allocator.stats()["reserved_bytes"]["current"] == before - given_back

    @rule()
    def collect_garbage(self) -> None:
        waits = self.allocator.stats()["waits"]
        before = self.allocator.stats()["reserved_bytes"]["current"]
        given_back = self.allocator.collect_garbage()
        assert self.allocator.stats()["reserved_bytes"]["current"] == before - given_back
        assert self.allocator.stats()["waits"] == waits

    @rule(text=st.sampled_from(["", "max_split_size_mb:1", "garbage_collection_threshold:0.5"]))
    def set_settings(self, text: str) -> None:
        self.allocator.set_settings(text)

    @invariant()
    def fits_together(self) -> None:
        assert self.allocator.check() == ""
        stats = self.allocator.stats()
        blocks = self.allocator.blocks()
        used = {
            state: [row["size"] for row in blocks if row["state"] == state] for state in ("used", "pending", "free")
        }
        assert stats["allocated_bytes"]["current"] == sum(used["used"])
        assert stats["active_bytes"]["current"] == sum(used["used"]) + sum(used["pending"])
        assert stats["reserved_bytes"]["current"] == sum(map(sum, used.values())) <= CAPACITY
        assert stats["requested_bytes"]["current"] == sum(size for size, _, _ in self.live.values())
        assert stats["allocations"]["current"] == len(self.live) == len(used["used"])
        assert len(self.allocator.regions()) <= self.max_regions
        self.no_overlap()

    def no_overlap(self) -> None:
        end = 0
        for address, (size, _, _) in sorted(self.live.items()):
            assert address >= end
            end = address + rounded(size)

    @invariant()
    def memory_in_use_by_a_stream_is_not_given_back(self) -> None:
        open_ranges = {address: length * self.domains for _, address, length, _ in self.allocator.regions()}
        kept = []
        for freed in self.freed:
            if any(begin <= freed.address < begin + length for begin, length in open_ranges.items()):
                kept.append(freed)
            else:
                assert all(self.clock.done(*ticket) for ticket in (freed.own, *freed.others))
        self.freed = kept

    @invariant()
    def pieces_fill_their_regions(self) -> None:
        """Each byte of each used block is in exactly one place of one region."""
        lengths = {handle: length for handle, _, length, _ in self.allocator.regions()}
        taken: dict[int, list[tuple[int, int]]] = {}
        for address, (size, _, _) in self.live.items():
            pieces = self.allocator.pieces(address)
            assert sum(piece[3] for piece in pieces) >= rounded(size)
            assert len({piece[0] for piece in pieces}) == len(pieces) <= self.domains
            for handle, _, offset, length in pieces:
                taken.setdefault(handle, []).append((offset, offset + length))
        for handle, spans in taken.items():
            spans.sort()
            assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
            assert spans[-1][1] <= lengths[handle]

    def teardown(self) -> None:
        for address in self.live:
            self.allocator.free(address)
        for stream in range(STREAMS):
            self.clock.finish(stream, self.submitted[stream])
        reserved = self.allocator.stats()["reserved_bytes"]["current"]
        assert self.allocator.collect_garbage() == reserved
        assert self.allocator.regions() == []
        assert self.allocator.check() == ""


class StripedModel(AllocatorModel):
    """The same on a device with three memory domains."""

    domains = 3
    max_regions = 8


TestAllocator = AllocatorModel.TestCase
TestStripedAllocator = StripedModel.TestCase
for case in (TestAllocator, TestStripedAllocator):
    case.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
