import pytest

from ral_trace.analysis.units import UNKNOWN, human, short_path
from ral_trace.tracer.text import plain


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        ("", "text", "(empty)"),
        (0, "ns", "0 ns"),
        (999, "ns", "999 ns"),
        (1_000, "ns", "1.00 µs"),
        (12_345, "ns", "12.3 µs"),
        (999_949, "ns", "1.00 ms"),
        (59_999_000_000, "ns", "60.0 s"),
        (125_000_000_000, "ns", "2 min 5 s"),
        (7_260_000_000_000, "ns", "2 h 1 min"),
        (1023, "bytes", "1,023 B"),
        (1536, "bytes", "1.50 KiB"),
        (1 << 40, "bytes", "1.00 TiB"),
        (0.01, "percent", "<0.1 %"),
        (0.0, "percent", "0.0 %"),
        (99.96, "percent", "100.0 %"),
        (12.9e9, "bandwidth", "12.0 GiB/s"),
        (3.43411, "ratio", "3.43"),
        (12345.6, "ratio", "12,346"),
        (0.5, "number", "0.5"),
        (1234567, "count", "1,234,567"),
        (4242, "id", "4242"),
        (None, "ns", UNKNOWN),
        (None, "text", UNKNOWN),
        ("aten::mm", "text", "aten::mm"),
    ],
)
def test_numbers_for_people(value, unit, text):
    assert human(value, unit) == text


def test_a_time_is_shown_from_the_begin_on():
    assert human(2_000_001_500, "time", zero_ns=2_000_000_000) == "+1.50 µs"


def test_text_cannot_act():
    assert (
        plain("\x1b[31mred\x07\r\n\x9b2J\u202eevil\u2028\u200b")
        == "\\x1b[31mred\\x07\\x0d\\x0a\\x9b2J\\u202eevil\\u2028\\u200b"
    )
    assert plain("größe ∑ 漢字 [red]") == "größe ∑ 漢字 [red]"


def test_lines_are_shown_without_the_folders_of_packages():
    assert short_path("/opt/venv/lib/python3.11/site-packages/pkg/model.py:7 run") == "pkg/model.py:7 run"
    assert short_path("C:\\py\\site-packages\\pkg\\model.py:7 run") == "pkg\\model.py:7 run"
    assert short_path("/home/me/train.py:3 main") == "/home/me/train.py:3 main"
