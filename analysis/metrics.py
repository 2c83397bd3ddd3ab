"""Named numbers of a trace that an assertion can be about: `METRICS`.

A metric gives one value, or one for each step, device or event. What the trace cannot say is no value but a reason
(`Unknown`): nothing passes because it was not recorded.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import (
    NAMED_DEVICE,
    SOME_ALLOCATIONS,
    SOME_HOST_ROWS,
    SOME_OPS,
    SOME_STEPS,
    TIME_NS,
    WANTED,
    Need,
    Row,
    Rows,
)
from ral_trace.analysis.memory import memory_peak
from ral_trace.analysis.steps import steps
from ral_trace.analysis.summary import devices
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.schema import FLAGS

Values = npt.NDArray[np.int64] | npt.NDArray[np.float64]

SOME_DEVICE = Need(
    "EXISTS (FROM device d JOIN event e ON e.device = d.id WHERE d.type <> 'cpu')"
    " OR EXISTS (FROM device WHERE type = 'ral')",
    "nothing of a device was recorded",
)
RAL_DEVICE = Need(
    "EXISTS (FROM device WHERE type = 'ral') OR EXISTS (FROM event WHERE kind = 'fallback')",
    "fallbacks are recorded on ral devices only, and the trace has none",
)
A_LEDGER = Need("EXISTS (FROM ledger)", "it has no ledger: it is no live recording")


class Unknown(Exception):
    """A metric that the trace cannot give; the message says why."""


@dataclass(frozen=True)
class Selection:
    """What a metric is asked of: events whose name is `pattern`, of one device, without the first steps.

    In a pattern `*` is any text; a name without its overload (`aten::add`) stands for all of them.
    """

    pattern: str | None = None
    device: str | None = None
    skip_steps: int = 0
    allow_missing: bool = False


@dataclass(frozen=True)
class Measured:
    """The values, and what each is of: labels, or ids of events. One value of the whole trace has neither.

    `steps`: of values that count events in steps, which.
    """

    values: Values
    labels: list[str] | None = None
    steps: list[int] | None = None
    events: npt.NDArray[np.int64] | None = None
    of: str = ""
    """What each value is of, as people say it: step, device, kernel."""


@dataclass(frozen=True)
class Metric:
    """One metric. `events` is the condition on an event `e` that it looks at, to show which those are."""

    name: str
    unit: str
    about: str
    measure: Callable[[Trace, "Metric", Selection], Measured]
    needs: tuple[Need, ...] = ()
    events: str = ""
    named: bool = False
    """Whether it takes the name of an event."""
    per_device: bool = True
    counted: bool = False
    """Whether missing events make it too low."""


NAMED = """($1::VARCHAR IS NULL OR e.name = $1 OR regexp_replace(e.name, '^([^.:]+::[^.]+)\\.[^.]+$', '\\1') = $1
            OR (contains($1, '*') AND regexp_full_match(e.name, $2)))"""
ON_DEVICE = (
    f"($3::VARCHAR IS NULL OR e.device IN (SELECT d.device FROM named_device d WHERE {WANTED.replace('$1', '$3')}))"
)


def wanted(metric: Metric, chosen: Selection) -> tuple[str, list[object]]:
    """The condition on an event `e` that a metric looks at, after the CTE `named_device`, with its parameters."""
    parts = (chosen.pattern or "").split("*")
    pattern = ".*".join("".join(f"\\x{{{ord(char):x}}}" for char in part) for part in parts)
    return f"{metric.events} AND {NAMED} AND {ON_DEVICE}", [chosen.pattern, f"(?s){pattern}", chosen.device]


def how_many(trace: Trace, metric: Metric, chosen: Selection) -> Measured:
    """The number of events."""
    condition, parameters = wanted(metric, chosen)
    query = f"WITH {NAMED_DEVICE} SELECT count(*) FROM event e WHERE {condition}"
    return Measured(np.array(trace.sql(query, parameters).fetchall()[0], dtype=np.int64))


def bytes_in_all(trace: Trace, metric: Metric, chosen: Selection) -> Measured:
    """The bytes of the events. Raises Unknown where one does not say how many."""
    condition, parameters = wanted(metric, chosen)
    query = f"""WITH {NAMED_DEVICE}
        SELECT coalesce(sum(e.bytes), 0)::BIGINT, count(*) - count(e.bytes) FROM event e WHERE {condition}"""
    [(total, unknown)] = trace.sql(query, parameters).fetchall()
    _must_be_known(unknown, "events do not say how many bytes they are", chosen)
    return Measured(np.array([total], dtype=np.int64))


def each_duration(trace: Trace, metric: Metric, chosen: Selection) -> Measured:
    """The duration of each event. Raises Unknown where one has none that can be."""
    condition, parameters = wanted(metric, chosen)
    found = trace.sql(
        f"""WITH {NAMED_DEVICE}
        SELECT coalesce({TIME_NS}, -1) AS ns, e.id FROM event e WHERE {condition} ORDER BY e.id""",
        parameters,
    ).fetchnumpy()
    ns, ids = np.asarray(found["ns"], dtype=np.int64), np.asarray(found["id"], dtype=np.int64)
    _must_be_known(int((ns < 0).sum()), "events have no duration that can be", chosen)
    return Measured(ns[ns >= 0], events=ids[ns >= 0], of=metric.name.removesuffix("_ns"))


def _must_be_known(missing: int, what: str, chosen: Selection) -> None:
    if missing and not chosen.allow_missing:
        raise Unknown(f"{missing:,} {what}")


def in_each_step(of_events: str, unknown: str = "0") -> Callable[[Trace, Metric, Selection], Measured]:
    """Measures each step of each process: `of_events` is SQL over its events `e`, `unknown` how many of those do not
    say it. Steps without such an event count 0.
    """

    def measure(trace: Trace, metric: Metric, chosen: Selection) -> Measured:
        condition, parameters = wanted(metric, chosen)
        found = trace.sql(
            f"""WITH {NAMED_DEVICE}
            SELECT e.process, e.step, ({of_events})::BIGINT, ({unknown})::BIGINT FROM event e
            WHERE e.step IS NOT NULL AND {condition} GROUP BY e.process, e.step""",
            parameters,
        ).fetchall()
        _must_be_known(sum(row[3] for row in found), "events do not say how many bytes they are", chosen)
        values = {(process, step): value for process, step, value, _ in found}
        rows = _steps(trace, chosen)
        counted = [values.get((row["process"], row["step"]), 0) for row in rows]
        labels, numbers = _step_labels(rows), [row["step"] for row in rows]
        return Measured(np.array(counted, dtype=np.int64), labels, numbers, of="step")

    return measure


def step_times(trace: Trace, metric: Metric, chosen: Selection) -> Measured:
    """The duration of each step of each process."""
    rows = _steps(trace, chosen)
    _must_be_known(sum(row["dur_ns"] is None for row in rows), "steps have no end that was seen", chosen)
    rows = [row for row in rows if row["dur_ns"] is not None]
    return Measured(np.array([row["dur_ns"] for row in rows], dtype=np.int64), _step_labels(rows), of="step")


def _steps(trace: Trace, chosen: Selection) -> list[Row]:
    """The steps, without the first ones of each process that are left out."""
    seen: Counter[int] = Counter()
    rows = []
    for row in steps(trace):
        seen[row["process"]] += 1
        if seen[row["process"]] > chosen.skip_steps:
            rows.append(row)
    return rows


def _step_labels(rows: list[Row]) -> list[str]:
    several = len({row["process"] for row in rows}) > 1
    return [f"step {row['step']}" + (f" of process {row['process']}" if several else "") for row in rows]


def of_devices(
    answer: Callable[..., Rows], column: str, unknown: str, *, host: bool = False
) -> Callable[[Trace, Metric, Selection], Measured]:
    """A column of an answer that has a row a device; the host's memory only where it is asked for by name."""

    def measure(trace: Trace, metric: Metric, chosen: Selection) -> Measured:
        rows = answer(trace, device=chosen.device)
        if chosen.device is None and not host:
            rows = Rows(row for row in rows if not row["device"].startswith("cpu"))
        known = [row for row in rows if row[column] is not None]
        if not known:
            raise Unknown(unknown)
        numbers = [row[column] for row in known]
        whole = all(isinstance(number, int) for number in numbers)
        values: Values = np.array(numbers, dtype=np.int64) if whole else np.array(numbers, dtype=np.float64)
        return Measured(values, [row["device"] for row in known], of="device")

    return measure


def fact(query: str) -> Callable[[Trace, Metric, Selection], Measured]:
    """One number that a query gives."""

    def measure(trace: Trace, metric: Metric, chosen: Selection) -> Measured:
        [(value,)] = trace.sql(query).fetchall()
        if value is None:
            raise Unknown("the trace does not say it")
        return Measured(np.array([value], dtype=np.int64))

    return measure


EVENTS = [
    ("op", "ops", "e.kind = 'op'", "ops", SOME_OPS),
    ("launch", "launches", "e.kind = 'launch'", "calls that went to a device", SOME_DEVICE),
    ("kernel", "kernels", "e.kind = 'kernel'", "kernels that ran on a device", SOME_DEVICE),
    ("transfer", "transfers", "e.kind = 'transfer'", "copies", SOME_DEVICE),
    ("sync", "syncs", "e.kind = 'sync'", "waits of the host for a device", SOME_DEVICE),
    (
        "forced_sync", "forced_syncs", f"e.kind = 'sync' AND (e.flags & {FLAGS['FORCED']}) <> 0",
        "waits that fallbacks forced", RAL_DEVICE,
    ),
    ("fallback", "fallbacks", "e.kind = 'fallback'", "calls that PyTorch's CPU kernel served instead", RAL_DEVICE),
]  # fmt: skip
"""One, many, which events, what they are, what the trace must hold."""

COPIES = [
    ("transferred_bytes", "e.kind = 'transfer'", "copied"),
    ("host_to_device_bytes", "e.kind = 'transfer' AND e.category = 'host_to_device'", "copied to devices"),
    ("device_to_host_bytes", "e.kind = 'transfer' AND e.category = 'device_to_host'", "copied to the host"),
]


def _of_events() -> list[Metric]:
    found = []
    for one, many, condition, about, need in EVENTS:
        stepped = in_each_step("count(*)")
        metrics = [
            Metric(many, "count", about, how_many, (need,)),
            Metric(f"{many}_per_step", "count", f"{about}, in each step", stepped, (need, SOME_STEPS)),
            Metric(f"{one}_ns", "ns", f"{about}: the duration of each", each_duration, (need,)),
        ]
        found += [replace(metric, events=condition, named=True, counted=True) for metric in metrics]
    for name, condition, about in COPIES:
        stepped = in_each_step("coalesce(sum(e.bytes), 0)", "count(*) - count(e.bytes)")
        needs = (SOME_DEVICE, SOME_STEPS)
        metrics = [
            Metric(name, "bytes", about, bytes_in_all, (SOME_DEVICE,)),
            Metric(f"{name}_per_step", "bytes", f"{about}, in each step", stepped, needs),
        ]
        found += [replace(metric, events=condition, named=True, counted=True) for metric in metrics]
    about = 'calls of the op of a name, as in count("aten::item")'
    return [*found, replace(found[0], name="count", about=about)]


NO_ALLOCATION = "no allocation was recorded on a device; of the host's memory it is peak_bytes[cpu:0]"

METRICS: list[Metric] = [
    *_of_events(),
    Metric("step_ns", "ns", "the duration of each step", step_times, (SOME_STEPS,), per_device=False),
    Metric("peak_bytes", "bytes", "the most memory in use at one time, of each device",
           of_devices(memory_peak, "peak_bytes", NO_ALLOCATION), (SOME_ALLOCATIONS,), counted=True),
    Metric("end_bytes", "bytes", "the memory in use at the end, of each device",
           of_devices(memory_peak, "end_bytes", NO_ALLOCATION), (SOME_ALLOCATIONS,), counted=True),
    Metric("busy_ns", "ns", "how long each device worked: the union of its kernels and copies",
           of_devices(devices, "busy_ns", "no duration on a device is known"), (SOME_DEVICE,), counted=True),
    Metric("busy_percent", "percent", "the same as a share of the trace's span",
           of_devices(devices, "busy_percent", "no duration on a device is known"), (SOME_DEVICE,), counted=True),
    Metric("span_ns", "ns", "from the first event's start to the last event's end", fact(
        f"""SELECT max(e.ts_ns + coalesce({TIME_NS}, 0)) - min(e.ts_ns) FROM event e
            WHERE (e.flags & {FLAGS['INVALID']}) = 0"""), (SOME_HOST_ROWS,), per_device=False),
    Metric("steps", "count", "how many training steps", fact(
        "SELECT count(DISTINCT step) FROM event WHERE step IS NOT NULL"), per_device=False, counted=True),
    Metric("events", "count", "how many events", fact("SELECT count(*) FROM event"), per_device=False, counted=True),
    Metric("dropped", "count", "events that found no room in their ring",
           fact("SELECT sum(dropped)::BIGINT FROM ledger"), (A_LEDGER,), per_device=False),
    Metric("lost", "count", "events not yet committed when their writer died",
           fact("SELECT sum(lost)::BIGINT FROM ledger"), (A_LEDGER,), per_device=False),
]  # fmt: skip
