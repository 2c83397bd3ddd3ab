"""Memory snapshots of PyTorch: each hard case with its right value, and every era of the format."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ral_trace.tracer.importers import snapshot
from ral_trace.tracer.importers.opening import Head
from ral_trace.tracer.reading import Trace
from tests.importers.snapshots import (
    BASE,
    CASES,
    EPOCH_US,
    MIB,
    alloc,
    curve,
    history,
    imported,
    imported_value,
    kinds,
    quality,
    said,
    segment,
)


def test_what_was_there_before_is_a_group_of_its_own(tmp_path: Path) -> None:
    with imported(CASES / "alloc_before_trace.pickle", tmp_path) as trace:
        assert curve(trace) == [2 * MIB, 2 * MIB + 512]
        blocks = trace.rows("SELECT size_bytes, before_trace, alloc_ns, free_ns, stack FROM allocation ORDER BY id")
        assert [(row["size_bytes"], row["before_trace"], row["alloc_ns"]) for row in blocks] == [
            (2 * MIB, True, None),
            (512, False, 10_000),
        ]
        assert all(row["stack"] is not None and row["free_ns"] is None for row in blocks)
        assert said(trace, "blocks without their alloc") == 1
        assert trace.rows("SELECT size_bytes, opened_ns, closed_ns FROM region") == [
            {"size_bytes": 2 * MIB + 512, "opened_ns": None, "closed_ns": None}
        ]


def test_frees_whose_alloc_was_overwritten_set_the_level_at_the_start(tmp_path: Path) -> None:
    with imported(CASES / "free_without_alloc.pickle", tmp_path) as trace:
        levels = curve(trace)
        assert (levels[0], max(levels), levels[-1], min(levels)) == (2 * MIB, 2 * MIB, 0, 0)
        assert said(trace, "blocks without their alloc: from before the recording, or overwritten in its ring") == 1
        assert kinds(trace) == {"alloc": 1, "free": 2}


def test_cyclic_garbage_is_no_leak(tmp_path: Path) -> None:
    with imported(CASES / "cyclic_garbage_collected.pickle", tmp_path) as trace:
        levels = curve(trace)
        assert (max(levels), levels[-1]) == (20 * MIB, 0)
        assert trace.sql("SELECT count(*) FROM allocation WHERE free_ns IS NULL").fetchall() == [(0,)]


def test_a_leak_is_thirty_blocks_of_one_line(tmp_path: Path) -> None:
    with imported(CASES / "leak_every_step.pickle", tmp_path) as trace:
        assert curve(trace)[-1] == 60 * MIB
        left = trace.sql(
            "SELECT count(*), count(DISTINCT stack), bool_or(before_trace) FROM allocation WHERE free_ns IS NULL"
        )
        assert left.fetchall() == [(30, 1, False)]
        assert quality(trace) == {}


def test_a_free_that_waits_for_another_stream_still_holds_its_block(tmp_path: Path) -> None:
    with imported(CASES / "free_pending.pickle", tmp_path) as trace:
        assert curve(trace) == [2 * MIB]
        assert said(trace, "blocks whose free waits for another stream") == 1
        assert trace.rows("SELECT kind::VARCHAR AS kind, name, ts_ns, bytes FROM event WHERE kind = 'instant'") == [
            {"kind": "instant", "name": "free_requested", "ts_ns": 2_000, "bytes": 2 * MIB}
        ]


def test_an_address_that_is_used_again_ends_the_older_block(tmp_path: Path) -> None:
    with imported(CASES / "addr_reused_without_free.pickle", tmp_path) as trace:
        assert curve(trace) == [1024, 512]
        assert trace.sql("SELECT size_bytes, free_ns FROM allocation ORDER BY id").fetchall() == [
            (1024, 2_000),
            (512, None),
        ]
        assert said(trace, "blocks that were never freed before their address was used again") == 1


def test_names_stay_as_they_are(tmp_path: Path) -> None:
    with imported(CASES / "xss_frames.pickle", tmp_path) as trace:
        [frames] = trace.sql("SELECT s.frames FROM allocation a JOIN stack s ON s.id = a.stack").fetchall()
        assert frames == (
            [{"file": "</script><script>window.__xss=1</script>", "line": 1,
              "function": '<img src=x onerror="window.__xss=1">'}],
        )  # fmt: skip


def command(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ral_trace.tracer", *map(str, words)]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("name", "says"),
    [("zero_bytes", "the file is empty"), ("code_in_pickle", "it names posix.system, and only plain data is read")],
)
def test_a_file_that_is_refused_is_one_line_and_leaves_nothing(tmp_path: Path, name: str, says: str) -> None:
    done = command("import", CASES / f"{name}.pickle", "-o", "run.duckdb", folder=tmp_path)
    assert done.returncode == 4
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_it_knows_its_files() -> None:
    assert snapshot.sniff(Head(Path("x"), pickle.dumps({"segments": []}))) == 1
    assert 0 < snapshot.sniff(Head(Path("x"), pickle.dumps([1]))) < 1
    assert 0 < snapshot.sniff(Head(Path("x"), (CASES / "code_in_pickle.pickle").read_bytes())) < 1
    for other in (b"", b"[{", b'{"traceEvents":[]}', b"SQLite format 3\0", b"\x1f\x8b", b"PK\x03\x04", b"a,b\n1,2\n"):
        assert snapshot.sniff(Head(Path("x"), other)) == 0


def test_times_are_exact_and_count_from_the_unix_epoch(tmp_path: Path) -> None:
    events = [alloc(BASE, 512, time_us=EPOCH_US), alloc(BASE, 512, "free_requested", time_us=EPOCH_US + 5),
              alloc(BASE, 512, "free_completed", time_us=EPOCH_US + 9)]  # fmt: skip
    with imported_value(history(events), tmp_path) as trace:
        [block] = trace.rows("SELECT alloc_ns, free_ns, requested_bytes FROM allocation")
        assert block == {"alloc_ns": EPOCH_US * 1000, "free_ns": (EPOCH_US + 9) * 1000, "requested_bytes": 512}
        assert trace.sql("SELECT clock_zero, format, producer FROM source").fetchall() == [
            ("unix epoch", "PyTorch memory snapshot", "torch.cuda.memory")
        ]
        [(args,)] = trace.sql("SELECT args->>'free_requested_ns' FROM event WHERE kind = 'free'").fetchall()
        assert int(args) == (EPOCH_US + 5) * 1000


def test_the_peak_between_an_alloc_and_a_free_of_one_microsecond_is_not_lost(tmp_path: Path) -> None:
    events = [
        alloc(BASE, 512),
        alloc(BASE + 512, 4096),
        alloc(BASE + 512, 4096, "free_completed"),
        alloc(BASE + 512, 1024),
    ]
    with imported_value(history(events), tmp_path) as trace:
        assert max(curve(trace)) == 4608
        assert curve(trace)[-1] == 1536


def test_events_without_times_keep_their_order(tmp_path: Path) -> None:
    events = [alloc(BASE, 512), alloc(BASE, 512, "free_completed"), alloc(BASE, 1024)]
    for event in events:
        del event["time_us"]
    with imported_value(history(events), tmp_path) as trace:
        assert curve(trace) == [512, 0, 1024]
        assert said(trace, "events without a time: each is given a nanosecond") == 3
        assert trace.sql("SELECT clock_zero FROM source").fetchall() == [("file",)]


@pytest.mark.parametrize("wrong", ["7", 2**80, float("nan")])
def test_a_time_that_cannot_be_costs_nothing_but_itself(tmp_path: Path, wrong: object) -> None:
    events = [alloc(BASE + n, 1, time_us=10 + n) for n in range(3)]
    events[1]["time_us"] = wrong
    with imported_value(history(events), tmp_path) as trace:
        assert trace.sql("SELECT alloc_ns FROM allocation ORDER BY address").fetchall() == [
            (10_000,),
            (10_000,),
            (12_000,),
        ]
        assert said(trace, "events without a time") == 1


def test_a_time_out_of_order_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    events = [alloc(BASE + n, 1, time_us=time) for n, time in enumerate([10, 900_000_000, 12, 3, 13])]
    with imported_value(history(events), tmp_path) as trace:
        times = [time for (time,) in trace.sql("SELECT alloc_ns FROM allocation ORDER BY address").fetchall()]
        assert times == [10_000, 10_000, 12_000, 12_000, 13_000]
        assert said(trace, "events whose time is out of their order") == 2


def test_running_out_of_memory_and_snapshots_are_events(tmp_path: Path) -> None:
    frames = [{"name": "train", "filename": "train.py", "line": 7}]
    events = [
        {"action": "oom", "size": 1 << 40, "device_free": 12_345, "stream": 0, "time_us": 5, "frames": frames},
        {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": 6, "frames": []},
        {"action": "workspace_snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": 7},
    ]
    with imported_value(history(events), tmp_path) as trace:
        error, instant = trace.rows(
            "SELECT kind::VARCHAR AS kind, name, ts_ns, bytes, args, stack, flags FROM event ORDER BY id"
        )
        assert error == {"kind": "error", "name": "out of memory", "ts_ns": 5_000, "bytes": 1 << 40, "flags": 0,
                         "args": '{"device_free_bytes": 12345}', "stack": 0}  # fmt: skip
        assert (instant["kind"], instant["name"], instant["ts_ns"]) == ("instant", "snapshot", 6_000)
        assert said(trace, "events without an address or a size that can be, or of an unknown kind") == 1


def test_devices_and_streams(tmp_path: Path) -> None:
    pointer = 2**63 + 5
    value = history([], [alloc(BASE, 512, stream=pointer)], segments=[segment(BASE, 1024, device=3)])
    with imported_value(value, tmp_path) as trace:
        assert trace.sql('SELECT type, "index" FROM device ORDER BY "index"').fetchall() == [("cuda", 1), ("cuda", 3)]
        assert trace.sql("SELECT number FROM stream").fetchall() == [(pointer - 2**64,)]
        assert trace.sql("SELECT pid FROM process").fetchall() == [(None,)]


def test_what_an_alloc_says_beside_is_kept(tmp_path: Path) -> None:
    frames = [{"name": "f", "filename": "<eval>", "line": 1, "fx_node_name": "linear", "fx_node_op": "call_function"}]
    said_by = {"compile_context": "0/1", "user_metadata": "phase \ud800 A", "pool_id": (0, 3), "category": "parameter"}
    with imported_value(
        history([alloc(BASE, 512, frames=frames, **said_by), alloc(1, 1, compile_context="N/A")]), tmp_path
    ) as trace:
        rows = trace.sql("SELECT args FROM event WHERE kind = 'alloc' ORDER BY id").fetchall()
        assert rows[1] == (None,)
        [found] = trace.rows("""
            SELECT args->>'$.pool_id[1]' AS pool, args->>'fx_node_name' AS node, args->>'category' AS category,
                   args->>'user_metadata' AS noted, args->>'compile_context' AS compiled FROM event WHERE id = 0""")
        assert found == {
            "pool": "3",
            "node": "linear",
            "category": "parameter",
            "noted": "phase \ufffd A",
            "compiled": "0/1",
        }


def test_ranges_of_the_program_are_annotations_on_the_device(tmp_path: Path) -> None:
    names = ["ProfilerStep#4", "inner", "inner", "ProfilerStep#4", "never ends", "never began"]
    stages = ["START", "START", "END", "END", "START", "END"]
    ranges = [
        {"name": name, "stage": stage, "device": 0, "time_us": 10 + n}
        for n, (name, stage) in enumerate(zip(names, stages, strict=True))
    ]
    with imported_value(history([alloc(BASE, 512, time_us=12)], external_annotations=ranges), tmp_path) as trace:
        found = trace.sql(
            "SELECT name, ts_ns, dur_ns, thread, device, flags FROM event WHERE kind = 'annotation' ORDER BY ts_ns"
        ).fetchall()
        assert [row[:3] for row in found] == [
            ("ProfilerStep#4", 10_000, 3_000),
            ("inner", 11_000, 1_000),
            ("never ends", 14_000, None),
        ]
        assert {row[3] for row in found} == {None}
        assert said(trace, "ends of ranges without their begin") == 1
        assert trace.sql("SELECT step FROM event WHERE kind = 'alloc'").fetchall() == [(4,)]


def test_sizes_are_what_was_asked_for_where_that_is_all_that_events_say(tmp_path: Path) -> None:
    """PyTorch's events have the size that was asked for, its segments also what the block takes."""
    blocks = [{"address": BASE, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": []}]
    with imported_value(history([alloc(BASE, 1000)], segments=[segment(BASE, 2 * MIB, blocks)]), tmp_path) as trace:
        assert trace.sql("SELECT size_bytes, requested_bytes FROM allocation").fetchall() == [(1000, 1000)]
        assert said(trace, "blocks in use at the end that take more than was asked for") == 1


@pytest.mark.parametrize("state", ["active_allocated", "active_pending_free", "active_awaiting_free", "inactive"])
def test_the_oldest_forms_have_a_history_and_no_addresses(tmp_path: Path, state: str) -> None:
    frames = [{"name": "f", "filename": "old.py", "line": 3}]
    blocks = [{"size": 512, "state": "inactive"},
              {"size": 1024, "state": state, "history": [{"real_size": 1000, "frames": frames}]}]  # fmt: skip
    old = segment(BASE, 2 * MIB, blocks)
    del old["device"]
    with imported_value([old], tmp_path, protocol=2) as trace:
        found = trace.sql("SELECT address, size_bytes, requested_bytes, before_trace, s.frames[1].line FROM allocation "
                          "LEFT JOIN stack s ON s.id = stack").fetchall()  # fmt: skip
        assert found == ([] if state == "inactive" else [(BASE + 512, 1000, 1000, True, 3)])
        assert said(trace, "no history: it was not recorded") == 0


def test_blocks_that_the_events_contradict_are_said(tmp_path: Path) -> None:
    in_use = [{"address": BASE, "size": 512, "requested_size": 512, "state": "active_allocated", "frames": []}]
    events = [alloc(BASE, 512), alloc(BASE, 512, "free_completed"), alloc(BASE + 1024, 512)]
    with imported_value(history(events, segments=[segment(BASE, 4096, in_use)]), tmp_path) as trace:
        assert curve(trace)[-1] == 512
        assert said(trace, "blocks in use at the end that the events leave freed") == 1
        assert said(trace, "blocks in use by the events that no segment holds") == 1


def regions(trace: Trace) -> list[tuple[int, int, int | None, int | None]]:
    return trace.sql("SELECT address - 4096, size_bytes, opened_ns, closed_ns FROM region ORDER BY ALL").fetchall()


def test_regions_open_and_close(tmp_path: Path) -> None:
    events = [alloc(4096, 100, "segment_alloc", time_us=1), alloc(4096, 100, "segment_free", time_us=2),
              alloc(4096, 200, "segment_alloc", time_us=3), alloc(8192, 50, "segment_free", time_us=4)]  # fmt: skip
    with imported_value(history(events, segments=[segment(4096, 200), segment(5096, 70)]), tmp_path) as trace:
        assert regions(trace) == [
            (0, 100, 1_000, 2_000),
            (0, 200, 3_000, None),
            (1000, 70, None, None),
            (4096, 50, None, 4_000),
        ]
        levels = trace.sql("SELECT ts_ns, reserved_bytes FROM reserved_curve ORDER BY ts_ns").fetchall()
        assert levels == [(999, 120), (1_000, 220), (2_000, 120), (3_000, 320), (4_000, 270)]
        assert kinds(trace) == {"region": 4}


def test_regions_of_no_bytes_are_none(tmp_path: Path) -> None:
    events = [alloc(4096, 0, "segment_alloc", time_us=1), alloc(4096, 512, "segment_alloc", time_us=2),
              alloc(4096, 512, "segment_free", time_us=3), alloc(8192, 100, "segment_alloc", time_us=4),
              alloc(8192, 0, "segment_free", time_us=5)]  # fmt: skip
    segments = [segment(8192, 100), segment(8200, 0)]
    with imported_value(history(events, segments=segments), tmp_path) as trace:
        assert regions(trace) == [(0, 512, 2_000, 3_000), (4096, 100, 4_000, None)]
        assert quality(trace) == {}


def test_parts_of_expandable_segments_come_and_go(tmp_path: Path) -> None:
    """[0,100) was there; [100,300) is mapped; [50,250) goes: [0,50) and [250,300) are left."""
    events = [alloc(4196, 200, "segment_map", time_us=1), alloc(4146, 200, "segment_unmap", time_us=2)]
    left = [segment(4096, 50, is_expandable=True), segment(4346, 50, is_expandable=True)]
    with imported_value(history(events, segments=left), tmp_path) as trace:
        levels = trace.sql("SELECT ts_ns, reserved_bytes FROM reserved_curve ORDER BY ts_ns").fetchall()
        assert levels == [(999, 100), (1_000, 300), (2_000, 100)]
        assert (0, 50, None, None) in regions(trace)
        assert (250, 50, 2_000, None) in regions(trace)


def test_segments_that_overlap_count_once(tmp_path: Path) -> None:
    with imported_value([segment(4096, 200), segment(4096, 200), segment(4196, 200)], tmp_path) as trace:
        assert regions(trace) == [(0, 200, None, None)]
        assert said(trace, "segments that overlap another") == 2


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 12)), max_size=25))
def test_mapped_bytes_are_those_of_a_plain_model(tmp_path: Path, steps: list[tuple[bool, int, int]]) -> None:
    """Pages that are mapped and unmapped at random, some of them there before: their number is what is reserved."""
    opened: set[int] = set()
    before: set[int] = set()
    for is_map, at, length in steps:
        pages = set(range(at, at + length))
        before |= set() if is_map else pages - opened - {page for page in pages if page in before}
        opened = opened | pages if is_map else opened - pages
    present = set(before)
    entries, expected = [], [len(present)]
    for n, (is_map, at, length) in enumerate(steps):
        pages = set(range(at, at + length))
        if (is_map and pages & present) or (not is_map and not pages <= present):
            continue
        present = present | pages if is_map else present - pages
        entries.append(
            alloc(4096 + at * 512, length * 512, "segment_map" if is_map else "segment_unmap", time_us=10 + n)
        )
        expected.append(len(present))
    ends = [segment(4096 + page * 512, 512) for page in sorted(present)]
    if not entries:
        return
    (tmp_path / "imported.duckdb").unlink(missing_ok=True)
    with imported_value(history(entries, segments=ends), tmp_path) as trace:
        found = [
            level // 512
            for (level,) in trace.sql("SELECT reserved_bytes FROM reserved_curve ORDER BY ts_ns").fetchall()
        ]
    assert found == (expected if expected[0] else expected[1:])
