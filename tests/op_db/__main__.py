"""All of PyTorch's operator database on one device: `python -m tests.op_db [--device ral:1] [--dtype float32]`."""

import argparse
import collections
import json
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from torch.testing._internal.common_methods_invocations import op_db

from tests.op_db.compare import name_of
from tests.op_db.known import reason_of

CHECKOUT = Path(__file__).resolve().parents[2]


class Worker:
    """A child that compares; another one takes its place when it died or hung."""

    def __init__(self, device: str, dtype: str, limit: int, timeout_s: float) -> None:
        self._arguments = [device, dtype, str(limit)]
        self._timeout_s = timeout_s
        self._child: subprocess.Popen[str] | None = None

    def compare(self, index: int) -> dict[str, Any]:
        """What the child says, or {"died": how}."""
        if self._child is None:
            self._child = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "tests.op_db.worker", *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=CHECKOUT,
            )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(f"{index}\n")
        self._child.stdin.flush()
        ready, _, _ = select.select([self._child.stdout], [], [], self._timeout_s)
        line = self._child.stdout.readline() if ready else ""
        if line:
            return dict(json.loads(line))
        if not ready:
            self._child.kill()
        status = self._child.wait()
        self._child = None
        return {"died": "hang" if not ready else f"crash ({status})"}

    def close(self) -> None:
        if self._child is not None:
            self._child.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.op_db", description=__doc__)
    parser.add_argument("--device", default="ral:0")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=12, help="at most so many of each operator")
    parser.add_argument("--ops", default="", help="a regular expression")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for an operator")
    options = parser.parse_args()
    worker = Worker(options.device, options.dtype, options.samples, options.timeout)
    counts: collections.Counter[str] = collections.Counter()
    kinds: collections.Counter[str] = collections.Counter()
    for index, op in enumerate(op_db):
        name = name_of(op)
        if not re.search(options.ops, name):
            continue
        said = worker.compare(index)
        if "died" in said:
            counts["died"] += 1
            print(f"{name}: {said['died']}", flush=True)
            continue
        found = said["found"]
        unknown = [each for each in found if reason_of(each) is None]
        counts["skipped" if said["skipped"] else "differ" if unknown else "known" if found else "agree"] += 1
        lines = collections.Counter((each["variant"], each["kind"], each["what"]) for each in unknown)
        kinds.update({kind for _, kind, _ in lines})
        for (variant, kind, what), times in lines.most_common(6):
            print(f"{name} [{variant}] {kind} x{times}: {what}", flush=True)
    worker.close()
    print(f"{options.device} {options.dtype}: {dict(counts)}; operators by kind of difference: {dict(kinds)}")


if __name__ == "__main__":
    main()
