"""The benchmark compares like with like."""

import duckdb

from tests.benchmarks import bench_perfetto
from tests.exporters.replay import Replay, replay


def shown(played: Replay) -> list[tuple[object, ...]]:
    return [
        (one.ts_ns, one.dur_ns, one.name, one.category, one.args, one.flows, one.ending_flows) for one in played.slices
    ]


def test_both_write_the_same_content() -> None:
    columns, arrows = bench_perfetto.content(300)
    connection = duckdb.connect()
    bench_perfetto.load(connection, columns, arrows)
    ours = replay(bench_perfetto.ours(connection))
    theirs = replay(bench_perfetto.theirs(columns, arrows, 300))
    assert len(ours.slices) == 300
    assert len(ours.arrows()) == 200
    # Arrows are numbered by each in its own way.
    assert [one[:5] for one in shown(ours)] == [one[:5] for one in shown(theirs)]
    assert [tuple(map(len, one[5:])) for one in shown(ours)] == [tuple(map(len, one[5:])) for one in shown(theirs)]  # type: ignore[arg-type]
