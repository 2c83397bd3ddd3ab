"""A memory snapshot of a trace: PyTorch's own functions take it, and importing it gives the memory back."""

import contextlib
import io
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.exporters import Window, export
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.store import TraceBuilder
from tests.awkward import awkward
from tests.shared import TRACES, needs_shared
from tests.synthetic import training

EPOCH_US = 1_790_000_000_000_000
PAGE = 4096
LIVES = """
    SELECT d."index", d.type, a.address, a.size_bytes, a.requested_bytes, a.alloc_ns // 1000 AS alloc_us,
           a.free_ns // 1000 AS free_us, a.op, coalesce(a.before_trace, false) AS before, s.frames
    FROM allocation a JOIN device d ON d.id = a.device LEFT JOIN stack s ON s.id = a.stack ORDER BY ALL"""
REGIONS = """
    SELECT d."index", r.address, r.size_bytes, r.opened_ns // 1000, r.closed_ns // 1000
    FROM region r JOIN device d ON d.id = r.device ORDER BY ALL"""


def exported(trace: Trace, folder: Path, window: Window | None = None) -> tuple[Path, dict[str, Any]]:
    out = export(trace, folder / "out.pickle", window)
    return out, pickle.loads(out.read_bytes())


def both_ways(original: Path, folder: Path) -> tuple[list[list[Any]], list[list[Any]]]:
    """The blocks and regions of a trace, and those of the trace that its snapshot makes."""
    with open_trace(original) as trace:
        out, _ = exported(trace, folder)
        first = [trace.sql(LIVES).fetchall(), trace.sql(REGIONS).fetchall()]
    back = import_files([out], folder / "back.duckdb")
    with open_trace(back) as trace:
        return first, [trace.sql(LIVES).fetchall(), trace.sql(REGIONS).fetchall()]


def looked_at_by_torch(snapshot: dict[str, Any]) -> tuple[str, str]:
    """What PyTorch's own tools say; they check that the blocks of each segment add up to it."""
    viz = pytest.importorskip("torch.cuda._memory_viz")
    viz.trace_plot(snapshot)
    viz.segment_plot(snapshot)
    with contextlib.redirect_stdout(io.StringIO()):
        viz.memory(snapshot, format_flamegraph=str)
    return viz.segsum(snapshot), viz.trace(snapshot)


def test_pytorch_takes_it(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        _, snapshot = exported(trace, tmp_path)
        counted = trace.sql("SELECT count(alloc_ns), count(free_ns) FROM allocation").fetchall()[0]
        regions = trace.sql("SELECT count(*) FROM region").fetchall()[0][0]
    actions = [entry["action"] for entries in snapshot["device_traces"] for entry in entries if "made_up" not in entry]
    assert (actions.count("alloc"), actions.count("free_completed")) == counted
    assert actions.count("free_requested") == counted[1]
    summary, told = looked_at_by_torch(snapshot)
    assert f"segments: {regions}\n" in summary
    assert "entries" in told


def test_a_chosen_device_alone(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        _, snapshot = exported(trace, tmp_path, Window(devices=("ral:1",)))
        [(allocs,)] = trace.sql("SELECT count(alloc_ns) FROM allocation WHERE device = 1").fetchall()
        [(regions,)] = trace.sql("SELECT count(*) FROM region WHERE device = 1").fetchall()
    zero, one = snapshot["device_traces"]
    assert zero == []
    assert [entry["action"] for entry in one].count("alloc") == allocs > 0
    assert {segment["device"] for segment in snapshot["segments"]} == {1}
    assert len(snapshot["segments"]) == regions
    assert [device["index"] for device in snapshot["ral_trace"]["devices"]] == [1]


def test_kinds_have_no_meaning(tmp_path: Path) -> None:
    with (
        open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace,
        pytest.raises(
            UsageError, match=r"^--kind has no meaning for a \.pickle, which shows memory alone; leave it out$"
        ),
    ):
        exported(trace, tmp_path, Window(kinds=("alloc",)))


def random_memory(path: Path, seed: int) -> Path:
    """Two devices with regions, blocks and stacks; blocks freed, never freed, at used addresses."""
    generator = random.Random(seed)
    with TraceBuilder(path) as builder:
        source = builder.add("source", format="live", clock_zero="unix epoch")
        process = builder.add("process", source=source, pid=77, started_ns=EPOCH_US * 1000 - 1, name="train.py")
        stacks = [builder.add("stack", frames=[{"file": f"{n}.py", "line": n, "function": "f"}]) for n in range(3)]
        changes: list[tuple[Any, ...]] = []
        for number in (0, 2):
            device = builder.add("device", process=process, type="ral", index=number, vendor="sim", name="Sim")
            now, live = EPOCH_US * 1000, dict[int, int]()
            for region in range(3):
                before = region == 0
                if not before:
                    now += 1000
                event = builder.new_ids("event", 1)
                changes.append(
                    ("open", event, now - before, device, PAGE * 100 * region, PAGE * 60, None, None, before)
                )
            for _ in range(60):
                now += generator.choice([1000, 5000])
                address = generator.choice([0, 100, 200]) * PAGE + generator.randrange(15) * 4 * PAGE
                size = generator.randint(1, 4 * PAGE)
                if address in live and generator.random() < 0.8:
                    kind, size = "free", live.pop(address)
                else:
                    kind = "alloc"
                    if address in live:
                        continue
                    live[address] = size
                op = generator.choice(["aten::mm", None]) if kind == "alloc" else None
                event = builder.add(
                    "event", kind=kind, name=op, ts_ns=now, dur_ns=0, process=process, device=device, bytes=size,
                    stack=generator.choice([*stacks, None]), flags=0,
                )  # fmt: skip
                changes.append(
                    (
                        kind,
                        event,
                        now,
                        device,
                        address,
                        size,
                        size - size // 3 if kind == "alloc" else None,
                        None,
                        False,
                    )
                )
            changes.append(
                ("close", builder.new_ids("event", 1), now + 1000, device, PAGE * 200, PAGE * 60, None, None, False)
            )
        builder.connection.executemany(
            """INSERT INTO memory_change
               (action, event, ts_ns, device, address, size_bytes, requested_bytes, handle, before_trace)
               VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""", changes)  # fmt: skip
        return builder.finish()


@pytest.mark.parametrize("seed", range(6))
def test_memory_comes_back(tmp_path: Path, seed: int) -> None:
    first, back = both_ways(random_memory(tmp_path / "run.duckdb", seed), tmp_path)
    assert len(first[0]) > 20
    assert first == back
    with open_trace(tmp_path / "run.duckdb", other=tmp_path / "back.duckdb") as trace:
        curve = "SELECT device, ts_ns // 1000 AS us, allocated_bytes FROM {}.memory_curve"
        assert trace.sql(f"({curve.format('trace')}) EXCEPT ({curve.format('other')})").fetchall() == []
        looked_at_by_torch(exported(trace, tmp_path)[1])


def test_blocks_of_a_training_come_back(tmp_path: Path) -> None:
    first, back = both_ways(training(tmp_path / "run.duckdb"), tmp_path)
    assert first[0]
    assert first == back


def test_devices_and_processes_come_back(tmp_path: Path) -> None:
    with open_trace(awkward(tmp_path / "run.duckdb")) as trace:
        out, _ = exported(trace, tmp_path)
    with open_trace(tmp_path / "run.duckdb", other=import_files([out], tmp_path / "back.duckdb")) as trace:
        devices = """
            SELECT d.type, d."index", d.vendor, d.name, p.pid, p.rank, p.host, p.name
            FROM {0}.device d JOIN {0}.process p ON p.id = d.process ORDER BY ALL"""
        assert trace.sql(devices.format("trace")).fetchall() == trace.sql(devices.format("other")).fetchall()


def test_the_viewer_finds_a_segment_for_every_block(tmp_path: Path) -> None:
    """MemoryViz.js walks back from the end and looks for each block's segment at each step."""
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        source = builder.add("source", format="live")
        process = builder.add("process", source=source, started_ns=0)
        device = builder.add("device", process=process, type="cpu", index=0)
        for n, (kind, address) in enumerate(
            [("alloc", 16), ("alloc", 4096), ("free", 16), ("alloc", 16), ("alloc", 9000)]
        ):
            event = builder.add(
                "event", kind=kind, ts_ns=1000 * n, dur_ns=0, process=process, device=device, bytes=64, flags=0
            )
            builder.connection.execute(
                "INSERT INTO memory_change (action, event, ts_ns, device, address, size_bytes, before_trace) "
                "VALUES (?, ?, ?, ?, ?, 64, false)",
                [kind, event, 1000 * n, device, address],
            )
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        out, snapshot = exported(trace, tmp_path)
    segments = {segment["address"]: segment["total_size"] for segment in snapshot["segments"]}
    blocks = {block["address"] for segment in snapshot["segments"] for block in segment["blocks"]}
    assert segments.keys() == blocks == {16, 4096, 9000}
    for entry in reversed(snapshot["device_traces"][0]):
        match entry["action"]:
            case "alloc":
                blocks.remove(entry["addr"])
            case "free_completed":
                blocks.add(entry["addr"])
            case "segment_alloc":
                del segments[entry["addr"]]
            case "segment_free":
                segments[entry["addr"]] = entry["size"]
        assert blocks <= segments.keys()
    with open_trace(import_files([out], tmp_path / "back.duckdb")) as back:
        assert back.sql("SELECT count(*) FROM region").fetchall() == [(0,)]
        assert back.sql("SELECT max(allocated_bytes) FROM memory_curve").fetchall() == [(192,)]


def test_a_window_shows_what_happened_in_it_and_the_state_at_its_end(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb", launches=200)) as trace:
        [(first,)] = trace.sql("SELECT min(ts_ns) FROM event").fetchall()
        _, snapshot = exported(trace, tmp_path, Window(1_000_000, 2_000_000))
        [(live, taken)] = trace.sql(f"""
            SELECT count(*), sum(size_bytes) FROM allocation
            WHERE alloc_ns < {first + 2_000_000} AND (free_ns IS NULL OR free_ns >= {first + 2_000_000})""").fetchall()
    times = [entry["time_us"] for entries in snapshot["device_traces"] for entry in entries]
    assert times
    assert (first + 1_000_000) // 1000 <= min(times) <= max(times) <= (first + 2_000_000) // 1000
    blocks = [
        block for segment in snapshot["segments"] for block in segment["blocks"] if block["state"] == "active_allocated"
    ]
    assert (len(blocks), sum(block["size"] for block in blocks)) == (live, taken)
    looked_at_by_torch(snapshot)


@needs_shared
def test_a_real_snapshot_comes_back(tmp_path: Path) -> None:
    original = import_files([TRACES / "cuda_memory_snapshot.pickle"], tmp_path / "run.duckdb")
    first, back = both_ways(original, tmp_path)
    assert len(first[0]) == 7_946
    assert first == back
