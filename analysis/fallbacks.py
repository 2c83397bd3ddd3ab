"""What the devices could not do themselves, why, and what that cost."""

from ral_trace.analysis.base import (
    DEVICE,
    NAMED_DEVICE,
    SOME_LAUNCHES,
    TIME_NS,
    WANTED,
    Analysis,
    Column,
    Rows,
)
from ral_trace.analysis.beneath import find_inside_fallbacks
from ral_trace.analysis.units import duration
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain


def fallbacks(trace: Trace, *, device: str | None = None) -> Rows:
    """A row for each op, overload and reason, the costliest first.

    The cost is the time in the fallback: its copies, and the waits that it forced, lie within.
    """
    find_inside_fallbacks(trace)
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE},
        copied AS (
            SELECT c.fallback, count(*) AS copies, sum({TIME_NS}) AS ns, sum(e.bytes) AS bytes
            FROM copy_inside c JOIN event e ON e.id = c.id GROUP BY c.fallback),
        waited AS (SELECT fallback, count(*) AS syncs FROM below_fallback WHERE kind = 'sync' GROUP BY fallback),
        launched AS (
            SELECT device, count(*) AS launches FROM event
            WHERE kind = 'launch' AND id NOT IN (SELECT id FROM below_fallback) GROUP BY device)
        SELECT d.shown AS device, e.name, e.args->>'routed' AS routed, e.args->>'reason' AS reason,
               count(*) AS count, sum({TIME_NS}) AS total_ns,
               sum(copied.ns) AS copies_ns, sum(coalesce(e.bytes, copied.bytes)) AS copied_bytes,
               sum(coalesce(copied.copies, 0)) AS copies, sum(coalesce(waited.syncs, 0)) AS forced_syncs,
               100.0 * count(*) / any_value(launched.launches) AS percent_of_launches
        FROM event e JOIN named_device d ON d.device = e.device
        LEFT JOIN copied ON copied.fallback = e.id
        LEFT JOIN waited ON waited.fallback = e.id
        LEFT JOIN launched ON launched.device = e.device
        WHERE e.kind = 'fallback' AND {WANTED}
        GROUP BY d.position, d.shown, e.name, routed, reason
        ORDER BY total_ns DESC NULLS LAST, count DESC, d.position, e.name, routed, reason""",
        [device],
    )


def said(rows: Rows) -> str | None:
    """What the fallbacks cost, and which one to implement first. None without fallbacks."""
    if not rows:
        return None
    calls = sum(row["count"] for row in rows)
    text = f"{calls:,} {'call' if calls == 1 else 'calls'} fell back to PyTorch's CPU kernels"
    known = [row["total_ns"] for row in rows if row["total_ns"] is not None]
    if known:
        text += f" and took {duration(sum(known))}"
    return f"{text}. Implement first: {plain(str(rows[0]['name']))} on {plain(str(rows[0]['device']))}."


FALLBACKS = Analysis(
    "fallbacks",
    "Fallbacks",
    "Calls that PyTorch's CPU kernel served because the device's own kernels could not, the costliest first: "
    "implement these first.",
    (
        DEVICE,
        Column("name", "text", "op that the user called"),
        Column("routed", "text", "what reached the router; none: not recorded"),
        Column("reason", "text", "why each link of the chain refused; none: not recorded"),
        Column("count", "count", "calls"),
        Column("total_ns", "ns", "time in them; their copies and the waits that they forced lie within; none: unknown"),
        Column("copies_ns", "ns", "of that, the sum of their copies; none: no copy with a known duration"),
        Column("copied_bytes", "bytes", "bytes copied to the host and back; none: unknown", "copied"),
        Column("copies", "count", "copies that they made"),
        Column("forced_syncs", "count", "waits for the device that they forced"),
        Column(
            "percent_of_launches",
            "percent",
            "of the device's launches, those of the fallbacks' own copies left out",
            "of launches",
        ),
    ),
    fallbacks,
    chapter="fallbacks",
    detail=True,
    shown="device name count total_ns copied_bytes percent_of_launches reason forced_syncs copies routed",
    needs=(SOME_LAUNCHES,),
    remark=said,
)
