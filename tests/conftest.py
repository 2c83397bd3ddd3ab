"""What tests of several folders share: recordings of the sample training."""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.integration.programs import ral_trace
from tests.once import made_once

# The same samples in every run, so that a red run means a change; `make soak` throws the dice. How long one takes
# depends on what else runs on the machine.
settings.register_profile(
    "seeded",
    derandomize=os.environ.get("RAL_TRACE_SOAK") != "1",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("seeded")

# What a shell starts in the background ignores Ctrl-C, and so would all programs that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


FIRST = [
    "tests/native",
    "tests/integration/test_without_torch.py",
    "tests/integration",
    "tests/browser",
    "tests/backend",
]
"""Where the longest files lie. Where several processes share the tests, they begin with these: begun last, one would
keep a single process busy after all the others.
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((number for number, begin in enumerate(FIRST) if item.nodeid.startswith(begin)), len(FIRST))

    if hasattr(config, "workerinput"):
        items.sort(key=place)


@pytest.fixture(scope="session")
def char_lm_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 steps of `char_lm` on ral:0 and ral:1, recorded once for the whole run in a rendezvous of its own."""
    return made_once(tmp_path_factory, "char_lm", _recorded_char_lm)


def _recorded_char_lm(folder: Path) -> Path:
    words = [sys.executable, "-m", "ral_trace.samples.char_lm", "--steps", "12"]
    words += ["--checkpoint", str(folder / "model.pt")]
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as rendezvous:
        done = ral_trace("-o", "run.duckdb", "--", *words, cwd=folder, RAL_TRACE_DIR=f"{rendezvous}/rendezvous")
    assert done.returncode == 0, done.stderr
    assert "12 steps, loss" in done.stdout
    assert (folder / "model.pt").exists()
    return folder / "run.duckdb"


WITHOUT_GELU = """
import sys
from pathlib import Path
import torch
from ral_trace.backend import enable
enable(manifests=[Path(sys.argv[1])])
from ral_trace.samples import char_lm
devices = torch.device("ral:0"), torch.device("ral:1")
char_lm.train(devices, 12, None, 0, char_lm.Shape(), None, report_every=1000)
"""


@pytest.fixture(scope="session")
def char_lm_without_gelu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same training with gelu taken out of sim's manifest, so that it falls back to the CPU."""
    return made_once(tmp_path_factory, "without_gelu", _recorded_without_gelu)


def _recorded_without_gelu(folder: Path) -> Path:
    from ral_trace.backend import vendors

    sim = Path(vendors.__path__[0]) / "sim"
    manifest = json.loads((sim / "kernel_manifest.json").read_text())
    kept = [entry for entry in manifest["kernels"] if entry["op_name"] != "aten::gelu"]
    assert len(kept) == len(manifest["kernels"]) - 1
    for entry in kept:
        library, _, symbol = entry["kernel_path"].partition(":")
        entry["kernel_path"] = f"{sim / library}:{symbol}"
    (folder / "kernel_manifest.json").write_text(json.dumps({**manifest, "kernels": kept}))
    words = [sys.executable, "-c", WITHOUT_GELU, str(folder / "kernel_manifest.json")]
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as rendezvous:
        done = ral_trace("-o", "less.duckdb", "--", *words, cwd=folder, RAL_TRACE_DIR=f"{rendezvous}/rendezvous")
    assert done.returncode == 0, done.stderr
    return folder / "less.duckdb"
