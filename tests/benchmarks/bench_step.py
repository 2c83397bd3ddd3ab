"""A small transformer's training step on `ral` against the CPU, one computing thread each, in one run.

    python -m tests.benchmarks.bench_step

The steps take turns; the lower quartiles are compared, of steps in which nobody else had the cores: a training on `ral`
needs two of them to be faster. A recording then says how often a steady step waited for the device.
"""

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from ral_trace import backend
from ral_trace.samples import char_lm
from ral_trace.tracer import open_trace, step, trace
from ral_trace.tracer._native import FLAGS

WARM_UP = 5
STEPS = 60
RECORDED = 5


@dataclass
class Training:
    """The sample's model on one device."""

    device: torch.device
    model: nn.Module
    optimizer: torch.optim.Optimizer
    text: torch.Tensor
    target: torch.Tensor

    def step(self) -> float:
        logits = self.model(self.text)
        loss = functional.cross_entropy(logits.flatten(0, 1), self.target.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.item())

    def step_ms(self) -> float:
        begin = time.perf_counter_ns()
        self.step()
        return (time.perf_counter_ns() - begin) / 1e6


def training_on(device: torch.device) -> Training:
    torch.manual_seed(0)
    shape = char_lm.Shape()
    data, vocabulary = char_lm.encode(char_lm.standard_library_text(5))
    model = char_lm.CharLM(vocabulary, shape, device, device)
    text, target = char_lm.batches(data, shape, torch.Generator().manual_seed(0))
    return Training(device, model, torch.optim.AdamW(model.parameters()), text.to(device), target.to(device))


def waits_of_steps(training: Training) -> tuple[dict[str, int], int]:
    """Waits of a few recorded steps by name, with how many of them were forced."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.duckdb"
        with trace(path):
            for _ in range(RECORDED):
                training.step()
                step()
        with open_trace(path) as recorded:
            rows = recorded.rows(f"""
                SELECT name, count(*) AS n, count(*) FILTER ((flags & {FLAGS["FORCED"]}) <> 0) AS forced
                FROM events WHERE kind IN ('sync', 'wait') AND device IS NOT NULL GROUP BY name""")
            launches = recorded.rows("SELECT count(*) AS n FROM launches")[0]["n"]
    print(f"a step has {launches / RECORDED:.0f} launches")
    return {row["name"]: row["n"] for row in rows}, sum(row["forced"] for row in rows)


def main() -> int:
    """Prints the ratio and the waits. Returns 1 where ral is slower or waits in a step, but for the loss at its end."""
    backend.enable("host:1,sim:1")
    torch.set_num_threads(1)
    trainings = {place: training_on(torch.device(place)) for place in ("cpu", "ral:0", "ral:1")}
    taken: dict[str, list[float]] = {place: [] for place in trainings}
    for number in range(WARM_UP + STEPS):
        for place, training in trainings.items():
            ms = training.step_ms()
            if number >= WARM_UP:
                taken[place].append(ms)
    cpu, host, sim = (statistics.quantiles(taken[place], n=4)[0] for place in trainings)
    print(f"a step: {cpu:.2f} ms on one CPU thread, {host:.2f} ms on host: {cpu / host:.2f} x as fast (budget: over 1)")
    print(f"        {sim:.2f} ms on sim")
    waits, forced = waits_of_steps(trainings["ral:0"])
    print(f"waits in {RECORDED} steady steps: {waits}, forced: {forced} (budget: one .item() a step, none forced)")
    return 0 if host < cpu and forced == 0 and waits == {"aten::_local_scalar_dense": RECORDED} else 1


if __name__ == "__main__":
    sys.exit(main())
