"""What launching a small op costs the host, on the devices against eager on the CPU, in one run.

    python -m tests.benchmarks.bench_launch

CPU time of the launching thread alone: what the devices' own threads do meanwhile is not the program's. Of the CPU it
is the whole op. Short runs take turns, each with fewer launches than a stream queues.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from ral_trace import backend

AT_MOST = 2.0
LAUNCHES = 100
RUNS = 2000
PAUSE_S = 0.001
"""Between runs, so that the system moves threads: where it has a device's thread on the program's own core, each launch
wakes it and costs nearly twice as much.
"""


def launch_ns(x: Tensor, wait: Callable[[], None]) -> float:
    """Nanoseconds of this thread's CPU that one add takes."""
    begin = time.thread_time_ns()
    for _ in range(LAUNCHES):
        x + x
    taken = time.thread_time_ns() - begin
    wait()
    return taken / LAUNCHES


def main() -> int:
    """Prints the ratios. Returns 1 when the budget is missed."""
    backend.enable("host:1,sim:1")
    torch.set_num_threads(1)
    places: dict[str, Callable[[], None]] = {
        "cpu": lambda: None,
        "ral:0": lambda: torch.ral.synchronize(0),
        "ral:1": lambda: torch.ral.synchronize(1),
    }
    tensors = {place: torch.ones(4, 4, device=place) for place in places}
    taken: dict[str, list[float]] = {place: [] for place in places}
    with torch.no_grad():
        for _ in range(RUNS):
            for place, wait in places.items():
                taken[place].append(launch_ns(tensors[place], wait))
            time.sleep(PAUSE_S)
    # The lower quartile of short runs, in which nobody else had the cores.
    typical = {place: statistics.quantiles(values, n=4)[0] for place, values in taken.items()}
    met = True
    for place, vendor in (("ral:0", "host"), ("ral:1", "sim")):
        ratio = typical[place] / typical["cpu"]
        met = met and ratio <= AT_MOST
        print(
            f"add of 4 x 4 on {vendor}: {typical[place]:.0f} ns of the host, {typical['cpu']:.0f} ns on the CPU:"
            f" {ratio:.2f} x (budget {AT_MOST})"
        )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
