"""How much of a copy is hidden behind compute, against the ideal that the device's model allows, in one run.

    python -m tests.benchmarks.bench_overlap

`sim` takes as long as its model says for each copy and each kernel, so that the ideal is known: with a copy engine of
its own, all copies but the first run while kernels run, or the other way round.
"""

import statistics
import sys
import time

import torch

from ral_trace import backend

AT_LEAST = 0.85
CHUNKS = 10
REPEATS = 5
PACES_MS = ((20, 20), (20, 10), (10, 20))
"""A copy, a kernel."""


def overlapped_s(device: torch.device, chunks: list[torch.Tensor], places: list[torch.Tensor]) -> float:
    """Seconds for all chunks: each is copied on one stream, then computed with on another."""
    copying = torch.Stream(device=device)
    computing = torch.ral.current_stream(device)
    begin = time.perf_counter()
    for chunk, place in zip(chunks, places, strict=True):
        with copying:
            place.copy_(chunk, non_blocking=True)
        computing.wait_event(copying.record_event())
        place + 1
    torch.ral.synchronize(device)
    return time.perf_counter() - begin


def main() -> int:
    """Prints achieved over ideal for each pace. Returns 1 when the budget is missed."""
    backend.enable("sim:1")
    device = torch.device("ral:0")
    chunks = [torch.ones(1024).pin_memory() for _ in range(CHUNKS)]
    places = [torch.zeros(1024, device=device) for _ in range(CHUNKS)]
    overlapped_s(device, chunks, places)
    met = True
    for copy_ms, kernel_ms in PACES_MS:
        torch.ral.set_device_model(device, copy_latency_ns=copy_ms * 10**6, launch_ns=kernel_ms * 10**6)
        taken = statistics.median(overlapped_s(device, chunks, places) for _ in range(REPEATS)) * 1000
        # The first copy alone, or the last kernel alone; the longer kind without a pause.
        ideal = CHUNKS * max(copy_ms, kernel_ms) + min(copy_ms, kernel_ms)
        met = met and ideal >= AT_LEAST * taken
        print(
            f"{CHUNKS} copies of {copy_ms} ms beside kernels of {kernel_ms} ms: {taken:.1f} ms, ideal {ideal} ms:"
            f" {ideal / taken:.1%} (budget {AT_LEAST:.0%})"
        )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
