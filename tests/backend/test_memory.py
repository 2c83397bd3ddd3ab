"""torch.ral.memory: statistics, settings, snapshots for PyTorch's own viewer, and running out of memory."""

import gc
import os
import pickle
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.cuda import _memory_viz  # noqa: E402

MIB = 1 << 20
HERE = Path(__file__).name


def empty(mebibytes: float, device: str = "ral:1") -> Any:
    return torch.empty(int(mebibytes * MIB), dtype=torch.uint8, device=device)


@pytest.fixture
def capped() -> Iterator[None]:
    """ral:1 has 64 MiB, all of them free."""
    gc.collect()
    torch.ral.memory.empty_cache()
    total = torch.ral.mem_get_info(1)[1]
    torch.ral.set_per_process_memory_fraction(64 * MIB / total, 1)
    yield
    torch.ral.set_per_process_memory_fraction(1.0, 1)


@pytest.fixture
def history(capped: None) -> Iterator[None]:
    """Kept from then on; the cap is there first, so that what happens for it is not in the history."""
    torch.ral.memory._record_memory_history(max_entries=1000)
    yield
    torch.ral.memory._record_memory_history(None)


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", "import torch, ral_trace.backend as backend\n" + program]
    return subprocess.run(words, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False)


# --- statistics -------------------------------------------------------------------------------------------------------


def test_inactive_split_and_active(device: str) -> None:
    gc.collect()
    before = torch.ral.memory_stats(device)
    first, second = empty(1, device), empty(1, device)
    during = torch.ral.memory_stats(device)
    assert during["active_bytes.all.current"] == before["active_bytes.all.current"] + 2 * MIB
    assert during["active.all.current"] == before["active.all.current"] + 2
    assert (
        during["inactive_split_bytes.all.current"]
        <= during["reserved_bytes.all.current"] - during["active_bytes.all.current"]
    )
    del first, second
    assert torch.ral.memory_stats(device)["active_bytes.all.current"] == before["active_bytes.all.current"]


def test_statistics_are_a_device_s_own() -> None:
    gc.collect()
    host, sim = torch.ral.memory_allocated(0), torch.ral.memory_allocated(1)
    kept = empty(3)
    assert (torch.ral.memory_allocated(0), torch.ral.memory_allocated(1)) == (host, sim + 3 * MIB)
    del kept


def test_accumulated_statistics_begin_again() -> None:
    empty(1)
    torch.accelerator.reset_accumulated_memory_stats(1)
    stats = torch.ral.memory_stats(1)
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == stats["num_ooms"] == 0
    empty(1)
    stats = torch.ral.memory_stats(1)
    assert stats["allocated_bytes.all.allocated"] == stats["allocated_bytes.all.freed"] == MIB


def test_summary() -> None:
    kept = empty(5)
    torch.ral.reset_peak_memory_stats(1)
    stats = torch.ral.memory_stats(1)
    lines = torch.ral.memory_summary(1).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert "ral:1 (sim) memory summary" in lines[1]
    (allocations,) = [line for line in lines if line.startswith("| Allocations ")]
    cells = [int(cell) for cell in allocations.strip("|").split("|")[1:]]
    assert cells == [stats[f"allocation.all.{column}"] for column in ("current", "peak", "allocated", "freed")]
    (memory,) = [line for line in lines if line.startswith("| Allocated memory ")]
    assert re.search(r"\| +\d+ KiB \|", memory)
    del kept


# --- settings ---------------------------------------------------------------------------------------------------------


def test_settings() -> None:
    assert torch.ral.memory.get_settings() == ""
    torch.ral.memory.set_settings("max_split_size_mb:64,garbage_collection_threshold:0.8")
    try:
        assert torch.ral.memory.get_settings() == "max_split_size_mb:64,garbage_collection_threshold:0.8"
        assert torch.ral.memory_stats(1)["max_split_size"] == 64 * MIB
        with pytest.raises(ValueError, match='"nonsense" is no option; options are max_split_size_mb'):
            torch.ral.memory.set_settings("nonsense:1")
    finally:
        torch.ral.memory.set_settings("")


def test_settings_from_the_environment() -> None:
    program = "backend.enable(); print(torch.ral.memory.get_settings())"
    assert run(program, RAL_ALLOC_CONF="max_split_size_mb:40").stdout == "max_split_size_mb:40\n"
    refused = run(program, RAL_ALLOC_CONF="max_split:40")
    assert "BackendError" in refused.stderr
    assert '"max_split" is no option; options are' in refused.stderr


HANDLES = """
backend.enable("sim:1")
torch.ral.memory.set_settings("max_split_size_mb:1")
kept = []
try:
    while True: kept.append(torch.empty(2 << 20, dtype=torch.uint8, device="ral:0"))
except torch.OutOfMemoryError: print(len(kept))
"""


@pytest.mark.parametrize(("mode", "regions"), [("", 16), ("pf", 16), ("vf", 8)])
def test_handles_of_a_physical_and_a_virtual_function(mode: str, regions: int) -> None:
    assert run(HANDLES, RAL_MODE=mode).stdout == f"{regions}\n"


def test_a_mode_that_there_is_not() -> None:
    assert 'RAL_MODE="xf" is no mode; it is pf' in run("backend.enable()", RAL_MODE="xf").stderr


def test_gc_gives_unused_regions_back() -> None:
    torch.ral.gc()
    tensor = empty(300)
    reserved = torch.ral.memory_reserved(1)
    del tensor
    assert torch.ral.gc() >= 300 * MIB
    assert torch.ral.memory_reserved(1) <= reserved - 300 * MIB
    assert torch.ral.gc() == 0


# --- buffer views -----------------------------------------------------------------------------------------------------


def test_buffer_views() -> None:
    tensor = empty(1)
    (view,) = [view for view in torch.ral.memory.buffer_views(1) if view["address"] == tensor.data_ptr()]
    assert (view["size_bytes"], view["requested_bytes"], view["state"]) == (MIB, MIB, "active_allocated")
    ((handle, domain, offset, length),) = view["pieces"]
    assert handle > 0
    assert (domain, length) == (0, MIB)
    assert offset % 128 == 0
    del tensor
    again = empty(1)
    views = [new for new in torch.ral.memory.buffer_views(1) if new["address"] == again.data_ptr()]
    assert views[0]["generation"] > view["generation"]


# --- running out of memory --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("capped")
def test_out_of_memory_and_going_on() -> None:
    kept = [empty(8) for _ in range(4)]
    ooms = torch.ral.memory_stats(1)["num_ooms"]
    del kept[1]
    with pytest.raises(torch.OutOfMemoryError) as caught:
        empty(48)
    text = str(caught.value)
    assert text.startswith("ral:1 (sim) out of memory. Tried to allocate 48.00 MiB. ")
    assert "total capacity of 64.00 MiB of which 0 bytes is free" in text
    assert "Of 64.00 MiB reserved in regions, 24.00 MiB is allocated and 40.00 MiB is free" in text
    assert "the largest free block is 32.00 MiB (fragmentation 20.0%)" in text
    assert "Held most: 24.00 MiB in 3 blocks of 8.00 MiB." in text
    assert torch.ral.memory_stats(1)["num_ooms"] == ooms + 1
    kept.clear()
    assert empty(48).numel() == 48 * MIB
    assert (torch.ones(3, device="ral:1") + 1).sum().item() == 6


def hold(mebibytes: int) -> Any:
    return empty(mebibytes)


@pytest.mark.usefixtures("history")
def test_out_of_memory_names_the_lines_that_hold_it() -> None:
    kept = [hold(16), hold(16), empty(8)]
    with pytest.raises(torch.OutOfMemoryError, match=rf"Held most: 40.00 MiB in 3 blocks by {HERE}:\d+ \(empty\)"):
        empty(48)
    kept.clear()
    assert empty(48).numel() == 48 * MIB


# --- history and snapshots --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("history")
def test_history_has_what_happened() -> None:
    tensor = hold(4)
    address = tensor.data_ptr()
    del tensor
    with pytest.raises(torch.OutOfMemoryError):
        empty(100)
    torch.ral.memory.empty_cache()
    trace = torch.ral.memory._snapshot(1)["device_traces"][1]
    assert [entry["action"] for entry in trace] == [
        "segment_alloc", "alloc", "free_requested", "free_completed", "oom", "segment_free",
    ]  # fmt: skip
    assert [entry["size"] // MIB for entry in trace] == [64, 4, 4, 4, 100, 64]
    assert trace[1]["addr"] == trace[2]["addr"] == trace[3]["addr"] == address
    assert trace[4]["device_free"] == 0, "all of it is in a region"
    times = [entry["time_us"] for entry in trace]
    assert times == sorted(times)
    names = [frame["name"] for frame in trace[1]["frames"] if frame["filename"].endswith(HERE)]
    assert names[:3] == ["empty", "hold", "test_history_has_what_happened"]
    assert trace[2]["frames"]
    assert all(isinstance(frame["line"], int) for frame in trace[1]["frames"])


def test_history_is_bounded_and_ends() -> None:
    torch.ral.memory._record_memory_history(max_entries=4)
    for _ in range(10):
        empty(1)
    trace = torch.ral.memory._snapshot(1)["device_traces"][1]
    assert [entry["action"] for entry in trace] == ["free_completed", "alloc", "free_requested", "free_completed"]
    torch.ral.memory._record_memory_history(None)
    empty(1)
    assert torch.ral.memory._snapshot()["device_traces"] == [[], []]


def test_stacks_of_what_is_held_alone() -> None:
    torch.ral.memory._record_memory_history("state")
    tensor = hold(4)
    snapshot = torch.ral.memory._snapshot(1)
    torch.ral.memory._record_memory_history(None)
    assert snapshot["device_traces"] == [[], []]
    (block,) = [row for row in blocks(snapshot) if row["address"] == tensor.data_ptr()]
    assert [frame["name"] for frame in block["frames"]][:2] == ["empty", "hold"]
    assert (block["state"], block["size"], block["requested_size"]) == ("active_allocated", 4 * MIB, 4 * MIB)


def blocks(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for segment in snapshot["segments"] for block in segment["blocks"]]


@pytest.mark.parametrize(
    "arguments", [{"enabled": "some"}, {"context": "frees"}, {"stacks": "all"}, {"max_entries": 0}]
)
def test_histories_that_cannot_be(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        torch.ral.memory._record_memory_history(**arguments)


@pytest.mark.usefixtures("history")
def test_pytorch_s_viewer_takes_a_snapshot(tmp_path: Path) -> None:
    kept = [hold(4), hold(2), torch.ones(100, device="ral:1")]
    del kept[1]
    with pytest.raises(torch.OutOfMemoryError):
        empty(100)
    torch.ral.memory._dump_snapshot(tmp_path / "snapshot.pickle")
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    stats = torch.ral.memory_stats(1)
    of_sim = [segment for segment in snapshot["segments"] if segment["device"] == 1]
    for key, column in [("total_size", "reserved"), ("allocated_size", "allocated"), ("requested_size", "requested")]:
        assert sum(segment[key] for segment in of_sim) == stats[f"{column}_bytes.all.current"]
    assert all(sum(block["size"] for block in segment["blocks"]) == segment["total_size"] for segment in of_sim)
    assert "total_reserved" in _memory_viz.segsum(snapshot)
    assert "raise OutOfMemoryError # 100.0MiB requested" in _memory_viz.trace(snapshot)
    assert f"{HERE}:" in _memory_viz.memory(snapshot, format_flamegraph=str)
    assert "active_allocated" in _memory_viz.segments(snapshot, format_flamegraph=str)
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "snapshot.pickle" in plot(snapshot)


def test_running_out_of_handles_is_said() -> None:
    """Striped over four domains a range costs four of the sixteen handles: memory is left, but none can be added."""
    program = """
        import torch
        from ral_trace.backend import enable
        enable("sim:1")
        kept = []
        try:
            while True:
                kept.append(torch.empty(1 << 24, dtype=torch.uint8, device="ral:0"))
        except torch.OutOfMemoryError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "RAL_SIM": "domains=4"},
    )
    assert "All of the device's 16 region handles are in use: no memory can be added" in done.stdout
