"""Runs every benchmark in a process of its own: `python -m tests.benchmarks`. Fails where one misses its budget."""

import subprocess
import sys
from pathlib import Path

failed = []
for path in sorted(Path(__file__).parent.glob("bench_*.py")):
    print(f"{path.stem}:", flush=True)
    if subprocess.run([sys.executable, "-m", f"tests.benchmarks.{path.stem}"], check=False).returncode != 0:
        failed.append(path.stem)
if failed:
    sys.exit(f"over budget: {', '.join(failed)}")
