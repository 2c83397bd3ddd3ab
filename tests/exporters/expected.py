"""What the counters of a timeline must hold, from their definitions, row by row in plain Python."""

from collections import defaultdict

from ral_trace.tracer.reading import Trace

Curve = list[tuple[int, float]]


def curve_of(changes: list[tuple[int, int]]) -> Curve:
    """The running sum after each moment at which something changes."""
    at: dict[int, int] = defaultdict(int)
    for ts_ns, change in changes:
        at[ts_ns] += change
    level, found = 0, []
    for ts_ns in sorted(at):
        level += at[ts_ns]
        found.append((ts_ns, float(level)))
    return found


def queue_depths(trace: Trace) -> list[Curve]:
    """Of each stream: +1 when a launch begins, -1 when what it started begins."""
    rows = {row["id"]: row for row in trace.rows("SELECT id, kind::VARCHAR AS kind, ts_ns, stream, flags FROM event")}
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for origin, target in trace.sql("SELECT from_event, to_event FROM flow WHERE kind = 'launch'").fetchall():
        launch, work = rows[origin], rows[target]
        sound = not (launch["flags"] | work["flags"]) & 4 and work["ts_ns"] >= launch["ts_ns"]
        if sound and work["kind"] in ("kernel", "transfer") and work["stream"] is not None:
            changes[work["stream"]] += [(launch["ts_ns"], 1), (work["ts_ns"], -1)]
    return sorted(curve_of(of_stream) for of_stream in changes.values())


def bandwidths(trace: Trace, link: str) -> list[Curve]:
    """Of each device in one direction, bytes/s."""
    changes: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in trace.rows("SELECT * FROM event WHERE kind = 'transfer' AND (flags & 4) = 0"):
        known = row["device"] is not None and row["bytes"] and row["dur_ns"]
        if row["category"] == link and known:
            rate = row["bytes"] * 10**9 // row["dur_ns"]
            changes[row["device"]] += [(row["ts_ns"], rate), (row["ts_ns"] + row["dur_ns"], -rate)]
    return sorted(curve_of(of_device) for of_device in changes.values())
