"""Kineto's files: each hard input has the right result."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import import_files, importer_of, kineto
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.schema import FLAGS
from ral_trace.tracer.store import TraceBuilder
from tests.importers.kineto_events import US, case, on_device, slice_of
from tests.importers.reading_back import CASES, busy_ns, by_name, imported, imported_events, warnings


def test_a_device_row_of_no_length_counts_and_adds_nothing(tmp_path: Path) -> None:
    with case("zero_dur_gpu", tmp_path) as trace:
        assert by_name(trace, "kind", "category", "dur_ns")["ClearScratchpad"] == ("kernel", None, 0)
        assert trace.rows("SELECT kind, category, bytes FROM event WHERE name LIKE 'Memset%'") == [
            {"kind": "transfer", "category": "memset", "bytes": 4}
        ]
        assert busy_ns(trace) == 10 * US


def test_overlaps_on_one_stream_are_imported_as_they_are(tmp_path: Path) -> None:
    with case("rocm_dur_overflow", tmp_path) as trace:
        assert busy_ns(trace) == 1_600_000 * US
        assert trace.rows("SELECT sum(dur_ns) AS ns FROM kernels") == [{"ns": 1_604_500 * US}]


def test_a_child_that_ends_a_microsecond_late_is_still_a_child(tmp_path: Path) -> None:
    with case("parent_child_rounding", tmp_path) as trace:
        rows = {row["id"]: row for row in trace.rows("SELECT id, name, parent, dur_ns FROM event")}
        parents = {row["name"]: rows[row["parent"]]["name"] for row in rows.values() if row["parent"] is not None}
        assert parents == {"grandparent": "ProfilerStep#1", "parent": "grandparent", "child": "parent"}
        own = {row["name"]: row["dur_ns"] for row in rows.values()}
        for row in rows.values():
            if row["parent"] is not None:
                own[rows[row["parent"]]["name"]] -= row["dur_ns"]
        assert own == {"ProfilerStep#1": 500 * US, "grandparent": 401 * US, "parent": 9 * US, "child": 90 * US}


def test_a_file_with_nanoseconds_has_no_tolerance(tmp_path: Path) -> None:
    events = [slice_of("parent", "cpu_op", 20.001, 99), slice_of("late", "cpu_op", 30, 90)]
    with imported_events(events, tmp_path) as trace:
        assert by_name(trace, "parent") == {"parent": None, "late": None}


def test_of_rows_with_the_same_times_python_is_the_outermost_and_a_call_the_innermost(tmp_path: Path) -> None:
    events = [
        slice_of("cudaLaunchKernel", "cuda_runtime", 5, 2),
        slice_of("aten::add", "cpu_op", 5, 2),
        slice_of("train.py(3): step", "python_function", 5, 2),
        slice_of("mine", "user_annotation", 5, 2),
    ]
    with imported_events(events, tmp_path) as trace:
        assert by_name(trace, "parent") == {"cudaLaunchKernel": 1, "aten::add": 3, "mine": 2, "train.py(3): step": None}


def test_begins_and_ends_that_touch(tmp_path: Path) -> None:
    with case("overlap_BE_touching", tmp_path) as trace:
        durations = by_name(trace, "dur_ns")
        assert (durations["Event5"], durations["Event6"]) == (283 * US, 64 * US)
        assert (durations["Event1"], durations["Event2"]) == (104_562 * US, 104_562 * US)


def test_a_begin_without_an_end_is_unfinished_and_a_stray_end_is_counted(tmp_path: Path) -> None:
    with case("unclosed_B", tmp_path) as trace:
        assert by_name(trace, "dur_ns", "flags") == {
            "open": (None, FLAGS["UNFINISHED"]), "closed": (10 * US, 0), "last": (10 * US, 0),
        }  # fmt: skip
        assert warnings(trace)["ends (E) of slices that never began: left out"] == 1


def test_python_calls_without_a_return_are_flagged(tmp_path: Path) -> None:
    with case("with_stack_overrun", tmp_path) as trace:
        [calls] = trace.rows(f"""
            SELECT count(*) AS rows, count(*) FILTER ((flags & {FLAGS["UNFINISHED"]}) <> 0) AS flagged FROM event
            WHERE name = '<built-in method my_op>'""")
        assert (calls["rows"], calls["flagged"]) == (100, 100)
        assert trace.rows("SELECT count(*) AS n, sum(dur_ns) AS ns FROM event WHERE kind = 'op'") == [
            {"n": 100, "ns": 500 * US}
        ]


def test_python_calls_without_a_return_end_where_their_callers_next_call_begins(tmp_path: Path) -> None:
    def call(name: str, ts: int, end: int, number: int, caller: int | None) -> dict[str, Any]:
        args = {"Python id": number, "Python parent id": caller}
        return slice_of(name, "python_function", ts, end - ts, args=args)

    events = [
        call("main", 0, 1000, 1, None),
        call("lost", 10, 1000, 2, 1),
        call("next", 30, 40, 3, 1),
        call("last", 50, 1000, 4, 1),
        slice_of("aten::add", "cpu_op", 32, 5),
    ]
    with imported_events(events, tmp_path) as trace:
        assert by_name(trace, "dur_ns", "parent") == {
            "main": (1000 * US, None), "lost": (20 * US, 0), "next": (10 * US, 0), "last": (950 * US, 0),
            "aten::add": (5 * US, 2),
        }  # fmt: skip
        flagged = trace.rows(f"SELECT name FROM event WHERE (flags & {FLAGS['UNFINISHED']}) <> 0 ORDER BY id")
        assert [row["name"] for row in flagged] == ["main", "lost", "last"]


def test_what_a_device_did_before_the_recording_is_flagged_and_an_early_kernel_is_kept(tmp_path: Path) -> None:
    with case("kernel_before_launch", tmp_path) as trace:
        assert by_name_of_kernels(trace) == {"early": True, "ok": True, "warmup_leftover": False}
        assert (
            warnings(trace)["rows on devices from before the recording, without a launch: kept, but out of all sums"]
            == 1
        )
        flows = trace.rows("SELECT to_event FROM flow WHERE kind = 'launch' ORDER BY ALL")
        assert [row["to_event"] for row in flows] == [1, 3]


def by_name_of_kernels(trace: Trace) -> dict[str, bool]:
    return {row["name"]: row["valid"] for row in trace.rows("SELECT name, valid FROM kernels")}


def test_an_arrow_id_that_is_used_again_is_another_arrow(tmp_path: Path) -> None:
    with case("flow_dup_ids", tmp_path) as trace:
        arrows = trace.rows("""
            SELECT f.kind, a.name AS a, b.name AS b FROM flow f JOIN event a ON a.id = f.from_event
            JOIN event b ON b.id = f.to_event ORDER BY a""")
        assert [tuple(row.values()) for row in arrows] == [("ipc", "SenderA", "SenderB"), ("ipc", "SenderC", "SenderD")]


def test_counters(tmp_path: Path) -> None:
    with case("counters", tmp_path) as trace:
        values = trace.rows("""
            SELECT series, list((ts_ns, value) ORDER BY ts_ns) AS points FROM counter_value v
            JOIN counter c ON c.id = v.counter GROUP BY series""")
        assert {row["series"]: row["points"] for row in values} == {
            "mem.bytes": [(1 * US, 10.0), (2 * US, 20.0), (3 * US, None)],
            "multi.x [a]": [(5 * US, 1.0)], "multi.y [a]": [(5 * US, 2.5)], "multi.x [b]": [(5 * US, -1.0)],
        }  # fmt: skip
        assert warnings(trace) == {"counter events without a value or a time: left out": 2}


def test_rows_that_only_wait_are_no_work(tmp_path: Path) -> None:
    with case("stream_sync_row", tmp_path) as trace:
        assert busy_ns(trace) == 150 * US
        [wait] = trace.rows("SELECT thread, stream_number, dur_ns FROM events WHERE kind = 'wait'")
        assert wait == {"thread": None, "stream_number": 7, "dur_ns": 94 * US}
        assert trace.rows("SELECT count(*) AS n FROM kernels") == [{"n": 2}]


def test_one_launch_of_a_graph_has_all_its_kernels(tmp_path: Path) -> None:
    with case("cuda_graph_one_correlation", tmp_path) as trace:
        [launch] = trace.rows("SELECT id, dur_ns FROM event WHERE kind = 'launch'")
        assert launch["dur_ns"] == 5 * US
        flows = trace.rows("SELECT from_event, to_event FROM flow ORDER BY to_event")
        assert [tuple(row.values()) for row in flows] == [(launch["id"], kernel) for kernel in range(1, 6)]


def test_one_call_is_the_launch_where_two_have_its_correlation(tmp_path: Path) -> None:
    events = [
        slice_of("cudaLaunchKernel", "cuda_runtime", 1, 5, args={"correlation": 9}),
        slice_of("cuLaunchKernel", "cuda_driver", 2, 3, args={"correlation": 9}),
        on_device("k", 10, 5, correlation=9),
    ]
    with imported_events(events, tmp_path) as trace:
        assert by_name(trace, "kind") == {"cudaLaunchKernel": "launch", "cuLaunchKernel": "runtime", "k": "kernel"}
        assert trace.rows("SELECT count(*) AS n FROM flow") == [{"n": 1}]


@pytest.mark.parametrize(
    ("name", "busy_us", "kernel_us"),
    [("two_streams_overlap", 100, 100), ("stream_idle_other_busy", 51, 51), ("memcpy_fills_gap", 100, 20)],
)
def test_busy_time_is_a_union(name: str, busy_us: int, kernel_us: int, tmp_path: Path) -> None:
    with case(name, tmp_path) as trace:
        assert (busy_ns(trace), busy_ns(trace, ("kernel", "kernel"))) == (busy_us * US, kernel_us * US)


@pytest.mark.parametrize("name", ["no_profiler_step", "cpu_only"])
def test_a_file_without_steps_has_none(name: str, tmp_path: Path) -> None:
    with case(name, tmp_path) as trace:
        assert trace.rows("SELECT value FROM trace_info WHERE key = 'steps_from'") == [{"value": "none"}]
        assert trace.rows("SELECT count(step) AS n FROM event") == [{"n": 0}]


def test_privateuse1(tmp_path: Path) -> None:
    with case("privateuse1", tmp_path) as trace:
        rows = by_name(trace, "kind", "dur_ns", "correlation", "parent", "device_label")
        assert rows["aiuLaunchControlBlocks"] == ("launch", 20 * US, 4162, 0, "privateuse1:0")
        assert rows["mm-Exec"] == ("kernel", 40_500, 4162, None, "privateuse1:0")
        assert rows["ClearScratchad-Internal"][:2] == ("kernel", 0)
        assert rows["mm-DMA"][:2] == ("transfer", 5 * US)
        assert trace.rows("SELECT count(*) AS n FROM flow WHERE from_event = 1") == [{"n": 2}]


def test_the_external_id_says_the_op_where_nesting_does_not(tmp_path: Path) -> None:
    events = [
        slice_of("aten::mm", "cpu_op", 0, 10, args={"External id": 5}),
        slice_of("xpuLaunch", "xpu_runtime", 20, 5, tid=2, args={"External id": 5, "correlation": 3}),
        on_device("launched", 30, 5, correlation=3),
        on_device("orphan", 40, 5, correlation=4, **{"External id": 5}),
        on_device("stranger", 50, 5, correlation=6, **{"External id": 6}),
    ]
    with imported_events(events, tmp_path) as trace:
        assert by_name(trace, "parent") == {
            "aten::mm": None, "xpuLaunch": 0, "launched": None, "orphan": 0, "stranger": None,
        }  # fmt: skip
        assert {row["type"] for row in trace.rows("FROM device")} == {"xpu"}


def test_steps_reach_kernels_through_their_launch(tmp_path: Path) -> None:
    events = [
        slice_of("ProfilerStep#3", "user_annotation", 0, 100),
        slice_of("ProfilerStep#4", "user_annotation", 100, 100),
        slice_of("cudaLaunchKernel", "cuda_runtime", 50, 5, args={"correlation": 1}),
        on_device("late", 150, 10, correlation=1),
        {**on_device("ProfilerStep#3", 150, 10), "cat": "gpu_user_annotation"},
    ]
    with imported_events(events, tmp_path) as trace:
        assert trace.rows("SELECT step, dur_ns FROM steps ORDER BY step") == [
            {"step": 3, "dur_ns": 100 * US}, {"step": 4, "dur_ns": 100 * US},
        ]  # fmt: skip
        assert trace.rows("SELECT step FROM kernels") == [{"step": 3}]
        [projected] = trace.rows("SELECT thread, device, step, category FROM event ORDER BY id DESC LIMIT 1")
        assert (projected["thread"], projected["category"]) == (None, None)
        assert projected["device"] is not None


@pytest.mark.parametrize("base", [0, 1_700_000_000_000_000_000])
def test_of_two_sources_of_steps_the_better_one_gives_all_of_them(base: int, tmp_path: Path) -> None:
    steps = [slice_of(f"ProfilerStep#{n}", "user_annotation", 100 * n, 100) for n in range(3)]
    events = [*steps, slice_of("step#7", "user_annotation", 110, 50), slice_of("a", "cpu_op", 120, 5),
              slice_of("b", "cpu_op", 170, 5)]  # fmt: skip
    with imported_events(events, tmp_path, baseTimeNanoseconds=base) as trace:
        assert trace.rows("SELECT value FROM trace_info WHERE key = 'steps_from'") == [{"value": "step()"}]
        assert by_name(trace, "step", "category") == {
            "ProfilerStep#0": (None, None), "ProfilerStep#1": (None, None), "ProfilerStep#2": (None, None),
            "step#7": (7, "step"), "a": (7, "forward"), "b": (None, "forward"),
        }  # fmt: skip


def test_each_of_two_files_has_its_own_source_of_steps(tmp_path: Path) -> None:
    paths = [tmp_path / "0.json", tmp_path / "1.json"]
    for rank, path in enumerate(paths):
        name = ["step#7", "ProfilerStep#3"][rank]
        events = [slice_of(name, "user_annotation", 0, 50), slice_of(f"op {rank}", "cpu_op", 20, 5)]
        path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": events}))
    with open_trace(import_files(paths, tmp_path / "both.duckdb")) as trace:
        assert trace.rows("SELECT step, dur_ns FROM steps ORDER BY step") == [
            {"step": 3, "dur_ns": 50 * US}, {"step": 7, "dur_ns": 50 * US},
        ]  # fmt: skip
        assert by_name(trace, "step") == {"step#7": 7, "op 0": 7, "ProfilerStep#3": 3, "op 1": 3}


def test_a_step_that_never_ended_is_a_step(tmp_path: Path) -> None:
    events = [
        slice_of("ProfilerStep#3", "user_annotation", 0, 9),
        {**slice_of("ProfilerStep#4", "user_annotation", 9, 0), "dur": None},
    ]
    with imported_events(events, tmp_path) as trace:
        assert trace.rows("SELECT step, dur_ns FROM steps ORDER BY step") == [
            {"step": 3, "dur_ns": 9 * US}, {"step": 4, "dur_ns": None},
        ]  # fmt: skip


@pytest.mark.parametrize("number", [-9, -1])
def test_a_number_that_no_device_has_makes_no_second_row(number: int, tmp_path: Path) -> None:
    events = [
        on_device("numbered", 0, 5, device=number),
        on_device("plain", 10, 5),
        on_device("no stream", 20, 5, stream=number),
    ]
    events += [
        {**on_device(f"without {key}", 30, 5), "args": {other: 7}}
        for key, other in [("device", "stream"), ("stream", "device")]
    ]
    with imported_events(events, tmp_path) as trace:
        assert [row["name"] for row in trace.rows("SELECT name FROM event ORDER BY id")] == [e["name"] for e in events]


def test_nothing_of_one_file_is_left_for_the_next(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [
        slice_of("ProfilerStep#1", "user_annotation", 0, 90, args={"Call stack": "f.py(3): f"}),
        slice_of("launch", "cuda_runtime", 5, 2, args={"correlation": 1}), on_device("k", 10, 5, correlation=1),
        {**slice_of("s", "fwdbwd", 5, 0), "ph": "s", "id": 1}, {**slice_of("s", "fwdbwd", 6, 0), "ph": "f", "id": 1},
        {**slice_of("c", "counters", 5, 0, args={"v": 1}), "ph": "C"},
        {**slice_of("[memory]", "cpu_instant_event", 7, 0), "ph": "i",
         "args": {"Addr": 1, "Bytes": 1, "Device Type": 1, "Device Id": 0}},
    ]}))  # fmt: skip
    with TraceBuilder(tmp_path / "out.duckdb") as builder:
        own = """SELECT table_name FROM duckdb_tables() WHERE temporary
                 UNION SELECT view_name FROM duckdb_views() WHERE temporary AND NOT internal"""
        before = builder.connection.execute(own).fetchall()
        kineto.read(path, Rows(builder, path, kineto.FORMAT))
        assert sorted(builder.connection.execute(own).fetchall()) == sorted(before)


@pytest.mark.parametrize("world_size", [4, "4"])
def test_ranks(world_size: int | str, tmp_path: Path) -> None:
    info = {"backend": "nccl", "rank": 3, "world_size": world_size}
    with imported_events([slice_of("a", "cpu_op", 1, 1)], tmp_path, distributedInfo=info) as trace:
        assert trace.rows("SELECT s.rank AS a, p.rank AS b FROM source s, process p") == [{"a": 3, "b": 3}]


def test_base_time(tmp_path: Path) -> None:
    events = [slice_of("a", "cpu_op", "1419247332972.313", 1)]
    with imported_events(events, tmp_path, baseTimeNanoseconds=1751410836000000000, schemaVersion=1) as trace:
        assert by_name(trace, "ts_ns") == {"a": 1751410836000000000 + 1419247332972313}
        assert trace.rows("SELECT clock_zero, clock_offset_ns FROM source") == [
            {"clock_zero": "unix epoch", "clock_offset_ns": 1751410836000000000}
        ]


def test_call_stacks_become_stacks(tmp_path: Path) -> None:
    stack = "a.py(10): f;C:\\b(1).py(3): g;\r\n<string>(1): <module>;odd"
    events = [slice_of(f"op{n}", "cpu_op", n, 1, args={"Call stack": stack}) for n in range(3)]
    with imported_events(events, tmp_path) as trace:
        [(frames,)] = trace.sql("SELECT frames FROM stack").fetchall()
        assert [(frame["file"], frame["line"], frame["function"]) for frame in frames] == [
            ("a.py", 10, "f"), ("C:\\b(1).py", 3, "g"), ("<string>", 1, "<module>"), (None, None, "odd"),
        ]  # fmt: skip
        assert trace.rows("SELECT DISTINCT stack, args FROM event") == [{"stack": 0, "args": None}]


def test_memory_events_become_lives_of_blocks(tmp_path: Path) -> None:
    def change(ts: int, size: int, total: int, device_type: int = 1) -> dict[str, Any]:
        args = {"Addr": 2**63 + 64, "Bytes": size, "Total Allocated": total, "Total Reserved": 4096,
                "Device Type": device_type, "Device Id": 0}  # fmt: skip
        return {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1, "ts": ts,
                "args": args}  # fmt: skip

    events = [slice_of("aten::empty", "cpu_op", 0, 10), change(5, 512, 512), change(50, -512, 0)]
    with imported_events(events, tmp_path) as trace:
        [block] = trace.rows("FROM allocation")
        assert (block["address"], block["size_bytes"], block["alloc_ns"]) == (2**63 + 64, 512, 5 * US)
        assert (block["free_ns"], block["op"], block["before_trace"]) == (50 * US, "aten::empty", False)
        assert trace.rows("SELECT kind, bytes, parent FROM event WHERE kind IN ('alloc', 'free') ORDER BY id") == [
            {"kind": "alloc", "bytes": 512, "parent": 0}, {"kind": "free", "bytes": 512, "parent": None},
        ]  # fmt: skip
        values = trace.rows("SELECT series, value FROM counter_value v JOIN counter c ON c.id = v.counter ORDER BY ALL")
        assert [tuple(row.values()) for row in values] == [
            ("Total Allocated", 0), ("Total Allocated", 512), ("Total Reserved", 4096), ("Total Reserved", 4096),
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaDeviceSynchronize", "sync"), ("cudaStreamSynchronize", "sync"), ("cudaEventSynchronize", "sync"),
        ("hipStreamSynchronize", "sync"), ("aclrtSynchronizeStream", "sync"), ("cuCtxSynchronize", "sync"),
        ("cudaStreamWaitEvent", "runtime"), ("cudaEventQuery", "runtime"), ("cudaMalloc", "runtime"),
        ("zeCommandQueueSynchronize", "sync"),
    ],
)  # fmt: skip
def test_which_calls_wait_for_the_device(name: str, kind: str, tmp_path: Path) -> None:
    events = [slice_of(name, "cuda_runtime", 1, 1, args={"correlation": 5})]
    with imported_events(events, tmp_path) as trace:
        assert by_name(trace, "kind") == {name: kind}


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "host_to_device"), ("Memcpy DtoH (Device -> Pageable)", "device_to_host"),
        ("Memcpy DtoD (Device -> Device)", "within_device"), ("Memcpy PtoP (Device -> Device)", "device_to_device"),
        ("CopyHostToDevice", "host_to_device"), ("Memcpy M2D (Memory -> Device)", "host_to_device"), ("copy", None),
    ],
)  # fmt: skip
def test_directions_of_copies(name: str, category: str | None, tmp_path: Path) -> None:
    events = [{**on_device(name, 1, 1, bytes=64), "cat": "gpu_memcpy"}]
    with imported_events(events, tmp_path) as trace:
        assert by_name(trace, "kind", "category", "bytes") == {name: ("transfer", category, 64)}


def test_several_gzip_members_are_one_file(tmp_path: Path) -> None:
    data = (CASES / "neg_dur.json").read_bytes()
    path = tmp_path / "two.json.gz"
    path.write_bytes(gzip.compress(data[:400]) + gzip.compress(data[400:]))
    with imported(path, tmp_path) as trace:
        assert busy_ns(trace) == 20 * US


def test_two_files_are_two_sources(tmp_path: Path) -> None:
    files = [CASES / "neg_dur.json", CASES / "unclosed_B.json"]
    with open_trace(import_files(files, tmp_path / "both.duckdb")) as trace:
        assert trace.rows("SELECT count(*) AS n FROM source") == [{"n": 2}]
        assert trace.rows("SELECT p.source, count(*) AS n FROM event e JOIN process p ON p.id = e.process GROUP BY ALL "
                          "ORDER BY ALL") == [{"source": 0, "n": 7}, {"source": 1, "n": 3}]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"schemaVersion": 1, "traceEvents": []}', "holds no events"),
        (b'{"schemaVersion": 1, "traceEvents": [', "cut off before its first event"),
        (b'{"schemaVersion": 1, "traceEvents": 5}', "no list traceEvents"),
        (b'{"schemaVersion": 1}', "no list traceEvents"),
        (b'{"schemaVersion": 1 "traceEvents": []}', "is not JSON at line 1, column 21"),
        (b'{\n "schemaVersion": }', "is not JSON at line 2, column 19"),
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
    for name in ("neg_dur", "epoch_precision", "bad_utf8"):
        path = tmp_path / f"{name}.txt"
        path.write_bytes((CASES / f"{name}.json").read_bytes())
        assert importer_of(path) is kineto


def test_what_only_late_events_have(tmp_path: Path) -> None:
    """The first events, more than are read at once, have no name, no duration and no args."""
    early = [{"ph": "X", "cat": "cpu_op", "pid": 1, "tid": tid, "ts": tid} for tid in range(300) for _ in range(220)]
    late = slice_of("cudaMemcpyAsync", "cuda_runtime", 500, 10, args={"correlation": 7})
    copy = on_device("Memcpy HtoD", 505, 20, correlation=7, device=0, stream=3, bytes=4096, kept="yes")
    copy["cat"] = "gpu_memcpy"
    with imported_events([*early, late, copy], tmp_path, schemaVersion=1) as trace:
        assert trace.rows("SELECT count(*) AS n, count(DISTINCT tid) AS threads FROM events WHERE kind = 'op'") == [
            {"n": 66_000, "threads": 300}
        ]
        found = by_name(trace, "kind", "correlation", "bytes", "stream_number", "args")
        assert found[None] == ("op", None, None, None, None)
        assert found["cudaMemcpyAsync"] == ("launch", 7, None, None, None)
        assert found["Memcpy HtoD"] == ("transfer", 7, 4096, 3, '{"kept":"yes"}')
