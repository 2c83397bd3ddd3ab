"""What an importer hands over becomes what the tables can hold."""

import pytest

from ral_trace.tracer.importers.rows import text


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udfff", "\ufffd"),
        ("\ud83d\ude00", "\ufffd\ufffd"),
        ("\0", "\ufffd"),
        ("\0\udc80\0", "\ufffd\ufffd\ufffd"),
        ("na\u00efve \U0001f600 \ue000", "na\u00efve \U0001f600 \ue000"),
        ("", ""),
        (None, None),
    ],
)
def test_each_character_that_no_reader_can_hold_is_one_replacement(given: str | None, held: str | None) -> None:
    assert text(given) == held
