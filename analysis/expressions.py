"""The language of assertions: `syncs_per_step <= 2`, `peak_bytes[ral:1] < 2GiB`, `op_ns("aten::mm").p99 < 1.5ms`.

    assertion = sum ("<" | "<=" | ">" | ">=" | "==" | "!=") sum
    sum       = product (("+" | "-") product)*
    product   = term (("*" | "/") term)*
    term      = number [unit] | "(" sum ")" | "-" term
              | ["baseline" "."] metric ["(" '"' name '"' ")"] ["[" device "]"] ["." statistic]

Nothing is evaluated here, and nothing ever by Python's eval.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.units import NS

COMPARISONS = ("<=", ">=", "==", "!=", "<", ">")
BASELINE = "baseline"
BYTES = {"B": 1} | {
    f"{prefix}{ending}": 1 << 10 * power
    for power, prefix in enumerate("KMGT", 1)
    for ending in ("B", "iB")
}  # fmt: skip
"""By powers of 1024, as everywhere in ral-trace."""
UNITS = {
    **{unit: ("ns", factor) for unit, factor in NS.items()},
    **{unit: ("bytes", factor) for unit, factor in BYTES.items()},
    "%": ("percent", 1),
}
"""Of numbers: their dimension, and how many ns, bytes or percent one is."""
MOST_DEEP = 50
MOST_CHARACTERS = 2_000
MOST_DIGITS = 40

TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<number>\d[\d_]*(?:\.\d+)?) (?P<unit>\s*(?:%|[A-Za-zµ]+))?
    | (?P<name>[A-Za-z_]\w*)
    | (?P<text>"[^"]*"|'[^']*')
    | (?P<device>\[[^\]]*\])
    | (?P<sign><=|>=|==|!=|[<>+\-*/().])""",
    re.VERBOSE,
)


class BadExpression(UsageError):
    """An assertion that cannot be read. `text` is the assertion, `at` the place of what is wrong in it."""

    def __init__(self, text: str, at: int, cause: str) -> None:
        super().__init__(f"assertion '{text}', at character {at + 1}: {cause}")
        self.text, self.at, self.cause = text, at, cause

    def pointed(self) -> str:
        """The assertion with a mark under the place, in two lines."""
        return f"{self.text}\n{' ' * self.at}^ {self.cause}"


@dataclass(frozen=True)
class Number:
    """A number as written; `dimension` is ns, bytes, percent, or nothing."""

    value: Fraction
    dimension: str
    at: int


@dataclass(frozen=True)
class Reference:
    """A metric of the trace or of the baseline: of events named `pattern`, of one device, and a statistic of it."""

    metric: str
    pattern: str | None
    device: str | None
    statistic: str | None
    baseline: bool
    at: int


@dataclass(frozen=True)
class Operation:
    """left sign right, with sign one of + - * /."""

    sign: str
    left: "Term"
    right: "Term"
    at: int


Term = Number | Reference | Operation


@dataclass(frozen=True)
class Assertion:
    """left sign right, with sign one of COMPARISONS."""

    text: str
    sign: str
    left: Term
    right: Term

    def references(self) -> list[Reference]:
        """All metrics in it, from the left."""
        return [*_references(self.left), *_references(self.right)]


def _references(term: Term) -> list[Reference]:
    if isinstance(term, Operation):
        return [*_references(term.left), *_references(term.right)]
    return [term] if isinstance(term, Reference) else []


def parse(text: str) -> Assertion:
    """Reads an assertion. Raises BadExpression, which says where and why it cannot be read."""
    return _Parser(text).assertion()


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    at: int
    unit: str = ""


def _tokens(text: str) -> list[_Token]:
    if len(text) > MOST_CHARACTERS:
        raise BadExpression(text[:40] + "…", 0, f"is longer than {MOST_CHARACTERS} characters")
    found, at = [], 0
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise BadExpression(text, at, _unreadable(text, at))
        kind = match.lastgroup if match.lastgroup != "unit" else "number"
        if kind == "number":
            found.append(_Token("number", match["number"], at, (match["unit"] or "").strip()))
        elif kind != "space":
            found.append(_Token(str(kind), match[0], at))
        at = match.end()
    return [*found, _Token("end", "", len(text.rstrip()))]


def _unreadable(text: str, at: int) -> str:
    if text[at] == "=":
        return "write == to compare"
    if text[at] in "\"'":
        return "this text has no end"
    if text[at] == "[":
        return "a device ends with ], as in [ral:1]"
    return f"'{text[at]}' means nothing here"


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.next = 0
        self.depth = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.next]

    def refuse(self, cause: str, at: int | None = None) -> BadExpression:
        return BadExpression(self.text, self.token.at if at is None else at, cause)

    def take(self, *signs: str) -> _Token | None:
        """The next token, if it is one of these signs."""
        token = self.token
        if token.kind != "sign" or token.text not in signs:
            return None
        self.next += 1
        return token

    def assertion(self) -> Assertion:
        if self.token.kind == "end":
            raise self.refuse("nothing is asserted; write it as fallbacks == 0")
        left = self.sum()
        sign = self.take(*COMPARISONS)
        if sign is None:
            what = "a comparison is missing" if self.token.kind == "end" else f"'{self.token.text}' cannot come here"
            raise self.refuse(f"{what}; write one of {' '.join(COMPARISONS)} between two values")
        right = self.sum()
        if self.token.kind != "end":
            again = self.token.text in COMPARISONS
            raise self.refuse("one comparison an assertion" if again else f"'{self.token.text}' cannot come here")
        found = Assertion(self.text, sign.text, left, right)
        if not found.references():
            raise self.refuse("names no metric, so that it says nothing of a trace; see: ral-trace check --list", 0)
        return found

    def sum(self) -> Term:
        left = self.product()
        while sign := self.take("+", "-"):
            left = Operation(sign.text, left, self.product(), sign.at)
        return left

    def product(self) -> Term:
        left = self.term()
        while sign := self.take("*", "/"):
            left = Operation(sign.text, left, self.term(), sign.at)
        return left

    def term(self) -> Term:
        self.depth += 1
        if self.depth > MOST_DEEP:
            raise self.refuse("is nested too deeply")
        try:
            if sign := self.take("-"):
                return Operation("-", Number(Fraction(0), "", sign.at), self.term(), sign.at)
            if self.take("("):
                found = self.sum()
                if not self.take(")"):
                    raise self.refuse("a ) is missing")
                return found
            if self.token.kind == "number":
                return self.number()
            if self.token.kind == "name":
                return self.reference()
        finally:
            self.depth -= 1
        what = "the assertion ends" if self.token.kind == "end" else f"'{self.token.text}' stands"
        raise self.refuse(f"{what} where a number or a metric should be")

    def number(self) -> Number:
        token = self.tokens[self.next]
        self.next += 1
        if len(token.text) > MOST_DIGITS:
            raise self.refuse("has more digits than any quantity", token.at)
        if token.unit and token.unit not in UNITS:
            raise self.refuse(f"'{token.unit}' is no unit; there are {' '.join(UNITS)}", token.at + len(token.text))
        dimension, factor = UNITS[token.unit] if token.unit else ("", 1)
        return Number(Fraction(token.text.replace("_", "")) * factor, dimension, token.at)

    def reference(self) -> Reference:
        first = self.token
        metric = self.name("a metric")
        of_baseline = metric == BASELINE
        if of_baseline:
            if not self.take("."):
                raise self.refuse("write the baseline's metric after a dot, as in baseline.step_ns.median")
            metric = self.name("a metric")
        pattern = self.pattern() if self.take("(") else None
        device = None
        if self.token.kind == "device":
            device = self.token.text[1:-1].strip()
            if not device:
                raise self.refuse("names no device; write it as [ral:1]")
            self.next += 1
        statistic = self.name("a statistic such as median") if self.take(".") else None
        return Reference(metric, pattern, device, statistic, of_baseline, first.at)

    def name(self, what: str) -> str:
        token = self.token
        if token.kind != "name":
            raise self.refuse(f"{what} should be here")
        self.next += 1
        return token.text

    def pattern(self) -> str:
        token = self.token
        if token.kind != "text":
            raise self.refuse('write a name in quotation marks, as in count("aten::item")')
        self.next += 1
        if not self.take(")"):
            raise self.refuse("a ) is missing")
        return token.text[1:-1]
