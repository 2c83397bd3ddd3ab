"""The plugin for pytest, in real runs of pytest over real programs."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ral_trace.tracer.reading import open_trace

PROGRAM = """
import pytest
import torch
from ral_trace.backend import enable
from ral_trace.tracer import step

enable()


def work(steps=3):
    x = torch.ones(4, 4, device="ral:1")
    for _ in range(steps):
        x = x @ x
        x.sum().item()
        step()


def fall_back():
    torch.randn(4, device="ral:1")  # sim has no kernel for it

"""


def run(folder: Path, tests: str, *words: str) -> str:
    """What pytest printed."""
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -p no:cacheprovider\n")
    # Plugins of others may load anything, and take a while.
    others = [word for name in ("dash", "hypothesispytest", "playwright") for word in ("-p", f"no:{name}")]
    command = [
        sys.executable,
        "-m",
        "pytest",
        f"--basetemp={folder / 'temporary'}",
        "-rA",
        *others,
        "test_it.py",
        *words,
    ]
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as rendezvous:
        environment = {**os.environ, "RAL_TRACE_DIR": f"{rendezvous}/rendezvous"}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    return done.stdout + done.stderr


def outcomes(said: str) -> dict[str, str]:
    """What became of each test: passed, failed, skipped, xfailed."""
    found = re.findall(r"^([A-Z]+) test_it\.py::([^\s]+)", said, re.MULTILINE)
    return {name: what.lower() for what, name in found}


def kept(folder: Path) -> dict[str, Path]:
    """The traces that are there, by the test's name."""
    return {path.name.removeprefix("test_it.py.").rpartition("-")[0]: path for path in folder.rglob("*.duckdb")}


PASSING = """
@pytest.mark.ral_trace("fallbacks == 0", "syncs_per_step <= 1", 'count("aten::mm") == 3')
def test_marked():
    work()

def test_with_the_fixture(ral_trace):
    work()
    ral_trace.check("fallbacks == 0", "syncs == 3")
    assert ral_trace.measure('kernels("aten::mm")') == 3
    with ral_trace.open() as trace:
        assert trace.rows("SELECT count(*) AS n FROM syncs") == [{"n": 3}]

def test_again_for_a_part(ral_trace):
    fall_back()
    ral_trace.start()
    work(2)
    ral_trace.check("fallbacks == 0", "syncs == 2")

@pytest.mark.ral_trace("syncs == 3")
@pytest.mark.ral_trace("fallbacks == 0", with_modules=True)
def test_both(ral_trace):
    work()

def test_never_asks(ral_trace):
    pass

@pytest.mark.ral_trace("syncs_per_step == 1", "step_ns.count == 2", skip_steps=1)
class TestClass:
    @pytest.mark.parametrize("steps", [3])
    def test_method(self, steps):
        work(steps)
"""


def test_what_holds_passes_and_leaves_nothing(tmp_path: Path) -> None:
    said = run(tmp_path, PROGRAM + PASSING)
    assert set(outcomes(said).values()) == {"passed"}, said
    assert len(outcomes(said)) == 6
    assert kept(tmp_path) == {}


FAILING = """
@pytest.mark.ral_trace("fallbacks == 0", "launches > 0")
def test_marked():
    fall_back()

def test_with_the_fixture(ral_trace):
    work(1)
    ral_trace.check("syncs == 0")

@pytest.mark.ral_trace
def test_fails():
    work(1)
    assert 1 == 2

@pytest.mark.ral_trace("syncs == 0")
def test_skips():
    work(1)
    pytest.skip("not here")

@pytest.mark.xfail(strict=True)
@pytest.mark.ral_trace("syncs == 0")
def test_is_known_to_fail():
    work(1)

@pytest.mark.ral_trace("fallbacks = 0")
def test_bad_assertion():
    raise AssertionError("never runs")

@pytest.mark.ral_trace("fallbacks == 0")
def test_nothing_happens():
    pass

@pytest.mark.ral_trace("step_ns < 1s")
def test_no_steps():
    fall_back()
"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of FAILING, and what it printed."""
    folder = tmp_path_factory.mktemp("failed")
    return folder, run(folder, PROGRAM + FAILING, f"--ral-trace-dir={folder / 'traces'}")


def test_what_does_not_hold_fails(failed: tuple[Path, str]) -> None:
    found = outcomes(failed[1])
    assert found.pop("test_is_known_to_fail") == "xfail"
    assert set(found.values()) == {"failed"}, failed[1]
    # A skipped one is listed by its line.
    assert len(found) == 6
    assert "1 skipped" in failed[1]


def test_the_rows_are_shown(failed: tuple[Path, str]) -> None:
    said = failed[1]
    assert "ral-trace: 1 of 2 assertions failed" in said
    assert "FAILED  fallbacks == 0  (1)\n          1 × aten::randn on ral:1, " in said
    line = next(number for number, text in enumerate(PROGRAM.splitlines(), 1) if "randn" in text)
    assert f"test_it.py:{line} fall_back (native: no entry" in said
    assert "_local_scalar_dense on ral:1" in said
    assert "assert 1 == 2" in said


def test_traces_are_kept_and_named(failed: tuple[Path, str]) -> None:
    folder, said = failed
    traces = kept(folder)
    assert set(traces) == {
        "test_marked",
        "test_with_the_fixture",
        "test_fails",
        "test_is_known_to_fail",
        "test_no_steps",
    }
    assert {path.parent for path in traces.values()} == {folder / "traces"}
    # Of a test that is known to fail pytest tells nothing.
    for path in (path for name, path in traces.items() if name != "test_is_known_to_fail"):
        assert f"ral-trace --report {path}" in said
    with open_trace(traces["test_marked"]) as trace:
        assert trace.rows("SELECT count(*) AS n FROM fallbacks") == [{"n": 1}]


def test_what_cannot_be_checked_is_a_failure_in_words(failed: tuple[Path, str]) -> None:
    said = failed[1]
    assert "fallbacks = 0\n          ^ write == to compare" in said
    assert "never runs" not in said
    assert "ral-trace: the recording failed: nothing was recorded" in said
    assert "UNKNOWN step_ns < 1s  (cannot be known: no steps in this trace" in said
    assert "Traceback" not in said
    assert "During handling" not in said


def test_torch_may_be_imported_in_the_test(tmp_path: Path) -> None:
    tests = """
import pytest

@pytest.mark.ral_trace('count("aten::mm") == 1')
def test_imports():
    import torch
    torch.ones(2, 2) @ torch.ones(2, 2)
"""
    said = run(tmp_path, tests)
    assert outcomes(said) == {"test_imports": "passed"}, said


def test_a_run_that_does_not_use_it_loads_nothing(tmp_path: Path) -> None:
    tests = """
import sys

def test_nothing_is_loaded():
    loaded = {name for name in sys.modules if name.startswith("ral_trace.")}
    assert loaded == {"ral_trace.testing", "ral_trace.testing.pytest_plugin"}
    assert not {"duckdb", "torch", "numpy"} & set(sys.modules)
"""
    said = run(tmp_path, tests)
    assert outcomes(said) == {"test_nothing_is_loaded": "passed"}, said
    assert "@pytest.mark.ral_trace(*assertions" in run(tmp_path, tests, "--markers")
