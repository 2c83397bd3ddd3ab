"""Small traces whose answers can be worked out on paper."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.schema import FLAGS
from ral_trace.tracer.store import TraceBuilder

T0 = 1_790_000_000_000_000_000
COLUMNS = [
    "kind",
    "category",
    "name",
    "ts_ns",
    "dur_ns",
    "process",
    "thread",
    "device",
    "stream",
    "correlation",
    "parent",
    "bytes",
    "args",
    "flags",
]
CHANGES = [
    "action",
    "event",
    "ts_ns",
    "device",
    "address",
    "size_bytes",
    "requested_bytes",
    "uses",
    "handle",
    "before_trace",
    "last_use_ns",
]


@dataclass
class Case:
    """Rows of a trace to be; times are nanoseconds after T0. Every process has one thread, every device one stream,
    with the same number."""

    processes: list[dict[str, Any]] = field(default_factory=list)
    devices: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    ledgers: list[dict[str, Any]] = field(default_factory=list)
    quality: list[dict[str, Any]] = field(default_factory=list)

    def process(self, pid: int | None = 1, name: str | None = "train.py", **more: Any) -> int:
        self.processes.append({"pid": pid, "name": name, **more})
        return len(self.processes) - 1

    def device(self, process: int = 0, index: int = 0, vendor: str = "host", type: str = "ral", **more: Any) -> int:
        self.devices.append({"process": process, "index": index, "vendor": vendor, "type": type, **more})
        return len(self.devices) - 1

    def event(
        self, kind: str, name: str | None, ts: int, dur: int | None, *, args: dict[str, Any] | None = None, **more: Any
    ) -> int:
        """A host row unless `kind` is a kernel's or a transfer's, or thread=None is given; returns its id."""
        host = kind not in ("kernel", "transfer")
        process = more.get("process", self.devices[more["device"]]["process"] if more.get("device") is not None else 0)
        row = {
            "kind": kind,
            "name": name,
            "ts_ns": T0 + ts,
            "dur_ns": dur,
            "process": process,
            "thread": process if host else None,
            "stream": more.get("device"),
            "args": None if args is None else json.dumps(args),
            "flags": 0,
        }
        self.events.append({**dict.fromkeys(COLUMNS), **row, **more})
        return len(self.events) - 1

    def alloc(
        self, op: str | None, ts: int, size: int, address: int, device: int = 0, before_trace: bool = False
    ) -> None:
        event = self.event("alloc", op, ts, 0, device=device, bytes=size)
        self._change("alloc", event, ts, size, address, device, before_trace)

    def free(self, ts: int, size: int, address: int, device: int = 0) -> None:
        event = self.event("free", None, ts, 0, device=device, bytes=size)
        self._change("free", event, ts, size, address, device, False)

    def _change(self, action: str, event: int, ts: int, size: int, address: int, device: int, before: bool) -> None:
        row = {
            "action": action,
            "event": event,
            "ts_ns": T0 + ts,
            "device": device,
            "address": address,
            "size_bytes": size,
        }
        self.changes.append({**dict.fromkeys(CHANGES), **row, "before_trace": before})

    def region(self, ts: int, size: int, address: int, device: int = 0) -> None:
        self._change("open", -1, ts, size, address, device, False)

    def step(self, number: int, ts: int, dur: int | None, process: int = 0) -> None:
        self.event("annotation", f"step#{number}", ts, dur, process=process)

    def open(self, folder: Path, order: list[int] | None = None) -> Trace:
        """Builds and opens the trace. `order` is the order in which the events are stored; their ids stay."""
        path = folder / "case.duckdb"
        with TraceBuilder(path) as builder:
            builder.add("source", program="train.py", format="live", clock_zero="unix epoch")
            for number, process in enumerate(self.processes or [{"pid": 1, "name": "train.py"}]):
                builder.add("process", source=0, **{"started_ns": T0, "ended_how": "exited", **process})
                builder.add("thread", process=number, tid=number)
            for number, device in enumerate(self.devices):
                builder.add("device", **device)
                builder.add("stream", device=number, number=0)
            rows = [{"id": number, **event} for number, event in enumerate(self.events)]
            builder.add_rows("event", [rows[number] for number in order] if order else rows)
            if self.changes:
                builder.connection.executemany(
                    f"INSERT INTO memory_change ({', '.join(CHANGES)}) VALUES ({', '.join('?' * len(CHANGES))})",
                    [[change[column] for column in CHANGES] for change in self.changes],
                )
            for table, found in (("ledger", self.ledgers), ("quality", self.quality)):
                for row in found:
                    builder.add(table, **row)
            builder.info(command_line="ral-trace -- python train.py", clock="tsc")
            builder.finish()
        return open_trace(path)


INVALID = FLAGS["INVALID"]


def fallback(
    case: Case,
    ts: int,
    dur: int,
    *,
    device: int,
    correlation: int,
    copies: list[tuple[int, int, int]],
    reason: str = "native: no entry",
) -> int:
    """A launch that falls back: its `copies` (start, duration, bytes), each with a launch and a forced wait, lie
    within. Returns the fallback's id."""
    for number, (start, length, size) in enumerate(copies):
        own = correlation * 100 + number
        case.event(
            "transfer",
            "aten::cumsum",
            start,
            length,
            device=device,
            correlation=own,
            bytes=size,
            category="device_to_host",
        )
        case.event("sync", "aten::cumsum", start, length, device=device, flags=FLAGS["FORCED"])
        case.event("launch", "aten::cumsum", start, length, device=device, correlation=own)
    args = {"routed": "aten::cumsum.out", "reason": reason}
    found = case.event("fallback", "aten::cumsum", ts, dur, device=device, correlation=correlation, args=args)
    case.event("launch", "aten::cumsum", ts - 1, dur + 2, device=device, correlation=correlation)
    return found


HOSTILE = [
    '<img src=x onerror="window.__xss=1">',
    "</script><script>window.__xss=1</script>",
    "[red]not red[/red]",
    "\x1b[31mescape\x1b[0m\r\n",
    '<b>bold</b><a href="javascript:window.__xss=1">click</a>',
    "{{ 7 * 7 }}<!--",
    "\u202egnirts\u2028",
    "%{customdata} &lt;script&gt; ' \" `",
]


def hostile() -> Case:
    """Names that try to become markup, wherever a trace can hold a name."""
    case = Case()
    case.process(name=HOSTILE[0], command_line=HOSTILE[1], ended_how=HOSTILE[1])
    for index, vendor in enumerate(HOSTILE[:3]):
        case.device(
            index=index, vendor=vendor, type=HOSTILE[1] if index else "ral", name=HOSTILE[0], memory_bytes=1 << 20
        )
    for number, name in enumerate(HOSTILE):
        device = number % 3
        case.event("op", name, number * 1000, 900)
        case.event("launch", name, number * 1000 + 100, 700, device=device, correlation=number + 1)
        case.event(
            "kernel", name, number * 1000 + 200, 500, device=device, correlation=number + 1, args={"kernel": name}
        )
        case.event("sync", name, number * 1000 + 810, 5, device=device)
        case.event("fallback", name, number * 1000 + 820, 10, device=device, args={"routed": name, "reason": name})
        case.alloc(name, number * 1000 + 10, 64, number * 64, device)
        case.step(number, number * 1000, 950)
    case.ledgers.append({"process": 0, "written": 10, "received": 8, "dropped": 1, "lost": 1, "shed": 0})
    case.quality.append({"source": 0, "process": 0, "what": HOSTILE[0], "count": 1, "example": HOSTILE[1]})
    return case
