"""What devices did, against HolisticTraceAnalysis: the same questions of the same file, side by side in one run.

    python -m tests.benchmarks.bench_device_work [--hta PYTHON] [--events N]

Both have the file loaded: HTA a dataframe in which correlations are resolved, ours the columns of `device_work` out of
a .duckdb; how long the latter takes, which is once for all questions, is printed. The numbers must be the same. `--hta`
names a Python that has HTA; else it is installed from PyPI.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ral_trace.tracer.importers import import_files
from tests.benchmarks.bench_import import generate, hta_python

BUDGET = 10.0
ROUNDS = 3

OURS = """
import json, sys, time
from ral_trace.analysis.device_work import device_work
from ral_trace.analysis.idle import stream_idle
from ral_trace.analysis.queues import queues
from ral_trace.analysis.utilisation import utilisation
from ral_trace.tracer.reading import open_trace
def us(rows, *columns):
    return [[row[column] // 1000 for column in columns] for row in rows]
QUESTIONS = {
    "breakdown": lambda t: us(utilisation(t), "idle_ns", "compute_ns", "non_compute_ns", "total_ns"),
    "overlap": lambda t: [row["communication_hidden_percent"] for row in utilisation(t)],
    "idle": lambda t: us(stream_idle(t), "host_wait_ns", "kernel_wait_ns", "other_wait_ns"),
    "queue": lambda t: [row["max_length"] for row in queues(t)],
}
with open_trace(sys.argv[1]) as trace:
    begin = time.perf_counter()
    device_work(trace)
    print(json.dumps(["loading", time.perf_counter() - begin, None]))
    for name, ask in QUESTIONS.items():
        best = 1e9
        for _ in range(int(sys.argv[2])):
            begin = time.perf_counter()
            found = ask(trace)
            best = min(best, time.perf_counter() - begin)
        print(json.dumps([name, best, found]))
"""
THEIRS = """
import json, logging, os, sys, time, warnings
logging.disable(logging.CRITICAL)
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
trace = TraceAnalysis({0: sys.argv[1]}, os.path.dirname(sys.argv[1]), include_last_profiler_step=True)
def breakdown():
    row = trace.get_temporal_breakdown(visualize=False).iloc[0]
    return [[int(row[c + "(us)"]) for c in ("idle_time", "compute_time", "non_compute_time", "kernel_time")]]
def overlap():
    return [row if row == row else None for row in trace.get_comm_comp_overlap(visualize=False).comp_comm_overlap_pctg]
def idle():
    found = trace.get_idle_time_breakdown(ranks=[0], visualize=False)[0].set_index("idle_category").idle_time
    return [[int(found.get(category, 0)) for category in ("host_wait", "kernel_wait", "other")]]
def queue():
    return [int(found) for found in trace.get_queue_length_summary(ranks=[0])["queue_length"]["max"]]
for ask in (breakdown, overlap, idle, queue):
    best = 1e9
    for _ in range(int(sys.argv[2])):
        begin = time.perf_counter()
        found = ask()
        best = min(best, time.perf_counter() - begin)
    print(json.dumps([ask.__name__, best, found]))
"""


def hta_with_pandas(folder: Path) -> str:
    """HTA 0.5.0 gives correlations a type that is too small for them; pandas 3 refuses that, 2 widens it."""
    python = hta_python(folder)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "pandas<3"], check=True)
    return python


def measure(python: str, program: str, path: Path) -> dict[str, tuple[float, Any]]:
    """Seconds and answer of each question."""
    command = [python, "-c", program, str(path), str(ROUNDS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {name: (seconds, found) for name, seconds, found in answers}


def close(ours: Any, theirs: Any, most: int) -> bool:
    """Whether numbers differ by at most so much: HTA cuts times to microseconds, one by one."""
    if isinstance(ours, list):
        return len(ours) == len(theirs) and all(close(*pair, most) for pair in zip(ours, theirs, strict=True))
    return bool(ours == theirs or (ours is not None and theirs is not None and abs(ours - theirs) <= most))


def main(arguments: argparse.Namespace) -> int:
    """Returns 1 when a budget is missed, or an answer differs."""
    kept = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        python = arguments.hta or hta_with_pandas(folder / "hta")
        generate(folder / "generated.json", arguments.events)
        import_files([folder / "generated.json"], folder / "generated.duckdb")
        ours = measure(sys.executable, OURS, folder / "generated.duckdb")
        theirs = measure(python, THEIRS, folder / "generated.json")
        loading_s, _ = ours.pop("loading")
        print(f"loading    ours {loading_s:6.3f} s, once for all questions")
        for name, (seconds, found) in ours.items():
            theirs_s, expected = theirs[name]
            same = close(found, expected, arguments.events)
            print(
                f"{name:10} ours {seconds:6.3f} s, HTA {theirs_s:6.2f} s: {theirs_s / seconds:.1f} x faster "
                f"(budget {BUDGET:.0f}){'' if same else f', but {found} is not {expected}'}"
            )
            kept.append(same and theirs_s / seconds >= BUDGET)
    return 0 if all(kept) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hta")
    parser.add_argument("--events", type=int, default=2_000_000)
    sys.exit(main(parser.parse_args()))
