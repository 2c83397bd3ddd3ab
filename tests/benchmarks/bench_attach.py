"""What a program pays for being found: to be traced from now on, and to be installed while nobody traces.

    python -m tests.benchmarks.bench_attach

The first: programs of one and of four threads time each of their ops while recordings begin and end around them; of
each beginning the longest op counts, because it is the one that made its thread's ring. Beside it stand the longest
ops of two windows as long, one in which the recording went on and one in which there was none: what the machine does
anyway.
The second: two programs train the same small model, one of them with ral-trace's entry point off, and take turns.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ral_trace.tracer import _native

ATTACH_US = 1000
OFF_PERCENT = 0.5
BEGINNINGS = 25
WINDOW_S = 0.06
PAIRS, TURNS, STEPS = 3, 60, 30

OPS = """
import json, sys, threading, time, torch
torch.set_num_threads(1)
ended = threading.Event()
slow = []

def run():
    x = torch.ones(2)
    while not ended.is_set():
        begun = time.monotonic_ns()
        x * 3
        taken = time.monotonic_ns() - begun
        if taken > 20_000:
            slow.append((begun, taken))
        time.sleep(0.0005)

threads = [threading.Thread(target=run) for _ in range(int(sys.argv[1]))]
for thread in threads: thread.start()
print("running", flush=True)
sys.stdin.readline()
ended.set()
for thread in threads: thread.join()
print(json.dumps(slow))
"""

TRAINING = """
import sys, time, torch
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(32, 64), torch.randn(32, 8)
print("running", flush=True)
for line in sys.stdin:
    begun = time.process_time_ns()
    for _ in range(int(line)):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    print(time.process_time_ns() - begun, flush=True)
"""


def started(source: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", source, *arguments]
    pipe = subprocess.PIPE
    program = subprocess.Popen(words, env={**os.environ, **environment}, stdin=pipe, stdout=pipe, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "running\n"
    return program


def longest_us(slow: list[list[int]], begin_ns: int) -> float:
    window = range(begin_ns, begin_ns + int(WINDOW_S * 1e9))
    return max((taken for begun, taken in slow if begun in window), default=0) / 1000


def attaching(threads: int) -> list[tuple[str, float]]:
    """Medians over all beginnings, in microseconds."""
    program = started(OPS, str(threads))
    sessions = _native.Sessions()
    windows: dict[str, list[int]] = {"it begins": [], "it goes on": [], "there is none": []}
    for number in range(BEGINNINGS):
        folder = Path(sessions.folder) / f"session-{number}"
        folder.mkdir(0o700)
        details = _native.DETAILS["OPS"] | _native.DETAILS["SMALL_OPS"]
        windows["it begins"].append(time.monotonic_ns())
        slot = sessions.begin(number + 1, 0, 1 << 16, folder.name, details, overwrite=False)
        time.sleep(WINDOW_S)
        windows["it goes on"].append(time.monotonic_ns())
        time.sleep(WINDOW_S)
        sessions.end(slot)
        time.sleep(WINDOW_S)
        joined = len(list(folder.glob("*/ring-*")))
        assert joined == threads, f"{joined} of {threads} threads joined"
        sessions.release(slot)
        shutil.rmtree(folder)
        windows["there is none"].append(time.monotonic_ns())
        time.sleep(WINDOW_S)
    output, _ = program.communicate("end\n")
    slow = json.loads(output)
    return [(what, statistics.median(longest_us(slow, at) for at in begins)) for what, begins in windows.items()]


def block_ns(program: subprocess.Popen[str]) -> int:
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write(f"{STEPS}\n")
    program.stdin.flush()
    return int(program.stdout.readline())


def installed_and_off() -> float:
    """Percent that the training takes longer with the entry point than without; the median of several pairs."""
    shares = []
    for _ in range(PAIRS):
        # Who starts later finds other memory, so each pair starts anew.
        programs = [started(TRAINING, TORCH_DEVICE_BACKEND_AUTOLOAD="0"), started(TRAINING)]
        taken: list[list[int]] = [[], []]
        for turn in range(TURNS):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                taken[which].append(block_ns(programs[which]))
        for program in programs:
            program.communicate()
        without, installed = (statistics.median(column[TURNS // 10 :]) for column in taken)
        shares.append(100 * (installed / without - 1))
    return statistics.median(shares)


def main() -> int:
    over = False
    with tempfile.TemporaryDirectory(prefix="ral-bench-", dir="/dev/shm") as place:
        os.environ["RAL_TRACE_DIR"] = f"{place}/rendezvous"
        for threads in (1, 4):
            medians = attaching(threads)
            said = ", ".join(f"{value:.0f} us while {what}" for what, value in medians)
            print(f"  the longest op of {threads} thread{'s' if threads > 1 else ''} around a recording: {said}")
            over = over or medians[0][1] > ATTACH_US
        percent = installed_and_off()
        print(f"  installed and off: {percent:+.2f} % of a training step (budget {OFF_PERCENT} %)")
    return 1 if over or percent > OFF_PERCENT else 0


if __name__ == "__main__":
    sys.exit(main())
