"""Real files of Kineto have what an independent count finds in them."""

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.importers.reading_back import busy_ns, imported, union, warnings
from tests.shared import TRACES, needs_shared

REAL = [
    "kineto_2080ti_resnet.json.gz", "kineto_h100_bert.json.gz", "kineto_mi250_minitoy.json.gz",
    "kineto_mi300_bert.json.gz", "kineto_mi300_ddp_resnet18.json.gz", "kineto_v100_gpu_metrics.json",
    "kineto_128rank_sampled_rank0.json.gz", "kineto_128rank_sampled_rank1.json.gz",
]  # fmt: skip


def events_of(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    document = json.loads(data, parse_float=Decimal)
    return document["traceEvents"] if isinstance(document, dict) else document


def counted(events: list[dict[str, Any]]) -> Counter[str]:
    """How many rows of each kind a file must give, from categories alone."""
    kinds = {
        "cpu_op": "op", "operator": "op", "kernel": "kernel", "gpu_memcpy": "transfer", "gpu_memset": "transfer",
        "memcpy": "transfer", "cuda_runtime": "call", "cuda_driver": "call", "runtime": "call",
        "user_annotation": "annotation", "gpu_user_annotation": "annotation", "python_function": "python",
    }  # fmt: skip
    found: Counter[str] = Counter()
    for event in events:
        category = event.get("cat", "").lower()
        if event["ph"] == "X" and category != "trace":
            old_step = category == "operator" and event["name"].startswith("ProfilerStep#")
            found["annotation" if old_step else kinds[category]] += 1
        elif event["ph"] == "i":
            memory = event["name"] == "[memory]"
            found["instant" if not memory else "free" if event["args"]["Bytes"] < 0 else "alloc"] += 1
    return found


@needs_shared
@pytest.mark.parametrize("name", REAL)
def test_a_real_file_has_what_is_in_it(name: str, tmp_path: Path) -> None:
    events = events_of(TRACES / name)
    with imported(TRACES / name, tmp_path) as trace:
        found = Counter(
            {row["kind"]: row["n"] for row in trace.rows("SELECT kind, count(*) AS n FROM event GROUP BY ALL")}
        )
        found["call"] = sum(found.pop(kind, 0) for kind in ("launch", "sync", "runtime"))
        assert found == counted(events)
        devices = [
            e for e in events if e["ph"] == "X" and e["cat"].lower() in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy")
        ]
        spans = sorted(
            (int(Decimal(e["ts"]) * 1000), int((Decimal(e["ts"]) + Decimal(e["dur"])) * 1000)) for e in devices
        )
        assert busy_ns(trace) == union(spans)
        launched = {e["args"]["correlation"] for e in devices}
        calls = {
            e["args"].get("correlation")
            for e in events
            if (e["ph"] == "X" and "cuda" in e["cat"]) or e.get("cat") == "Runtime"
        }
        assert trace.rows("SELECT count(*) AS n FROM event WHERE kind = 'launch'") == [{"n": len(launched & calls)}]
        totals = [e["args"]["Total Allocated"] for e in events if e.get("name") == "[memory]"]
        [peak] = trace.rows("SELECT max(value) AS v FROM counter_value v JOIN counter c ON c.id = v.counter "
                            "WHERE series = 'Total Allocated'")  # fmt: skip
        assert peak["v"] == (max(totals) if totals else None)


@needs_shared
def test_real_arrows_from_forward_to_backward(tmp_path: Path) -> None:
    name = "kineto_mi300_ddp_resnet18.json.gz"
    ids = [e["id"] for e in events_of(TRACES / name) if e.get("cat") == "fwdbwd" and e["ph"] == "s"]
    with imported(TRACES / name, tmp_path) as trace:
        arrows = trace.rows("""
            SELECT a.name AS forward, b.name AS backward FROM flow f JOIN event a ON a.id = f.from_event
            JOIN event b ON b.id = f.to_event WHERE f.kind = 'autograd'""")
        assert len(arrows) == len(ids)
        assert all(row["forward"].startswith("aten::") and "Backward" in row["backward"] for row in arrows)


@needs_shared
def test_a_real_file_that_is_cut_off_keeps_what_is_whole(tmp_path: Path) -> None:
    whole = gzip.decompress((TRACES / "kineto_mi250_minitoy.json.gz").read_bytes())
    path = tmp_path / "cut.json"
    path.write_bytes(whole[: len(whole) // 2])
    with imported(path, tmp_path) as trace:
        assert warnings(trace)["the file is cut off: what follows is missing"] == 1
        assert trace.rows("SELECT count(*) > 50 AS many FROM event") == [{"many": True}]
    packed = gzip.compress(whole)
    path.write_bytes(packed[: len(packed) // 2])
    with imported(path, tmp_path) as trace:
        assert warnings(trace)["the compressed file is cut off: what follows is missing"] == 1
