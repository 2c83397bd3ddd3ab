"""Python's own reader makes of the lines what they were made of, wherever chunks end."""

import json
from collections.abc import Callable
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ral_trace.tracer import _native

TEXTS = ["", "plain", 'quote " and \\ backslash', "\x00\x01\x1f\t\r\n\x7f", "</script>é\u2028😀", "x" * 70_000]
OPEN, POINT = 1, 2


def written(write: Callable[[_native.JsonLines], None], chunk_bytes: int = 1 << 20) -> Any:
    chunks: list[bytes] = []
    lines = _native.JsonLines(chunks.append, chunk_bytes=chunk_bytes)
    write(lines)
    lines.finish()
    return json.loads(b"[" + b"".join(chunks) + b"]")


@pytest.mark.parametrize("chunk_bytes", [1, 1000, 1 << 20])
def test_objects_of_all_that_a_row_can_hold(chunk_bytes: int) -> None:
    with duckdb.connect() as connection:
        rows = connection.sql(
            """SELECT t AS "a ""b""c", n, encode(to_json({n: n, t: t})::VARCHAR) AS raw
               FROM (SELECT unnest(?::VARCHAR[]) AS t, unnest([0, -1, 9223372036854775807, NULL, 5, NULL]) AS n)""",
            params=[TEXTS],
        )
        found = written(lambda lines: lines.objects(rows), chunk_bytes)
    numbers = [0, -1, 2**63 - 1, None, 5, None]
    assert found == [
        {'a "b"c': text, **({} if number is None else {"n": number}), "raw": {"n": number, "t": text}}
        for text, number in zip(TEXTS, numbers, strict=True)
    ]


@given(st.lists(st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"])))))
def test_any_text_comes_back(texts: list[str | None]) -> None:
    with duckdb.connect() as connection:
        rows = connection.sql("SELECT unnest(?::VARCHAR[]) AS x", params=[texts])
        assert written(lambda lines: lines.objects(rows)) == [{} if text is None else {"x": text} for text in texts]


def test_slices_points_and_arrows() -> None:
    """Times in microseconds to the nanosecond; what overlaps without nesting goes to another lane, asked for once."""
    places: list[tuple[int, int]] = []

    def place(track: int, lane: int) -> str:
        places.append((track, lane))
        lines.line(f'{{"new":[{track},{lane}]}}')
        return f'"pid":{track},"tid":{lane}'

    chunks: list[bytes] = []
    lines = _native.JsonLines(chunks.append)
    with duckdb.connect() as connection:
        rows = connection.sql(f"""
            SELECT id::BIGINT AS id, track::BIGINT AS track, start::BIGINT AS start_ns, dur::BIGINT AS dur_ns,
                   shape::BIGINT AS shape, name, 'op' AS kind, id::BIGINT AS event FROM (VALUES
            (10, 1, 1000, 2000, 0, 'outer'), (11, 1, 1500, 999, 0, 'inner'), (12, 1, 2600, 5000, 0, 'overlaps'),
            (13, 2, 2601, NULL, {POINT}, 'point'), (14, 2, 2700, NULL, {OPEN}, 'open'))
            t(id, track, start, dur, shape, name)
        """)
        ends = "(10::BIGINT, 77::BIGINT), (12, 77), (12, 78), (13, 78)"
        arrows = connection.cursor().sql(f"FROM (VALUES {ends})")
        lines.slices(rows, arrows, zero_ns=1000, place=place)
    lines.finish()
    found = json.loads(b"[" + b"".join(chunks) + b"]", parse_float=str)
    drawn = [event for event in found if "new" not in event]
    assert places == [(1, 0), (1, 1), (2, 0)]
    assert [event["new"] for event in found if "new" in event] == [[1, 0], [1, 1], [2, 0]]
    assert [(event["ph"], event["pid"], event["tid"], event["ts"], event.get("dur")) for event in drawn] == [
        ("X", 1, 0, "0.000", "2.000"), ("s", 1, 0, "0.000", None), ("X", 1, 0, "0.500", "0.999"),
        ("X", 1, 1, "1.600", "5.000"), ("f", 1, 1, "1.600", None), ("s", 1, 1, "1.600", None),
        ("i", 2, 0, "1.601", None), ("f", 2, 0, "1.601", None), ("B", 2, 0, "1.700", None),
    ]  # fmt: skip
    arrow_ids = [event["id"] for event in drawn if event["name"] == "flow"]
    assert arrow_ids[0] == arrow_ids[1] != arrow_ids[2] == arrow_ids[3]
    assert [event["args"] for event in drawn if event["ph"] in "XiB"] == [{"event": n} for n in range(10, 15)]


def test_counters_of_both_types() -> None:
    frames = {1: ('{"at":', ',"args":{"v":'), 3: ('{"at":', ',"args":{"w":')}
    with duckdb.connect() as connection:
        for kind, values in (("BIGINT", [0, -(2**62), 5, 2**63 - 1]), ("DOUBLE", [0.1, -1e308, 5e-324, 3.0])):
            rows = connection.sql(
                f"SELECT unnest([1, 1, 2, 3])::BIGINT AS key, 2001::BIGINT AS ts, unnest(?::{kind}[]) AS value",
                params=[values],
            )
            chunks: list[bytes] = []
            lines = _native.JsonLines(chunks.append)
            lines.counters(rows, zero_ns=1, frame=frames.get)
            lines.finish()
            assert json.loads(b"[" + b"".join(chunks) + b"]") == [
                {"at": 2.0, "args": {"v": values[0]}}, {"at": 2.0, "args": {"v": values[1]}},
                {"at": 2.0, "args": {"w": values[3]}},
            ]  # fmt: skip


def test_what_fails_on_the_way_comes_through() -> None:
    def full(chunk: bytes) -> None:
        raise OSError(28, "No space left on device")

    with duckdb.connect() as connection:
        with pytest.raises(OSError, match="No space left"):
            _native.JsonLines(full, chunk_bytes=1).objects(connection.sql("SELECT 1::BIGINT AS x"))
        lines = _native.JsonLines(lambda chunk: None)
        with pytest.raises(RuntimeError, match="no such thing"):
            lines.objects(connection.sql("SELECT CASE WHEN range < 2999999 THEN range ELSE error('no such thing') END "
                                         "AS x FROM range(3000000)"))  # fmt: skip
        with pytest.raises(RuntimeError, match="x is no BIGINT"):
            lines.objects(connection.sql("SELECT 1.5::FLOAT AS x"))
        with pytest.raises(RuntimeError, match="column 2 should have the Arrow type l"):
            lines.counters(connection.sql("SELECT 1::BIGINT, 2::BIGINT, 'x'"), zero_ns=0, frame=lambda key: None)
        with pytest.raises(RuntimeError, match="column 2 should have the Arrow type l"):
            lines.counters(connection.sql("SELECT 1::BIGINT, 2::BIGINT"), zero_ns=0, frame=lambda key: None)
