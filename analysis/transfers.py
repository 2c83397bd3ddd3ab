"""Copies: how many, how large, how fast, and how that compares with the link."""

from ral_trace.analysis.base import (
    DEVICE,
    NAMED_DEVICE,
    SOME_TRANSFERS,
    TIME_NS,
    WANTED,
    Analysis,
    Column,
    Row,
    Rows,
)
from ral_trace.analysis.remember import answered
from ral_trace.tracer.reading import Trace

SIZES = [
    ("< 4 KiB", 1 << 12), ("< 64 KiB", 1 << 16), ("< 1 MiB", 1 << 20), ("< 16 MiB", 1 << 24), ("< 256 MiB", 1 << 28),
]  # fmt: skip
"""The classes of sizes: their names, and where they end."""
LARGEST = "256 MiB and more"
LARGE_BYTES = 1 << 20
"""From this size on a copy's time is that of the link, not that of starting it."""
SLOW_PERCENT = 50.0
"""Below this share of the link a class of large copies catches the eye."""

SIZE_CLASS = f"""CASE WHEN e.bytes IS NULL THEN {len(SIZES) + 1}
    {" ".join(f"WHEN e.bytes < {end} THEN {number}" for number, (_, end) in enumerate(SIZES))} ELSE {len(SIZES)} END"""
SIZE_NAMES: list[str | None] = [*(name for name, _ in SIZES), LARGEST, None]

HOST_MEMORY = """lower(nullif(CASE
    WHEN e.args->>'pinned' IN ('1', 'true') THEN 'pinned'
    WHEN e.args->>'pinned' IS NOT NULL THEN 'pageable'
    WHEN e.category = 'host_to_device'
        THEN coalesce(e.args->>'from_memory', regexp_extract(e.name, '\\((\\w+) -> \\w+\\)', 1))
    WHEN e.category = 'device_to_host'
        THEN coalesce(e.args->>'to_memory', regexp_extract(e.name, '\\(\\w+ -> (\\w+)\\)', 1)) END, ''))"""
"""What the host's side of a copy `e` is: pinned, pageable, managed; NULL: not known. torch.profiler says it in the
name, Nsight Systems and ROCm's profilers in arguments.
"""


@answered
def transfers(trace: Trace, *, device: str | None = None) -> Rows:
    """A row for each device, direction, size class and kind of host memory; the most time first, of each device."""
    rows = trace.rows(
        f"""
        WITH {NAMED_DEVICE}, copy AS (
            SELECT e.device, e.category AS direction, {HOST_MEMORY} AS host_memory, {SIZE_CLASS} AS size, e.bytes,
                   {TIME_NS} AS ns, CASE WHEN ns > 0 AND e.bytes > 0 THEN e.bytes / (ns / 1e9) END AS bandwidth
            FROM event e WHERE e.kind = 'transfer' AND e.device IS NOT NULL),
        link AS (
            SELECT device, direction, max(bandwidth) AS best FROM copy WHERE bytes >= {LARGE_BYTES} GROUP BY ALL),
        class AS (
            SELECT device, direction, host_memory, size, count(*) AS count, sum(bytes) AS bytes, sum(ns) AS total_ns,
                   sum(bytes) FILTER (bandwidth IS NOT NULL)
                       / (sum(ns) FILTER (bandwidth IS NOT NULL) / 1e9) AS bandwidth,
                   median(bandwidth) AS median_bandwidth, max(bandwidth) AS best_bandwidth
            FROM copy GROUP BY ALL)
        SELECT d.shown AS device, c.direction, c.size, c.host_memory, c.count, c.bytes, c.total_ns, c.bandwidth,
               c.median_bandwidth, c.best_bandwidth, l.best AS link_bandwidth,
               100.0 * c.bandwidth / l.best AS percent_of_link
        FROM class c JOIN named_device d USING (device)
        LEFT JOIN link l ON l.device = c.device AND l.direction IS NOT DISTINCT FROM c.direction
        WHERE {WANTED}
        ORDER BY d.position, c.total_ns DESC NULLS LAST, c.direction, c.size, c.host_memory""",
        [device],
    )
    for row in rows:
        row["size"] = SIZE_NAMES[row["size"]]
    return rows


def _notable(row: Row) -> list[str]:
    slow = row["percent_of_link"] is not None and row["percent_of_link"] < SLOW_PERCENT
    large = row["size"] in SIZE_NAMES[3 : len(SIZES) + 1]
    found = ["percent_of_link"] if slow and large else []
    return [*found, "host_memory"] if row["host_memory"] == "pageable" and large else found


TRANSFERS = Analysis(
    "transfers",
    "Copies",
    "Copies by direction and size, and how fast they were. The bandwidth is that of the copies of which bytes and time "
    f"are known. What the link can do no trace says: the best of the copies from {LARGE_BYTES >> 20} MiB on in that "
    "direction stands for it.",
    (
        DEVICE,
        Column("direction", "text", "host_to_device, device_to_host, device_to_device, within_device, host_to_host, "
               "memset; none: unknown"),
        Column("size", "text", "size class; none: unknown"),
        Column("host_memory", "text", "pinned, pageable, ...: the host's side; none: not known", "host memory"),
        Column("count", "count", "copies"),
        Column("bytes", "bytes", "bytes copied; none: unknown"),
        Column("total_ns", "ns", "sum of the durations; none: none is known"),
        Column("bandwidth", "bandwidth", "bytes by time, of the copies with both known"),
        Column("median_bandwidth", "bandwidth", "median over these copies", "median"),
        Column("best_bandwidth", "bandwidth", "the best of them", "best"),
        Column("link_bandwidth", "bandwidth", "best of the large copies of the device and direction, which stands for "
               "the link; none: there is no large one", "link"),
        Column("percent_of_link", "percent", "bandwidth of link_bandwidth", "of the link"),
    ),
    transfers,
    chapter="waits",
    most=5,
    shown="direction size count bytes total_ns bandwidth percent_of_link host_memory median_bandwidth link_bandwidth "
    "best_bandwidth",
    per_device=True,
    needs=(SOME_TRANSFERS,),
    notable=_notable,
)  # fmt: skip
