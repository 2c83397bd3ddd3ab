"""What takes long to make and several files of tests want: made once a run, also where several processes run them."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """What `make` gives for an empty folder; whoever comes later gets the same path."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each worker's folder lies in that of the run
        shared = shared.parent
    said = shared / f"{name}.made"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            folder = factory.mktemp(name)
            said.write_text(str(make(folder)))
    return Path(said.read_text())
