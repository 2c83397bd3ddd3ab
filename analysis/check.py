"""Whether a trace is as it should be: `check(trace, ["fallbacks == 0", "syncs_per_step <= 2"])`.

An assertion holds, or it does not, and then the rows that broke it are shown; or the trace cannot say it, which is no
pass either.
"""

import difflib
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from ral_trace.analysis import evidence
from ral_trace.analysis.evidence import MOST_ROWS
from ral_trace.analysis.expressions import Assertion, BadExpression, Number, Reference, Term, parse
from ral_trace.analysis.metrics import METRICS, Measured, Metric, Selection, Unknown, Values
from ral_trace.analysis.summary import devices
from ral_trace.analysis.units import human
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

Value = int | float | Fraction


def _quantile(share: float) -> Callable[[Values], Value]:
    """A value that occurred: the lower of two, as in the report."""

    def of(values: Values) -> Value:
        sorted_values = np.sort(values)
        found: Value = sorted_values[max(0, math.ceil(share * len(values)) - 1)].item()
        return found

    return of


def _mean(values: Values) -> Value:
    if values.dtype.kind == "f":
        return float(values.mean())
    return Fraction(sum(values.tolist()), len(values))


STATISTICS: dict[str, Callable[[Values], Value]] = {
    "median": _quantile(0.5),
    "p90": _quantile(0.9),
    "p99": _quantile(0.99),
    "mean": _mean,
    "min": lambda values: values.min().item(),
    "max": lambda values: values.max().item(),
    "sum": lambda values: sum(values.tolist()),
    "count": len,
}
OF_NONE = {"sum": 0, "count": 0}
"""What statistics of no value at all are; others are unknown."""

COMPARE: dict[str, Callable[[Value, Value], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What became of an assertion: `holds` is None where the trace cannot say it. `said` is one line; `rows` are the
    lines that show why. Both are harmless to look at.
    """

    assertion: str
    holds: bool | None
    said: str
    rows: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Quantity:
    """A side of a comparison: many values, or one; `source` is the one metric that it is."""

    measured: Measured | None
    value: Value | None
    unit: str
    source: tuple[Metric, Selection, Trace] | None = None


def read(texts: Sequence[str], *, baseline: bool = False) -> list[Assertion]:
    """Parses assertions, and checks that metrics, statistics and units are what they can be. Raises BadExpression."""
    found = [parse(text) for text in texts]
    for assertion in found:
        for reference in assertion.references():
            _must_be_known(assertion, reference, baseline)
        units = [_unit(assertion, side) for side in (assertion.left, assertion.right)]
        if all(units) and units[0] != units[1]:
            raise BadExpression(assertion.text, 0, f"compares {units[0]} with {units[1]}")
    return found


def _must_be_known(assertion: Assertion, reference: Reference, baseline: bool) -> None:
    metric = next((metric for metric in METRICS if metric.name == reference.metric), None)
    if metric is None:
        near = difflib.get_close_matches(reference.metric, [metric.name for metric in METRICS], 1)
        hint = f"did you mean {near[0]}?" if near else "see: ral-trace check --list"
        raise BadExpression(assertion.text, reference.at, f"there is no metric '{reference.metric}'; {hint}")
    if reference.statistic is not None and reference.statistic not in STATISTICS:
        cause = f"there is no statistic '{reference.statistic}'; there are {' '.join(STATISTICS)}"
        raise BadExpression(assertion.text, reference.at, cause)
    if reference.pattern is not None and not metric.named:
        raise BadExpression(assertion.text, reference.at, f"{metric.name} takes no name")
    if reference.device is not None and not metric.per_device:
        raise BadExpression(assertion.text, reference.at, f"{metric.name} is no metric of a device")
    if metric.name == "count" and reference.pattern is None:
        raise BadExpression(assertion.text, reference.at, 'count needs a name, as in count("aten::item")')
    if reference.baseline and not baseline:
        raise BadExpression(assertion.text, reference.at, "there is no baseline; name one with --baseline")


def _unit(assertion: Assertion, term: Term) -> str:
    """The dimension of a term: ns, bytes, percent, or nothing: counts and bare numbers go with all."""
    if isinstance(term, Number):
        return term.dimension
    if isinstance(term, Reference):
        unit = next(metric.unit for metric in METRICS if metric.name == term.metric)
        return "" if unit == "count" or term.statistic == "count" else unit
    left, right = _unit(assertion, term.left), _unit(assertion, term.right)
    if term.sign in "+-":
        if left != right and left and right:
            raise BadExpression(assertion.text, term.at, f"{left} and {right} cannot be added")
        return left or right
    if term.sign == "/" and left == right:
        return ""
    if not right or right == "percent":
        return left
    if term.sign == "*" and (not left or left == "percent"):
        return right
    raise BadExpression(assertion.text, term.at, f"'{term.sign}' of {left or 'a number'} and {right} is no quantity")


def check(
    trace: Trace,
    assertions: Sequence[str],
    *,
    baseline: Trace | None = None,
    skip_steps: int = 0,
    allow_missing: bool = False,
) -> list[Outcome]:
    """What becomes of each assertion. Raises BadExpression, before anything is looked at, where one cannot be read.

    `skip_steps` leaves out the first steps of each process. `allow_missing` judges by what is there where events were
    lost or durations are unknown; without it such a trace cannot say how many or how much there was.
    """
    judge = _Judge(trace, baseline, skip_steps, allow_missing)
    return [judge.outcome(assertion) for assertion in read(assertions, baseline=baseline is not None)]


def measure(trace: Trace, text: str, *, skip_steps: int = 0, allow_missing: bool = False) -> int | float:
    """One value of the trace: `measure(trace, "step_ns.median")`. Raises BadExpression, and RalTraceError where the
    trace cannot say it.
    """
    [assertion] = read([f"{text} == 0"])
    try:
        found = _Judge(trace, None, skip_steps, allow_missing).single(assertion.left).value
    except Unknown as error:
        raise RalTraceError(f"{text}: cannot be known: {error}") from error
    assert found is not None
    if isinstance(found, Fraction):
        return int(found) if found.denominator == 1 else float(found)
    return found


def failures(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that do not hold, or that the trace cannot say."""
    return [outcome for outcome in outcomes if not outcome.holds]


def told(outcome: Outcome) -> str:
    """An outcome in a line, and the rows that broke it in lines below."""
    mark = {True: "ok     ", False: "FAILED ", None: "UNKNOWN"}[outcome.holds]
    return "\n".join([f"{mark} {outcome.assertion}  ({outcome.said})", *(f"          {row}" for row in outcome.rows)])


class _Judge:
    def __init__(self, trace: Trace, baseline: Trace | None, skip_steps: int, allow_missing: bool) -> None:
        self.trace, self.baseline = trace, baseline
        self.skip_steps, self.allow_missing = skip_steps, allow_missing

    def outcome(self, assertion: Assertion) -> Outcome:
        try:
            left, right = self.quantity(assertion.left), self.quantity(assertion.right)
            return self.compared(assertion, left, right)
        except Unknown as error:
            return Outcome(plain(assertion.text), None, f"cannot be known: {plain(str(error))}")

    def compared(self, assertion: Assertion, left: _Quantity, right: _Quantity) -> Outcome:
        if left.measured is not None and right.measured is not None:
            raise Unknown(f"there are several values on both sides; choose one with .{' .'.join(STATISTICS)}")
        many, one, sign = (left, right, assertion.sign) if right.measured is None else (right, left, "")
        if sign == "":
            sign = assertion.sign.translate(str.maketrans("<>", "><"))
        assert one.value is not None
        if many.measured is None:
            assert many.value is not None
            holds = COMPARE[sign](many.value, one.value)
            rows = [] if holds or many.source is None else evidence.occasions(many.source[2], *many.source[:2], None)
            return Outcome(plain(assertion.text), holds, _told(many.value, many.unit), tuple(rows))
        good = _each(many.measured.values, sign, one.value)
        if not len(good):
            raise Unknown(f"there is no {many.measured.of} to look at")
        bad = np.flatnonzero(~good)
        said = f"{_told(_worst(many.measured.values, sign), many.unit)} at worst, of {len(good):,}"
        if not len(bad):
            return Outcome(plain(assertion.text), True, said)
        said += f": it does not hold for {len(bad):,}"
        return Outcome(plain(assertion.text), False, said, self.bad_rows(many, bad, sign))

    def bad_rows(self, many: _Quantity, bad: npt.NDArray[np.int64], sign: str) -> tuple[str, ...]:
        """The values that broke the assertion, the worst first, and of counts the events in the worst of the steps."""
        found = many.measured
        assert found is not None
        assert many.source is not None
        metric, chosen, trace = many.source
        order = np.argsort(found.values[bad], kind="stable")
        worst = bad[order if sign in (">", ">=") else order[::-1]][:MOST_ROWS].tolist()
        if found.events is not None:
            rows = evidence.single(trace, found.events[worst].tolist())
        else:
            assert found.labels is not None
            rows = [f"{plain(found.labels[at])}: {_told(found.values[at].item(), many.unit)}" for at in worst]
        if len(bad) > len(worst):
            rows.append(f"… {len(bad) - len(worst):,} more")
        if found.steps is not None:
            rows += evidence.occasions(trace, metric, chosen, found.steps[worst[0]])
        return tuple(rows)

    def quantity(self, term: Term) -> _Quantity:
        if isinstance(term, Number):
            return _Quantity(None, term.value, term.dimension)
        if isinstance(term, Reference):
            return self.measured(term)
        left, right = self.single(term.left), self.single(term.right)
        return _Quantity(None, _calculated(term.sign, left, right), left.unit or right.unit)

    def single(self, term: Term) -> _Quantity:
        found = self.quantity(term)
        if found.measured is not None:
            what = f"there are {len(found.measured.values):,} values, one for each {found.measured.of}"
            raise Unknown(f"{what}; choose one with .{' .'.join(STATISTICS)}")
        return found

    def measured(self, reference: Reference) -> _Quantity:
        metric = next(metric for metric in METRICS if metric.name == reference.metric)
        trace = self.baseline if reference.baseline else self.trace
        assert trace is not None
        chosen = Selection(reference.pattern, reference.device, self.skip_steps, self.allow_missing)
        self.must_be_there(trace, metric, chosen)
        found = metric.measure(trace, metric, chosen)
        unit = metric.unit
        source = (metric, chosen, trace)
        if reference.statistic is not None:
            if not len(found.values) and reference.statistic not in OF_NONE:
                raise Unknown(f"there is no {found.of or metric.name} to take the {reference.statistic} of")
            value = STATISTICS[reference.statistic](found.values)
            return _Quantity(None, value, "count" if reference.statistic == "count" else unit, source)
        if found.labels is None and found.events is None:
            return _Quantity(None, found.values[0].item(), unit, source)
        if len(found.values) == 1 and found.of == "device":
            return _Quantity(None, found.values[0].item(), unit, source)
        return _Quantity(found, None, unit, source)

    def must_be_there(self, trace: Trace, metric: Metric, chosen: Selection) -> None:
        """Raises Unknown where the trace does not hold what the metric is about, or has lost some of it."""
        for need in metric.needs:
            [(met,)] = trace.sql(f"SELECT {need.condition}").fetchall()
            if not met:
                raise Unknown(need.otherwise)
        if chosen.device is not None and not devices(trace, device=chosen.device):
            there = ", ".join(row["device"] for row in devices(trace)) or "none"
            raise Unknown(f"the trace has no device {chosen.device}; it has: {there}")
        [(missing,)] = trace.sql("SELECT coalesce(sum(dropped + lost + shed), 0)::BIGINT FROM ledger").fetchall()
        if missing and metric.counted and not chosen.allow_missing:
            raise Unknown(f"{missing:,} events are missing from the trace; record it with a larger --buffer")


def _each(values: Values, sign: str, limit: Value) -> npt.NDArray[np.bool_]:
    """The comparison for each value. A limit between two whole numbers becomes one of them: int64 must stay exact."""
    compare = COMPARE[sign]
    if values.dtype.kind == "f":
        return np.asarray(compare(values, float(limit)))  # type: ignore[arg-type]
    if sign in ("==", "!=") and limit != int(limit):
        return np.full(len(values), sign == "!=")
    whole = math.ceil(limit) if sign in ("<", ">=") else math.floor(limit)
    return np.asarray(compare(values, min(max(whole, -(2**63)), 2**63 - 1)))  # type: ignore[arg-type]


def _worst(values: Values, sign: str) -> Value:
    found: Value = (values.min() if sign in (">", ">=") else values.max()).item()
    return found


def _calculated(sign: str, left: _Quantity, right: _Quantity) -> Value:
    """Exact, but for what is a float from the start. A percentage times something is a share of it."""
    a, b = (Fraction(side.value or 0) for side in (left, right))
    if sign == "+":
        return a + b
    if sign == "-":
        return a - b
    if right.unit == "percent" and left.unit != "percent":
        b /= 100
    elif left.unit == "percent" and right.unit != "percent" and sign == "*":
        a /= 100
    if sign == "*":
        return a * b
    if b == 0:
        raise Unknown("it divides by 0")
    return a / b


def _told(value: Value, unit: str) -> str:
    """A value as people read it; of times and sizes the exact one, too, where that says more."""
    if isinstance(value, Fraction):
        value = int(value) if value.denominator == 1 else float(value)
    if unit == "count":
        return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
    return human(value, unit) if unit else f"{value:,}"


def assertions_of(text: str) -> list[str]:
    """The assertions of a file, one a line. What follows a # outside of quotation marks is a comment."""
    found = []
    for line in text.splitlines():
        at = next((at for at, char in enumerate(line) if char == "#" and line[:at].count('"') % 2 == 0), len(line))
        if line[:at].strip():
            found.append(line[:at].strip())
    return found
