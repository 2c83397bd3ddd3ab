"""Exports of a large trace: time, size and memory of each format.

    python -m tests.benchmarks.bench_export [EVENTS]

Memory is what an export takes beyond DuckDB's limit, which is set low here, so that a format that keeps the trace in
memory shows: its peak grows with the trace, and misses the budget.
"""

import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

from ral_trace.tracer import exporters, reading
from tests.synthetic import training

OUTPUTS = ["run.pftrace", "run.json", "run.json.gz", "run.otlp.json", "run.otlp.jsonl", "folder"]
LIMIT_MIB = 512
BEYOND_MIB = 300
"""Budget: the interpreter, the modules, and what DuckDB takes beside its limit."""
EVENTS_A_LAUNCH = 5.32


def export(path: Path, name: str) -> tuple[float, int, int]:
    """Seconds, bytes, and the peak of this process's resident memory in MiB."""
    reading.MEMORY_LIMIT = f"{LIMIT_MIB}MiB"
    with reading.open_trace(path) as trace:
        begin = time.perf_counter()
        out = exporters.export(trace, path.with_name(name))
        seconds = time.perf_counter() - begin
    files = [out] if out.is_file() else [file for file in out.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    return seconds, size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main(events: int) -> int:
    """Prints a line a format. Returns 1 when one takes more memory than the budget."""
    over = False
    with tempfile.TemporaryDirectory() as folder:
        path = training(Path(folder) / "whole.duckdb", launches=round(events / EVENTS_A_LAUNCH))
        print(f"{'':16}{'k events/s':>12}{'bytes/event':>13}{'peak MiB':>10}   {events} events")
        for name in OUTPUTS:
            # A new process for each: the peak is one of a process's whole life.
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                seconds, size, peak = pool.apply(export, (path, name))
            print(f"{name:16}{events / seconds / 1000:12.0f}{size / events:13.1f}{peak:10}")
            over |= peak > LIMIT_MIB + BEYOND_MIB
    print(f"peak budget {LIMIT_MIB} + {BEYOND_MIB} MiB")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
