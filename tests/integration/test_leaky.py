"""The sample that leaks is found out, and the one that does not is left alone."""

import sys
from pathlib import Path

import pytest

from ral_trace.analysis.leaks import leaks
from ral_trace.tracer import open_trace
from tests.integration.programs import ral_trace

STEPS = 20
LEAKED_A_STEP = 32 * 64 * 4
"""A batch of 32 predictions, each 64 float32 wide."""


@pytest.fixture
def leaky_trace(tmp_path: Path) -> Path:
    words = [sys.executable, "-m", "ral_trace.samples.leaky", "--steps", str(STEPS)]
    done = ral_trace("-o", "leaky.duckdb", "--", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path / "leaky.duckdb"


def said(trace: Path) -> str:
    """The terminal report as one line, without its line breaks."""
    done = ral_trace("--report", trace, cwd=trace.parent)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_the_leak_is_named_and_the_report_says_so(leaky_trace: Path) -> None:
    with open_trace(leaky_trace) as trace:
        first = leaks(trace, device="ral:1")[0]
    assert first["op"] == "aten::addmm"
    assert first["steps"] == STEPS
    assert (first["steps_grown"], first["steps_shrunk"]) == (STEPS - 1, 0)
    assert first["grown_blocks"] == STEPS - 1
    assert first["bytes_per_step"] == LEAKED_A_STEP == 8192
    assert first["grown_bytes"] == (STEPS - 1) * LEAKED_A_STEP
    report = said(leaky_trace)
    assert "Looks like a leak: memory from aten::addmm on ral:1 grew in 19 of 19 steps, by 8" in report


def test_the_training_that_does_not_leak_is_not_accused(char_lm_trace: Path) -> None:
    report = said(char_lm_trace)
    assert "Peak memory" in report
    assert "Looks like a leak" not in report
