"""Lists of devices, as RAL_DEVICES says them."""

import pytest

from ral_trace.backend import _core, core, plugins


@pytest.fixture(scope="module", autouse=True)
def _sim() -> None:
    """In the copy of the core that these tests ask, not in the one that has this process's devices."""
    assert plugins.load(_core, plugins.discover().plugins["sim"]).status == "LOADED"


@pytest.mark.parametrize(
    ("text", "vendors"),
    [("host:1,sim:1", ["host", "sim"]), ("sim:3", ["sim"] * 3), (" host , sim:2", ["host", "sim", "sim"])],
)
def test_device_lists(text: str, vendors: list[str]) -> None:
    devices = core.list_devices(text)
    assert [device["vendor"] for device in devices] == vendors
    assert [device["index"] for device in devices] == list(range(len(vendors)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no device"),
        ("gpu:1", "names no known vendor"),
        ("host:0", "no count from 1"),
        ("host:x", "no count from 1"),
        ("host:", "no count from 1"),
        ("host:1,,sim:1", "names no known vendor"),
        ("host:9,sim:9", "there are 16 slots"),
    ],
)
def test_device_lists_that_cannot_be(text: str, reason: str) -> None:
    with pytest.raises(core.BadDeviceList, match=reason):
        core.list_devices(text)


def test_vendors_say_what_their_devices_are() -> None:
    rows = {row["vendor"]: row for row in core.list_vendors()}
    assert set(rows) == {"host", "sim"}
    assert rows["sim"]["version"] == "1.0"
    assert [device["host_addressable"] for device in rows["sim"]["devices"]] == [False] * 16
    assert rows["host"]["devices"][0]["host_addressable"]
