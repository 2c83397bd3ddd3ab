"""A random program under ral-trace: the trace's allocations are what the devices' allocators say themselves."""

import json
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer import open_trace
from tests.integration.programs import python, ral_trace

pytest.importorskip("torch")

PROGRAM = """
import json, random, sys
import torch
import ral_trace.backend
ral_trace.backend.enable("host:1,sim:1")
memory = torch.ral.memory
memory._record_memory_history(context=None, max_entries=1 << 20)
random = random.Random(int(sys.argv[2]))
held = []
streams = [torch.Stream(device=f"ral:{index}") for index in range(2)]
for step in range(600):
    index = random.randrange(2)
    size = random.choice([1, 100, 5000, 1 << 20, random.randrange(1 << 23)])
    if random.random() < 0.6:
        with streams[index] if random.random() < 0.3 else torch.ral.device(index):
            tensor = torch.empty(size, dtype=torch.uint8, device=f"ral:{index}")
        if random.random() < 0.2:
            tensor.record_stream(streams[index])
        held.append(tensor)
    elif held:
        del held[random.randrange(len(held))]
    if random.random() < 0.05:
        held.append(torch.ones(size % 4096 + 1, device=f"ral:{index}") + 1)
    if random.random() < 0.02:
        held.clear()
        memory.collect_garbage() if random.random() < 0.5 else memory.empty_cache()
books = {"live": [memory.buffer_views(index) for index in range(2)], "trace": memory._snapshot()["device_traces"]}
with open(sys.argv[1], "w") as file:
    json.dump(books, file)
"""


@pytest.mark.parametrize(("seed", "sim"), [(1, ""), (2, "domains=2,stripe_kb=64")])
def test_the_trace_is_the_allocators_books(tmp_path: Path, seed: int, sim: str) -> None:
    """Also where a device stripes its memory over two domains."""
    program = python(PROGRAM, tmp_path / "books.json", str(seed))
    done = ral_trace("-o", "run.duckdb", "--", *program, cwd=tmp_path, RAL_SIM=sim)
    assert done.returncode == 0, done.stderr
    books = json.loads((tmp_path / "books.json").read_text())
    with open_trace(tmp_path / "run.duckdb") as trace:
        pieces = trace.rows("SELECT max(n) AS n FROM (SELECT count(*) AS n FROM allocation_piece GROUP BY allocation)")
        assert pieces[0]["n"] == (2 if sim else 1)
        assert trace.rows("FROM quality WHERE what LIKE '%block%' OR what LIKE '%lost%'") == []
        for index in (0, 1):
            where = f"device = (SELECT id FROM device WHERE type = 'ral' AND index = {index})"
            allocations = trace.rows(f"SELECT * FROM allocation WHERE {where} ORDER BY alloc_event")
            check_history(allocations, books["trace"][index])
            check_live(trace.rows, allocations, books["live"][index])


def check_history(allocations: list[dict[str, Any]], entries: list[dict[str, Any]]) -> None:
    """The same blocks in the same order, and the same ones freed."""
    made = [(entry["addr"], entry["size"]) for entry in entries if entry["action"] == "alloc"]
    assert len(made) > 100
    assert [(row["address"], row["size_bytes"]) for row in allocations] == made
    freed = [entry["addr"] for entry in entries if entry["action"] == "free_requested"]
    ended = sorted((row for row in allocations if row["free_event"] is not None), key=lambda row: row["free_event"])
    assert [row["address"] for row in ended][: len(freed)] == freed


def check_live(rows: Any, allocations: list[dict[str, Any]], views: list[dict[str, Any]]) -> None:
    """What was live when the books were written, in the places where the allocator has it."""
    pieces = rows("SELECT p.*, r.handle FROM allocation_piece p JOIN region r ON r.id = p.region")
    placed: dict[int, list[list[int]]] = {}
    for piece in pieces:
        placed.setdefault(piece["allocation"], []).append(
            [piece["handle"], piece["offset_bytes"], piece["length_bytes"]]
        )
    for view in views:
        row = allocations[view["generation"] - 1]
        assert (row["address"], row["size_bytes"]) == (view["address"], view["size_bytes"])
        assert row["requested_bytes"] == view["requested_bytes"]
        assert sorted(placed[row["id"]]) == sorted(
            [handle, offset, length] for handle, _, offset, length in view["pieces"]
        )
