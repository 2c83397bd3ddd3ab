"""Collapsed stacks: self times that add up to what each track was busy, on lines that nothing in a name can break."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ral_trace.tracer.exporters import Window, export
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.store import TraceBuilder
from tests.awkward import awkward
from tests.synthetic import training


def stacks(trace: Trace, folder: Path, window: Window | None = None) -> dict[str, int]:
    found = {}
    for line in export(trace, folder / "out.collapsed", window).read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        assert stack not in found
        found[stack] = int(count)
    return found


def small(path: Path) -> Path:
    """An op of 100 ns with two inner ones, one below a Python line of its own; a kernel; names that break lines."""
    with TraceBuilder(path) as builder:
        process = builder.add("process", source=builder.add("source", format="live"), name="run; me")
        thread = builder.add("thread", process=process, tid=1, name="main\nthread")
        device = builder.add("device", process=process, type="ral", index=0)
        stream = builder.add("stream", device=device, number=3)
        frames = [
            {"file": "net.py", "line": 7, "function": "forward"},
            {"file": "train.py", "line": 2, "function": "main"},
        ]
        stack = builder.add("stack", frames=frames)
        host = {"kind": "op", "process": process, "thread": thread, "flags": 0}
        builder.add("event", name="outer", ts_ns=1000, dur_ns=100, stack=stack, **host)
        builder.add("event", name="inner;1", ts_ns=1010, dur_ns=30, stack=stack, **host)
        builder.add("event", name="inner\r\n2", ts_ns=1050, dur_ns=20, **host)
        builder.add("event", name="alone", ts_ns=2000, dur_ns=5, **host)
        builder.add("event", name="instant", ts_ns=2001, dur_ns=0, **{**host, "kind": "instant"})
        builder.add("event", kind="kernel", name="gemm", ts_ns=1020, dur_ns=40, process=process, device=device,
                    stream=stream, flags=0)  # fmt: skip
        return builder.finish()


def test_self_times_and_names(tmp_path: Path) -> None:
    with open_trace(small(tmp_path / "run.duckdb")) as trace:
        found = stacks(trace, tmp_path)
    thread, lines = "run: me;main thread 1", "main (train.py:2);forward (net.py:7)"
    assert found == {
        f"{thread};{lines};outer": 50,
        f"{thread};{lines};outer;inner:1": 30,
        f"{thread};{lines};outer;inner  2": 20,
        f"{thread};alone": 5,
        "run: me;ral:0;stream 3;gemm": 40,
    }


def test_folded_is_the_same(tmp_path: Path) -> None:
    with open_trace(small(tmp_path / "run.duckdb")) as trace:
        assert export(trace, tmp_path / "a.folded").read_bytes() == export(trace, tmp_path / "a.collapsed").read_bytes()


@pytest.mark.parametrize("make", [training, awkward])
def test_times_add_up_and_none_is_negative(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    with open_trace(make(tmp_path / "run.duckdb")) as trace:
        found = stacks(trace, tmp_path)
        [(kernels,)] = trace.sql(
            "SELECT sum(dur_ns) FROM event WHERE kind IN ('kernel', 'transfer') AND flags & 4 = 0"
        ).fetchall()
    assert min(found.values()) > 0
    on_streams = sum(count for stack, count in found.items() if ";stream " in stack)
    if make is training:
        assert on_streams == kernels
    assert all("\t" not in stack and stack.count(" ") < 6_000 for stack in found)


def test_a_window_is_a_part(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        assert (
            0 < sum(stacks(trace, tmp_path, Window(to_ns=2_000_000)).values()) < sum(stacks(trace, tmp_path).values())
        )
