"""What to do first: what other questions found, ranked by what can be gained, each with its evidence."""

from ral_trace.analysis.advice_rules import LEAST_PERCENT, LEAST_TIMES, RULES, Finding, Findings
from ral_trace.analysis.base import DEVICE, NAMED_DEVICE, SOME_HOST_ROWS, WANTED, Analysis, Column, Row, Rows
from ral_trace.analysis.units import duration
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain


def advice(trace: Trace, *, device: str | None = None, limit: int | None = 20) -> Rows:
    """A row for each thing worth doing, the largest gain first; what has none in time comes last."""
    known = Findings(trace)
    found = [finding for rule in RULES for finding in rule(known)]
    rows = [_row(finding, known) for finding in found if worth_saying(finding, known.base_ns)]
    rows.sort(
        key=lambda row: (-(row["gain_ns"] or 0), row["what"], row["device"] or "", row["line"] or "", row["to_do"])
    )
    if device is not None:
        wanted = trace.sql(f"WITH {NAMED_DEVICE} SELECT shown FROM named_device d WHERE {WANTED}", [device]).fetchall()
        rows = [row for row in rows if (row["device"],) in wanted]
    return Rows(rows[:limit])


def worth_saying(finding: Finding, base_ns: int) -> bool:
    """Whether it happened often enough, and matters enough. What costs no time (a leak) was tested by its rule."""
    if finding.gain_ns is None:
        return True
    return finding.count >= LEAST_TIMES and base_ns > 0 and 100 * finding.gain_ns >= LEAST_PERCENT * base_ns


def _row(finding: Finding, known: Findings) -> Row:
    """Nobody gains more than all the time there is."""
    gain_ns = None if finding.gain_ns is None else min(finding.gain_ns, known.base_ns)
    return {
        "what": finding.what,
        "device": finding.device,
        "line": finding.line,
        "to_do": finding.to_do,
        "gain_ns": gain_ns,
        "gain_percent": None if gain_ns is None else 100.0 * gain_ns / known.base_ns,
        "gain_per_step_ns": None if gain_ns is None or not known.steps else gain_ns // known.steps,
        "count": finding.count,
        "evidence": finding.evidence,
        "found_by": " ".join(finding.found_by),
    }


def first_of_all(rows: Rows) -> str | None:
    """The first thing to do. None where there is nothing."""
    if not rows:
        return None
    row = rows[0]
    gain = "" if row["gain_ns"] is None else f" (at most {duration(row['gain_ns'])}, {row['gain_percent']:.1f} %)"
    return f"First: {plain(row['to_do'])}{gain}."


ADVICE = Analysis(
    "advice",
    "What to do",
    "What is worth doing, by what it gains at most: in the steps after the warm-up, without steps in the whole trace. "
    f"Gains do not add up: two may be the same idle time. What gains less than {LEAST_PERCENT} %, or was seen fewer "
    f"than {LEAST_TIMES} times, is left out.",
    (
        Column("what", "text", "sort of the advice"),
        DEVICE,
        Column("line", "text", "the program's line; none: it is of no single line, or no stack was recorded"),
        Column("to_do", "text", "what to do", "do this"),
        Column("gain_ns", "ns", "what that saves at most; none: it is not about time", "gains at most"),
        Column("gain_percent", "percent", "of the time of these steps, else of the spans of all processes", "of time"),
        Column("gain_per_step_ns", "ns", "gain_ns a step, rounded down; none: no steps", "per step"),
        Column("count", "count", "how often it was seen", "seen"),
        Column("evidence", "text", "the numbers behind it"),
        Column("found_by", "text", "the questions whose numbers these are"),
    ),
    advice,
    chapter="advice",
    shown="to_do gain_ns gain_percent device line evidence gain_per_step_ns count what found_by",
    needs=(SOME_HOST_ROWS,),
    remark=first_of_all,
    notable=lambda row: ["to_do"] if (row["gain_percent"] or 0) >= 10 else [],
)
