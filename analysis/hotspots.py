"""Where the time goes: by op, by kernel, on each device or on the host."""

import uuid

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import (
    DEVICE,
    INSIDE_FALLBACK,
    NAMED_DEVICE,
    SOME_KERNELS,
    TIME_NS,
    WANTED,
    Analysis,
    Bars,
    Column,
    Rows,
)
from ral_trace.tracer import _native
from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.reading import Trace

HOST = "host"
"""What the column `device` says of ops' time on the host."""

Integers = npt.NDArray[np.int64]

WORK = {
    "op": f"""{INSIDE_FALLBACK}, work AS (
        SELECT e.device, e.name, {TIME_NS} AS ns, e.kind = 'fallback' AS fallback FROM event e
        WHERE e.kind IN ('kernel', 'fallback')
           OR (e.kind = 'transfer' AND e.id NOT IN (SELECT id FROM copy_inside)))""",
    "kernel": f"""work AS (
        SELECT e.device, coalesce(e.args->>'kernel', e.name) AS name, {TIME_NS} AS ns, false AS fallback FROM event e
        WHERE e.kind = 'kernel')""",
}
"""CTE `work`, for each value of `by`: what is time of a device, under which name."""

STATISTICS = """
    count(*) AS count, sum(ns) AS total_ns, {self_ns} AS self_ns, round(sum(ns) / count(ns))::BIGINT AS mean_ns,
    quantile_disc(ns, 0.5) AS median_ns, quantile_disc(ns, 0.99) AS p99_ns, max(ns) AS max_ns"""


def hotspots(trace: Trace, *, device: str | None = None, by: str = "op", limit: int | None = None) -> Rows:
    """The hottest names on each device, `limit` a device.

    by="op": the ops that the user called, with the time of their kernels, of their copies, and of the fallbacks that
    served them (a fallback's own copies lie within its time). by="kernel": the kernels. With device="host", and where
    no device did anything, the ops on the host: their total includes what they called, their self time does not.
    Rows without a known duration are counted but in no sum.
    """
    if by not in WORK:
        raise UsageError(f"hotspots are by {' or by '.join(WORK)}, not by {by}")
    rows = Rows() if device == HOST else _on_devices(trace, device, by, limit)
    if device == HOST or (device is None and not rows and by == "op"):
        rows = _on_host(trace, limit)
    return rows


def kernels(trace: Trace, *, device: str | None = None, limit: int | None = None) -> Rows:
    """The hottest kernels on each device, `limit` a device."""
    return hotspots(trace, device=device, by="kernel", limit=limit)


def _on_devices(trace: Trace, device: str | None, by: str, limit: int | None) -> Rows:
    return trace.rows(
        f"""
        WITH RECURSIVE {NAMED_DEVICE}, {WORK[by]}, by_name AS (
            SELECT device, name, {STATISTICS.format(self_ns="NULL::BIGINT")}, count(*) FILTER (fallback) AS fallbacks
            FROM work GROUP BY device, name)
        SELECT d.shown AS device, h.name, h.count, total_ns, self_ns, mean_ns, median_ns, p99_ns, max_ns,
               100.0 * total_ns / nullif(sum(total_ns) OVER (PARTITION BY h.device), 0) AS percent, fallbacks
        FROM by_name h JOIN named_device d ON d.device = h.device WHERE {WANTED}
        QUALIFY $2::BIGINT IS NULL
            OR row_number() OVER (PARTITION BY h.device ORDER BY total_ns DESC NULLS LAST, h.name) <= $2
        ORDER BY d.position, total_ns DESC NULLS LAST, h.name""",
        [device, limit],
    )


def _on_host(trace: Trace, limit: int | None) -> Rows:
    ops = trace.sql(f"""
        SELECT e.id, e.thread, e.ts_ns, e.ts_ns + e.dur_ns AS end_ns FROM event e
        WHERE e.kind = 'op' AND e.thread IS NOT NULL AND {TIME_NS} IS NOT NULL
        ORDER BY e.thread, e.ts_ns, e.dur_ns DESC, e.id DESC""").fetchnumpy()
    own_ns = self_times(np.asarray(ops["thread"]), np.asarray(ops["ts_ns"]), np.asarray(ops["end_ns"]))
    own = f"own_{uuid.uuid4().hex}"
    trace.connection.register(own, {"id": np.asarray(ops["id"]), "ns": own_ns})
    try:
        return trace.rows(
            f"""
            WITH work AS (
                SELECT e.name, {TIME_NS} AS ns, own.ns AS own_ns FROM event e LEFT JOIN {own} own ON own.id = e.id
                WHERE e.kind = 'op')
            SELECT $1 AS device, name, {STATISTICS.format(self_ns="sum(own_ns)")},
                   100.0 * sum(own_ns) / nullif(sum(sum(own_ns)) OVER (), 0) AS percent, 0 AS fallbacks
            FROM work GROUP BY name ORDER BY self_ns DESC NULLS LAST, name LIMIT $2""",
            [HOST, limit],
        )
    finally:
        trace.connection.unregister(own)


def self_times(thread: npt.NDArray[np.int32], start_ns: Integers, end_ns: Integers) -> Integers:
    """The nanoseconds of each row that belong to nothing that it called.

    Each moment of a thread counts for the row that started last. So the result is never negative, and adds up to the
    union of the rows of each thread. Rows are sorted by thread, start, and the longer first.
    """
    row = np.arange(len(thread))
    parent: Integers = _native.nest(thread, start_ns, end_ns, row)
    duration = end_ns - start_ns
    inside = parent >= 0
    own = duration - np.bincount(parent[inside], weights=duration[inside], minlength=len(row)).astype(np.int64)
    # Calls nest. Where rows of a thread overlap without nesting (clocks that disagree, imported rows), the children
    # of a row add up to more than their union.
    order = np.lexsort((row, parent, thread))
    previous, following = order[:-1], order[1:]
    crossed = (
        (parent[previous] == parent[following])
        & (thread[previous] == thread[following])
        & (start_ns[following] < end_ns[previous])
    )
    for number in np.unique(thread[following[crossed]]):
        of_thread = np.flatnonzero(thread == number)
        own[of_thread] = _swept(start_ns[of_thread].tolist(), end_ns[of_thread].tolist())
    return own


def _swept(start_ns: list[int], end_ns: list[int]) -> list[int]:
    """`self_times` of one thread whose rows cross: a sweep that keeps the open rows, the last started on top."""
    own = [0] * len(start_ns)
    open_rows: list[int] = []
    now = 0

    def advance(until: float) -> None:
        nonlocal now
        while open_rows and now < until:
            top = open_rows[-1]
            stop = int(min(end_ns[top], until))
            if stop > now:
                own[top] += stop - now
                now = stop
            if end_ns[top] <= now:
                open_rows.pop()

    for row, start in enumerate(start_ns):
        advance(start)
        now = start
        open_rows.append(row)
    advance(float("inf"))
    return own


COLUMNS = (
    DEVICE,
    Column("name", "text", "op that the user called, or kernel"),
    Column("count", "count", "how often it ran, calls without a known duration included"),
    Column("total_ns", "ns", "its time; on the host what it called is included; none: no duration is known"),
    Column(
        "self_ns",
        "ns",
        "on the host: total less what it called; each moment of a thread counts for the op that started last",
    ),
    Column("mean_ns", "ns", "mean duration"),
    Column("median_ns", "ns", "median duration: a duration that occurred, the lower of two"),
    Column("p99_ns", "ns", "99th percentile: a duration that occurred", "p99"),
    Column("max_ns", "ns", "longest duration"),
    Column("percent", "percent", "total_ns (on the host self_ns) of the sum over all names of the device", "share"),
    Column("fallbacks", "count", "how many of `count` were served by PyTorch's CPU kernel"),
)

HOTSPOTS = Analysis(
    "hotspots",
    "Hotspots",
    "Where each device's time goes, by the op that the user called: kernels, copies, and the fallbacks that served it "
    "(their copies included). Where no device did anything: the ops on the host.",
    COLUMNS,
    hotspots,
    chapter="time",
    chart=Bars("name", "total_ns"),
    shown="name total_ns self_ns percent count mean_ns p99_ns fallbacks median_ns max_ns",
    per_device=True,
    notable=lambda row: ["fallbacks"] if row["fallbacks"] else [],
)

KERNELS = Analysis(
    "kernels",
    "Kernels",
    "Where each device's time goes, by kernel.",
    COLUMNS,
    kernels,
    chapter="time",
    shown="name total_ns percent count mean_ns p99_ns median_ns max_ns",
    per_device=True,
    needs=(SOME_KERNELS,),
)
