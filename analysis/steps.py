"""The training steps: how long each took, what happened in it, and which were not like the others."""

import statistics
from collections.abc import Collection, Sequence
from itertools import groupby

import numpy as np

from ral_trace.analysis.base import SOME_STEPS, TIME_NS, VALID, Analysis, Column, Drawn, Row, Rows
from ral_trace.analysis.bound import annotated, input_waits
from ral_trace.analysis.device_work import device_work, named_devices, percentile
from ral_trace.analysis.intervals import Union
from ral_trace.analysis.pace import DEVIATIONS, FEWEST, LEAST_EXCESS, SLOW, mark
from ral_trace.analysis.remember import answered, once
from ral_trace.analysis.units import duration
from ral_trace.tracer.reading import Trace

INPUT_BOUND = 20.0
"""Percent of a step from which on waiting for input bounds it: what TensorFlow's input pipeline analysis calls highly
input-bound (kHighlyInfeedBoundThresholdInPercent).
"""

COMPILING = "e.name LIKE '% (dynamo_timed)'"
"""What torch.compile itself annotates while it compiles (torch/_dynamo/utils.py)."""

ON_HOST = f"(e.thread IS NOT NULL AND {VALID})"

COUNTED = f"""
    WITH stated AS (
        SELECT e.process, e.step, min(e.ts_ns) AS ts_ns, max(e.ts_ns + {TIME_NS}) AS end_ns FROM event e
        WHERE e.kind = 'annotation' AND e.category = 'step' AND {VALID} GROUP BY e.process, e.step),
    counted AS (
        SELECT e.process, e.step,
               min(e.ts_ns) FILTER {ON_HOST} AS ts_ns,
               max(e.ts_ns + {TIME_NS}) FILTER {ON_HOST} AS end_ns,
               count(*) FILTER (e.kind = 'launch') AS launches,
               count(*) FILTER (e.kind = 'fallback') AS fallbacks,
               sum({TIME_NS}) FILTER (e.kind = 'fallback') AS fallback_ns,
               count(*) FILTER (e.kind = 'sync') AS syncs,
               sum({TIME_NS}) FILTER (e.kind = 'sync') AS sync_ns,
               count(*) FILTER (e.kind = 'transfer') AS transfers,
               sum(e.bytes) FILTER (e.kind = 'transfer') AS transferred_bytes,
               count(*) FILTER (e.kind = 'kernel') AS kernels,
               sum({TIME_NS}) FILTER (e.kind = 'kernel') AS kernel_ns,
               count(*) FILTER (e.kind = 'alloc') AS allocations,
               sum(e.bytes) FILTER (e.kind = 'alloc') AS allocated_bytes,
               sum({TIME_NS}) FILTER (e.kind = 'python' AND e.name = 'gc.collect') AS gc_ns
        FROM event e WHERE e.step IS NOT NULL GROUP BY e.process, e.step),
    first AS (
        SELECT process, step, count(*) AS calls FROM (
            SELECT process, arg_min_null(step, (ts_ns, id)) AS step FROM event WHERE kind = 'op' GROUP BY process, name)
        GROUP BY process, step)
    SELECT c.step, c.process, p.pid, coalesce(s.ts_ns, c.ts_ns) AS ts_ns,
           CASE WHEN s.step IS NULL THEN c.end_ns - c.ts_ns ELSE s.end_ns - s.ts_ns END AS dur_ns,
           launches, fallbacks, syncs,
           CASE WHEN transfers = 0 THEN 0 ELSE transferred_bytes END AS transferred_bytes,
           CASE WHEN kernels = 0 THEN 0 ELSE kernel_ns END AS kernel_ns,
           CASE WHEN syncs = 0 THEN 0 ELSE sync_ns END AS sync_ns,
           CASE WHEN fallbacks = 0 THEN 0 ELSE fallback_ns END AS fallback_ns,
           allocations, CASE WHEN allocations = 0 THEN 0 ELSE allocated_bytes END AS allocated_bytes,
           gc_ns, coalesce(first.calls, 0) AS first_calls
    FROM counted c JOIN process p ON p.id = c.process
    LEFT JOIN stated s ON s.process = c.process AND s.step = c.step
    LEFT JOIN first ON first.process = c.process AND first.step = c.step
    ORDER BY c.process, c.step"""


@answered
def steps(trace: Trace) -> Rows:
    """A row a step of each process, in order.

    A step that no annotation states (inferred from the optimiser) lasts from its first host row to its last. Rows of
    devices count for the step that launched them.
    """
    return Rows(dict(row) for row in _steps(trace))


@once
def _steps(trace: Trace) -> Rows:
    rows = trace.rows(COUNTED)
    busy, waits, compiling = _busy(trace), input_waits(trace), annotated(trace, COMPILING)
    for process, of_process in groupby(rows, key=lambda row: row["process"]):
        found = list(of_process)
        within = (_within(found, times.get(process)) for times in (busy, waits, compiling))
        for row, busy_ns, input_ns, compile_ns in zip(found, *within, strict=True):
            whole = row["dur_ns"]
            row["idle_ns"] = None if busy_ns is None else whole - busy_ns
            row["input_wait_ns"] = input_ns
            row["input_percent"] = None if not whole or input_ns is None else 100.0 * input_ns / whole
            row["compile_ns"] = compile_ns
            row["state"] = row["why"] = None
        mark(sorted(found, key=lambda row: (row["ts_ns"] is None, row["ts_ns"] or 0, row["step"])))
    return Rows({column.name: row[column.name] for column in COLUMNS} for row in rows)


def _busy(trace: Trace) -> dict[int, Union]:
    """When any device of each process worked."""
    work = device_work(trace).by_device()
    of_process: dict[int, list[Union]] = {}
    for device in named_devices(trace, None):
        if device.id in work:
            of_process.setdefault(device.process, []).append(work[device.id].busy)
    return {
        process: Union.of(np.concatenate([each.start for each in found]), np.concatenate([each.end for each in found]))
        for process, found in of_process.items()
    }


def _within(rows: Sequence[Row], times: Union | None) -> list[int | None]:
    """How much of `times` lies in each step. None: the step's end is not known, or there are no such times at all."""
    known = [number for number, row in enumerate(rows) if row["dur_ns"] is not None]
    found: list[int | None] = [None] * len(rows)
    if times is not None:
        start = np.array([rows[number]["ts_ns"] for number in known], dtype=np.int64)
        end = start + np.array([rows[number]["dur_ns"] for number in known], dtype=np.int64)
        for number, within_ns in zip(known, times.within(start, end).tolist(), strict=True):
            found[number] = within_ns
    return found


def said(rows: Rows) -> str | None:
    """How many steps wait for input, else the slowest outlier and what was different in it."""
    known = [row for row in rows if row["input_percent"] is not None]
    bound = sum(row["input_percent"] >= INPUT_BOUND for row in known)
    if bound * 2 > len(known):
        return f"{bound:,} of {len(known):,} steps wait for input for {INPUT_BOUND:.0f} % of their time or more."
    outliers = [row for row in rows if row["state"] == "outlier"]
    if not outliers:
        return None
    slowest = max(outliers, key=lambda row: row["dur_ns"])
    one = "step is an outlier" if len(outliers) == 1 else "steps are outliers"
    took = duration(slowest["dur_ns"])
    return f"{len(outliers):,} {one}; the slowest is step {slowest['step']} with {took}: {slowest['why']}."


def notable(row: Row) -> Collection[str]:
    """An outlier's duration, and a wait for input that bounds the step."""
    found = ["dur_ns", "state"] if row["state"] == "outlier" else []
    return [*found, "input_percent"] if (row["input_percent"] or 0) >= INPUT_BOUND else found


COLUMNS = (
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
    Column(
        "idle_ns", "ns", "of its duration, when none of the process' devices worked; none: none ever did", "idle time"
    ),
    Column(
        "input_wait_ns",
        "ns",
        "of its duration, when the process waited for its next batch; none: no such wait was recorded",
        "for input",
    ),
    Column("input_percent", "percent", f"the same as a share; from {INPUT_BOUND:.0f} % on it is input-bound", "input"),
    Column("sync_ns", "ns", "sum of its waits for devices; none: not known", "in syncs"),
    Column("fallback_ns", "ns", "sum of its fallbacks; none: not known", "in fallbacks"),
    Column(
        "compile_ns", "ns", "of its duration, when torch.compile compiled; none: that was not recorded", "compiling"
    ),
    Column("gc_ns", "ns", "sum of Python's garbage collections in it; none: no such was recorded", "collecting"),
    Column("allocations", "count", "blocks of memory that were allocated"),
    Column("allocated_bytes", "bytes", "their size", "allocated"),
    Column("first_calls", "count", "ops that were never called before in the trace"),
    Column(
        "state",
        "text",
        f"warm-up: one of the leading steps, all of which took more than {SLOW} times the median of the later half; "
        f"outlier: above the median of the steps after the warm-up by more than {DEVIATIONS} scaled median absolute "
        f"deviations, and {100 * LEAST_EXCESS:.0f} %; steady; none: its duration is not known, or there are fewer than "
        f"{FEWEST} steps",
    ),
    Column("why", "text", "what there is more of in it than in the median steady step; none: it is steady"),
)

STEPS = Analysis(
    "steps",
    "Steps",
    "The training steps of each process, which of them are its warm-up and which are outliers, and what was different "
    "in those. Rows of devices count for the step that launched them.",
    COLUMNS,
    steps,
    chapter="steps",
    most=8,
    chart=Drawn("steps"),
    shown="step pid dur_ns state launches fallbacks syncs idle_ns input_percent kernel_ns transferred_bytes why",
    needs=(SOME_STEPS,),
    remark=said,
    notable=notable,
)


def step_times(trace: Trace) -> Rows:
    """A row a process that has steps of known duration: how long they take, without its warm-up."""
    rank = dict(trace.sql("SELECT id, rank FROM process").fetchall())
    return Rows(
        _times(list(of_process), rank[process])
        for process, of_process in groupby(_steps(trace), key=lambda row: row["process"])
    )


def _times(rows: list[Row], rank: int | None) -> Row:
    counted = [row for row in rows if row["dur_ns"] is not None and row["state"] != "warm-up"]
    durations = sorted(row["dur_ns"] for row in counted)
    told = any(row["state"] is not None for row in rows)
    found: Row = {
        "process": rows[0]["process"],
        "pid": rows[0]["pid"],
        "rank": rank,
        "steps": len(rows),
        "warm_up": sum(row["state"] == "warm-up" for row in rows) if told else None,
        "outliers": sum(row["state"] == "outlier" for row in rows) if told else None,
    }
    if not durations:
        return found | dict.fromkeys(column.name for column in TIMES_COLUMNS[len(found) :])
    whole, median = sum(durations), statistics.median(durations)
    return found | {
        "mean_ns": round(whole / len(durations)),
        "median_ns": percentile(np.array(durations), 0.5),
        "deviation_ns": round(statistics.median(abs(each - median) for each in durations)),
        "p99_ns": percentile(np.array(durations), 0.99),
        "max_ns": durations[-1],
        "per_second": 1e9 * len(durations) / whole if whole else None,
        "idle_percent": _share(counted, "idle_ns", whole),
        "input_percent": _share(counted, "input_wait_ns", whole),
        "input_bound": _input_bound(counted),
    }


def _share(rows: list[Row], column: str, whole_ns: int) -> float | None:
    known = [row[column] for row in rows if row[column] is not None]
    return 100.0 * sum(known) / whole_ns if known and whole_ns else None


def _input_bound(rows: list[Row]) -> int | None:
    known = [row["input_percent"] for row in rows if row["input_percent"] is not None]
    return sum(percent >= INPUT_BOUND for percent in known) if known else None


TIMES_COLUMNS = (
    Column("process", "id", "process.id"),
    Column("pid", "id", "as the operating system counts them"),
    Column("rank", "id", "distributed rank"),
    Column("steps", "count", "steps"),
    Column("warm_up", "count", "leading steps that are its warm-up (see `steps`), in no figure that follows"),
    Column("outliers", "count", "outliers among the others; they are in the figures that follow"),
    Column("mean_ns", "ns", "mean duration"),
    Column("median_ns", "ns", "median duration: one that occurred, the lower of two"),
    Column("deviation_ns", "ns", "median absolute deviation from the median", "deviation"),
    Column("p99_ns", "ns", "99th percentile: a duration that occurred", "p99"),
    Column("max_ns", "ns", "longest duration"),
    Column("per_second", "number", "steps a second of these durations", "steps/s"),
    Column("idle_percent", "percent", "of these durations, when none of its devices worked", "idle"),
    Column("input_percent", "percent", "of these durations, when it waited for its next batch", "input"),
    Column("input_bound", "count", f"steps that wait for input for {INPUT_BOUND:.0f} % of their time or more"),
)

STEP_TIMES = Analysis(
    "step_times",
    "Time of a step",
    "How long a step of each process takes once its warm-up is over.",
    TIMES_COLUMNS,
    step_times,
    chapter="steps",
    shown="pid rank mean_ns median_ns p99_ns per_second idle_percent input_percent steps warm_up outliers input_bound "
    "max_ns deviation_ns",
    needs=(SOME_STEPS,),
)
