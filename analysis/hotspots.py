"""Where the time goes, on each device or on the host: by op, kernel, module, line, annotation, stream or device."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import DEVICE, NAMED_DEVICE, SOME_KERNELS, WANTED, Analysis, Bars, Column, Need, Row, Rows
from ral_trace.analysis.callers import NONE, Integers
from ral_trace.analysis.intervals import numbered
from ral_trace.analysis.work import LABELS, Work, on_devices, on_host, registered
from ral_trace.tracer import _native
from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

HOST = "host"
"""What the column `device` says of time on the host."""

BY = ("op", "kernel", "module", "annotation", "line", "stream", "device")

COLUMNS = (
    DEVICE,
    Column("name", "text", "what the time is by: op that the user called, kernel, ...; none: of none that is known"),
    Column("count", "count", "how often it ran, runs without a known duration included; of what it called: not"),
    Column("total_ns", "ns", "time in which it ran, each moment once; what it called is included on the host, and for "
           "modules and annotations; none: no duration is known"),
    Column("self_ns", "ns", "of that, the moments in which nothing ran that began later: what it called, or what "
           "overlaps it on the device; adds up to the busy time of the device, or of the threads"),
    Column("sum_ns", "ns", "sum of the durations, which is more than total_ns where they overlap", "sum"),
    Column("mean_ns", "ns", "mean duration"),
    Column("median_ns", "ns", "median duration: a duration that occurred, the lower of two"),
    Column("p99_ns", "ns", "99th percentile: a duration that occurred", "p99"),
    Column("max_ns", "ns", "longest duration"),
    Column("percent", "percent", "total_ns of the device's busy time; on the host self_ns of that of all ops", "share"),
    Column("launch_ns", "ns", "time of the host's calls that launched it, without what ran in them, but with what "
           "they waited for; a call that launched several kernels counts once, for the first; none: not known",
           "launching"),
    Column("fallbacks", "count", "how many of `count` were served by PyTorch's CPU kernel"),
    Column("suspects", "count", "how many of `count` have a duration that cannot be: see stream_order", "suspect"),
    Column("variants", "count", "kernels that differ in their template arguments only"),
)  # fmt: skip


@dataclass
class _Group:
    """The work of one name at one place (a device, or 0 for the host)."""

    place: int
    name: str | None
    total_ns: int | None
    self_ns: int
    facts: dict[str, Any]

    def row(self, device: str, part: int | None, whole: int) -> Row:
        """The row of the answer; its share is that of `part` in `whole`."""
        known = self.total_ns is not None
        own = {"total_ns": self.total_ns, "self_ns": self.self_ns if known else None}
        share = 100.0 * part / whole if known and part is not None and whole else None
        found = {"device": device, "name": self.name, "percent": share, **own, **self.facts}
        return {column.name: found[column.name] for column in COLUMNS}


def hotspots(trace: Trace, *, device: str | None = None, by: str = "op", limit: int | None = None) -> Rows:
    """The hottest names on each device, `limit` a device.

    by="op": the ops that the user called, with the time of their kernels, of their copies, and of the fallbacks that
    served them (a fallback's own copies lie within its time). by="kernel": the kernels. by="module", "annotation",
    "line": what launched the work. by="stream", "device": where it ran. With device="host", and where no device did
    anything, the ops (modules, annotations, lines) on the host.
    Rows without a known duration are counted but in no sum.
    """
    if by not in BY:
        raise UsageError(f"hotspots are by {', by '.join(BY[:-1])} or by {BY[-1]}, not by {by}")
    rows = Rows() if device == HOST else _on_devices(trace, device, by, limit)
    if by in LABELS and (device == HOST or (device is None and not rows)):
        rows = _on_host(trace, by, limit)
    return rows


def kernels(trace: Trace, *, device: str | None = None, limit: int | None = None) -> Rows:
    """The hottest kernels on each device, `limit` a device."""
    return hotspots(trace, device=device, by="kernel", limit=limit)


def _on_devices(trace: Trace, device: str | None, by: str, limit: int | None) -> Rows:
    places = trace.sql(
        f"WITH {NAMED_DEVICE} SELECT d.device, d.shown FROM named_device d WHERE {WANTED} ORDER BY d.position", [device]
    ).fetchall()
    if not places:
        return Rows()
    work = on_devices(trace, by)
    here: dict[int, list[_Group]] = {}
    for group in _groups(trace, work, work.place):
        here.setdefault(group.place, []).append(group)
    rows = Rows()
    for place, shown in places:
        found = here.get(place, [])
        found.sort(key=lambda group: (group.total_ns is None, -(group.total_ns or 0), group.name or ""))
        busy = sum(group.self_ns for group in found)
        rows += [group.row(shown, group.total_ns, busy) for group in found[:limit]]
    return rows


def _on_host(trace: Trace, by: str, limit: int | None) -> Rows:
    work = on_host(trace, by)
    found = _groups(trace, work, np.zeros_like(work.place))
    found = [group for group in found if group.name is not None or by == "op"]
    found.sort(key=lambda group: (group.total_ns is None, -group.self_ns, group.name or ""))
    whole = sum(group.self_ns for group in found)
    return Rows(group.row(HOST, group.self_ns, whole) for group in found[:limit])


def _groups(trace: Trace, work: Work, place: npt.NDArray[np.int32]) -> list[_Group]:
    """The work by place and name. What it covers is counted for each of `work.place` (a thread), and added up."""
    row = np.arange(len(work.name))
    if len(work.around[0]):
        row = np.concatenate([row, work.around[0]])
        row_name = np.concatenate([work.name, work.around[1]])
        order = np.argsort(row, kind="stable")  # by start, as the rows are
        row, name = row[order], row_name[order]
    else:
        name = work.name
    key = place[row].astype(np.int64) * (len(work.names) + 1) + name + 1
    keys, group = numbered(key)
    covered = _covered(work, row, group, len(keys))
    summed = _summed(trace, group, work.ns[row])
    inner = name == work.name[row]
    facts = _facts(trace, work, group[inner])
    found = []
    for number, one in enumerate(keys.tolist()):
        at, code = divmod(one, len(work.names) + 1)
        some = dict(facts.get(number, NO_FACTS))
        known = number in summed
        own = some.pop("self_ns") or 0
        shown = {**some, "sum_ns": summed.get(number), "variants": some["variants"] if work.families else None}
        found.append(_Group(at, work.names[code - 1] if code else None, covered[number] if known else None, own, shown))
    return found


def _covered(work: Work, row: Integers, group: Integers, groups: int) -> list[int]:
    """How much time the rows of each group cover, of each place for itself."""
    places = int(work.place.max(initial=0)) + 1
    keys, part = numbered(group * places + work.place[row])
    parts = _native.unions(part.astype(np.int32), work.start[row], work.end[row], len(keys))
    covered = np.zeros(groups, np.int64)
    np.add.at(covered, keys // places, parts)
    return [int(each) for each in covered]


def _summed(trace: Trace, group: Integers, ns: Integers) -> dict[int, int]:
    """The sum of the known durations of each group that has any."""
    with registered(trace, {"grp": group, "ns": ns}) as table:
        query = f"SELECT grp, sum(ns)::HUGEINT FROM {table} WHERE ns <> {NONE} GROUP BY grp"
        return {number: int(total) for number, total in trace.sql(query).fetchall()}


FACTS = f"""
    SELECT grp, count(*) AS count, sum(own)::HUGEINT AS self_ns, round(sum(ns) / count(ns))::BIGINT AS mean_ns,
           quantile_disc(ns, 0.5) AS median_ns, quantile_disc(ns, 0.99) AS p99_ns, max(ns) AS max_ns,
           sum(nullif(launch, {NONE}))::HUGEINT AS launch_ns, count(*) FILTER (fallback) AS fallbacks,
           count(*) FILTER (suspect) AS suspects, count(DISTINCT variant) AS variants
    FROM (SELECT * REPLACE (nullif(ns, {NONE}) AS ns) FROM {{table}}) GROUP BY grp"""
"""Of a group's own rows."""
COUNTS = ("count", "fallbacks", "suspects", "variants")
NO_FACTS: dict[str, Any] = {
    **dict.fromkeys(("self_ns", "mean_ns", "median_ns", "p99_ns", "max_ns", "launch_ns")),
    **dict.fromkeys(COUNTS, 0),
}


def _facts(trace: Trace, work: Work, group: Integers) -> dict[int, dict[str, Any]]:
    columns = {
        "grp": group,
        "ns": work.ns,
        "own": work.own,
        "launch": work.launch,
        "fallback": work.fallback,
        "suspect": work.suspect,
        "variant": work.variant,
    }
    with registered(trace, columns) as table:
        return {row.pop("grp"): row for row in trace.rows(FACTS.format(table=table))}


def said(rows: Rows) -> str | None:
    """Which names have durations that cannot be believed."""
    odd = [row for row in rows if row["suspects"]]
    if not odd:
        return None
    worst = max(odd, key=lambda row: row["max_ns"] or 0)
    count = worst["suspects"]
    text = f"{plain(str(worst['name']))} on {plain(str(worst['device']))}: {count:,} of {worst['count']:,} "
    text += "has a duration that cannot be" if count == 1 else "have durations that cannot be"
    text += ", because later kernels of the same stream ended first"
    return text + (f"; {len(odd) - 1:,} other names have such, too." if len(odd) > 1 else ".")


def _notable(row: Row) -> list[str]:
    return [name for name in ("fallbacks", "suspects") if row[name]]


HOTSPOTS = Analysis(
    "hotspots",
    "Hotspots",
    "Where each device's time goes, by the op that the user called: kernels, copies, and the fallbacks that served it "
    "(their copies included). An op has the kernels that it launched itself; what it called has its own row. Kernels "
    "of no known op stand under their own names. Where no device did anything: the ops on the host.",
    COLUMNS,
    hotspots,
    chapter="time",
    most=10,
    chart=Bars("name", "total_ns"),
    shown="name total_ns self_ns percent count mean_ns p99_ns fallbacks median_ns max_ns suspects sum_ns launch_ns",
    per_device=True,
    remark=said,
    notable=_notable,
)

KERNELS = Analysis(
    "kernels",
    "Kernels",
    "Where each device's time goes, by kernel. Variants of one template are one kernel.",
    COLUMNS,
    kernels,
    chapter="time",
    detail=True,
    shown="name total_ns percent count mean_ns p99_ns median_ns max_ns suspects variants sum_ns self_ns launch_ns",
    per_device=True,
    needs=(SOME_KERNELS,),
    remark=said,
    notable=_notable,
)


def _of_callers(by: str, title: str, about: str, need: Need) -> Analysis:
    return Analysis(
        f"{by}s",
        title,
        f"{about} Where no device did anything: the time on the host.",
        COLUMNS,
        partial(hotspots, by=by),
        chapter="time",
        shown="name total_ns self_ns percent count launch_ns sum_ns mean_ns max_ns suspects fallbacks",
        per_device=True,
        most=8,
        needs=(need,),
        notable=_notable,
    )


MODULES = _of_callers(
    "module",
    "Modules",
    "Where each device's time goes, by the torch.nn module that launched the work; its total includes that of the "
    "modules in it.",
    Need(
        "EXISTS (FROM event WHERE kind = 'annotation' AND category = 'module' "
        "OR kind = 'python' AND starts_with(name, 'nn.Module: '))",
        "no calls of modules were recorded: record with --with-modules",
    ),
)
ANNOTATIONS = _of_callers(
    "annotation",
    "Annotated parts",
    "Where each device's time goes, by the annotation (record_function, NVTX) that the work was launched in; its total "
    "includes that of the annotations in it. Steps and modules are not among them.",
    Need(
        "EXISTS (FROM event WHERE kind = 'annotation' AND thread IS NOT NULL "
        "AND coalesce(category, '') NOT IN ('module', 'step'))",
        "the program annotates nothing: name its parts with ral_trace.tracer.annotate()",
    ),
)
LINES = _of_callers(
    "line",
    "Lines",
    "Where each device's time goes, by the line of the program that launched the work: the innermost one outside of "
    "libraries. Of a Python call in a torch.profiler trace it is the line where the function begins.",
    Need(
        "EXISTS (FROM event WHERE stack IS NOT NULL OR kind = 'python' AND contains(name, '.py('))",
        "no Python stacks were recorded: record with --with-stack",
    ),
)
