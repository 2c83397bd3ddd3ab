"""The samples train the same on every set of devices, as a physical and as a virtual function, as on the CPU."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

STEPS = 8
UNIT_ROUNDOFF = 2.0**-24
"""Of float32."""
FIRST_LOSS = 64 * UNIT_ROUNDOFF
"""Relative. Kernels sum in orders of their own: over some 60 ops of up to 256 terms a loss then differs by about
sqrt(60 * 256) = 124 roundings of half a unit each.
"""
LATER_LOSSES = STEPS * 6e-6
"""Absolute. AdamW divides a gradient by its own size: one that is nothing but rounding (1e-8 beside others of 1e-3)
moves its parameter by the learning rate of 3e-3 to either side, and the next loss with it by 3e-11 each. The 2e5
parameters together can make 6e-6 a step of that, and what is off is carried on through the steps.
"""

BOTH = """
import json, os, sys, torch
from pathlib import Path
from ral_trace.samples import char_lm, leaky
torch.set_num_threads(1)
devices = char_lm.chosen_devices(sys.argv[1])
shape = char_lm.Shape(context=32, batch=8)
losses = char_lm.train(devices, int(sys.argv[2]), None, 0, shape, None, report_every=1000)
leaking, kept = leaky.train(int(sys.argv[2]), device=str(devices[1]))
regions = 0
if devices[0].type == "ral":
    torch.ral.synchronize(0)
    regions = max(torch.ral.memory_stats(index)["segment.all.current"] for index in range(torch.ral.device_count()))
print(json.dumps({"char_lm": losses, "leaky": leaking, "regions": regions}))
"""


@cache
def trained(device: str, devices: str = "", mode: str = "") -> dict[str, list[float]]:
    """The losses of both samples, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", BOTH, device, str(STEPS)],
        env={**os.environ, "RAL_DEVICES": devices, "RAL_MODE": mode},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("mode", ["pf", "vf"])
@pytest.mark.parametrize("devices", ["sim:2", "host:2", "sim:1,host:1"])
def test_the_samples_train_as_on_the_cpu(devices: str, mode: str) -> None:
    on_cpu, on_ral = trained("cpu"), trained("ral:0,ral:1", devices, mode)
    for sample in ("char_lm", "leaky"):
        assert len(on_ral[sample]) == STEPS
        assert on_ral[sample][0] == pytest.approx(on_cpu[sample][0], rel=FIRST_LOSS, abs=0)
        assert on_ral[sample] == pytest.approx(on_cpu[sample], rel=0, abs=LATER_LOSSES)
    assert on_cpu["char_lm"][-1] < on_cpu["char_lm"][0] - 0.1
    assert on_ral["regions"] <= {"pf": 16, "vf": 8}[mode]
