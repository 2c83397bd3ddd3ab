"""Where blocks lie on a device whose memory is striped over domains: the trace says what the allocator says."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.backend import core
from ral_trace.tracer import _native
from ral_trace.tracer.schema import FLAGS
from tests.tracer.test_derive import Maker
from tests.tracer.test_live import Made

KIB = 1024


@settings(max_examples=25, deadline=None)
@given(
    domains=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 40 * KIB), min_size=1, max_size=12),
    freed=st.sets(st.integers(0, 11)),
)
def test_pieces_are_the_allocator_s(
    tmp_path_factory: pytest.TempPathFactory, domains: int, sizes: list[int], freed: set[int]
) -> None:
    stripe = 4 * KIB
    allocator = core.RegionAllocator(1 << 20, 64 * KIB, domains=domains, stripe_bytes=stripe)
    maker = Maker(tmp_path_factory.mktemp("pieces") / "made.duckdb")
    expected: dict[int, list[tuple[int, int, int]]] = {}
    known: set[int] = set()
    for number, size in enumerate(sizes):
        address = allocator.allocate(size)
        for handle, base, length, domain in allocator.regions():
            if handle not in known:
                striping = {"domain": domain, "domains": domains, "stripe_bytes": stripe} if domains > 1 else {}
                maker.memory("open", 100 * number + domain, 10 * number, base, length, handle=handle, **striping)
                known.add(handle)
        block_bytes = max(128, (size + 127) // 128 * 128)
        maker.memory("alloc", 100 * number + 50, 10 * number + 1, address, block_bytes, requested_bytes=size)
        expected[number] = [(handle, offset, length) for handle, _, offset, length in allocator.pieces(address)]
        if number in freed:
            allocator.free(address)
            maker.memory("free", 100 * number + 51, 10 * number + 2, address, block_bytes)
    with maker.open() as trace:
        found: dict[int, list[tuple[int, int, int]]] = {}
        for row in trace.rows(
            "SELECT p.*, r.handle FROM allocation_piece p JOIN region r ON r.id = p.region ORDER BY allocation, handle"
        ):
            found.setdefault(row["allocation"], []).append((row["handle"], row["offset_bytes"], row["length_bytes"]))
        assert found == expected


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def test_a_striped_region_says_how(made: Made) -> None:
    """Two domains, the second one's share: the record has the domain as its stream, the rest in its correlation."""
    striping = 2 << _native.STRIPE_BITS | 4096
    with made.builder:
        before = FLAGS["BEFORE_TRACE"]
        made.record("region", device=0, bytes=8192, arg0=1 << 16, arg1=5, correlation=striping, flags=before)
        made.record("region", device=0, bytes=8192, arg0=1 << 16, arg1=6, correlation=striping, stream=1)
        made.record("region", device=0, bytes=8192, arg0=1 << 20, arg1=7)
        made.transform()
        rows = made.rows("SELECT handle, domain, domains, stripe_bytes FROM memory_change ORDER BY event")
        assert [tuple(row.values()) for row in rows] == [(5, 0, 2, 4096), (6, 1, 2, 4096), (7, None, None, None)]
        events = made.rows("SELECT args::VARCHAR AS args, correlation FROM event ORDER BY id")
        assert [row["args"] for row in events] == ['{"domain":1,"domains":2,"stripe_bytes":4096}', None]
        assert [row["correlation"] for row in events] == [None, None]
        assert made.rows("FROM stream") == [], "a domain is no stream"
