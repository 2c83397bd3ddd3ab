"""A view and its URL say the same."""

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ral_trace.dashboard.view import View

text = st.none() | st.text(min_size=1)


@given(device=text, vendor=text, by=text)
def test_a_url_gives_back_its_view(device: str | None, vendor: str | None, by: str | None) -> None:
    view = View("/memory", device, vendor, by)
    path, _, query = view.url().partition("?")
    assert View.of(path, query) == view
    assert View.of(path, "?" + query) == view
    assert View.of(path, unquote(query)) == view, "a browser may decode what it shows"


@pytest.mark.parametrize("query", [None, "", "?", "?path=/evil", "?token=x&nothing", "?device="])
def test_what_is_no_filter_is_left_out(query: str | None) -> None:
    assert View.of("/", query) == View("/")


@pytest.mark.parametrize("query", ["device=ral:1", "device=ral%3A1", "device=ral~3a1"])
def test_a_url_may_be_written_by_hand(query: str) -> None:
    assert View.of("/", query) == View("/", "ral:1")
    assert View.of("/", query).url() == "/?device=ral:1"


def test_other_filters_stay() -> None:
    assert View("/", "ral:1", "sim").but(path="/memory", device=None).url() == "/memory?vendor=sim"
