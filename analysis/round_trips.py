"""Data that went from a device to the host and back without having changed."""

import numpy as np

from ral_trace.analysis.base import (
    DEVICE,
    NAMED_DEVICE,
    SOME_TRANSFERS,
    TIME_NS,
    WANTED,
    Analysis,
    Column,
    Rows,
)
from ral_trace.analysis.beneath import find_inside_fallbacks
from ral_trace.analysis.callers import Callers
from ral_trace.analysis.origins import launches_of, origins
from ral_trace.analysis.remember import answered
from ral_trace.analysis.units import duration
from ral_trace.analysis.work import Columns, registered
from ral_trace.tracer.reading import Trace

LEAST_BYTES = 4096
"""Of two copies of which only the size is known to be the same: smaller ones often are by chance."""

CONFIDENCE = {
    "certain": "the same block of host memory, which no op wrote in between",
    "likely": "the same address in host memory",
    "possible": "the next copy to the device has exactly the size of the one from it; nothing else is known",
}

COPIES = f"""
    outside AS (
        SELECT e.id, e.process, e.device, e.category, e.ts_ns, {TIME_NS} AS ns,
               e.ts_ns + ns AS end_ns, e.bytes,
               CASE e.category WHEN 'device_to_host' THEN e.args->>'to_address' ELSE e.args->>'from_address' END
                   AS address
        FROM event e WHERE e.kind = 'transfer' AND e.category IN ('device_to_host', 'host_to_device')
          AND {TIME_NS} IS NOT NULL AND e.bytes > 0 AND e.id NOT IN (SELECT id FROM copy_inside)),
    down AS (FROM outside WHERE category = 'device_to_host'),
    up AS (FROM outside WHERE category = 'host_to_device')"""
"""CTEs: the copies between host and devices that no fallback made: those need their copies."""

PAIRS = """
    wrote AS (
        SELECT a.allocation AS block, a.event, any_value(e.ts_ns) AS ts_ns FROM access a JOIN event e ON e.id = a.event
        WHERE a.mode <> 'read' AND a.allocation IN (SELECT block FROM {known}) GROUP BY ALL),
    certain AS (
        SELECT DISTINCT ON (u.id) d.id AS down, u.id AS up, 'certain' AS confidence
        FROM (SELECT up.*, k.block, k.ts_ns AS op_ns FROM up JOIN {known} k ON k.copy = up.id) u
        ASOF JOIN wrote w ON w.block = u.block AND w.ts_ns < u.op_ns
        JOIN {known} k ON k.op = w.event AND k.block = w.block
        JOIN down d ON d.id = k.copy AND d.bytes = u.bytes AND d.process = u.process ORDER BY u.id, d.id),
    likely AS (
        SELECT d.id AS down, u.id AS up, 'likely' AS confidence
        FROM (FROM up WHERE address IS NOT NULL AND id NOT IN (SELECT copy FROM {known})) u
        ASOF JOIN (FROM down WHERE address IS NOT NULL) d
          ON d.process = u.process AND d.device = u.device AND d.address = u.address AND d.end_ns <= u.ts_ns
        WHERE d.bytes = u.bytes),
    possible AS (
        SELECT before.id AS down, id AS up, 'possible' AS confidence FROM (
            SELECT *, lag({{'id': id, 'category': category, 'bytes': bytes, 'address': address}})
                          OVER (PARTITION BY process, device ORDER BY ts_ns, id) AS before FROM outside)
        WHERE category = 'host_to_device' AND before['category'] = 'device_to_host' AND before['bytes'] = bytes
          AND bytes >= {least} AND (address IS NULL OR before['address'] IS NULL)
          AND (id NOT IN (SELECT copy FROM {known}) OR before['id'] NOT IN (SELECT copy FROM {known}))),
    pair AS (FROM certain UNION ALL FROM likely UNION ALL FROM possible)"""


@answered
def round_trips(trace: Trace, *, device: str | None = None, limit: int | None = 200) -> Rows:
    """A row for each pair of places in the program: the surest first, then those that took the most time."""
    find_inside_fallbacks(trace)
    with registered(trace, _blocks(trace)) as known:
        pairs = trace.rows(
            f"""
            WITH {NAMED_DEVICE}, {COPIES}, {PAIRS.format(known=known, least=LEAST_BYTES)}
            SELECT d.shown AS device, t.shown AS to_device, p.confidence, down.id AS down, up.id AS up,
                   down.bytes + up.bytes AS bytes, down.ns + up.ns AS total_ns
            FROM pair p JOIN down ON down.id = p.down JOIN up ON up.id = p.up
            JOIN named_device d ON d.device = down.device JOIN named_device t ON t.device = up.device
            WHERE {WANTED} ORDER BY p.down, p.up""",
            [device],
        )
    return Rows(_by_place(trace, pairs)[:limit]) if pairs else pairs


def _blocks(trace: Trace) -> Columns:
    """Which block of host memory an op read for a copy to a device, or wrote for one from it: copy, block, op, and when
    the op began. Known where the accesses were recorded.
    """
    nothing = np.array([], np.int64)
    if trace.sql("SELECT NOT EXISTS (FROM access)").fetchall() == [(True,)]:
        return {"copy": nothing, "block": nothing, "op": nothing, "ts_ns": nothing}
    copies = trace.sql("""
        SELECT id FROM event WHERE kind = 'transfer' AND category IN ('device_to_host', 'host_to_device') ORDER BY id
        """).fetchnumpy()["id"]
    callers = Callers(trace, "a.event", "LEFT JOIN (SELECT DISTINCT event FROM access) a ON a.event = e.id")
    op = callers.nearest(launches_of(trace, copies))
    with registered(trace, {"copy": copies, "op": op}) as by:
        return dict(
            trace.sql(f"""
            SELECT DISTINCT c.copy, a.allocation AS block, c.op, o.ts_ns FROM {by} c
            JOIN event e ON e.id = c.copy JOIN event o ON o.id = c.op
            JOIN access a ON a.event = c.op AND (a.mode = 'read') = (e.category = 'host_to_device')
            JOIN allocation b ON b.id = a.allocation JOIN device d ON d.id = b.device AND d.type = 'cpu'
            ORDER BY ALL""").fetchnumpy()
        )


def _by_place(trace: Trace, pairs: Rows) -> Rows:
    places = [origins(trace, np.array([pair[end] for pair in pairs], np.int64)) for end in ("down", "up")]
    found: dict[tuple[object, ...], dict[str, object]] = {}
    for pair, (from_op, from_line), (to_op, to_line) in zip(pairs, *places, strict=True):
        key = {
            "device": pair["device"],
            "to_device": pair["to_device"],
            "confidence": pair["confidence"],
            "evidence": CONFIDENCE[pair["confidence"]],
            "from_op": from_op,
            "from_line": from_line,
            "to_op": to_op,
            "to_line": to_line,
        }
        row = found.setdefault(tuple(key.values()), {**key, "count": 0, "bytes": 0, "total_ns": 0})
        for name, more in (("count", 1), ("bytes", pair["bytes"]), ("total_ns", pair["total_ns"])):
            row[name] += more  # type: ignore[operator]
    surest = list(CONFIDENCE)
    rows = Rows(found.values())
    rows.sort(key=lambda row: (surest.index(row["confidence"]), -row["total_ns"], *(str(v) for v in row.values())))
    return rows


def said(rows: Rows) -> str | None:
    """What the certain ones cost."""
    sure = [row for row in rows if row["confidence"] == "certain"]
    if not sure:
        return None
    count, took = sum(row["count"] for row in sure), sum(row["total_ns"] for row in sure)
    times = "once" if count == 1 else f"{count:,} times"
    return f"Unchanged data went to the host and back {times}, which took {duration(took)}: keep it on the device."


ROUND_TRIPS = Analysis(
    "round_trips",
    "Round trips of unchanged data",
    "Copies from a device to the host, and of the same data to a device again. Certain where the recording shows that "
    "both copies used the same block and that no op wrote it in between (--with-access; what writes without PyTorch is "
    "not seen); what is only likely or possible says so. Copies of fallbacks are not among them.",
    (
        DEVICE,
        Column("to_device", "text", "where the data went"),
        Column("confidence", "text", "certain, likely or possible"),
        Column("evidence", "text", "what shows it"),
        Column("from_op", "text", "op that copied to the host; none: unknown"),
        Column("from_line", "text", "its line; none: no stack was recorded"),
        Column("to_op", "text", "op that copied back; none: unknown"),
        Column("to_line", "text", "its line; none: no stack was recorded"),
        Column("count", "count", "round trips"),
        Column("bytes", "bytes", "bytes copied, both ways"),
        Column("total_ns", "ns", "sum of the durations of the copies, both ways"),
    ),
    round_trips,
    chapter="waits",
    shown="device confidence total_ns bytes count from_line to_line from_op to_op evidence to_device",
    needs=(SOME_TRANSFERS,),
    remark=said,
)
