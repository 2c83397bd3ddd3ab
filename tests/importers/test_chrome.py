"""Files in Chrome's trace format that are not Kineto's."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.exporters import export
from ral_trace.tracer.importers import chrome, import_files, importer_of
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.schema import FLAGS
from tests.importers.reading_back import by_name, imported, imported_events, imported_text, warnings
from tests.synthetic import training

US = 1_000
VIZTRACER_PROGRAM = """
import sys
from viztracer import VizTracer

def leaf(n):
    return n * 2

def tree(n):
    return leaf(n) if n == 0 else tree(n - 1) + tree(n - 1)

with VizTracer(output_file=sys.argv[1], verbose=0) as tracer:
    tree(6)
    tracer.log_instant("here")
    tracer.add_variable("level", 5, "counter")
    with tracer.log_event("block"):
        leaf(3)
"""


def event(ph: str, ts: float, **more: Any) -> dict[str, Any]:
    """An event of one thread."""
    return {"ph": ph, "pid": 1, "tid": 1, "ts": ts, **more}


def test_viztracer_counts_every_call(tmp_path: Path) -> None:
    program, out = tmp_path / "program.py", tmp_path / "viz.json"
    program.write_text(VIZTRACER_PROGRAM)
    subprocess.run([sys.executable, program, out], check=True, timeout=60)
    with imported(out, tmp_path) as trace:
        calls = trace.rows("""
            SELECT regexp_extract(name, '^(\\w+) ', 1) AS function, count(*) AS n
            FROM event WHERE kind = 'python' AND regexp_matches(name, '^(leaf|tree) ') GROUP BY ALL ORDER BY ALL""")
        # A binary tree of depth 6 has 2**7 - 1 nodes and 2**6 leaves, and one leaf more is called.
        assert [(row["function"], row["n"]) for row in calls] == [("leaf", 65), ("tree", 127)]
        [top] = trace.rows("SELECT count(*) AS n FROM event WHERE name LIKE 'tree %' AND parent IS NULL")
        assert top["n"] == 1
        deepest = trace.rows("""
            WITH RECURSIVE down AS (
                SELECT id, 0 AS depth FROM event WHERE name LIKE 'tree %' AND parent IS NULL
                UNION ALL SELECT e.id, depth + 1 FROM event e JOIN down ON e.parent = down.id)
            SELECT max(depth) AS depth, count(*) AS n FROM down""")
        assert deepest == [{"depth": 7, "n": 127 + 64}]
        assert trace.rows("SELECT count(*) AS n FROM event WHERE name = 'here' AND kind = 'instant'") == [{"n": 1}]
        assert trace.rows("SELECT value FROM counter_value") == [{"value": 5.0}]
        [source] = trace.rows("SELECT format, producer FROM source")
        assert source["format"] == chrome.FORMAT
        assert source["producer"].startswith("viztracer ")


def test_slices_without_a_category_are_annotations(tmp_path: Path) -> None:
    with imported_events(
        [event("X", 1, dur=2, name="a"), event("X", 5, dur=2, name="b", cat="mine")], tmp_path
    ) as trace:
        assert by_name(trace, "kind", "category") == {"a": ("annotation", None), "b": ("annotation", "mine")}


def test_a_bare_list_is_a_trace_with_and_without_its_end(tmp_path: Path) -> None:
    text = json.dumps([event("X", 1, dur=2, name="a"), event("X", 2, dur=1, name="b")])
    for given, cut in ((text, False), (text[:-1], True), (text[:-1] + ",", True)):
        with imported_text(given, tmp_path) as trace:
            assert by_name(trace, "parent") == {"a": None, "b": 0}
            assert ("the file is cut off: what follows is missing" in warnings(trace)) == cut


def test_begin_and_end_on_interleaved_threads(tmp_path: Path) -> None:
    events = [
        event("B", 1, name="outer"), event("B", 2, name="inner", args={"a": 1}), event("B", 2, name="other", tid=2),
        event("E", 5, args={"b": 2}), event("E", 7, tid=2), event("E", 9),
    ]  # fmt: skip
    with imported_events(events, tmp_path) as trace:
        assert by_name(trace, "dur_ns", "parent") == {
            "outer": (8 * US, None), "inner": (3 * US, 0), "other": (5 * US, None),
        }  # fmt: skip
        assert trace.rows("SELECT args FROM event WHERE name = 'inner'") == [{"args": '{"a":1}'}]


def test_events_out_of_order_are_paired_in_the_order_of_time(tmp_path: Path) -> None:
    events = [event("E", 9), event("B", 4, name="second"), event("E", 3), event("B", 1, name="first")]
    with imported_events(events, tmp_path) as trace:
        assert by_name(trace, "dur_ns") == {"first": 2 * US, "second": 5 * US}


@pytest.mark.parametrize(("begin", "end"), [("b", "e"), ("S", "F")])
def test_asynchronous_slices_enclose_nothing(begin: str, end: str, tmp_path: Path) -> None:
    events = [
        event(begin, 1, name="request", cat="net", id="0x7"), event("X", 2, dur=1, name="work"),
        event(begin, 3, name="request", cat="net", id=8), event(end, 5, name="request", cat="net", id="0x7"),
        event(end, 11, name="request", cat="net", id=8), event(begin, 20, name="lost", cat="net", id=9),
    ]  # fmt: skip
    with imported_events(events, tmp_path) as trace:
        rows = trace.rows("SELECT name, dur_ns, parent, flags FROM event ORDER BY id")
        suspended = FLAGS["SUSPENDED"]
        assert [tuple(row.values()) for row in rows] == [
            ("request", 4 * US, None, suspended), ("work", 1 * US, None, 0), ("request", 8 * US, None, suspended),
            ("lost", None, None, suspended | FLAGS["UNFINISHED"]),
        ]  # fmt: skip


def test_ids_of_different_scopes_are_different(tmp_path: Path) -> None:
    events = [
        event("b", 1, name="a", cat="c", id2={"local": "0x1"}),
        event("b", 2, name="b", cat="c", id2={"local": "0x1"}, pid=2),
        event("e", 5, name="a", cat="c", id2={"local": "0x1"}),
        event("e", 9, name="b", cat="c", id2={"local": "0x1"}, pid=2),
        event("b", 10, name="d", cat="c", id=1, scope="x"),
        event("e", 11, name="d", cat="c", id=1, scope="y"),
    ]
    with imported_events(events, tmp_path) as trace:
        assert by_name(trace, "dur_ns") == {"a": 4 * US, "b": 7 * US, "d": None}


def test_arrows_bind_to_slices(tmp_path: Path) -> None:
    events = [
        event("X", 0, dur=10, name="from"), event("s", 1, name="go", cat="flow", id=1),
        event("X", 20, dur=10, name="through", tid=2), event("t", 25, name="go", cat="flow", id=1, tid=2),
        event("X", 50, dur=10, name="next", tid=3), event("f", 40, name="go", cat="flow", id=1, tid=3),
        event("X", 60, dur=10, name="around"), event("s", 61, name="go", cat="flow", id=2),
        event("X", 70, dur=10, name="enclosing", tid=3), event("f", 75, bp="e", name="go", cat="flow", id=2, tid=3),
        event("f", 80, bp="e", name="go", cat="flow", id=77), event("s", 200, name="go", cat="flow", id=3),
        event("f", 201, bp="e", name="go", cat="flow", id=3),
    ]  # fmt: skip
    with imported_events(events, tmp_path) as trace:
        arrows = trace.rows("""
            SELECT f.kind, a.name AS a, b.name AS b FROM flow f JOIN event a ON a.id = f.from_event
            JOIN event b ON b.id = f.to_event ORDER BY a.ts_ns""")
        assert [tuple(row.values()) for row in arrows] == [
            ("flow", "from", "through"), ("flow", "through", "next"), ("flow", "around", "enclosing"),
        ]  # fmt: skip
        assert warnings(trace) == {
            "ends of arrows that never began: left out": 1, "arrows with an end in no slice: left out": 1,
        }  # fmt: skip


def test_names_of_processes_and_threads(tmp_path: Path) -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": "gpu", "args": {"name": "Renderer"}},
        {"ph": "M", "name": "thread_name", "pid": "gpu", "tid": "main", "args": {"name": "Main"}},
        {"ph": "M", "name": "thread_name", "pid": 2, "tid": 3, "args": {"name": "first"}},
        {"ph": "M", "name": "thread_name", "pid": 2, "tid": 3, "args": {"name": "last"}},
        event("X", 1, dur=1, name="a", pid="gpu", tid="main"), event("X", 1, dur=1, name="b", pid=2, tid=3),
        {"ph": "X", "ts": 1, "dur": 1, "name": "nowhere"},
    ]  # fmt: skip
    with imported_events(events, tmp_path) as trace:
        rows = trace.rows("""
            SELECT e.name, p.pid, p.name AS process, t.tid, t.name AS thread FROM event e
            JOIN process p ON p.id = e.process LEFT JOIN thread t ON t.id = e.thread ORDER BY e.id""")
        assert [tuple(row.values()) for row in rows] == [
            ("a", None, "Renderer (gpu)", None, "Main (main)"), ("b", 2, None, 3, "last"),
            ("nowhere", None, None, None, None),
        ]  # fmt: skip


def test_what_is_not_read_is_counted(tmp_path: Path) -> None:
    events = [event("X", 1, dur=1, name="a"), event("N", 1, name="o", id=1), event("D", 2, name="o", id=1),
              event("P", 3, name="s"), event("?", 3, name="q"), 5, "x", [1], None, {"name": "no phase"}]  # fmt: skip
    with imported_events(events, tmp_path) as trace:
        assert warnings(trace) == {
            "object events: not read": 2, "samples: not read": 1, "events of an unknown phase: not read": 1,
            "entries of the list that are no events: left out": 5,
        }  # fmt: skip


def test_events_without_a_time_are_left_out(tmp_path: Path) -> None:
    events = [event("X", 1, dur=1, name="a"), {"ph": "X", "name": "b", "dur": 1}, event("X", "soon", dur=1, name="c"),
              event("X", [1], dur=1, name="d"), event("X", "1e300", dur=1, name="e"),
              event("X", 5, name="endless")]  # fmt: skip
    with imported_events(events, tmp_path) as trace:
        assert by_name(trace, "dur_ns", "flags") == {"a": (1 * US, 0), "endless": (None, FLAGS["UNFINISHED"])}
        assert warnings(trace)["events without a time: left out"] == 4


def test_our_own_file_without_our_own_part_is_a_trace_like_any_other(tmp_path: Path) -> None:
    original = training(tmp_path / "run.duckdb", launches=60, steps=3)
    with open_trace(original) as trace:
        exported = export(trace, tmp_path / "run.json")
        names = {row["name"] for row in trace.rows("SELECT DISTINCT name FROM event WHERE kind IN ('op', 'kernel')")}
    document = json.loads(exported.read_text())
    del document["ralTrace"]
    stripped = tmp_path / "stripped.json"
    stripped.write_text(json.dumps(document, indent=1))
    slices = sum(one["ph"] in "XBi" for one in document["traceEvents"])
    with imported(stripped, tmp_path) as trace:
        assert trace.rows("SELECT count(*) AS n FROM event") == [{"n": slices}]
        assert names <= {row["name"] for row in trace.rows("SELECT DISTINCT name FROM event")}
        assert trace.rows("SELECT count(*) > 0 AS some FROM flow") == [{"some": True}]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[]", "of no format"),
        (b'[{"ph": "M"', "cut off before its first event"),
        (b'{"traceEvents": {}}', "no list traceEvents"),
        (b'{"traceEvents": [1, 2]}', "holds no events"),
        (b'{"traceEvents": [{"ph": "X"}], oops', "is not JSON at line 1, column 32"),
        (b"[" * 100_000, "of no format"),
    ],
)
def test_a_file_that_is_bad_as_a_whole_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(InputRefused) as refused:
        import_files([path], tmp_path / "out.duckdb")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out.duckdb").exists()


def test_it_knows_its_files_by_content(tmp_path: Path) -> None:
    path = tmp_path / "trace.bin"
    path.write_text(json.dumps([event("X", 1, dur=1, name="a")]))
    assert importer_of(path) is chrome
