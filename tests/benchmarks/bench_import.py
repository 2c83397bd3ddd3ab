"""Kineto JSON into a trace, against HolisticTraceAnalysis' parse of the same file, side by side in one run.

    python -m tests.benchmarks.bench_import [--hta PYTHON] [--events N] [--memory N]

Ours is the whole of `import_files`: from the file to a finished .duckdb with parents, steps, flows and memory derived.
HTA's is `hta.common.trace_parser.parse_trace_dataframe` with its default configuration: from the file to a dataframe
in memory, nothing derived and nothing written. Each is the best of a few rounds in a process of its own, importing
modules not counted. HTA is installed from PyPI into an environment of the benchmark's own, unless `--hta` names a
Python that has it. `--memory N` imports a file of N events more, and prints the most memory that took.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

from tests.shared import TRACES

REAL = TRACES / "kineto_2080ti_resnet.json.gz"
ROUNDS = 3
BUDGETS = {"real": 8.0, "generated": 12.0}
MOST_MEMORY_MIB = 2048

OURS = """
import resource, sys, tempfile, time
from pathlib import Path
from ral_trace.tracer.importers import import_files
best = 1e9
for _ in range(int(sys.argv[2])):
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        import_files([Path(sys.argv[1])], Path(folder) / "out.duckdb")
        best = min(best, time.perf_counter() - begin)
print(best, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
THEIRS = """
import logging, sys, time
logging.disable(logging.CRITICAL)
from hta.common.trace_parser import ParserConfig, parse_trace_dataframe
best = 1e9
for _ in range(int(sys.argv[2])):
    begin = time.perf_counter()
    parse_trace_dataframe(sys.argv[1], ParserConfig.get_default_cfg())
    best = min(best, time.perf_counter() - begin)
print(best, 0)
"""

CALL = """\
  {{"ph": "X", "cat": "cpu_op", "name": "aten::{name}", "pid": 4242, "tid": 4242, "ts": {a}, "dur": 9.250,
   "args": {{"External id": {n}, "Record function id": 0, "Sequence number": {n}, "Fwd thread id": 0, "Ev Idx": {n}}}}},
  {{"ph": "X", "cat": "cpu_op", "name": "aten::{name}_", "pid": 4242, "tid": 4242, "ts": {b}, "dur": 7.500,
   "args": {{"External id": {n}, "Record function id": 0, "Ev Idx": {n}}}}},
  {{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4242, "tid": 4242, "ts": {c}, "dur": 4.125,
   "args": {{"External id": {n}, "cbid": 211, "correlation": {n}}}}},
  {{"ph": "s", "id": {n}, "pid": 4242, "tid": 4242, "ts": {c}, "cat": "ac2g", "name": "ac2g"}},
  {{"ph": "X", "cat": "kernel", "name": "void at::native::vectorized_elementwise_kernel<4, at::native::{name}>(int)",
   "pid": 0, "tid": 7, "ts": {d}, "dur": 6.016, "args": {{"External id": {n}, "queued": 0, "device": 0, "context": 1,
   "stream": 7, "correlation": {n}, "registers per thread": 32, "shared memory": 0, "blocks per SM": 4.272727,
   "warps per SM": 17.09091, "grid": [564, 1, 1], "block": [128, 1, 1], "est. achieved occupancy %": 53}}}},
  {{"ph": "f", "id": {n}, "pid": 0, "tid": 7, "ts": {d}, "cat": "ac2g", "name": "ac2g", "bp": "e"}}"""
EVENTS_A_CALL = 6
CALLS_A_STEP = 5_000
NAMES = ["add", "mul", "relu", "layer_norm", "softmax", "copy", "div", "sum", "gelu", "where"]


def generate(path: Path, events: int) -> None:
    """A training on one stream, written as torch.profiler writes it."""
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "baseTimeNanoseconds": 1751410836000000000, "traceEvents": [\n')
        file.write(",\n".join(calls(events // EVENTS_A_CALL)))
        file.write('\n], "traceName": "generated.json"}\n')


def calls(calls: int) -> Iterator[str]:
    for n in range(1, calls + 1):
        begin = 1_000_000 + n * 12
        if n % CALLS_A_STEP == 1:
            step = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n // CALLS_A_STEP}", "pid": 4242,
                    "tid": 4242, "ts": begin, "dur": CALLS_A_STEP * 12 - 1, "args": {"External id": n}}  # fmt: skip
            yield "  " + json.dumps(step)
        times = {"a": f"{begin}.125", "b": f"{begin + 1}.250", "c": f"{begin + 3}.001", "d": f"{begin + 20}.375"}
        yield CALL.format(n=n, name=NAMES[n % len(NAMES)], **times)


def measure(python: str, program: str, path: Path, rounds: int) -> tuple[float, float]:
    """Seconds, and the most memory in MiB."""
    command = [python, "-c", program, str(path), str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, memory = done.stdout.split()[-2:]
    return float(seconds), float(memory)


def hta_python(folder: Path) -> str:
    """Installs HTA into a new environment."""
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "HolisticTraceAnalysis"], check=True)
    return str(python)


def compare(name: str, path: Path, python: str, rounds: int) -> bool:
    """Prints both, and whether the budget is kept."""
    ours, memory = measure(sys.executable, OURS, path, rounds)
    theirs, _ = measure(python, THEIRS, path, rounds)
    ratio = theirs / ours
    print(
        f"{name:10} ours {ours:6.2f} s ({memory:.0f} MiB), HTA {theirs:6.2f} s: {ratio:.1f} x faster "
        f"(budget {BUDGETS[name]:.0f})"
    )
    return ratio >= BUDGETS[name]


def main(arguments: argparse.Namespace) -> int:
    """Returns 1 when a budget is missed."""
    kept = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        python = arguments.hta or hta_python(folder / "hta")
        if REAL.exists():
            kept.append(compare("real", REAL, python, ROUNDS))
        generate(folder / "generated.json", arguments.events)
        kept.append(compare("generated", folder / "generated.json", python, 1))
        if arguments.memory:
            generate(folder / "large.json", arguments.memory)
            seconds, memory = measure(sys.executable, OURS, folder / "large.json", 1)
            print(f"{arguments.memory} events: {seconds:.1f} s, {memory:.0f} MiB (budget {MOST_MEMORY_MIB})")
            kept.append(memory <= MOST_MEMORY_MIB)
    return 0 if all(kept) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hta")
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--memory", type=int, default=0)
    sys.exit(main(parser.parse_args()))
