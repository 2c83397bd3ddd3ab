"""Kineto files of a few lines, for traces that need streams. Times are microseconds, as in the file."""

import json
from pathlib import Path
from typing import Any


class KinetoFile:
    """One process, one thread, one device."""

    def __init__(self, rank: int | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.rank = rank

    def host(self, category: str, name: str, ts: float, dur: float, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 100, "tid": 100, "ts": ts, "dur": dur, "args": args}
        )

    def on_stream(self, category: str, name: str, ts: float, dur: float, stream: int, **args: Any) -> None:
        args |= {"device": 0, "stream": stream}
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}
        )

    def kernel(
        self, name: str, launch: float, ts: float, dur: float, stream: int, call: float = 5, **args: Any
    ) -> None:
        """A kernel and its launch, which lasts for `call`."""
        correlation = len(self.events) + 1
        self.host("cuda_runtime", "cudaLaunchKernel", launch, call, correlation=correlation)
        self.on_stream("kernel", name, ts, dur, stream, correlation=correlation, **args)

    def write(self, folder: Path, name: str = "trace.json") -> Path:
        whole: dict[str, Any] = {"schemaVersion": 1, "traceEvents": self.events}
        if self.rank is not None:
            whole["distributedInfo"] = {"backend": "nccl", "rank": self.rank, "world_size": 2}
        path = folder / name
        path.write_text(json.dumps(whole))
        return path
