"""The same op on several devices, and on the host: how much slower it is than on the fastest, and why."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import DEVICE, NAMED_DEVICE, SOME_OPS, WANTED, Analysis, Column, Need, Row, Rows
from ral_trace.analysis.callers import NONE, Callers, Integers
from ral_trace.analysis.hotspots import HOST
from ral_trace.analysis.intervals import numbered
from ral_trace.analysis.work import Work, on_devices, on_host, registered
from ral_trace.tracer.reading import Trace

PLACE_OF_HOST = -1
LEAST_RUNS = 3
"""Of an op at a place, for others to be compared with."""
SLOWER = 1.1
"""Times the median of the fastest place: less needs no reason."""

FACTS = f"""
    WITH run AS (
        SELECT w.name, w.place, w.ns, w.fallback, f.args->>'reason' AS reason, l.args->>'route' AS route,
               coalesce(o.args->>'dtypes', o.args->>'$."Input type"') AS dtypes,
               coalesce(o.args->>'shapes', o.args->>'$."Input Dims"') AS shapes
        FROM {{runs}} w LEFT JOIN event o ON o.id = w.op
        LEFT JOIN event l ON l.id = w.caller AND l.kind = 'launch'
        LEFT JOIN event f ON f.id = w.caller AND f.kind = 'fallback')
    SELECT name, place, dtypes, shapes, count(*) AS count, count(ns) AS timed, sum(ns)::HUGEINT AS total_ns,
           quantile_disc(ns, 0.5) AS median_ns, count(*) FILTER (fallback) AS fallbacks,
           mode(reason ORDER BY reason) AS reason, mode(route ORDER BY route) AS route
    FROM (SELECT * REPLACE (nullif(ns, {NONE}) AS ns) FROM run) GROUP BY name, place, dtypes, shapes"""
MEDIANS = f"""
    SELECT name, place, quantile_disc(ns, 0.5) FROM {{runs}} WHERE ns <> {NONE} GROUP BY name, place"""


@dataclass
class _Runs:
    """The runs of one op at one place; `inputs` by (dtypes, shapes)."""

    place: int
    median_ns: int | None
    inputs: list[Row]

    def total(self, column: str) -> int:
        """The sum of what is known."""
        return sum(each[column] or 0 for each in self.inputs)

    def usual(self, column: str) -> str | None:
        """What most of the runs have."""
        known = [each for each in self.inputs if each[column] is not None]
        found: str | None = max(known, key=lambda each: (each["count"], each[column]))[column] if known else None
        return found


def across(trace: Trace, *, device: str | None = None, limit: int | None = 200) -> Rows:
    """A row for each op and device, of the ops that ran at more than one; those that lose the most time first."""
    shown = dict(
        trace.sql(f"WITH {NAMED_DEVICE} SELECT device, shown FROM named_device ORDER BY position").fetchall()
    ) | {PLACE_OF_HOST: HOST}
    wanted = {HOST} if device in (None, HOST) else set()
    wanted |= {
        name for (name,) in trace.sql(f"WITH {NAMED_DEVICE} SELECT shown FROM named_device d WHERE {WANTED}", [device])
        .fetchall()
    }  # fmt: skip
    answer: list[tuple[int, Rows]] = []
    for name, places in _shared(trace).items():
        timed = [runs for runs in places if runs.median_ns and runs.total("timed") >= LEAST_RUNS]
        if len(timed) < 2:
            continue
        fastest = min(timed, key=lambda runs: (runs.median_ns or 0, runs.place))
        rows = Rows(_row(name, runs, fastest, shown[runs.place], shown[fastest.place]) for runs in places)
        rows.sort(key=lambda row: (row["ratio"] is None, row["ratio"] or 0, row["device"]))
        lost = sum((row["mean_ns"] - (fastest.median_ns or 0)) * row["count"] for row in rows if row["mean_ns"])
        answer.append((lost, Rows(row for row in rows if row["device"] in wanted)))
    answer.sort(key=lambda each: (-each[0], each[1][0]["name"] if each[1] else ""))
    return Rows([row for _, rows in answer for row in rows][:limit])


def _shared(trace: Trace) -> dict[str, list[_Runs]]:
    """The ops that ran at more than one place."""
    work = on_devices(trace, "op")
    if not len(work.name):
        return {}
    calls = Callers(trace, "CASE WHEN e.kind = 'op' THEN e.id END")
    columns = [_columns(work, np.arange(len(work.name)), work.place.astype(np.int64), work.name, calls)]
    host = _on_host_alone(trace, work, calls)
    if host is not None:
        columns.append(host)
    runs = {name: np.concatenate([each[name] for each in columns]) for name in columns[0]}
    several = _at_several(runs["name"], runs["place"])
    found: dict[tuple[int, int], list[Row]] = defaultdict(list)
    with registered(trace, {name: column[several] for name, column in runs.items()}) as table:
        for row in trace.rows(FACTS.format(runs=table)):
            found[row.pop("name"), row.pop("place")].append(row)
        medians = {(name, at): ns for name, at, ns in trace.sql(MEDIANS.format(runs=table)).fetchall()}
    shared: dict[str, list[_Runs]] = defaultdict(list)
    for (name, place), inputs in sorted(found.items()):
        shared[str(work.names[name])].append(_Runs(place, medians.get((name, place)), inputs))
    return shared


def _at_several(name: Integers, place: Integers) -> npt.NDArray[np.bool_]:
    """Of each run, whether its op ran at more than one place."""
    places, at = numbered(place)
    pairs, _ = numbered((name + 1) * len(places) + at)
    names, count = np.unique(pairs // len(places), return_counts=True)
    several = np.zeros(int(name.max()) + 2, bool)
    several[names[(count > 1) & (names > 0)]] = True
    return several[name + 1]


def _columns(
    work: Work, some: Integers, place: Integers, name: Integers, calls: Callers
) -> dict[str, npt.NDArray[Any]]:
    caller = work.caller[some]
    return {
        "name": name,
        "place": place,
        "ns": work.ns[some],
        "fallback": work.fallback[some],
        "caller": caller,
        "op": calls.nearest(caller),
    }


def _on_host_alone(trace: Trace, work: Work, calls: Callers) -> dict[str, npt.NDArray[Any]] | None:
    """The ops of the same names that started nothing on a device, and that no launch or fallback made."""
    host = on_host(trace, "op")
    code = {name: number for number, name in enumerate(work.names)}
    of_name = np.array([*(code.get(name, NONE) for name in host.names), NONE], np.int64)
    name = of_name[host.name]
    on_device = np.zeros(len(work.names) + 1, bool)
    on_device[work.name] = True
    some = np.flatnonzero(on_device[name] & (name != NONE))
    if not len(some):
        return None
    inside = Callers(trace, "CASE WHEN e.kind IN ('launch', 'fallback') THEN e.id END").nearest(host.caller[some])
    alone = (inside == NONE) & ~calls.around_any(host.caller[some], work.caller)
    some = some[alone]
    return _columns(host, some, np.full(len(some), PLACE_OF_HOST, np.int64), name[some], calls)


def _row(name: str, runs: _Runs, fastest: _Runs, device: str, fastest_device: str) -> Row:
    timed = runs.total("timed")
    alike = _on_equal_inputs(runs, fastest)
    is_fastest = runs is fastest
    few = timed < LEAST_RUNS
    ratio = None if runs.median_ns is None or few else runs.median_ns / (fastest.median_ns or 1)
    return {
        "name": name,
        "device": device,
        "count": runs.total("count"),
        "total_ns": runs.total("total_ns") if timed else None,
        "mean_ns": round(runs.total("total_ns") / timed) if timed else None,
        "median_ns": runs.median_ns,
        "ratio": ratio,
        "fastest": fastest_device,
        "ratio_on_equal_inputs": None if few else alike,
        "fallbacks": runs.total("fallbacks"),
        "route": runs.usual("route"),
        "dtypes": runs.usual("dtypes"),
        "shapes": runs.usual("shapes"),
        "reason": None if is_fastest or ratio is None or ratio < SLOWER else _reason(runs, fastest, alike),
    }


def _on_equal_inputs(runs: _Runs, fastest: _Runs) -> float | None:
    """The ratio of the medians for the inputs that both had most often. None: they are not known, or none is shared."""
    there = {(each["dtypes"], each["shapes"]): each for each in fastest.inputs if each["shapes"] and each["median_ns"]}
    shared = [
        (min(each["count"], there[key]["count"]), str(key), each["median_ns"] / there[key]["median_ns"])
        for each in runs.inputs
        if (key := (each["dtypes"], each["shapes"])) in there and each["median_ns"] is not None
    ]
    return max(shared)[2] if shared else None


def _reason(runs: _Runs, fastest: _Runs, alike: float | None) -> str | None:
    """What the recording shows to be different from the fastest place. None: it shows nothing."""
    found = []
    fallbacks, count = runs.total("fallbacks"), runs.total("count")
    if fallbacks:
        why = runs.usual("reason")
        found.append(f"{fallbacks:,} of {count:,} calls fell back to the CPU" + (f" ({why})" if why else ""))
    for column, what in (("route", "route"), ("dtypes", "types"), ("shapes", "shapes")):
        here, there = runs.usual(column), fastest.usual(column)
        known = here is not None and there is not None and here != there
        if known and (column != "shapes" or alike is None):
            found.append(f"{what} {here}, there {there}")
    if alike is not None and alike < SLOWER:
        found.append(f"on equal inputs no slower ({alike:.2f} x): other inputs, or other kernels of the op, differ")
    elif not found and alike is not None:
        return f"slower on the same types and shapes, too ({alike:.2f} x): the device or its kernel"
    return "; ".join(found) or None


def _notable(row: Row) -> list[str]:
    return ["ratio"] if row["ratio"] is not None and row["ratio"] >= 2 else []


ACROSS = Analysis(
    "across",
    "The same op across devices",
    "Ops that ran on several devices, or on a device and on the host (there: the op as a whole, where it started "
    "nothing on a device). The ratio is that of the medians, to the fastest place. A reason is given where the "
    "recording shows a difference: a fallback, another route, other types or shapes (--with-shapes).",
    (
        Column("name", "text", "op"),
        DEVICE,
        Column("count", "count", "kernels, copies and fallbacks; on the host calls"),
        Column("total_ns", "ns", "sum of the durations; none: none is known"),
        Column("mean_ns", "ns", "mean duration"),
        Column("median_ns", "ns", "median duration: a duration that occurred, the lower of two"),
        Column("ratio", "ratio", "median_ns by that of the fastest place; none: it ran too seldom here",
               "to the fastest"),
        Column("fastest", "text", "where the median is the least, of the places where it ran often enough"),
        Column("ratio_on_equal_inputs", "ratio", "the same for the types and shapes that both places had most often; "
               "none: not known, or none is the same", "on equal inputs"),
        Column("fallbacks", "count", "how many of `count` PyTorch's CPU kernel served"),
        Column("route", "text", "who served most of the calls; none: not known"),
        Column("dtypes", "text", "types of the inputs of most calls; none: not recorded", "types"),
        Column("shapes", "text", "shapes of the inputs of most calls; none: not recorded"),
        Column("reason", "text", "what differs from the fastest place; none: the recording shows nothing"),
    ),
    across,
    chapter="devices",
    most=8,
    shown="name device median_ns ratio reason count ratio_on_equal_inputs mean_ns total_ns fallbacks route dtypes "
    "shapes",
    needs=(SOME_OPS, Need("(SELECT count(*) FROM device WHERE type <> 'cpu') > 0", "there is no device")),
    notable=_notable,
)  # fmt: skip
