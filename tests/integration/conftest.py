"""Each integration test has a rendezvous of its own, so that tests, and programs of the person who runs them, do
not see each other.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def rendezvous(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as folder:
        place = Path(folder) / "rendezvous"
        monkeypatch.setenv("RAL_TRACE_DIR", str(place))
        yield place
