"""What the analyses answer about the sample training, against plain SQL, a replay and what the program itself says."""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from ral_trace.analysis.fallbacks import fallbacks
from ral_trace.analysis.hotspots import hotspots
from ral_trace.analysis.memory import memory_curve, memory_peak
from ral_trace.tracer import Trace, open_trace
from tests.integration.programs import python, ral_trace

PEAKS = """
import json, torch
import ral_trace.backend
ral_trace.backend.enable()
for device, sizes in {"ral:0": [3000, 1000], "ral:1": [500, 70_000, 20]}.items():
    for size in sizes:
        held = [torch.randn(size, 7).to(device) for _ in range(3)]
        held = [x.t() @ x for x in held]
    held = None
print(json.dumps({d: torch.accelerator.max_memory_allocated(d) for d in ("ral:0", "ral:1")}))
"""


def test_what_fell_back_on_sim_and_what_it_cost(char_lm_without_gelu: Path) -> None:
    with open_trace(char_lm_without_gelu) as trace:
        found = fallbacks(trace, device="ral:1")
        expected = trace.rows("""
            SELECT 'ral:1' AS device, f.name, f.args->>'routed' AS routed, f.args->>'reason' AS reason,
                   count(*) AS count, sum(f.dur_ns) AS total_ns, sum(c.ns) AS copies_ns, sum(c.bytes) AS copied_bytes,
                   sum(c.copies) AS copies, sum(c.syncs) AS forced_syncs
            FROM event f JOIN device d ON d.id = f.device AND d.type = 'ral' AND d."index" = 1
            LEFT JOIN (SELECT parent, count(*) FILTER (kind = 'transfer') AS copies,
                              sum(bytes) FILTER (kind = 'transfer') AS bytes,
                              sum(dur_ns) FILTER (kind = 'transfer') AS ns,
                              count(*) FILTER (kind = 'sync') AS syncs
                       FROM event GROUP BY parent) c ON c.parent = f.id
            WHERE f.kind = 'fallback' GROUP BY ALL ORDER BY total_ns DESC""")
        launches = trace.rows("""
            SELECT count(*) AS n FROM launches l LEFT JOIN event p ON p.id = l.parent
            WHERE l.device_label = 'ral:1' AND p.kind IS DISTINCT FROM 'fallback'""")[0]["n"]
    shares = [row.pop("percent_of_launches") for row in found]
    by_cost = sorted(found, key=lambda row: (row["name"], row["routed"], row["reason"]))
    assert by_cost == sorted(expected, key=lambda row: (row["name"], row["routed"], row["reason"]))
    assert [row["total_ns"] for row in found] == [row["total_ns"] for row in expected]
    assert shares == pytest.approx([100 * row["count"] / launches for row in found])
    assert {row["name"] for row in found} == {"aten::gelu"}
    assert all(row["copied_bytes"] > 0 and row["reason"] for row in found)


def replayed(trace: Trace) -> dict[str, list[tuple[int, int]]]:
    """The level of each ral device after each of its alloc and free rows, added up one by one. (A free of the host's
    memory does not know its size.)
    """
    level: dict[str, int] = defaultdict(int)
    curve: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in trace.rows("""
        SELECT device_label, kind::VARCHAR AS kind, ts_ns, bytes FROM events
        WHERE kind IN ('alloc', 'free') AND device_label <> 'cpu:0' ORDER BY ts_ns, id"""):
        level[row["device_label"]] += row["bytes"] if row["kind"] == "alloc" else -row["bytes"]
        curve[row["device_label"]].append((row["ts_ns"], level[row["device_label"]]))
    return curve


def test_peak_memory_by_device_equals_a_replay(char_lm_trace: Path) -> None:
    with open_trace(char_lm_trace) as trace:
        curves = replayed(trace)
        assert sorted(curves) == ["ral:0", "ral:1"]
        for row in memory_peak(trace):
            if row["device"] not in curves:
                continue
            curve = curves[row["device"]]
            peak = max(level for _, level in curve)
            assert row["peak_bytes"] == peak > 1_000_000
            assert row["at_ns"] == next(ts_ns for ts_ns, level in curve if level == peak)
            assert row["end_bytes"] == curve[-1][1]
            shown = memory_curve(trace, device=row["device"], points=10 * len(curve))
            assert [(point["ts_ns"], point["allocated_bytes"]) for point in shown] == sorted(dict(curve).items())


def test_peak_memory_equals_what_the_program_says(tmp_path: Path) -> None:
    done = ral_trace("-o", "peaks.duckdb", "--", *python(PEAKS), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    with open_trace(tmp_path / "peaks.duckdb") as trace:
        peaks = {row["device"]: row["peak_bytes"] for row in memory_peak(trace)}
        assert {device: peak for device, peak in peaks.items() if device != "cpu:0"} == said
    assert said["ral:1"] > 3 * 70_000 * 7 * 4


@pytest.mark.parametrize("index", [0, 1])
def test_the_ten_hottest_ops_of_a_device(char_lm_trace: Path, index: int) -> None:
    with open_trace(char_lm_trace) as trace:
        found = hotspots(trace, device=f"ral:{index}", limit=10)
        expected = trace.rows(f"""
            WITH work AS (
                SELECT e.* FROM event e JOIN device d ON d.id = e.device AND d."index" = {index}
                LEFT JOIN event p ON p.id = e.parent
                WHERE e.kind IN ('kernel', 'fallback')
                   OR (e.kind = 'transfer' AND p.kind IS DISTINCT FROM 'fallback'))
            SELECT name, count(*) AS count, sum(dur_ns) AS total_ns, max(dur_ns) AS max_ns,
                   count(*) FILTER (kind = 'fallback') AS fallbacks
            FROM work GROUP BY name ORDER BY total_ns DESC, name LIMIT 10""")
    assert len(found) == 10
    assert [{name: row[name] for name in expected[0]} for row in found] == expected
    assert all(row["device"] == f"ral:{index}" for row in found)
