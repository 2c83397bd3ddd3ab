"""The training steps: how long each took and what happened in it."""

from ral_trace.analysis.base import SOME_STEPS, TIME_NS, VALID, Analysis, Column, Drawn, Rows
from ral_trace.tracer.reading import Trace


def steps(trace: Trace) -> Rows:
    """A row a step of each process, in order.

    A step that no annotation states (inferred from the optimiser) lasts from its first host row to its last.
    """
    on_host = f"(e.thread IS NOT NULL AND {VALID})"
    return trace.rows(f"""
        WITH stated AS (
            SELECT e.process, e.step, min(e.ts_ns) AS ts_ns, max(e.ts_ns + {TIME_NS}) AS end_ns FROM event e
            WHERE e.kind = 'annotation' AND e.category = 'step' AND {VALID} GROUP BY e.process, e.step),
        counted AS (
            SELECT e.process, e.step,
                   min(e.ts_ns) FILTER {on_host} AS ts_ns,
                   max(e.ts_ns + {TIME_NS}) FILTER {on_host} AS end_ns,
                   count(*) FILTER (e.kind = 'launch') AS launches,
                   count(*) FILTER (e.kind = 'fallback') AS fallbacks,
                   count(*) FILTER (e.kind = 'sync') AS syncs,
                   count(*) FILTER (e.kind = 'transfer') AS transfers,
                   sum(e.bytes) FILTER (e.kind = 'transfer') AS transferred_bytes,
                   count(*) FILTER (e.kind = 'kernel') AS kernels,
                   sum({TIME_NS}) FILTER (e.kind = 'kernel') AS kernel_ns
            FROM event e WHERE e.step IS NOT NULL GROUP BY e.process, e.step)
        SELECT c.step, c.process, p.pid, coalesce(s.ts_ns, c.ts_ns) AS ts_ns,
               CASE WHEN s.step IS NULL THEN c.end_ns - c.ts_ns ELSE s.end_ns - s.ts_ns END AS dur_ns,
               launches, fallbacks, syncs,
               CASE WHEN transfers = 0 THEN 0 ELSE transferred_bytes END AS transferred_bytes,
               CASE WHEN kernels = 0 THEN 0 ELSE kernel_ns END AS kernel_ns
        FROM counted c JOIN process p ON p.id = c.process
        LEFT JOIN stated s ON s.process = c.process AND s.step = c.step
        ORDER BY c.process, c.step""")


STEPS = Analysis(
    "steps",
    "Steps",
    "The training steps of each process.",
    (
        Column("step", "id", "the step's number"),
        Column("process", "id", "process.id"),
        Column("pid", "id", "as the operating system counts them"),
        Column("ts_ns", "time", "its start"),
        Column(
            "dur_ns",
            "ns",
            "as its annotation states it, else from its first host row to its last; none: its end was not seen",
            "duration",
        ),
        Column("launches", "count", "calls that went to a device"),
        Column("fallbacks", "count", "calls that PyTorch's CPU kernel served instead"),
        Column("syncs", "count", "waits of the host for a device"),
        Column("transferred_bytes", "bytes", "copied", "copied"),
        Column("kernel_ns", "ns", "sum of its kernels' durations on all devices", "in kernels"),
    ),
    steps,
    chapter="steps",
    chart=Drawn("steps"),
    shown="step pid dur_ns launches fallbacks syncs kernel_ns transferred_bytes",
    needs=(SOME_STEPS,),
)
