"""Rows of an answer as a data frame."""

import importlib.util

import pytest

from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.reading import Rows


def test_a_data_frame_keeps_whole_numbers_whole():
    rows = Rows([{"name": "a", "ns": 1_790_000_000_000_000_001}, {"name": None, "ns": None}])
    frame = rows.df()
    assert list(frame.columns) == ["name", "ns"]
    assert str(frame["ns"].dtype) == "Int64"
    assert frame["ns"][0] == 1_790_000_000_000_000_001
    assert frame["ns"].isna().tolist() == [False, True]


def test_without_pandas_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install pandas"):
        Rows([{"a": 1}]).df()
