"""`--max-overhead`: detail is left out in the stated order, and the trace says so."""

from pathlib import Path

from ral_trace.tracer import open_trace
from ral_trace.tracer.governor import ORDER
from tests.integration.programs import python, ral_trace

SMALL_OPS = """
import sys, time, torch
torch.set_num_threads(1)
x = torch.ones(4)
done = 0
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    for _ in range(100):
        x.add_(1.0)
    done += 100
print(done)
"""
"""Ops of a microsecond, as many as there is time for."""


def test_detail_is_left_out_in_order_until_it_fits(tmp_path: Path) -> None:
    """A tenth of a percent is less than any op's record takes: all steps are needed, one after the other."""
    words = ["--with-stack", "--with-shapes", "--max-overhead", "0.1%", "-o", "shed.duckdb"]
    done = ral_trace(*words, "--", *python(SMALL_OPS, "8"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ops = int(done.stdout)
    with open_trace(tmp_path / "shed.duckdb") as trace:
        said = [row["what"] for row in trace.rows("FROM quality ORDER BY rowid") if "CPU time" in row["what"]]
        assert [line.rpartition(": ")[2] for line in said] == [
            " and ".join(what for what, _ in ORDER[: count + 1]) for count in range(len(ORDER))
        ]
        [seen] = trace.rows("""
            SELECT count(*) AS ops, max(ts_ns) FILTER (stack IS NOT NULL) AS last_stack,
                   max(ts_ns) FILTER (args IS NOT NULL) AS last_shapes, max(ts_ns) AS last
            FROM event WHERE name = 'aten::add_.Tensor'""")
        assert seen["last_stack"] < seen["last_shapes"] <= seen["last"]
        [shed] = trace.rows("SELECT sum(shed) AS n FROM ledger")
        # Counted while small ops were left out; not even called for later.
        assert shed["n"] > 0
        assert seen["ops"] + shed["n"] < ops


def test_within_the_limit_everything_is_kept(tmp_path: Path) -> None:
    done = ral_trace("--max-overhead", "100%", "-o", "kept.duckdb", "--", *python(SMALL_OPS, "2"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "kept.duckdb") as trace:
        [seen] = trace.rows("SELECT count(*) AS ops FROM event WHERE name = 'aten::add_.Tensor'")
        [ledger] = trace.rows("SELECT sum(dropped) AS dropped, sum(shed) AS shed FROM ledger")
        assert seen["ops"] + ledger["dropped"] >= int(done.stdout)
        assert ledger["shed"] == 0
        assert not [row for row in trace.rows("FROM quality") if "CPU time" in row["what"]]


def test_the_cost_of_recording_is_a_counter(tmp_path: Path) -> None:
    done = ral_trace("-o", "cost.duckdb", "--", *python(SMALL_OPS, "4"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "cost.duckdb") as trace:
        rows = trace.rows("""
            SELECT c.series, c.unit, count(*) AS n, max(v.value) AS most FROM counter c
            JOIN counter_value v ON v.counter = c.id GROUP BY ALL""")
        found = {row["series"]: row for row in rows}
    assert found["host memory (RSS)"]["n"] >= 20
    assert found["host memory (RSS)"]["most"] > 100e6  # torch alone takes that
    assert found["host CPU"]["unit"] == "percent of one core"
    assert 0 < found["cost of recording"]["most"] < 100
