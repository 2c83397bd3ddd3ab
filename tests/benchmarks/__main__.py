"""Runs every benchmark and prints its ratios: `python -m tests.benchmarks`. Fails where one misses its budget."""

import importlib
import sys
from pathlib import Path

failed = []
for path in sorted(Path(__file__).parent.glob("bench_*.py")):
    print(f"{path.stem}:", flush=True)
    if importlib.import_module(f"tests.benchmarks.{path.stem}").main() != 0:
        failed.append(path.stem)
if failed:
    sys.exit(f"over budget: {', '.join(failed)}")
