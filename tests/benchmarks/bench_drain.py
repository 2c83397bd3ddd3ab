"""From rings to DuckDB: how many events one collector takes in a second.

    python -m tests.benchmarks.bench_drain

Drain to disk, Arrow stream and insert, as `recording.py` and `assemble.py` do them; writing the rings is not counted.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from ral_trace.tracer import _native
from ral_trace.tracer.assemble import BATCH_ROWS
from ral_trace.tracer.live import LiveRows
from ral_trace.tracer.store import TraceBuilder
from tests.benchmarks import bench_record

MILLION_A_SECOND = 3.0
DRAINS = 16
ROUNDS = 9


def one_round(sites: object, api: int, reader: _native.ProcessReader) -> float:
    """Seconds from full rings to a table, an event."""
    clocks, spent, rows = [_native.ClockSample.now()], 0.0, 0
    with tempfile.TemporaryDirectory() as folder, TraceBuilder(Path(folder) / "unused.duckdb") as builder:
        spool = _native.Spool(str(Path(folder) / "records"))
        for _ in range(DRAINS):
            sites.instant_ns(api, bench_record.EVENTS)  # type: ignore[attr-defined]
            begin = time.perf_counter()
            assert reader.drain(0, spool)
            spent += time.perf_counter() - begin
        clocks.append(_native.ClockSample.now())
        LiveRows(builder)  # makes the staging table
        begin = time.perf_counter()
        batch = _native.Batch()
        spooled = _native.SpoolReader(str(Path(folder) / "records"))
        while spooled.next(_native.Calibration(clocks), BATCH_ROWS, 0, batch):
            builder.connection.register("batch", batch)
            builder.connection.execute("INSERT INTO record SELECT * FROM batch")
            builder.connection.unregister("batch")
            batch.clear()
        spent += time.perf_counter() - begin
        [(rows,)] = builder.connection.execute("SELECT count(*) FROM record").fetchall()
        assert rows == DRAINS * bench_record.EVENTS
    return spent / rows


def main() -> int:
    """Prints the rate. Returns 1 when it is below the budget."""
    with tempfile.TemporaryDirectory() as folder, bench_record.recording() as reader:
        sites = bench_record.load_sites(Path(folder))
        api = bench_record.writer_api()
        rate = 1e-6 / statistics.median(one_round(sites, api, reader) for _ in range(ROUNDS))
    print(f"{rate:.1f} M events/s from rings to DuckDB (budget {MILLION_A_SECOND})")
    return 0 if rate >= MILLION_A_SECOND else 1


if __name__ == "__main__":
    sys.exit(main())
