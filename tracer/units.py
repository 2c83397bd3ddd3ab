"""Durations and sizes as people write them."""

import re

from ral_trace.tracer.errors import UsageError

NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000}
BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def duration_ns(text: str) -> int:
    """`500ms`, `10s`, `2m`, `1.5h` to nanoseconds.

    A unit is needed; raises UsageError for anything else and for nothing.
    """
    match = re.fullmatch(r"(\d+)(?:\.(\d{1,9}))?\s*(ns|us|ms|s|m|h)", text.strip())
    if match is None:
        raise UsageError(f"'{text}' is not a duration; write it as 500ms, 10s or 2m")
    whole, fraction, unit = match.groups()
    fraction = fraction or ""
    value = int(whole + fraction) * NS[unit] // int(10 ** len(fraction))
    if value == 0:
        raise UsageError(f"'{text}' is no time at all; write it as 500ms, 10s or 2m")
    return value


def size_bytes(text: str) -> int:
    """`4096`, `512k`, `64MiB`, `1g` to bytes, by powers of 1024. Raises UsageError for anything else."""
    match = re.fullmatch(r"(\d+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise UsageError(f"'{text}' is not a size; write it as 512k, 64MiB or 1g")
    return int(match.group(1)) * BYTES[match.group(2)]


def percent(text: str) -> float:
    """`1%`, `0.5%`, `2` to a share: 0.01, 0.005, 0.02. Raises UsageError for anything else, for 0 and for over 100."""
    match = re.fullmatch(r"(\d{1,3}(?:\.\d{1,6})?)\s*%?", text.strip())
    share = 0.0 if match is None else float(match.group(1)) / 100
    if not 0 < share <= 1:
        raise UsageError(f"'{text}' is not a percentage; write it as 1% or 0.5%")
    return share
