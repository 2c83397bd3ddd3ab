"""Memory snapshots for tests, and what became of them."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import Trace, open_trace

CASES = Path(__file__).parent / "cases/snap"
MIB = 1 << 20
EPOCH_US = 1_763_324_225_770_003
BASE = 0x7F0000000000
Entry = dict[str, Any]


@contextmanager
def imported(path: Path, folder: Path) -> Iterator[Trace]:
    out = folder / "imported.duckdb"
    import_files([path], out)
    with open_trace(out) as trace:
        yield trace


@contextmanager
def imported_value(value: object, folder: Path, protocol: int = 4) -> Iterator[Trace]:
    path = folder / "made.pickle"
    path.write_bytes(pickle.dumps(value, protocol))
    with imported(path, folder) as trace:
        yield trace


def curve(trace: Trace) -> list[int]:
    """Allocated bytes after each change."""
    return [
        level for (level,) in trace.sql("SELECT allocated_bytes FROM memory_curve ORDER BY device, ts_ns").fetchall()
    ]


def quality(trace: Trace) -> dict[str, int]:
    return {row["what"]: row["count"] for row in trace.rows("SELECT what, count FROM quality")}


def said(trace: Trace, beginning: str) -> int:
    """The count of the one line of quality that begins so."""
    [count] = [count for what, count in quality(trace).items() if what.startswith(beginning)]
    return count


def kinds(trace: Trace) -> dict[str, int]:
    return dict(trace.sql("SELECT kind::VARCHAR, count(*) FROM event GROUP BY ALL").fetchall())


def alloc(address: int, size: int, action: str = "alloc", **more: Any) -> Entry:
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": 1, "frames": [], **more}


def segment(address: int, size: int, blocks: list[Entry] | None = None, **more: Any) -> Entry:
    return {"device": 0, "address": address, "total_size": size, "stream": 0, "blocks": blocks or [], **more}


def history(*traces: list[Entry], segments: list[Entry] | None = None, **more: Any) -> Entry:
    return {"segments": segments or [], "device_traces": list(traces), **more}
