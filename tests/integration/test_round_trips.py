"""Round trips of a real program, whose accesses are recorded: which are certain, and which are none."""

from pathlib import Path

from ral_trace.analysis.round_trips import round_trips
from ral_trace.tracer import open_trace
from tests.integration.programs import python, ral_trace

PROGRAM = """
import torch
import ral_trace.backend
ral_trace.backend.enable()
x = torch.randn(64, 64).to("ral:1")
for _ in range(6):
    same = x.cpu()
    back = same.to("ral:1")
    changed = back.cpu()
    changed += 1
    other = changed.to("ral:1")
"""


def test_what_no_op_wrote_in_between_is_certain(tmp_path: Path) -> None:
    done = ral_trace("--with-access", "--with-stack", "-o", "trips.duckdb", "--", *python(PROGRAM), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "trips.duckdb") as trace:
        [row] = round_trips(trace)
    assert (row["device"], row["to_device"], row["confidence"], row["count"]) == ("ral:1", "ral:1", "certain", 6)
    assert row["bytes"] == 6 * 2 * 64 * 64 * 4
    assert row["total_ns"] > 0
    assert (row["from_op"], row["to_op"]) == ("aten::_to_copy", "aten::_to_copy")
    assert ":7 " in row["from_line"]
    assert ":8 " in row["to_line"]
