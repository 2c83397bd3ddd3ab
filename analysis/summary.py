"""What a trace holds: the whole of it in one row, and what each device did."""

from ral_trace.analysis.base import DEVICE, NAMED_DEVICE, TIME_NS, VALID, WANTED, Analysis, Column, Rows
from ral_trace.analysis.block_use import find_peaks
from ral_trace.analysis.device_work import device_work
from ral_trace.tracer.reading import Trace


def summary(trace: Trace) -> Rows:
    """The trace in one row. The span runs from the first event's start to the last one's end."""
    facts = ["tool_version", "schema_version", "clock", "steps_from", "command_line"]
    wanted = ", ".join(f"(SELECT any_value(value) FROM trace_info WHERE key = '{fact}') AS {fact}" for fact in facts)
    return trace.rows(f"""
        SELECT min(e.ts_ns) FILTER ({VALID}) AS started_ns,
               max(e.ts_ns + coalesce(e.dur_ns, 0)) FILTER ({VALID}) - min(e.ts_ns) FILTER ({VALID}) AS span_ns,
               count(*) AS events,
               count(*) FILTER (NOT {VALID}) AS invalid,
               (SELECT sum(dropped) FROM ledger) AS dropped,
               (SELECT sum(lost) FROM ledger) AS lost,
               (SELECT count(*) FROM process) AS processes,
               (SELECT count(*) FROM device) AS devices,
               count(DISTINCT (e.process, e.step)) FILTER (e.step IS NOT NULL) AS steps,
               {wanted}
        FROM event e""")


SUMMARY = Analysis(
    "summary",
    "Summary",
    "What the trace holds.",
    (
        Column("started_ns", "time", "start of the first event"),
        Column("span_ns", "ns", "from the first event's start to the last event's end"),
        Column("events", "count", "rows of `event`"),
        Column("invalid", "count", "events whose times cannot be: counted, but kept out of every sum of times"),
        Column("dropped", "count", "events that found no room in their ring; none: no ledger (not a live recording)"),
        Column("lost", "count", "events not yet committed when their writer died; none: no ledger"),
        Column("processes", "count", "processes recorded"),
        Column("devices", "count", "devices, as each process sees them"),
        Column("steps", "count", "training steps, over all processes"),
        Column("tool_version", "text", "ral-trace that wrote the trace"),
        Column("schema_version", "text", "of the trace's tables"),
        Column("clock", "text", "clock that the times come from"),
        Column("steps_from", "text", "what stated the steps"),
        Column("command_line", "text", "command that recorded the trace"),
    ),
    summary,
    chapter="overview",
)


def devices(trace: Trace, *, device: str | None = None) -> Rows:
    """A row a device. Busy is the union of its kernels and copies; waits recorded on a stream are not work. The host is
    a device for its memory only: its ops are not rows of it, so how busy it was is unknown.
    """
    find_peaks(trace)
    busy = {found: work.busy.total_ns for found, work in device_work(trace).by_device().items()}
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, span AS (
            SELECT max(e.ts_ns + coalesce(e.dur_ns, 0)) - min(e.ts_ns) AS ns FROM event e WHERE {VALID}),
        busy AS (SELECT unnest($2::INTEGER[]) AS device, unnest($3::BIGINT[]) AS ns),
        counted AS (
            SELECT device,
                   count(*) FILTER (kind = 'kernel') AS kernels,
                   count(*) FILTER (kind = 'launch') AS launches,
                   count(*) FILTER (kind = 'fallback') AS fallbacks,
                   sum({TIME_NS}) FILTER (kind = 'fallback') AS fallback_ns,
                   count(*) FILTER (kind = 'transfer') AS transfers,
                   sum(bytes) FILTER (kind = 'transfer') AS transferred_bytes
            FROM event e WHERE device IS NOT NULL GROUP BY device)
        SELECT d.shown AS device, d.vendor, d.name,
               -- What was not seen at all took no time; what was seen without a duration took an unknown time.
               CASE WHEN idle THEN 0 ELSE busy.ns END AS busy_ns,
               CASE WHEN idle THEN 0.0 ELSE 100.0 * busy.ns / nullif(span.ns, 0) END AS busy_percent,
               coalesce(kernels, 0) AS kernels, coalesce(launches, 0) AS launches, coalesce(fallbacks, 0) AS fallbacks,
               CASE WHEN coalesce(fallbacks, 0) = 0 THEN 0 ELSE fallback_ns END AS fallback_ns,
               coalesce(transfers, 0) AS transfers,
               CASE WHEN coalesce(transfers, 0) = 0 THEN 0 ELSE transferred_bytes END AS transferred_bytes,
               peak.bytes AS peak_bytes, d.memory_bytes
        FROM (SELECT d.*, c.* EXCLUDE (device),
                     coalesce(c.kernels + c.transfers, 0) = 0 AND d.type IS DISTINCT FROM 'cpu' AS idle
              FROM named_device d LEFT JOIN counted c ON c.device = d.device) d
        CROSS JOIN span
        LEFT JOIN busy ON busy.device = d.device
        LEFT JOIN device_peak peak ON peak.device = d.device
        WHERE {WANTED} ORDER BY d.position""",
        [device, [*busy], [*busy.values()]],
    )


DEVICES = Analysis(
    "devices",
    "Devices",
    "What each device did. Busy is the union of its kernels and copies; waits are not work.",
    (
        DEVICE,
        Column("vendor", "text", "who makes it"),
        Column("name", "text", "product name"),
        Column(
            "busy_ns", "ns", "union of its kernels and copies over all streams; none: no duration is known", "busy time"
        ),
        Column("busy_percent", "percent", "busy_ns of the trace's span", "busy of trace"),
        Column("kernels", "count", "kernels that ran on it"),
        Column("launches", "count", "calls that went to it: kernels, copies and fallbacks"),
        Column("fallbacks", "count", "calls that PyTorch's CPU kernel served instead"),
        Column("fallback_ns", "ns", "time in those, their copies included", "fallback time"),
        Column("transfers", "count", "copies"),
        Column("transferred_bytes", "bytes", "copied to, from and within it", "copied"),
        Column("peak_bytes", "bytes", "most memory that was allocated at one time; none: no allocation was recorded"),
        Column("memory_bytes", "bytes", "its capacity", "capacity"),
    ),
    devices,
    chapter="overview",
    shown="device vendor busy_percent fallbacks fallback_ns busy_ns launches peak_bytes memory_bytes "
    "transferred_bytes kernels transfers name",
    notable=lambda row: ["fallbacks"] if row["fallbacks"] else [],
)
