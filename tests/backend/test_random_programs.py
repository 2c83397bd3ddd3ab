"""A sample of the soak test: random programs on several devices, streams and threads end with the right values."""

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("seed", "threads", "devices"),
    [(1, 1, "host:1,sim:2"), (2, 3, "host:1,sim:2"), (3, 3, "sim:1,host:2")],
)
def test_random_programs_equal_their_shadows(seed: int, threads: int, devices: str) -> None:
    words = ["--seed", str(seed), "--threads", str(threads), "--devices", devices, "--seconds", "60", "--steps", "500"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.random_programs", *words, "--programs", "1"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["programs"] == 1
    assert counts["compute"] > 100
    assert {"copy_over", "send", "download", "fail_late", "ask_too_much", "tidy", "delay"} <= set(counts)
