"""Numbers as people read them, and text out of traces made harmless to look at."""

import re

from ral_trace.tracer.text import plain

UNKNOWN, EMPTY = "–", "(empty)"
"""What stands for a value that is not known, and for a text that is known to be empty."""

TIMES = [("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)]
SIZES = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]


def human(value: object, unit: str, *, zero_ns: int = 0) -> str:
    """`value` of a column's `unit` (see base.UNITS) for people: a dash where it is unknown, times from `zero_ns` on."""
    if value is None:
        return UNKNOWN
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return plain(str(value)) or EMPTY
    if unit == "ns":
        return duration(int(value))
    if unit == "time":
        return f"+{duration(int(value) - zero_ns)}" if value >= zero_ns else f"-{duration(zero_ns - int(value))}"
    if unit == "bytes":
        return _scaled(value, SIZES, "B")
    if unit == "percent":
        return percent(float(value))
    if unit == "bandwidth":
        return f"{_scaled(value, SIZES, 'B')}/s"
    if unit in ("ratio", "number"):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if unit == "count" else str(value)


def short_path(line: str) -> str:
    """A line of the program, or of a library, without the folders in which packages are installed."""
    return re.sub(r"^.*[/\\](site|dist)-packages[/\\]", "", line)


def duration(ns: int) -> str:
    """Nanoseconds with three digits and a unit: 850 ns, 12.3 µs, 2 min 5 s."""
    if ns < 60_000_000_000:
        return _scaled(ns, TIMES, "ns")
    minutes, seconds = divmod(round(ns / 1e9), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def percent(value: float) -> str:
    """One decimal; what is not nothing is never shown as nothing."""
    return "<0.1 %" if 0 < value < 0.05 else f"{value:.1f} %"


def _scaled(value: float, scale: list[tuple[str, int]], smallest: str) -> str:
    for unit, size in scale:
        # The next unit begins where three digits would round up to it.
        if abs(value) >= size * 0.9995:
            scaled = value / size
            digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
            return f"{scaled:.{digits}f} {unit}"
    return f"{value:,.0f} {smallest}"
