"""The native encoder on its own: any columns come back from perfetto's protos as they went in."""

from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.tracer import _native
from ral_trace.tracer.exporters.drawn import SHAPE_OPEN, SHAPE_POINT, SHAPE_SLICE
from tests.exporters.replay import replay

MAX_NS = 2**63 - 1
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ROW = st.fixed_dictionaries({
    "track": st.integers(0, 2),
    "start_ns": st.integers(0, 30),
    "dur_ns": st.integers(0, 20),
    "shape": st.sampled_from([SHAPE_SLICE] * 6 + [SHAPE_OPEN, SHAPE_POINT]),
    "name": TEXT,
    "kind": TEXT,
    "bytes": st.none() | st.integers(-(2**63), MAX_NS),
    "reason": st.none() | TEXT,
})  # fmt: skip
TYPES = {
    "id": "BIGINT", "track": "BIGINT", "start_ns": "BIGINT", "dur_ns": "BIGINT", "shape": "BIGINT",
    "name": "VARCHAR", "kind": "VARCHAR", "bytes": "BIGINT", "reason": "VARCHAR",
}  # fmt: skip
CONNECTION = duckdb.connect()


def table(name: str, types: dict[str, str], rows: list[list[Any]]) -> duckdb.DuckDBPyRelation:
    """An in-memory table as a stream of columns; a cursor of its own, because two are open at once."""
    connection = CONNECTION.cursor()
    connection.execute(f"CREATE OR REPLACE TABLE {name} ({', '.join(f'{key} {kind}' for key, kind in types.items())})")
    if rows:
        connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(types))})", rows)
    return connection.sql(f"SELECT * FROM {name}")


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As the encoder takes them: by start, what encloses first."""
    spans = {SHAPE_SLICE: lambda row: row["dur_ns"], SHAPE_OPEN: lambda _: MAX_NS, SHAPE_POINT: lambda _: -1}
    ordered = sorted(rows, key=lambda row: (row["start_ns"], -spans[row["shape"]](row)))
    return [{"id": number, **row} for number, row in enumerate(ordered)]


def encoded(rows: list[dict[str, Any]], arrows: list[list[int]], **bounds: int) -> bytes:
    chunks: list[bytes] = []
    encoder = _native.PerfettoEncoder(chunks.append, unix_epoch=False, **bounds)
    encoder.add_track(0, _native.PERFETTO_NO_PARENT, "zero", 0)
    encoder.add_track(1, 0, "one", 1)
    slices = table("slices", TYPES, [[row[key] for key in TYPES] for row in rows])
    encoder.slices(slices, table("arrows", {"id": "BIGINT", "number": "BIGINT"}, arrows))
    encoder.finish()
    return b"".join(chunks)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, max_size=25), st.data())
def test_every_slice_comes_back(unordered: list[dict[str, Any]], data: st.DataObject) -> None:
    rows = in_order(unordered)
    pairs = st.lists(st.tuples(st.sampled_from(rows), st.sampled_from(rows)), max_size=8) if rows else st.just([])
    arrows = [(a["id"], b["id"]) for a, b in data.draw(pairs) if a["id"] < b["id"]]
    ends = sorted([id, number] for number, arrow in enumerate(arrows) for id in arrow)
    bounds = data.draw(st.sampled_from([{}, {"intern_bytes": 1}, {"intern_bytes": 300, "chunk_bytes": 1}]))

    played = replay(encoded(rows, ends, **bounds))

    assert len(played.slices) == len(rows)
    for row, one in zip(rows, played.slices, strict=True):
        lasts = row["dur_ns"] if row["shape"] == SHAPE_SLICE else None
        assert (one.ts_ns, one.dur_ns, one.name, one.category) == (row["start_ns"], lasts, row["name"], row["kind"])
        assert one.point == (row["shape"] == SHAPE_POINT)
        assert one.args == {key: row[key] for key in ("bytes", "reason") if row[key] is not None}
        assert played.root(one.track).name == ["zero", "one", "unknown track"][row["track"]]
    found = [(played.slices.index(a), played.slices.index(b)) for a, b in played.arrows()]
    assert len(found) == len(arrows)


def test_a_long_name_and_many_names_go_through_a_bounded_table() -> None:
    like = {"track": 0, "dur_ns": 1, "shape": SHAPE_SLICE, "kind": "k", "bytes": None, "reason": None}
    rows = in_order([{**like, "start_ns": n, "name": f"{n} " + "ü" * 10_000} for n in range(50)])
    played = replay(encoded(rows, [], intern_bytes=100_000, chunk_bytes=4096))
    assert [one.name for one in played.slices] == [row["name"] for row in rows]


def test_rows_out_of_order_are_refused() -> None:
    row = {"track": 0, "dur_ns": 1, "shape": SHAPE_SLICE, "name": "n", "kind": "k", "bytes": None, "reason": None}
    with pytest.raises(RuntimeError, match="not in order"):
        encoded([{"id": 0, "start_ns": 9, **row}, {"id": 1, "start_ns": 3, **row}], [])


def test_columns_of_another_type_are_refused() -> None:
    encoder = _native.PerfettoEncoder(lambda _: None, unix_epoch=False)
    arrows = table("arrows", {"id": "BIGINT", "number": "BIGINT"}, [])
    with pytest.raises(RuntimeError, match="column 0"):
        encoder.slices(table("slices", {"id": "VARCHAR"}, []), arrows)


def test_a_query_that_fails_says_why() -> None:
    encoder = _native.PerfettoEncoder(lambda _: None, unix_epoch=False)
    encoder.add_counter(0, _native.PERFETTO_NO_PARENT, "c", "bytes")
    failing = CONNECTION.cursor().sql(
        "SELECT 0::BIGINT, 0::BIGINT, (CASE WHEN range > 5 THEN error('no luck') ELSE 1 END)::BIGINT FROM range(9)"
    )
    with pytest.raises((RuntimeError, duckdb.Error), match="no luck"):
        encoder.counters(failing)


def test_a_sink_that_fails_stops_the_encoder() -> None:
    def full(_: bytes) -> None:
        raise OSError(28, "No space left on device")

    encoder = _native.PerfettoEncoder(full, unix_epoch=False)
    encoder.add_track(0, _native.PERFETTO_NO_PARENT, "t", 0)
    with pytest.raises(OSError, match="No space"):
        encoder.finish()
