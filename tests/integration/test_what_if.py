"""Predictions against what really happens, on `sim` with its virtual clock: its times come from the model alone.

The device is ahead of the host, so that its model decides when everything runs, never the moment at which a busy
machine happened to launch it. For the same reason the two streams do not wait for each other: which waits the host
still hands to the device depends on how far that really is. What the device took is read from its own clock, through
events. A recording has ticks, whose rate is measured: all durations of the model are whole milliseconds, to which
recorded times are rounded.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from ral_trace.analysis.path_graph import graph_of
from ral_trace.analysis.path_rows import Window
from ral_trace.analysis.what_if import Scenario, changed
from ral_trace.tracer import open_trace

pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent.parent
MS = 1_000_000

PROGRAM = """
import json, sys
import torch
import ral_trace.backend as backend
from ral_trace.tracer import trace
backend.enable("sim:1")

def set_model(kernel_ns, copy_ns):
    torch.ral.set_device_model("ral:0", launch_ns=kernel_ns, memory_bytes_per_s=0, copy_latency_ns=copy_ns,
                               copy_bytes_per_s=0)

set_model(0, 0)
x, host = torch.ones(64, 64, device="ral:0"), torch.ones(64, 64)
main, side = torch.accelerator.current_stream("ral:0"), torch.Stream(device="ral:0")
keep = []

def event(stream):
    made = torch.Event(device="ral:0", enable_timing=True)
    made.record(stream)
    return made

def between(begin, end):
    return round(begin.elapsed_time(end) * 1e6)

def work(synchronize):
    begins = event(main), event(side)
    for number in range(6):
        y = x * x + x
        keep.append(y.to("cpu", non_blocking=True))
        with torch.ral.stream(side):
            keep.extend(host.to("ral:0", non_blocking=True) for _ in range(3))
        if synchronize:
            torch.ral.synchronize("ral:0")
    ends = event(main), event(side)
    torch.ral.synchronize("ral:0")
    return max(between(begin, end) for begin in begins for end in ends)

def ahead(ns):
    # Both streams are so far ahead of the host, and at the same time.
    marks = event(side), event(main)
    torch.ral.synchronize("ral:0")
    behind = between(*marks)
    set_model(0, ns)
    x.cpu()
    torch.ral.synchronize("ral:0")
    set_model(0, ns + behind)
    with torch.ral.stream(side):
        host.to("ral:0")
    torch.ral.synchronize("ral:0")

work(synchronize=True)  # what comes out of each op is learnt, in no time of the device
for file, kernel_ms, copy_ms, synchronize in json.loads(sys.argv[1]):
    ahead(60_000_000_000)
    set_model(kernel_ms * 1_000_000, copy_ms * 1_000_000)
    with trace(file):
        print(work(synchronize))
"""

KERNELS = ("aten::mul.Tensor", "aten::add.Tensor")
AS_IT_WAS = (30, 70, True)
"""Kernels of 30 ms, copies of 70: 18 copies in on one stream, beside 12 kernels and 6 copies out on the other."""

CHANGED: list[tuple[tuple[int, int, bool], Scenario, int]] = [
    (AS_IT_WAS, Scenario(), 18 * 70),
    # A wait of the host is no work of the device's: its own clock does not run meanwhile.
    ((30, 70, False), Scenario(without_syncs=["torch.ral.synchronize"]), 18 * 70),
    ((30, 35, True), Scenario(faster={"aten::_to_copy": 2.0}), 18 * 35),
    # Now the other stream takes longest: 6 times two kernels and a copy.
    ((30, 10, True), Scenario(faster={"aten::_to_copy": 7.0}), 6 * (30 + 30 + 10)),
    ((15, 10, True), Scenario(faster={"aten::_to_copy": 7.0} | dict.fromkeys(KERNELS, 2.0)), 6 * (15 + 15 + 10)),
    ((120, 70, True), Scenario(faster=dict.fromkeys(KERNELS, 0.25)), 6 * (120 + 120 + 70)),
]
"""(kernel ms, copy ms, with waits), what that is for the first, ms that it takes."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """The trace of the first run, and ns that each took by the device's own clock."""
    folder = tmp_path_factory.mktemp("runs")
    wanted = [(str(folder / f"{number}.duckdb"), *model) for number, (model, _, _) in enumerate(CHANGED)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(wanted)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={**os.environ, "RAL_SIM": "clock=virtual"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    file = Path(wanted[0][0])
    with duckdb.connect(file) as connection:
        connection.execute(
            """
            UPDATE event SET ts_ns = zero + round((ts_ns - zero) / $1)::BIGINT * $1,
                             dur_ns = round(dur_ns / $1)::BIGINT * $1
            FROM (SELECT min(ts_ns) AS zero FROM event WHERE kind IN ('kernel', 'transfer'))
            WHERE kind IN ('kernel', 'transfer')""",
            [MS],
        )
    return file, [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize("number", range(len(CHANGED)))
def test_what_really_happens(runs: tuple[Path, list[int]], number: int):
    """To the nanosecond: from the first begin to the last end on the device."""
    file, took_ns = runs
    _, scenario, expected_ms = CHANGED[number]
    assert took_ns[number] == expected_ms * MS
    with open_trace(file) as trace:
        graph = graph_of(trace, Window())
        times = changed(trace, graph, scenario).times()
    assert int(times[graph.ends].max()) - int(graph.device["start"].min()) == took_ns[number]
