"""What recording adds to the sample training, on `ral` and on the CPU: traced steps against untraced ones in one run.

    python -m tests.benchmarks.bench_char_lm

Stretches of steps with and without a recording take turns in one process; the medians of all steps are compared. The
first steps of a stretch, in which the recording begins, are left out.
"""

import statistics
import sys
import tempfile
from pathlib import Path

import torch

from ral_trace import backend
from ral_trace.tracer import trace
from tests.benchmarks.bench_step import Training, training_on

AT_MOST = 1.03
WARM_UP, STEPS, ROUNDS = 3, 25, 8


def stretch_ms(training: Training) -> list[float]:
    return [training.step_ms() for _ in range(WARM_UP + STEPS)][WARM_UP:]


def ratio(training: Training, folder: Path) -> float:
    """Medians: traced over untraced."""
    untraced: list[float] = []
    traced: list[float] = []
    for number in range(ROUNDS):
        untraced += stretch_ms(training)
        with trace(folder / f"{number}.duckdb", buffer_bytes=16 << 20):
            traced += stretch_ms(training)
    return statistics.median(traced) / statistics.median(untraced)


def main() -> int:
    """Prints the ratios. Returns 1 when the budget is missed on `ral`."""
    backend.enable("host:1,sim:1")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: ratio(training_on(torch.device(name)), Path(folder)) for name in ("ral:0", "ral:1", "cpu")}
    for name, value in found.items():
        print(f"char_lm on {name}: a traced step takes {value:.3f} of an untraced one (budget {AT_MOST})")
    return 0 if max(found.values()) <= AT_MOST else 1


if __name__ == "__main__":
    sys.exit(main())
