"""Tests of the device. They run in this process: once enabled, `ral` stays."""

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="session", autouse=True)
def ral() -> None:
    """The default devices: ral:0 is `host`, ral:1 is `sim`."""
    from ral_trace import backend

    backend.enable("host:1,sim:1")


@pytest.fixture(params=["ral:0", "ral:1"])
def device(request: pytest.FixtureRequest) -> str:
    """Each device in turn."""
    return str(request.param)
