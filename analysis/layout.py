"""Copies on a device that change nothing but how a tensor lies in memory."""

import numpy as np

from ral_trace.analysis.ancestors import BIT, LINE_OF_CALL, UNKNOWN, ancestors
from ral_trace.analysis.base import (
    DEVICE,
    LINE,
    NAMED_DEVICE,
    SOME_DEVICE_WORK,
    TIME_NS,
    WANTED,
    Analysis,
    Column,
    Row,
    Rows,
)
from ral_trace.analysis.holds import Flags
from ral_trace.analysis.intervals import Integers, Union
from ral_trace.analysis.remember import once, table
from ral_trace.analysis.steady import in_steady
from ral_trace.analysis.units import duration
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

CONVERTS = "(?i)nchw_?(to|2)_?nhwc|nhwc_?(to|2)_?nchw|^batched_transpose_|^TransData"
"""Kernels between NCHW and NHWC (cuDNN, MIOpen), and between a device's own formats and others (Ascend)."""

COPIES = """(e.category = 'within_device' OR regexp_matches(coalesce(e.name, ''),
    '(?i)direct_copy_kernel|^Memcpy DtoD|elementwise.*copy'))"""
"""Condition on work `e`: it copies, judged by itself; what called it says whether for the layout."""


@once
def _found(trace: Trace) -> dict[str, Integers | Flags]:
    """Columns, a row a copy for the layout: its id, the launch's id, the nearest Python call, whether its own name says
    that it converts, and how long it ran with nothing else beside it on its device.
    """
    rows = trace.sql(f"""
        SELECT e.id, e.device::BIGINT AS device, e.ts_ns AS start, e.ts_ns + e.dur_ns AS end,
               coalesce(l.id, {UNKNOWN}) AS launch, coalesce(l.parent, {UNKNOWN}) AS parent,
               e.kind = 'kernel' AND regexp_matches(e.name, '{CONVERTS}') AS converts
        FROM event e LEFT JOIN (
            SELECT process, correlation, min(id) AS id, min(parent) AS parent FROM event
            WHERE kind = 'launch' AND correlation IS NOT NULL GROUP BY process, correlation) l
          ON l.process = e.process AND l.correlation = e.correlation
        WHERE e.kind IN ('kernel', 'transfer') AND e.device IS NOT NULL AND {TIME_NS} > 0
          AND ((e.kind = 'kernel' AND regexp_matches(e.name, '{CONVERTS}')) OR {COPIES})
        ORDER BY e.id""").fetchnumpy()
    found = {name: np.asarray(column) for name, column in rows.items()}
    around = ancestors(trace, found.pop("parent"))
    ours = found["converts"] | ((around.mask & BIT["layout"]) != 0)
    found = {name: column[ours] for name, column in {**found, "python": around.python}.items()}
    alone = np.zeros(len(found["id"]), dtype=np.int64)
    for device in np.unique(found["device"]):
        here = found["device"] == device
        with table(trace, {"id": found["id"]}) as copies:
            other = trace.sql(
                f"""SELECT e.ts_ns AS start, e.ts_ns + e.dur_ns AS end FROM event e
                    WHERE e.kind IN ('kernel', 'transfer') AND e.device = $1 AND {TIME_NS} > 0
                      AND e.id NOT IN (SELECT id FROM {copies})""",
                [int(device)],
            ).fetchnumpy()
        beside = Union.of(np.asarray(other["start"]), np.asarray(other["end"]))
        start, end = found["start"][here], found["end"][here]
        alone[here] = end - start - beside.within(start, end)
    return {name: found[name] for name in ("id", "launch", "python", "converts")} | {"alone": alone}


def layout_copies(trace: Trace, *, device: str | None = None, steady: bool = False, limit: int | None = 50) -> Rows:
    """A row for each line and op, or kernel, that copies; `steady`: of steady steps only, if there are."""
    with table(trace, _found(trace)) as found, in_steady(trace, steady) as condition:
        return trace.rows(
            f"""
            WITH {NAMED_DEVICE}, {LINE}, {LINE_OF_CALL.format(each=found)}, copied AS (
                SELECT d.position, d.shown AS device, coalesce(s.line, p.line) AS line,
                       CASE WHEN e.kind = 'kernel' THEN e.name ELSE coalesce(l.name, e.name) END AS name,
                       if(f.converts, 'conversion', 'copy') AS kind, {TIME_NS} AS ns, f.alone, e.bytes
                FROM {found} f JOIN event e ON e.id = f.id JOIN named_device d ON d.device = e.device
                LEFT JOIN event l ON l.id = f.launch
                LEFT JOIN line_of s ON s.stack = l.stack LEFT JOIN line_of_call p ON p.id = f.python
                WHERE {WANTED} AND {condition})
            SELECT device, line, name, kind, count(*) AS count, sum(ns)::BIGINT AS total_ns,
                   sum(alone)::BIGINT AS alone_ns, sum(bytes)::BIGINT AS bytes
            FROM copied GROUP BY position, device, line, name, kind
            ORDER BY total_ns DESC, position, line, name, kind LIMIT $2""",
            [device, limit],
        )


def layout_said(rows: Rows) -> str | None:
    """What it takes in all. None where nothing was copied."""
    if not rows:
        return None
    total, alone = (sum(row[name] for row in rows) for name in ("total_ns", "alone_ns"))
    first = rows[0]
    where = f"at {plain(first['line'])}" if first["line"] else f"in {plain(str(first['name']))}"
    return f"Copies for the layout took {duration(total)}, {duration(alone)} of that alone; most of it {where}."


def _much(row: Row) -> list[str]:
    return ["alone_ns"] if row["alone_ns"] * 2 > row["total_ns"] else []


LAYOUT_COPIES = Analysis(
    "layout_copies",
    "Copies for the layout",
    "Copies on a device that change nothing but how a tensor lies in memory: what contiguous() and reshape() copy, and "
    "kernels that convert between layouts (NCHW and NHWC, Ascend's TransData).",
    (
        DEVICE,
        Column("line", "text", "the program's line; none: no stack was recorded"),
        Column("name", "text", "op that copied, or the kernel that converts"),
        Column("kind", "text", "conversion: so says the kernel's name; copy: contiguous() or reshape() called it"),
        Column("count", "count", "copies"),
        Column("total_ns", "ns", "their time on the device"),
        Column(
            "alone_ns", "ns", "of that, when no other work ran on the device: what doing without saves at most", "alone"
        ),
        Column("bytes", "bytes", "copied; none: unknown", "copied"),
    ),
    layout_copies,
    chapter="waits",
    shown="device line name alone_ns total_ns count bytes kind",
    needs=(SOME_DEVICE_WORK,),
    detail=True,
    most=8,
    remark=layout_said,
    notable=_much,
)
