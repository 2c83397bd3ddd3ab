"""The language of assertions: what it reads, and where it says what is wrong."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ral_trace.analysis.expressions import Assertion, BadExpression, Number, Operation, Reference, parse


def metric(name: str = "fallbacks", at: int = 0, **more: object) -> Reference:
    plain = {"pattern": None, "device": None, "statistic": None, "baseline": False}
    return Reference(metric=name, at=at, **{**plain, **more})  # type: ignore[arg-type]


def test_a_metric_and_a_number() -> None:
    text = "fallbacks == 0"
    assert parse(text) == Assertion(text, "==", metric(), Number(Fraction(0), "", 13))


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("fallbacks[ral:1] < 1", metric(device="ral:1")),
        ("fallbacks[ral:1 (pid 7)] < 1", metric(device="ral:1 (pid 7)")),
        ("step_ns.median < 1", metric("step_ns", statistic="median")),
        ('count("aten::item") < 1', metric("count", pattern="aten::item")),
        ("count('a \"b\" [c]') < 1", metric("count", pattern='a "b" [c]')),
        (
            'baseline . op_ns ( "aten::mm" ) [ral:0] . p99<1',
            metric("op_ns", pattern="aten::mm", device="ral:0", statistic="p99", baseline=True),
        ),
    ],
)
def test_what_a_metric_may_be_asked_of(text: str, reference: Reference) -> None:
    assert parse(text).left == reference


@pytest.mark.parametrize(
    ("written", "value", "dimension"),
    [
        ("20ms", 20_000_000, "ns"),
        ("1.5 us", 1_500, "ns"),
        ("0.1ns", Fraction(1, 10), "ns"),
        ("2GiB", 2 << 30, "bytes"),
        ("2GB", 2 << 30, "bytes"),
        ("512 KiB", 512 << 10, "bytes"),
        ("7B", 7, "bytes"),
        ("5%", 5, "percent"),
        ("1_000_000", 1_000_000, ""),
        ("9223372036854775809", 2**63 + 1, ""),
    ],
)
def test_numbers_and_their_units(written: str, value: object, dimension: str) -> None:
    found = parse(f"syncs < {written}").right
    assert isinstance(found, Number)
    assert (found.value, found.dimension) == (value, dimension)


def test_products_before_sums_from_the_left() -> None:
    found = parse("syncs - 1 - 2 * 3 < 4").left
    assert isinstance(found, Operation)
    assert found.sign == "-"
    assert isinstance(found.left, Operation)
    assert (found.left.sign, found.left.left) == ("-", metric("syncs"))
    assert isinstance(found.right, Operation)
    assert found.right.sign == "*"
    grouped = parse("(syncs - 1) / 2 == -1").left
    assert isinstance(grouped, Operation)
    assert grouped.sign == "/"


@pytest.mark.parametrize(
    ("text", "at", "cause"),
    [
        ("", 0, "nothing is asserted"),
        ("   ", 0, "nothing is asserted"),
        ("fallbacks", 9, "a comparison is missing"),
        ("fallbacks = 0", 10, "write == to compare"),
        ("fallbacks ==", 12, "the assertion ends where a number or a metric should be"),
        ("fallbacks == 0 0", 15, "'0' cannot come here"),
        ("1 < syncs < 2", 10, "one comparison an assertion"),
        ("syncs < 2 parsecs", 9, "'parsecs' is no unit"),
        ("syncs < 2 and", 9, "'and' is no unit"),
        ("(syncs < 2", 7, "a ) is missing"),
        ("syncs < (2", 10, "a ) is missing"),
        ('count("aten::item < 2', 6, "this text has no end"),
        ("count(aten) < 2", 6, "write a name in quotation marks"),
        ("syncs[ral:1 < 2", 5, "a device ends with ]"),
        ("syncs[] < 2", 5, "names no device"),
        ("syncs. < 2", 7, "a statistic such as median should be here"),
        ("baseline < 2", 9, "after a dot"),
        ("__import__('os').system('true') < 1", 23, "'(' cannot come here"),
        ("syncs ; 2", 6, "';' means nothing here"),
        ("1 < 2", 0, "names no metric"),
        ("* < 2", 0, "'*' stands where"),
        ("syncs < 1" + "0" * 50, 8, "more digits"),
        ("(" * 60 + "syncs" + ")" * 60 + " < 1", 50, "nested too deeply"),
    ],
)
def test_what_is_wrong_and_where(text: str, at: int, cause: str) -> None:
    with pytest.raises(BadExpression) as refused:
        parse(text)
    assert refused.value.at == at, refused.value
    assert cause in refused.value.cause
    first, mark = refused.value.pointed().splitlines()
    assert first == text
    assert mark.index("^") == at
    assert refused.value.exit_code == 2


@given(st.text(alphabet="ab1.%[]()\"'<>=!+-*/ _:µ\n\0", max_size=40))
def test_any_text_is_read_or_refused_at_a_place_in_it(text: str) -> None:
    at = 0
    try:
        parse(text)
    except BadExpression as refused:
        at = refused.at
    assert 0 <= at <= len(text)
