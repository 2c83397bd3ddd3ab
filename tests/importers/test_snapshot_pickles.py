"""Pickles hold plain data or are refused: nothing in them runs."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.tracer import _native
from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import import_files
from tests.importers.snapshots import alloc, history, imported_value


class Canary:
    """What a hostile file would have run."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, ("RAL_TRACE_PICKLE_CANARY",)


HOSTILE = {
    "reduce": pickle.dumps({"segments": [Canary()]}),
    "reduce, old": pickle.dumps({"segments": [Canary()]}, 0),
    "global alone": pickle.dumps({"segments": os.system}),
    "inst": b"(S'touch RAL_TRACE_PICKLE_CANARY'\niposix\nsystem\n.",
    "obj": b"(cposix\nsystem\nS'touch RAL_TRACE_PICKLE_CANARY'\no.",
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"\x80\x02X\x01\x00\x00\x00aQ.",
    "build": b"\x80\x02}}b.",
    "newobj": b"\x80\x02})\x81.",
    "set": pickle.dumps({"segments": {1, 2}}),
    "bytearray": pickle.dumps({"segments": bytearray(b"x")}, 5),
    "numpy scalar": pickle.dumps({"segments": [], "device_traces": [[{"size": __import__("numpy").int64(3)}]]}),
    "memory for 2**32 values": b"\x80\x02Nr\xff\xff\xff\xff.",
    "many such": b"\x80\x02N" + b"".join(b"r" + (i * 60_000).to_bytes(4, "little") for i in range(1, 3000)) + b".",
    "bytes that are not there": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "a frame that is not there": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
    "deep lists": b"\x80\x02" + b"]" * 300_000 + b"a" * 299_999 + b".",
    "deep tuples": b"\x80\x02N" + b"\x85" * 300_000 + b".",
    "deep key": b"\x80\x02}N" + b"\x85" * 300_000 + b"Ns.",
    "newer protocol": b"\x80\x63N.",
    "nothing on the stack": b"\x80\x02.",
    "a number": b"\x80\x02K\x07.",
    "other data": pickle.dumps({"weights": [1, 2, 3]}),
    "wrong segments": pickle.dumps({"segments": 3}),
    "wrong traces": pickle.dumps({"segments": [], "device_traces": [3]}),
    "nothing that can be read": pickle.dumps({"segments": [1], "device_traces": [["x", {}, {"action": "alloc"}]]}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_plain_data_of_a_snapshot_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hostile.pickle"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(InputRefused) as refused:
        import_files([path], tmp_path / "out.duckdb")
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == [path]


def test_one_list_in_many_places_is_refused(tmp_path: Path) -> None:
    """A few kilobytes that say a billion events."""
    trace = [{"action": "snapshot", "time_us": 1}] * 30_000
    with (
        pytest.raises(InputRefused, match="more than its bytes can hold"),
        imported_value({"segments": [], "device_traces": [trace] * 30_000}, tmp_path),
    ):
        pass
    frames = [{"name": "f", "filename": "f.py", "line": 1}] * 50_000
    events = [alloc(n, 512, time_us=n, frames=list(frames)) for n in range(3)]
    with imported_value(history(events), tmp_path):
        pass


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**127), 2**127 - 1) | st.floats(allow_nan=False)
    | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner).map(tuple),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(value=PLAIN, protocol=st.integers(3, 5))
def test_plain_data_reads_as_python_reads_it(value: object, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert _native.read_plain_pickle(data) == (value, len(data), 0)


def test_old_protocols_read_as_python_reads_them() -> None:
    value = {"a": [1, -1, 2**40, 0.5, None, True, False, "text", "n\u00e4\nve \\", [], {}, (1, 2), (1, 2, 3, 4)]}
    for protocol in (0, 1, 2):
        data = pickle.dumps(value, protocol)
        assert _native.read_plain_pickle(data) == (value, len(data), 0)
