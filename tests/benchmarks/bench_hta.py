"""Our answers against HolisticTraceAnalysis': the same numbers from the same files, and how long each takes.

    python -m tests.benchmarks.bench_hta [--hta PYTHON] [--events N]

The numbers are of the Kineto files among the shared traces. HTA is told to keep nanoseconds and the last step (it
rounds and drops by default). docs/hta.md says why some differ. The times are of a generated training of N events: HTA's
function on its parsed dataframe, ours on the open trace, the better of two of each, in seconds of CPU: a busy machine
changes those least, and what ours does on several threads counts in full.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ral_trace.analysis.hotspots import kernels
from ral_trace.analysis.idle import stream_idle
from ral_trace.analysis.kernel_names import family
from ral_trace.analysis.queues import queues
from ral_trace.analysis.transfers import transfers
from ral_trace.analysis.utilisation import utilisation
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import Trace, open_trace
from tests.benchmarks import bench_import
from tests.shared import TRACES

HTA_SIDE = Path(__file__).with_name("hta_side.py")
BUDGET = 10.0
DIRECTIONS = {
    "host_to_device": "Memcpy HtoD", "device_to_host": "Memcpy DtoH", "within_device": "Memcpy DtoD",
    "device_to_device": "Memcpy PtoP", "memset": "Memset",
}  # fmt: skip


def temporal(trace: Trace) -> dict[str, float]:
    """In us, as HTA's."""
    [row] = utilisation(trace)
    names = {"idle": "idle_ns", "compute": "compute_ns", "non-compute": "non_compute_ns", "total": "total_ns"}
    return {name: row[column] / 1000 for name, column in names.items()}


def overlap(trace: Trace) -> dict[str, float]:
    """In percent."""
    [row] = utilisation(trace)
    hidden = row["communication_hidden_percent"]
    return {"overlap": math.nan if hidden is None else hidden}


def idle(trace: Trace) -> dict[str, float]:
    """In us, the sum over all streams."""
    rows = stream_idle(trace)
    names = {"host_wait": "host_wait_ns", "kernel_wait": "kernel_wait_ns", "other": "other_wait_ns"}
    return {name: sum(row[column] or 0 for row in rows) / 1000 for name, column in names.items()}


def by_kernel(trace: Trace) -> dict[str, float]:
    """The sum of each kernel in us; those that differ in their template arguments only are one."""
    return {row["name"]: (row["sum_ns"] or row["total_ns"]) / 1000 for row in kernels(trace)}


def longest_queues(trace: Trace) -> dict[str, float]:
    """Of each stream."""
    return {f"stream {row['stream']}": row["max_length"] for row in queues(trace) if row["count"]}


def launches(trace: Trace) -> dict[str, float]:
    """How many, and the mean delay in us."""
    rows = [row for row in queues(trace) if row["count"]]
    count = sum(row["count"] for row in rows)
    return {"count": count, "mean delay": sum(row["mean_delay_ns"] * row["count"] for row in rows) / count / 1000}


def copies(trace: Trace) -> dict[str, float]:
    """The best bandwidth of each direction in GB/s."""
    best: dict[str, float] = {}
    for row in transfers(trace):
        if row["best_bandwidth"] is not None:
            direction = DIRECTIONS.get(row["direction"], row["direction"])
            best[direction] = max(best.get(direction, 0.0), row["best_bandwidth"] / 1e9)
    return best


QUESTIONS: dict[str, Callable[[Trace], dict[str, float]]] = {
    "temporal breakdown": temporal,
    "overlap": overlap,
    "idle breakdown": idle,
    "kernel breakdown": by_kernel,
    "queue length": longest_queues,
    "launch delay": launches,
    "copy bandwidth": copies,
}


def equal(ours: float, theirs: float) -> bool:
    """To 1 us, or to a ten-thousandth: HTA's times are float64 microseconds, whose grid is 0.25 us in our years."""
    if math.isnan(ours) or math.isnan(theirs):
        return math.isnan(ours) and math.isnan(theirs)
    return abs(ours - theirs) <= max(1.0 if max(ours, theirs) > 100 else 0.01, 1e-4 * abs(theirs))


def compared(path: Path, python: str) -> Iterator[tuple[str, str]]:
    """Each question, and in words how the answers agree."""
    theirs = _run(python, "numbers", path)
    with open_trace(path) as trace:
        for name, ask in QUESTIONS.items():
            answer = theirs[name]
            if isinstance(answer, str):
                yield name, f"HTA gives none ({answer})"
                continue
            yield name, _agreement(ask(trace), _by_family(answer) if ask is by_kernel else answer)


def _by_family(sums: dict[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, us in sums.items():
        found[family(name)] = found.get(family(name), 0.0) + us
    return found


def _agreement(ours: dict[str, float], theirs: dict[str, float]) -> str:
    apart = [
        f"{name[:40]}: ours {ours.get(name, math.nan):,.4g}, HTA {theirs.get(name, math.nan):,.4g}"
        for name in sorted(ours.keys() | theirs.keys())
        if not equal(ours.get(name, math.nan), theirs.get(name, math.nan))
    ]
    if not apart:
        return f"equal ({len(ours)})"
    return f"{len(apart)} of {len(ours.keys() | theirs.keys())} differ; {'; '.join(apart[:4])}"


def generate(path: Path, events: int) -> None:
    """As bench_import's, with communication on a stream of its own, and copies."""
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "baseTimeNanoseconds": 1751410836000000000, "traceEvents": [\n')
        file.write(",\n".join(_varied(bench_import.calls(events // bench_import.EVENTS_A_CALL))))
        file.write('\n], "traceName": "generated.json"}\n')


def _varied(calls: Iterator[str]) -> Iterator[str]:
    communication = '"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"'
    for number, call in enumerate(calls):
        begin, cat, rest = call.partition('"cat": "kernel", ')
        _, comma, args = rest.partition(",\n")
        if cat and number % 10 == 3:
            on_stream = args.replace('"tid": 7', '"tid": 20').replace('"stream": 7', '"stream": 20')
            call = begin + cat + communication + comma + on_stream
        elif cat and number % 10 == 6:
            copy = '"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)"'
            more = args.replace('"queued": 0', '"bytes": 4096, "memory bandwidth (GB/s)": 0.6808')
            call = begin + copy + comma + more
        yield call


def timed(path: Path) -> dict[str, tuple[float, float]]:
    """Seconds of CPU, of all threads, of each question: alone in a trace opened for it, and in one that has been asked
    before, where what several questions need is there as HTA's parsed dataframe is.
    """
    best: dict[str, tuple[float, float]] = {}
    for name, ask in QUESTIONS.items():
        with open_trace(path) as trace:
            alone, *again = [_seconds(ask, trace) for _ in range(3)]
            best[name] = alone, min(again)
    return best


def _seconds(ask: Callable[[Trace], dict[str, float]], trace: Trace) -> float:
    begin = time.process_time()
    ask(trace)
    return time.process_time() - begin


def _run(python: str, what: str, path: Path) -> dict[str, Any]:
    done = subprocess.run([python, HTA_SIDE, what, path], check=True, capture_output=True, text=True)
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def main(arguments: argparse.Namespace) -> int:
    """Returns 1 when a budget of time is missed."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        python = arguments.hta or bench_import.hta_python(folder / "hta")
        for path in sorted(TRACES.glob("kineto_*")):
            print(path.name)
            for name, agreement in compared(path, python):
                print(f"  {name:20} {agreement}")
        if not arguments.events:
            return 0
        generate(folder / "generated.json", arguments.events)
        import_files([folder / "generated.json"], folder / "generated.duckdb")
        print("generated")
        for name, agreement in compared(folder / "generated.json", python):
            print(f"  {name:20} {agreement}")
        theirs, ours = _run(python, "times", folder / "generated.json"), timed(folder / "generated.duckdb")
    for name, (alone, again) in ours.items():
        told = f"ours {alone:6.3f} s alone, {again:6.3f} s in the open trace; HTA {theirs[name]:7.3f} s"
        print(f"{name:20} {told}: {theirs[name] / alone:.1f} x, {theirs[name] / again:.1f} x (budget {BUDGET:.0f})")
    return 0 if all(theirs[name] / again >= BUDGET for name, (_, again) in ours.items()) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hta")
    parser.add_argument("--events", type=int, default=2_000_000)
    sys.exit(main(parser.parse_args()))
