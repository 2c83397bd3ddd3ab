"""What tests of several folders share: one recording of the sample training."""

import sys
import tempfile
from pathlib import Path

import pytest

from tests.integration.programs import ral_trace


@pytest.fixture(scope="session")
def char_lm_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 steps of `char_lm` on ral:0 and ral:1, recorded once for the whole run in a rendezvous of its own."""
    folder = tmp_path_factory.mktemp("char_lm")
    words = [sys.executable, "-m", "ral_trace.samples.char_lm", "--steps", "12"]
    words += ["--checkpoint", str(folder / "model.pt")]
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as rendezvous:
        done = ral_trace("-o", "run.duckdb", "--", *words, cwd=folder, RAL_TRACE_DIR=f"{rendezvous}/rendezvous")
    assert done.returncode == 0, done.stderr
    assert "12 steps, loss" in done.stdout
    assert (folder / "model.pt").exists()
    return folder / "run.duckdb"
