from pathlib import Path

from ral_trace.analysis.round_trips import ROUND_TRIPS, round_trips
from tests.analysis.cases import Case, fallback


def copy(case: Case, direction: str, start: int, size: int, *, address: str | None = None, device: int = 0) -> None:
    """A copy of 10 ns, launched by an op."""
    number = len(case.events) + 1
    case.event("op", "aten::_to_copy", start - 8, 7)
    case.event("launch", "aten::_to_copy", start - 5, 3, device=device, correlation=number)
    side = {"device_to_host": "to_address", "host_to_device": "from_address"}[direction]
    args = {side: address} if address else None
    case.event("transfer", "aten::_to_copy", start, 10, device=device, category=direction, bytes=size,
               correlation=number, args=args)  # fmt: skip


def test_the_same_address_is_likely_and_the_same_size_only_possible(tmp_path: Path):
    case = Case()
    case.device()
    copy(case, "device_to_host", 100, 8192, address="0xa0")
    copy(case, "device_to_host", 200, 8192, address="0xb0")
    copy(case, "host_to_device", 300, 8192, address="0xa0")
    copy(case, "device_to_host", 400, 8192)
    copy(case, "host_to_device", 500, 8192)
    with case.open(tmp_path) as trace:
        likely, possible = rows = round_trips(trace)
    assert (likely["confidence"], likely["count"], likely["bytes"], likely["total_ns"]) == ("likely", 1, 16384, 20)
    assert (possible["confidence"], possible["count"], possible["bytes"]) == ("possible", 1, 16384)
    assert (likely["from_op"], likely["to_op"], likely["from_line"]) == ("aten::_to_copy", "aten::_to_copy", None)
    assert ROUND_TRIPS.remark(rows) is None


def test_what_shows_that_it_is_none(tmp_path: Path):
    case = Case()
    case.device()
    case.device(index=1)
    copy(case, "device_to_host", 100, 8192)
    copy(case, "host_to_device", 200, 8191)  # another size
    copy(case, "device_to_host", 300, 64)
    copy(case, "host_to_device", 400, 64)  # small: by chance
    copy(case, "device_to_host", 500, 8192)
    copy(case, "host_to_device", 600, 8192, device=1)  # to another device
    copy(case, "device_to_host", 700, 8192, address="0xa0")
    copy(case, "host_to_device", 800, 8192, address="0xb0")  # other memory
    copy(case, "host_to_device", 900, 8192)  # the second one after it
    with case.open(tmp_path) as trace:
        assert round_trips(trace) == []


def test_copies_of_fallbacks_are_needed(tmp_path: Path):
    case = Case()
    case.device()
    fallback(case, 1000, 1000, device=0, correlation=7, copies=[(1010, 20, 8192)])
    case.event("transfer", "aten::cumsum", 1900, 20, device=0, category="host_to_device", bytes=8192, correlation=99)
    case.event("launch", "aten::cumsum", 1900, 20, device=0, correlation=99)
    with case.open(tmp_path) as trace:
        assert round_trips(trace) == []
