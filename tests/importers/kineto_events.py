"""Events as Kineto writes them, for tests."""

from pathlib import Path
from typing import Any

from ral_trace.tracer.reading import Trace
from tests.importers.reading_back import CASES, imported

US = 1_000


def case(name: str, tmp_path: Path) -> Trace:
    return imported(CASES / f"{name}.json", tmp_path)


def slice_of(name: str, cat: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    """An X event of thread 1."""
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": {}, **more}


def on_device(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    """A kernel on stream 7 of device 0."""
    args = {"device": 0, "stream": 7, **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}
