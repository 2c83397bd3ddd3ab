"""Durations and sizes as people write them."""

import pytest

from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.units import duration_ns, percent, size_bytes


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("500ms", 500_000_000),
        ("10s", 10_000_000_000),
        ("2m", 120_000_000_000),
        ("1.5h", 5_400_000_000_000),
        ("3 us", 3_000),
        ("0.1s", 100_000_000),
        ("1ns", 1),
    ],
)
def test_durations(text: str, ns: int) -> None:
    assert duration_ns(text) == ns


@pytest.mark.parametrize("text", ["", "10", "s", "-1s", "1e3s", "0s", "0.1ns", "ten", "1d", "1s 2s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(UsageError):
        duration_ns(text)


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("64k", 65536), ("16MiB", 16 << 20), ("1g", 1 << 30), ("2 MB", 2 << 20)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5k", "big", "4t"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError):
        size_bytes(text)


@pytest.mark.parametrize(("text", "share"), [("1%", 0.01), ("0.5 %", 0.005), ("2", 0.02), ("100%", 1.0)])
def test_percentages(text: str, share: float) -> None:
    assert percent(text) == pytest.approx(share, rel=1e-12)


@pytest.mark.parametrize("text", ["", "0", "0%", "101", "-1%", "1e1", "one"])
def test_what_is_no_percentage(text: str) -> None:
    with pytest.raises(UsageError):
        percent(text)
