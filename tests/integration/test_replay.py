"""What a replay foretells is what happens: the same program, really run under the other settings."""

import subprocess
from pathlib import Path

import pytest

from ral_trace.analysis.memory import memory_peak
from ral_trace.analysis.replay import allocator_replay
from ral_trace.tracer import open_trace
from tests.integration.programs import python, ral_trace

PROGRAM = """
import random, sys
import torch
import ral_trace.backend
ral_trace.backend.enable()

def run():
    generator, held = random.Random(7), []
    for number in range(3000):
        if held and generator.random() < 0.48:
            held.pop(generator.randrange(len(held)))
        else:
            size = generator.choice([1, 7, 300]) * generator.randrange(1, 40_000)
            held.append(torch.empty(size, dtype=torch.uint8, device="ral:1"))
        if number == 2000:
            del held[::2]

for settings in sys.argv[1:]:
    torch.ral.memory.set_settings(settings)
    try:
        run()
        failed = 0
    except torch.OutOfMemoryError:
        failed = 1
    print(torch.ral.max_memory_reserved(1), torch.ral.max_memory_allocated(1), failed)
    torch.ral.empty_cache()
    torch.ral.reset_peak_memory_stats(1)
"""
"""Takes and drops blocks of 1 byte to 12 MB, under one setting after the other, each time from nothing on."""

SETTINGS = [
    "",
    "fit:first",
    "region_size_mb:8",
    "region_size_mb:8,fit:first",
    "max_split_size_mb:4",
    "garbage_collection_threshold:0.05,region_size_mb:1",
]


@pytest.fixture(scope="module")
def really() -> dict[str, tuple[int, ...]]:
    """The most reserved and allocated under each setting, and whether memory ran out."""
    done = subprocess.run(python(PROGRAM, *SETTINGS), capture_output=True, text=True, timeout=120, check=True)
    return {text: tuple(map(int, line.split())) for text, line in zip(SETTINGS, done.stdout.splitlines(), strict=True)}


@pytest.mark.parametrize("recorded_under", ["", "region_size_mb:24,fit:first"])
def test_peaks_under_other_settings(recorded_under: str, really: dict[str, tuple[int, ...]], tmp_path: Path) -> None:
    done = ral_trace("-o", "run.duckdb", "--", *python(PROGRAM, recorded_under), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "run.duckdb") as trace:
        recorded, *foretold = allocator_replay(trace, device="ral:1", settings=SETTINGS)
        [peak] = memory_peak(trace, device="ral:1")
    assert recorded["settings"] == "as recorded"
    assert recorded["peak_allocated_bytes"] == peak["peak_bytes"]
    found = {
        row["settings"]: (
            row["peak_reserved_bytes"],
            row["peak_allocated_bytes"],
            int(row["out_of_memory_ns"] is not None),
        )
        for row in foretold
    }
    assert found == really
    assert {failed for _, _, failed in found.values()} == {0, 1}, "with so many handles only, small regions do not do"
    assert len({reserved for reserved, _, _ in found.values()}) >= 4, "the settings should make a difference"
