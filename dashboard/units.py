"""How numbers are written where Python writes them.

assets/dashAgGridFunctions.js writes those in the grids the same way; a browser test compares the two.
"""

NO_VALUE = "–"


def duration(ns: float | None) -> str:
    """12.3 ms."""
    return _scaled(ns, 1000, ["ns", "us", "ms", "s"])


def size(size_bytes: float | None) -> str:
    """119 MiB."""
    return _scaled(size_bytes, 1024, ["B", "KiB", "MiB", "GiB", "TiB"])


def count(number: int | None) -> str:
    """1,011,532."""
    return NO_VALUE if number is None else f"{number:,}"


def percent(value: float | None) -> str:
    """31.8 %."""
    return NO_VALUE if value is None else f"{value:.1f} %"


def byte_scale(largest: float) -> tuple[int, str]:
    """The divisor and the unit in which an axis up to `largest` bytes reads best."""
    scale, unit = 1, "B"
    for bigger in ["KiB", "MiB", "GiB", "TiB"]:
        if largest < scale * 1024:
            break
        scale, unit = scale * 1024, bigger
    return scale, unit


def _scaled(value: float | None, step: int, units: list[str]) -> str:
    if value is None:
        return NO_VALUE
    amount, unit = abs(float(value)), 0
    while amount >= step * 0.9995 and unit < len(units) - 1:
        amount, unit = amount / step, unit + 1
    digits = 0 if unit == 0 or amount >= 100 else 1 if amount >= 10 else 2
    return f"{'-' if value < 0 else ''}{amount:.{digits}f} {units[unit]}"
