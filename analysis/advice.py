"""What to do first: what other questions found, ranked by what can be gained, each with its evidence."""

from collections.abc import Callable, Iterator

from ral_trace.analysis.advice_feeding import (
    balance_ranks,
    copy_less,
    fuse_kernels,
    launch_less,
    pin_memory,
    prepare_input,
)
from ral_trace.analysis.advice_rules import (
    LEAST_PERCENT,
    LEAST_TIMES,
    Finding,
    Findings,
    change_layout,
    implement_ops,
    remove_waits,
    stop_leaks,
)
from ral_trace.analysis.base import DEVICE, NAMED_DEVICE, SOME_HOST_ROWS, WANTED, Analysis, Column, Row, Rows
from ral_trace.analysis.units import duration, short_path
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

RULES: list[Callable[[Findings], Iterator[Finding]]] = [
    implement_ops,
    remove_waits,
    change_layout,
    prepare_input,
    launch_less,
    fuse_kernels,
    copy_less,
    pin_memory,
    balance_ranks,
    stop_leaks,
]


def advice(trace: Trace, *, device: str | None = None, limit: int | None = 20) -> Rows:
    """A row for each thing worth doing, the largest gain first; what has none in time comes last."""
    known = Findings(trace)
    found = [finding for rule in RULES for finding in rule(known)]
    rows = [_row(finding, known) for finding in found if worth_saying(finding, known)]
    rows.sort(
        key=lambda row: (-(row["gain_ns"] or 0), row["what"], row["device"] or "", row["line"] or "", row["to_do"])
    )
    if device is not None:
        wanted = trace.sql(f"WITH {NAMED_DEVICE} SELECT shown FROM named_device d WHERE {WANTED}", [device]).fetchall()
        rows = [row for row in rows if (row["device"],) in wanted]
    return Rows(rows[:limit])


def worth_saying(finding: Finding, known: Findings) -> bool:
    """Whether it happened often enough, and matters enough. What costs no time (a leak) was tested by its rule."""
    if finding.gain_ns is None:
        return True
    least = LEAST_PERCENT * (known.span_ns if finding.whole else known.base_ns)
    return finding.count >= LEAST_TIMES and finding.gain_ns > 0 and 100 * finding.gain_ns >= least


def _row(finding: Finding, known: Findings) -> Row:
    """Nobody gains more than all the time there is."""
    base_ns = known.span_ns if finding.whole else known.base_ns
    gain_ns = None if finding.gain_ns is None else min(finding.gain_ns, base_ns)
    steps = 0 if finding.whole else known.steps
    return {
        "what": finding.what,
        "device": finding.device,
        "line": finding.line,
        "to_do": finding.to_do,
        "gain_ns": gain_ns,
        "gain_percent": None if gain_ns is None else 100.0 * gain_ns / base_ns,
        "gain_per_step_ns": None if gain_ns is None or not steps else gain_ns // steps,
        "count": finding.count,
        "evidence": finding.evidence,
        "found_by": " ".join(finding.found_by),
    }


def first_of_all(rows: Rows) -> str | None:
    """The first thing to do. None where there is nothing."""
    if not rows:
        return None
    row = rows[0]
    gain = "" if row["gain_ns"] is None else f" (about {duration(row['gain_ns'])}, {row['gain_percent']:.1f} %)"
    return f"First: {plain(row['to_do'])}{gain}."


def told(row: Row) -> tuple[str, str]:
    """What to do and what it gains; where, and the numbers behind it."""
    gain = ""
    if row["gain_ns"] is not None:
        gain = f": about {duration(row['gain_ns'])} ({row['gain_percent']:.1f} %)"
    where = f"{short_path(row['line'])}: " if row["line"] else ""
    return row["to_do"] + gain, where + row["evidence"]


ADVICE = Analysis(
    "advice",
    "What to do",
    "What is worth doing, by the idle time of the device that would go: in the steps after the warm-up, without steps "
    "in the whole trace. Gains do not add up: two may be the same idle time. What gains less than "
    f"{LEAST_PERCENT} %, or was seen fewer than {LEAST_TIMES} times, is left out.",
    (
        Column("what", "text", "sort of the advice"),
        DEVICE,
        Column("line", "text", "the program's line; none: it is of no single line, or no stack was recorded"),
        Column("to_do", "text", "what to do", "do this"),
        Column("gain_ns", "ns", "idle time of the device that would go; none: it is not about time", "gains about"),
        Column(
            "gain_percent",
            "percent",
            "of the time of the steps after the warm-up; if gain_per_step_ns is unknown, of the spans of all processes",
            "of time",
        ),
        Column(
            "gain_per_step_ns",
            "ns",
            "gain_ns a step, rounded down; none: no steps, or it is of the whole trace",
            "per step",
        ),
        Column("count", "count", "how often it was seen", "seen"),
        Column("evidence", "text", "the numbers behind it"),
        Column("found_by", "text", "the questions whose numbers these are"),
    ),
    advice,
    chapter="advice",
    shown="to_do gain_ns gain_percent device line evidence gain_per_step_ns count what found_by",
    needs=(SOME_HOST_ROWS,),
    remark=first_of_all,
    told=told,
    notable=lambda row: ["to_do"] if (row["gain_percent"] or 0) >= 10 else [],
)
