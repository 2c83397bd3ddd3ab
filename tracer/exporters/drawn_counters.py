"""The numbers that timeline viewers draw of a trace, over time.

- allocated bytes, reserved bytes: the views memory_curve and reserved_curve.
- CPU fallbacks running, on a device.
- queue depth of a stream: +1 when a launch begins, -1 when the kernel or copy that it started begins (the definition
  of HolisticTraceAnalysis). One launch of many kernels, a graph, counts once for each; a kernel that seems to begin
  before its launch does not count.
- bandwidth of a device in one direction, in whole bytes/s: while transfers run, the sum of their bytes/duration. A
  transfer whose bytes or duration are unknown adds nothing.
- each row of `counter_value` that is a finite number, because viewers know no gaps.

A counter belongs to the kind of event that it counts, where only some kinds are exported.
"""

from ral_trace.tracer.exporters.drawn_tracks import (
    ALLOCATED,
    BANDWIDTH,
    COUNTER,
    FALLBACKS,
    LINKS,
    QUEUE_DEPTH,
    RESERVED,
)
from ral_trace.tracer.exporters.output import MAX_NS, VALID, Selection


def device_values_sql(selection: Selection) -> str:
    """Rows: a counter track's key, ts_ns, value BIGINT; of the counters that follow from the trace."""
    parts = ["SELECT 0::BIGINT AS key, 0::BIGINT AS ts_ns, 0::BIGINT AS value WHERE false"]
    if selection.has("alloc", "free"):
        parts.append(f"SELECT {ALLOCATED} + device, ts_ns, allocated_bytes FROM memory_curve WHERE {selection.on()}")
    if selection.has("region"):
        parts.append(f"SELECT {RESERVED} + device, ts_ns, reserved_bytes FROM reserved_curve WHERE {selection.on()}")
    changes = []
    if selection.has("fallback"):
        changes.append(_fallbacks(selection))
    if selection.has("kernel", "transfer"):
        changes.append(_queued(selection))
    if selection.has("transfer"):
        changes.append(_transferring(selection))
    if changes:
        parts.append(f"""
            SELECT key, ts_ns, try_cast(sum(change) OVER (PARTITION BY key ORDER BY ts_ns) AS BIGINT)
            FROM (SELECT key, ts_ns, sum(change) AS change FROM ({" UNION ALL ".join(changes)}) GROUP BY ALL)""")
    return _values_in_window(selection, " UNION ALL ".join(parts))


def _fallbacks(selection: Selection) -> str:
    whole = f"dur_ns >= 0 AND ts_ns <= {MAX_NS} - dur_ns"
    rows = f"event WHERE kind = 'fallback' AND {whole} AND {VALID} AND {selection.on()}"
    return f"""
        SELECT {FALLBACKS} + device AS key, ts_ns, 1::HUGEINT AS change FROM {rows}
        UNION ALL
        SELECT {FALLBACKS} + device, ts_ns + dur_ns, -1 FROM {rows}"""


def _queued(selection: Selection) -> str:
    """Rows: key, ts_ns, change; of each kernel or copy with a launch."""
    begun = f"""
        SELECT {QUEUE_DEPTH} + d.stream AS key, l.ts_ns AS launched_ns, d.ts_ns AS began_ns
        FROM (SELECT from_event, to_event FROM flow WHERE kind = 'launch') f
        JOIN (SELECT id, ts_ns FROM event WHERE kind = 'launch' AND {VALID}) l ON l.id = f.from_event
        JOIN (SELECT id, ts_ns, stream FROM event WHERE kind IN ('kernel', 'transfer') AND stream IS NOT NULL
              AND {VALID} AND {selection.on()}) d ON d.id = f.to_event
        WHERE d.ts_ns >= l.ts_ns"""
    return f"""
        SELECT key, unnest([launched_ns, began_ns]) AS ts_ns, unnest([1, -1])::HUGEINT AS change FROM ({begun})"""


def _transferring(selection: Selection) -> str:
    """Rows: key, ts_ns, change in bytes/s; of each transfer between known places with known bytes and duration."""
    keys = " ".join(f"WHEN '{link}' THEN {BANDWIDTH[link]}" for link in LINKS)
    running = f"""
        SELECT CASE category {keys} END + device AS key, ts_ns, ts_ns + dur_ns AS end_ns,
               bytes::HUGEINT * 1000000000 // dur_ns AS rate
        FROM event WHERE kind = 'transfer' AND bytes > 0 AND dur_ns > 0 AND ts_ns <= {MAX_NS} - dur_ns AND {VALID}
        AND {selection.on()}"""
    return f"""
        SELECT key, unnest([ts_ns, end_ns]) AS ts_ns, unnest([rate, -rate]) AS change FROM ({running})
        WHERE key IS NOT NULL"""


def source_values_sql(selection: Selection) -> str:
    """Rows: a counter track's key, ts_ns, value DOUBLE; of the trace's own counters."""
    kept = "false" if not selection.has("counter") else "true"
    if selection.device_ids is not None:
        kept += f" AND counter IN (SELECT id FROM counter WHERE {selection.on(or_none=True)})"
    return _values_in_window(
        selection,
        f"SELECT {COUNTER} + counter AS key, ts_ns, value FROM counter_value WHERE isfinite(value) AND {kept}",
    )


def _values_in_window(selection: Selection, values: str) -> str:
    """The values inside the window, led by the one that still holds when it begins."""
    begin = -MAX_NS if selection.from_ns is None else selection.from_ns
    end = MAX_NS if selection.to_ns is None else selection.to_ns
    shift = selection.shift_ns
    return f"""
        SELECT key, {selection.moved(f"greatest(ts_ns, {begin})")} AS ts_ns, value
        FROM (SELECT *, lead(ts_ns) OVER (PARTITION BY key ORDER BY ts_ns) AS next_ns
              FROM ({values}) WHERE key IS NOT NULL AND value IS NOT NULL)
        WHERE ts_ns < {end} AND (ts_ns >= {begin} OR next_ns IS NULL OR next_ns > {begin}) AND ts_ns >= {shift}
        ORDER BY key, ts_ns"""
