"""What the router decided, and what came of it. Part of `torch.ral`."""

import json
import os
from pathlib import Path
from typing import Any

from ral_trace.backend import _adapter
from ral_trace.backend.errors import BackendError


def dispatch_records() -> list[dict[str, Any]]:
    """A row for each decision of the router since the process began, the costliest fallbacks first.

    A decision is made for an op, a device and what its arguments look like: `dtypes`, the largest `rank`, whether all
    are `contiguous`. `route` is native, reference, compiled or cpu, `kernel` the vendor's function or None, `reasons`
    why each earlier way was refused. `launches` counts the calls; `fallbacks` those that ran on the CPU (also where a
    native kernel declined), with `bytes_copied` both ways, `syncs_forced` and `fallback_ns` on the host; `compiled`
    those of kernels that were compiled, which took `compile_ns` in this process (0: they were in the cache).
    """
    rows: list[dict[str, Any]] = _adapter.dispatch_records()
    return sorted(rows, key=lambda row: (-row["fallback_ns"], -row["launches"], row["op"]))


def export_dispatch_records(file: str | os.PathLike[str]) -> None:
    """Write `dispatch_records()` as JSON, at once and whole. Raises BackendError where it cannot be written."""
    target = Path(file)
    fresh = target.with_name(f".{target.name}.new")
    try:
        fresh.write_text(json.dumps(dispatch_records(), indent=1), encoding="utf-8")
        fresh.replace(target)
    except OSError as error:
        raise BackendError(f"{target}: cannot be written ({error.strerror}); give another path") from None


def set_fallback_thresholds(warn: float = 0.1, shout: float = 0.3) -> None:
    """From which share of a device's launches falling back is warned of, and loudly; each is said once.

    Also the environment's RAL_FALLBACK_WARN="0.1,0.3". A share above 1 is never reached. Raises ValueError where they
    are no shares in this order.
    """
    if not 0 <= warn <= shout:
        raise ValueError(f"thresholds must be 0 <= warn <= shout, not {warn} and {shout}")
    _adapter.set_fallback_thresholds(warn, shout)


def thresholds_from_environment() -> None:
    """Take RAL_FALLBACK_WARN, where it is set. Raises BackendError for a text that is no two shares."""
    text = os.environ.get("RAL_FALLBACK_WARN")
    if text is None:
        return
    try:
        warn, shout = (float(part) for part in text.split(","))
        set_fallback_thresholds(warn, shout)
    except ValueError:
        raise BackendError(f'RAL_FALLBACK_WARN="{text}": must be two shares such as 0.1,0.3') from None
