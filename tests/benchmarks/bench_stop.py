"""From the end of a recording to its answers, against torch.profiler, for the same ops in one run.

    python -m tests.benchmarks.bench_stop

Ours: from leaving the `with` block to an open trace that has answered a query, and to the hotspots. Theirs: stop and
`export_chrome_trace`, and stop and `key_averages().table()`. Both record plain ops on the CPU.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from ral_trace.analysis.hotspots import hotspots
from ral_trace.tracer import trace

OPS = 300_000
ROUNDS = 3
READABLE, HOTSPOTS = 1 / 10, 1 / 50


def run_ops() -> None:
    x, y = torch.ones(4), torch.ones(4)
    with torch.no_grad():
        for _ in range(OPS):
            x.add_(y)


def ours_s(folder: Path) -> tuple[float, float]:
    """Seconds to a readable trace, and to the hotspots."""
    recording = trace(folder / "stop.duckdb", buffer_bytes=64 << 20)
    with recording:
        run_ops()
        begin = time.perf_counter()
    with recording.open() as opened:
        [(ops,)] = opened.sql("SELECT count(*) FROM event WHERE kind = 'op'").fetchall()
        readable = time.perf_counter() - begin
        rows = hotspots(opened, by="op")
        answered = time.perf_counter() - begin
    assert OPS <= ops < OPS + 10, ops  # and a few to make the tensors
    assert max(row["count"] for row in rows) == OPS
    return readable, answered


def theirs_s(folder: Path) -> tuple[float, float]:
    """Seconds of stop and export, and of stop and key_averages."""
    profiler = profile(activities=[ProfilerActivity.CPU])
    profiler.start()
    run_ops()
    begin = time.perf_counter()
    profiler.stop()
    stopped = time.perf_counter()
    profiler.export_chrome_trace(str(folder / "theirs.json"))
    exported = time.perf_counter()
    profiler.key_averages().table()
    return exported - begin, (stopped - begin) + (time.perf_counter() - exported)


def main() -> int:
    """Prints both ratios. Returns 1 when a budget is missed."""
    torch.set_num_threads(1)
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            ours.append(ours_s(Path(folder)))
            theirs.append(theirs_s(Path(folder)))
    met = True
    for position, (name, budget) in enumerate([("a readable trace", READABLE), ("the hotspots", HOTSPOTS)]):
        mine = statistics.median(taken[position] for taken in ours)
        other = statistics.median(taken[position] for taken in theirs)
        met = met and mine <= budget * other
        ratio = f"{mine / other:.3f} (budget {budget:.3f})"
        print(f"from stop to {name}: {mine:.2f} s, torch.profiler {other:.2f} s: {ratio}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
