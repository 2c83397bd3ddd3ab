"""Predictions of what a change brings to the sample training, against the change: a wait less, a kernel more.

    python -m tests.benchmarks.bench_what_if

Recordings of the training as it is give the prediction: a ratio of step times. Then the change is made, and stretches
of steps with and without it take turns, unrecorded; the ratio of their lower quartiles, of stretches in which nobody
else had the cores, is what it really brings.
The kernel of gelu is there for one device and not for the other: `sim` with its manifest, and without that entry.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn import functional

from ral_trace import backend
from ral_trace.analysis.what_if import what_if
from ral_trace.backend import vendors
from ral_trace.tracer import open_trace, step, trace
from tests.benchmarks.bench_step import Training, training_on

WITHIN = 0.15
WARM_UP, STEPS, ROUNDS, RECORDINGS = 2, 10, 16, 5


def one_step(training: Training, reads_loss: bool) -> None:
    """A step of the sample: it reads its loss, or it does not."""
    logits = training.model(training.text)
    loss = functional.cross_entropy(logits.flatten(0, 1), training.target.flatten())
    training.optimizer.zero_grad()
    loss.backward()
    training.optimizer.step()
    if reads_loss:
        loss.item()


def stretch_ms(training: Training, reads_loss: bool) -> float:
    """ms of a step, of a stretch of them that ends when the device is through."""
    for _ in range(WARM_UP):
        one_step(training, reads_loss)
    torch.ral.synchronize(training.device)
    begin = time.perf_counter_ns()
    for _ in range(STEPS):
        one_step(training, reads_loss)
    torch.ral.synchronize(training.device)
    return (time.perf_counter_ns() - begin) / STEPS / 1e6


def predicted(training: Training, reads_loss: bool, folder: Path, **scenario: object) -> float:
    """The step in a scenario, over the step as recorded: that of the quickest recording."""
    stretch_ms(training, reads_loss)
    found = []
    for number in range(RECORDINGS):
        path = folder / f"{number}.duckdb"
        with trace(path, buffer_bytes=16 << 20):
            for _ in range(STEPS + 2):
                one_step(training, reads_loss)
                step()
            torch.ral.synchronize(training.device)
        with open_trace(path) as recorded:
            [row] = what_if(recorded, **scenario)  # type: ignore[arg-type]
        path.unlink()
        found.append((row["before_ns"], row["predicted_ns"]))
    before_ns, predicted_ns = min(found)
    print(f"  recorded {before_ns / 1e6:.2f} ms, predicted {predicted_ns / 1e6:.2f} ms", flush=True)
    return float(predicted_ns / before_ns)


def quartile(took_ms: list[float]) -> float:
    """The lower one."""
    return statistics.quantiles(took_ms, n=4)[0]


def without_a_wait(folder: Path) -> dict[str, float]:
    """The step that does not read its loss, against the one that does."""
    training = training_on(torch.device("ral:0"))
    expected = predicted(training, True, folder, without_syncs=["aten::item"])
    reads, reads_not = [], []
    for _ in range(ROUNDS):
        reads.append(stretch_ms(training, True))
        reads_not.append(stretch_ms(training, False))
    return {"predicted": expected, "measured": quartile(reads_not) / quartile(reads)}


def without_gelu(folder: Path) -> Path:
    """The manifest of `sim` without that entry."""
    sim = Path(vendors.__path__[0]) / "sim"
    manifest = json.loads((sim / "kernel_manifest.json").read_text())
    for entry in manifest["kernels"]:
        library, _, symbol = entry["kernel_path"].partition(":")
        entry["kernel_path"] = f"{sim / library}:{symbol}"
    manifest["kernels"] = [entry for entry in manifest["kernels"] if entry["op_name"] != "aten::gelu"]
    (folder / "kernel_manifest.json").write_text(json.dumps(manifest))
    return folder / "kernel_manifest.json"


def stretches(manifest: str, folder: str) -> None:
    """In a process of its own: prints what the fallback's absence would bring, where there is one, and on each line of
    stdin measures a stretch.
    """
    backend.enable("sim:1", manifests=[Path(manifest)] if manifest else [])
    torch.set_num_threads(1)
    training = training_on(torch.device("ral:0"))
    expected = predicted(training, True, Path(folder), native=["aten::gelu"]) if manifest else 0.0
    print(json.dumps(expected), flush=True)
    for _ in sys.stdin:
        print(json.dumps(stretch_ms(training, True)), flush=True)


def with_a_kernel(folder: Path) -> dict[str, float]:
    """The step whose gelu is native, against the one whose gelu falls back. Two processes take turns."""
    programs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.bench_what_if", manifest, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        for manifest in (str(without_gelu(folder)), "")
    ]
    try:
        expected, _ = (last_number(program) for program in programs)
        took: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for program, found in zip(programs, took, strict=True):
                assert program.stdin is not None
                program.stdin.write("\n")
                program.stdin.flush()
                found.append(last_number(program))
    finally:
        for program in programs:
            program.communicate()
    return {"predicted": expected, "measured": quartile(took[1]) / quartile(took[0])}


def last_number(program: "subprocess.Popen[str]") -> float:
    """The next line that is a number; others are shown."""
    assert program.stdout is not None
    for line in program.stdout:
        try:
            return float(json.loads(line))
        except ValueError:
            print(line, end="")
    raise SystemExit(f"a benchmark's process ended with {program.wait()}")


def main() -> int:
    """Prints predictions and what came true. Returns 1 when one is further away than allowed."""
    backend.enable("sim:1")
    torch.set_num_threads(1)
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name, measure in (("without loss.item()", without_a_wait), ("gelu native", with_a_kernel)):
            found = measure(Path(folder))
            off = found["predicted"] / found["measured"] - 1
            worst = max(worst, abs(off))
            print(
                f"char_lm {name}: predicted {found['predicted']:.3f} of a step, measured {found['measured']:.3f}: "
                f"{off:+.1%} (budget {WITHIN:.0%})"
            )
    return 0 if worst <= WITHIN else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        stretches(*sys.argv[1:])
    else:
        sys.exit(main())
