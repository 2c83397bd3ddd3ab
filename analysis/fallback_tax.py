"""What the fallbacks cost: the fallback tax, in parts that add up, and what is gained by implementing the first ops."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ral_trace.analysis.base import (
    DEVICE,
    LINE,
    NAMED_DEVICE,
    SOME_FALLBACKS,
    TIME_NS,
    WANTED,
    Analysis,
    Bars,
    Column,
    Row,
    Rows,
)
from ral_trace.analysis.beneath import find_inside_fallbacks
from ral_trace.analysis.holds import Work, aftermath, held_work, idle_after, in_order, owned, per_owner
from ral_trace.analysis.intervals import Integers, Union
from ral_trace.analysis.remember import once, table
from ral_trace.analysis.steady import in_steady
from ral_trace.analysis.units import duration
from ral_trace.analysis.waits import waits
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

PARTS = ("compute_ns", "copies_ns", "waits_ns", "lost_ns")
"""They add up to tax_ns."""


@dataclass(frozen=True)
class Fallbacks:
    """Fallbacks with a known duration, in the order that `owned` wants; the end of a fallback's last own copy."""

    id: Integers
    device: Integers
    begin: Integers
    end: Integers
    copied: Integers

    def of(self, some: Any) -> "Fallbacks":
        """A part of them."""
        return Fallbacks(*(getattr(self, name)[some] for name in self.__dataclass_fields__))


def _fallbacks(trace: Trace) -> Fallbacks:
    find_inside_fallbacks(trace)
    found = trace.sql(f"""
        WITH copied AS (
            SELECT c.fallback, max(e.ts_ns + {TIME_NS}) AS end_ns
            FROM copy_inside c JOIN event e ON e.id = c.id GROUP BY c.fallback)
        SELECT e.id, e.device::BIGINT AS device, e.ts_ns AS begin, e.ts_ns + e.dur_ns AS end,
               coalesce(c.end_ns, e.ts_ns) AS copied
        FROM event e LEFT JOIN copied c ON c.fallback = e.id
        WHERE e.kind = 'fallback' AND e.device IS NOT NULL AND {TIME_NS} IS NOT NULL ORDER BY e.id""").fetchnumpy()
    fallbacks = Fallbacks(**{name: np.asarray(column) for name, column in found.items()})
    return fallbacks.of(in_order(fallbacks.begin, fallbacks.end))


@once
def taxed(trace: Trace) -> dict[str, Integers]:
    """Columns, a row a fallback that took time: its id, the PARTS, and `overlapped_ns`.

    `overlapped_ns` is the time of it in which the device had other work, which had to be done anyway.
    """
    fallbacks = _fallbacks(trace)
    work = held_work(trace)
    found = waits(trace)
    answers: list[dict[str, Integers]] = []
    for device in np.unique(fallbacks.device):
        ours = fallbacks.of(fallbacks.device == device)
        forced = np.isin(found.fallback, ours.id)
        waiting = Union.of(found.begin[forced], found.end[forced])
        pending = Union.of(found.begin[forced], found.pending[forced])
        answers.append({"id": ours.id, **_taxed_on(int(device), ours, waiting, pending, work)})
    names = ("id", *PARTS, "overlapped_ns")
    none = np.zeros(0, dtype=np.int64)
    return {name: np.concatenate([none, *(answer[name] for answer in answers)]) for name in names}


def _taxed_on(device: int, fallbacks: Fallbacks, waiting: Union, pending: Union, work: Work) -> dict[str, Integers]:
    """`taxed` of one device: `waiting` are the fallbacks' waits, `pending` the part in which they wait for work."""
    here = work.device == device
    copying = work.of(here & work.of_fallback).busy
    others = work.of(here & ~work.of_fallback).busy
    overlap = Union.of(np.concatenate([pending.start, others.start]), np.concatenate([pending.end, others.end]))
    start, end, owner = owned(fallbacks.begin, fallbacks.end)
    count = len(fallbacks.id)
    copies = copying.within(start, end)
    waited = waiting.minus(copying).within(start, end)
    overlapped = per_owner(owner, overlap.within(start, end), count)
    # A copy back to the device may run on after the fallback.
    last = aftermath(fallbacks.begin, fallbacks.end, np.maximum(fallbacks.copied, fallbacks.end))
    return {
        "compute_ns": per_owner(owner, end - start - copies - waited, count),
        "copies_ns": per_owner(owner, copies, count) + copying.within(fallbacks.end, last),
        "waits_ns": per_owner(owner, waited, count),
        "lost_ns": np.minimum(idle_after(fallbacks.begin, fallbacks.end, device, work), overlapped),
        "overlapped_ns": overlapped + copying.common(others).within(fallbacks.end, last),
    }


SUMS = ", ".join(f"sum({part})::BIGINT AS {part}" for part in (*PARTS, "overlapped_ns"))
TAX = " + ".join(PARTS)


def _grouped(trace: Trace, device: str | None, keys: Sequence[str], *, steady: bool = False) -> Rows:
    """The tax by device and `keys`, columns of `f`, the dearest first."""
    names = ", ".join(keys)
    with table(trace, taxed(trace)) as each, in_steady(trace, steady) as condition:
        return trace.rows(
            f"""
            WITH {NAMED_DEVICE}, {LINE}, f AS (
                SELECT d.position, d.shown AS device, e.name, s.line, t.* EXCLUDE (id)
                FROM event e JOIN named_device d ON d.device = e.device
                LEFT JOIN {each} t ON t.id = e.id LEFT JOIN line_of s ON s.stack = e.stack
                WHERE e.kind = 'fallback' AND {WANTED} AND {condition}),
            summed AS (
                SELECT position, device, {names}, count(*) AS count, {SUMS} FROM f GROUP BY position, device, {names}),
            total AS (SELECT *, {TAX} AS tax_ns, tax_ns - overlapped_ns AS gain_ns FROM summed)
            SELECT *, 100.0 * tax_ns / nullif(sum(tax_ns) OVER (), 0) AS percent,
                   sum(tax_ns) OVER ()::BIGINT - sum(tax_ns) OVER dearest::BIGINT AS left_ns,
                   100.0 * left_ns / nullif(sum(tax_ns) OVER (), 0) AS left_percent
            FROM total WINDOW dearest AS (
                ORDER BY tax_ns DESC NULLS LAST, count DESC, position, {names} ROWS UNBOUNDED PRECEDING)
            ORDER BY tax_ns DESC NULLS LAST, count DESC, position, {names}""",
            [device],
        )


def fallback_tax(trace: Trace, *, device: str | None = None, steady: bool = False) -> Rows:
    """A row for each op of each device, the dearest first; `steady`: of steady steps only, if there are steps."""
    rows = _grouped(trace, device, ["name"], steady=steady)
    return Rows({column.name: row[column.name] for column in TAX_COLUMNS} for row in rows)


def fallback_lines(trace: Trace, *, device: str | None = None, limit: int | None = 200) -> Rows:
    """A row for each line of the program and op, the dearest first."""
    rows = _grouped(trace, device, ["line", "name"])[:limit]
    return Rows({column.name: row[column.name] for column in LINE_COLUMNS} for row in rows)


def implement_first(rows: Rows) -> str | None:
    """How many ops make up most of the tax. None where no cost is known."""
    known = [row for row in rows if row["tax_ns"]]
    if not known:
        return None
    enough = next(number for number, row in enumerate(known, 1) if row["left_percent"] <= 20)
    total = sum(row["tax_ns"] for row in known)
    names = ", ".join(f"{plain(str(row['name']))} on {plain(row['device'])}" for row in known[: min(enough, 3)])
    more = f" and {enough - 3} more" if enough > 3 else ""
    share = 100 - known[enough - 1]["left_percent"]
    return f"Fallbacks cost {duration(total)}; {share:.0f} % of that goes with {names}{more}."


def _dear(row: Row) -> list[str]:
    return ["tax_ns"] if row["percent"] is not None and row["percent"] >= 20 else []


NAME = Column("name", "text", "op that the user called", "op")
COUNT = Column("count", "count", "fallbacks, those of unknown duration included")
TAX_NS = Column("tax_ns", "ns", " + ".join(PARTS) + "; none: no duration is known", "tax")
GAIN_NS = Column(
    "gain_ns",
    "ns",
    "tax_ns less overlapped_ns: an upper bound of what a kernel of the device's own saves",
    "gain at most",
)
TAX_COLUMNS = (
    DEVICE,
    NAME,
    COUNT,
    TAX_NS,
    Column("compute_ns", "ns", "in the fallback, neither copying nor in a forced wait: PyTorch's CPU kernel", "on CPU"),
    Column("copies_ns", "ns", "the fallbacks' own copies run; also those that run on after the fallback", "copies"),
    Column("waits_ns", "ns", "in a wait for the device that a fallback forced, its copies left out", "forced waits"),
    Column(
        "lost_ns",
        "ns",
        "after a fallback, idle time of the device until the first work launched after it starts (or the next fallback "
        "begins); no more than the time of the fallback in which the device had other work",
        "lost overlap",
    ),
    Column(
        "overlapped_ns",
        "ns",
        "of tax_ns, the time in which the device had other work, which was due anyway",
        "overlapped",
    ),
    GAIN_NS,
    Column("percent", "percent", "of the tax of all ops", "share"),
    Column("left_ns", "ns", "tax that is left once this op and those above are implemented", "then left"),
    Column("left_percent", "percent", "the same, of the tax of all ops", "left"),
)
LINE_COLUMNS = (
    DEVICE,
    Column("line", "text", "the program's line; none: no stack was recorded"),
    NAME,
    COUNT,
    TAX_NS,
    GAIN_NS,
    Column("percent", "percent", "of the tax of all lines", "share"),
)

FALLBACK_TAX = Analysis(
    "fallback_tax",
    "Fallback tax",
    "What each op's fallbacks cost: PyTorch's CPU kernel, the copies, the waits that they forced, and the overlap that "
    "was lost. Each moment of a device counts once. While the device had other work, nothing is to be gained.",
    TAX_COLUMNS,
    fallback_tax,
    chapter="fallbacks",
    shown="device name tax_ns gain_ns left_percent count compute_ns copies_ns waits_ns lost_ns overlapped_ns",
    chart=Bars("name", "tax_ns"),
    needs=(SOME_FALLBACKS,),
    remark=implement_first,
    notable=_dear,
)

FALLBACK_LINES = Analysis(
    "fallback_lines",
    "Fallbacks by line",
    "The fallback tax by the line of the program that called the op.",
    LINE_COLUMNS,
    fallback_lines,
    chapter="fallbacks",
    shown="device line name tax_ns gain_ns count percent",
    detail=True,
    needs=(SOME_FALLBACKS,),
    notable=_dear,
)
