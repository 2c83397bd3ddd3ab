"""Imports a file, or text, and reads back rows of the trace."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import Trace, open_trace

CASES = Path(__file__).parent / "cases"


def imported(path: Path, folder: Path) -> Trace:
    """The trace that a file becomes."""
    out = folder / "imported.duckdb"
    out.unlink(missing_ok=True)
    return open_trace(import_files([path], out))


def imported_events(events: Sequence[Any], folder: Path, **members: Any) -> Trace:
    """The trace of a file with these events."""
    return imported_text(json.dumps({**members, "traceEvents": events}), folder)


def imported_text(text: str | bytes, folder: Path) -> Trace:
    """The trace of a file with this text."""
    path = folder / "given.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return imported(path, folder)


def warnings(trace: Trace) -> dict[str, int]:
    """What `quality` says, with its counts."""
    return {row["what"]: row["count"] for row in trace.rows("SELECT what, count FROM quality")}


def by_name(trace: Trace, *columns: str) -> dict[str, Any]:
    """Columns of the events by name (the last of each); one column without its tuple."""
    rows = trace.rows(f"SELECT name, {', '.join(columns)} FROM events ORDER BY id")
    values = {row["name"]: tuple(row[column] for column in columns) for row in rows}
    return {name: value[0] if len(columns) == 1 else value for name, value in values.items()}


def busy_ns(trace: Trace, kinds: Sequence[str] = ("kernel", "transfer")) -> int:
    """The union of valid device work over all devices together."""
    rows = trace.rows(
        f"""SELECT ts_ns, end_ns FROM events WHERE kind IN {tuple(kinds)} AND valid AND dur_ns IS NOT NULL
            ORDER BY ts_ns"""
    )
    return union((row["ts_ns"], row["end_ns"]) for row in rows)


def union(spans: Any) -> int:
    """The length that spans, sorted by start, cover."""
    total, reached = 0, -(2**63)
    for start, end in spans:
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def kinds(trace: Trace) -> dict[str, int]:
    return dict(trace.sql("SELECT kind::VARCHAR, count(*) FROM event GROUP BY ALL").fetchall())
