"""rocprofv3's JSON, as its own sources write it, and as it comes out of long runs: dirty and cut off."""

import copy
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.json_stream import BadValueError, CutOffError, JsonStream
from tests.importers.databases import busy_ns, counts, damaged, imported, quality, rows, survivors

CPU, GPU0, GPU1 = 53061, 18446744073709551600, 53063
"""Handles of agents; one is beyond 63 bits."""
KINDS = [
    ("NONE", []), ("HIP_RUNTIME_API", ["hipNone", "hipLaunchKernel", "hipDeviceSynchronize"]), ("KERNEL_DISPATCH", []),
    ("MEMORY_COPY", ["NONE", "MEMORY_COPY_HOST_TO_DEVICE", "MEMORY_COPY_DEVICE_TO_DEVICE"]),
    ("MARKER_CORE_RANGE_API", ["roctxMarkA", "roctxThreadRangeA"]),
    ("MEMORY_ALLOCATION", ["NONE", "MEMORY_ALLOCATION_ALLOCATE", "MEMORY_ALLOCATION_FREE"]),
]  # fmt: skip
EXPECTED = {"launch": 1, "sync": 1, "kernel": 2, "transfer": 2, "annotation": 1, "instant": 1, "alloc": 1, "free": 1}


def handle(number: int) -> dict[str, int]:
    return {"handle": number}


def record(kind: int, operation: int, start: int, end: int, correlation: int, **more: Any) -> dict[str, Any]:
    return {"size": 64, "kind": kind, "operation": operation, "thread_id": 99, "start_timestamp": start,
            "end_timestamp": end,
            "correlation_id": {"internal": correlation, "external": 0}, **more}  # fmt: skip


def dispatch(start: int, end: int, number: int, agent: int = GPU0) -> dict[str, Any]:
    info = {"agent_id": handle(agent), "queue_id": handle(1), "kernel_id": 1, "dispatch_id": number,
            "private_segment_size": 0, "group_segment_size": 16, "workgroup_size": {"x": 64, "y": 1, "z": 1},
            "grid_size": {"x": 1024, "y": 1, "z": 1}}  # fmt: skip
    return record(2, 0, start, end, 1, dispatch_info=info, stream_id=handle(2))


def process(pid: int) -> dict[str, Any]:
    agents = [(CPU, 1, 0, "EPYC"), (GPU0, 2, 0, "MI250X"), (GPU1, 2, 1, "MI250X")]
    return {
        "metadata": {"pid": pid, "init_time": 1, "fini_time": 999, "command": ["./a.out"]},
        "agents": [{"size": 1, "id": handle(number), "type": type, "logical_node_type_id": index, "name": "gfx90a",
                    "vendor_name": "AMD", "product_name": name} for number, type, index, name in agents],
        "counters": [{"id": handle(77), "name": "SQ_WAVES"}],
        "strings": {"buffer_records": [{"kind": kind, "operations": operations} for kind, operations in KINDS],
                    "marker_api": [{"key": 3, "value": "my range"}, {"key": 4, "value": "mark"}]},
        "kernel_symbols": [{"kernel_id": 0}, {
            "kernel_id": 1, "kernel_name": "_Z4gemm.kd", "formatted_kernel_name": "gemm<float>(float*)"}],
        "summary": [{"domain": "HIP", "stats": {}}],
        "callback_records": {"counter_collection": [{
            "thread_id": 99, "dispatch_data": {k: v for k, v in dispatch(200, 300, 1).items() if k != "kind"},
            "records": [{"counter_id": handle(77), "value": 12.0}, {"counter_id": handle(77), "value": 4.0}]}]},
        "buffer_records": {
            "kernel_dispatch": [dispatch(200, 300, 1), dispatch(300, 350, 2)],
            "hip_api": [record(1, 1, 100, 110, 1, args={"stream": "0x0", "n": 5}), record(1, 2, 120, 900, 2)],
            "hsa_api": [], "marker_api": [record(4, 1, 50, 950, 3), record(4, 0, 60, 60, 4)],
            "memory_copy": [record(3, 1, 400, 450, 0, src_agent_id=handle(CPU), dst_agent_id=handle(GPU1), bytes=4096),
                            record(3, 2, 460, 470, 0, src_agent_id=handle(GPU0), dst_agent_id=handle(GPU1), bytes=64)],
            "memory_allocation": [
                record(5, 1, 10, 12, 0, agent_id=handle(GPU1), address="0x00007f0000000000", allocation_size=4096),
                record(5, 2, 800, 802, 0, agent_id=handle(0), address="0x00007f0000000000", allocation_size=0)],
        },
    }  # fmt: skip


def document(*processes: dict[str, Any]) -> bytes:
    return json.dumps({"rocprofiler-sdk-tool": list(processes)}, indent=1).encode()


def write(folder: Path, content: bytes) -> Path:
    file = folder / "results.json"
    file.write_bytes(content)
    return file


def test_one_process(tmp_path: Path) -> None:
    with imported(write(tmp_path, document(process(4242))), tmp_path) as trace:
        assert counts(trace) == EXPECTED
        assert rows(trace, "SELECT pid FROM process") == [(4242,)]
        found = rows(trace, """
            SELECT e.name, d."index", d.name, s.number, l.name, l.args->>'arguments' FROM flow
            JOIN event l ON l.id = from_event JOIN event e ON e.id = to_event JOIN device d ON d.id = e.device
            JOIN stream s ON s.id = e.stream""")  # fmt: skip
        assert found == [("gemm<float>(float*)", 0, "MI250X", 2, "hipLaunchKernel", '{"stream":"0x0","n":5}')] * 2
        found = rows(
            trace,
            """
            SELECT category, d."index", bytes FROM event JOIN device d ON d.id = device
            WHERE kind = 'transfer' ORDER BY 1""",
        )
        assert found == [("device_to_device", 0, 64), ("host_to_device", 1, 4096)]
        assert rows(trace, "SELECT name, dur_ns FROM event WHERE kind IN ('annotation', 'instant') ORDER BY ts_ns") == [
            ("my range", 900), ("mark", 0)]  # fmt: skip
        assert rows(trace, "SELECT series, ts_ns, value FROM counter JOIN counter_value ON counter = counter.id") == [
            ("SQ_WAVES", 200, 16.0)]  # fmt: skip
        found = rows(trace, 'SELECT address, alloc_ns, free_ns, "index" FROM allocation JOIN device d ON d.id = device')
        assert found == [(0x7F00_0000_0000, 10, 800, 1)]
        assert busy_ns(trace) == 100 + 50 + 50 + 10
        assert quality(trace) == {}


def test_two_processes(tmp_path: Path) -> None:
    with imported(write(tmp_path, document(process(10), process(20))), tmp_path) as trace:
        assert counts(trace) == {kind: 2 * count for kind, count in EXPECTED.items()}
        assert rows(trace, "SELECT pid FROM process ORDER BY 1") == [(10,), (20,)]
        assert rows(trace, "SELECT count(*) FROM flow") == [(4,)]


def test_names_may_come_after_the_records(tmp_path: Path) -> None:
    turned = dict(reversed(process(10).items()))
    with imported(write(tmp_path, document(turned)), tmp_path) as trace:
        assert counts(trace) == EXPECTED
        assert rows(trace, "SELECT DISTINCT name FROM event WHERE kind = 'kernel'") == [("gemm<float>(float*)",)]


def test_counters_tell_their_dispatches(tmp_path: Path) -> None:
    alone = process(10)
    alone["buffer_records"] = {}
    with imported(write(tmp_path, document(alone)), tmp_path) as trace:
        assert rows(trace, "SELECT kind, name, ts_ns, dur_ns FROM event") == [
            ("kernel", "gemm<float>(float*)", 200, 100)
        ]


DIRT = {
    "bytes that are not UTF-8": (b'"0x0"', b'"0x\xff\xfe"', "parts of the text are not UTF-8: replaced"),
    "a control character": (b'"0x0"', b'"0\x01x"', None),
    "single backslashes": (b'"0x0"', rb'"C:\new\qux"', "values that were no JSON: mended"),
    "nan": (b'"n": 5', b'"n": -nan', "values that were no JSON: mended"),
    "NaN": (b'"n": 5', b'"n": NaN', None),
    "a number of 5000 digits": (b'"n": 5', b'"n": ' + b"9" * 5_000, "values that were no JSON: mended"),
    "a BOM": (b'{\n "rocprof', b'\xef\xbb\xbf{\n "rocprof', None),
}


@pytest.mark.parametrize("kind", DIRT)
def test_dirt_costs_nothing_else(tmp_path: Path, kind: str) -> None:
    """C6 and its like: all events stay, and one line says what was mended."""
    clean, dirty, said = DIRT[kind]
    content = document(process(10))
    assert content.count(clean) >= 1
    with imported(write(tmp_path, content.replace(clean, dirty)), tmp_path) as trace:
        assert counts(trace) == EXPECTED
        assert set(quality(trace)) == ({said} if said else set())


def test_bad_records_cost_themselves(tmp_path: Path) -> None:
    """Of another type, without an end, with a negative duration, not JSON at all: the sound ones stay."""
    odd = process(10)
    odd["buffer_records"]["kernel_dispatch"] += [
        5, [], "text", {}, dispatch(500, 400, 3), {**dispatch(0, 0, 4), "start_timestamp": "soon"},
        {**dispatch(600, 0, 5), "end_timestamp": None}, {**dispatch(700, 710, 6), "dispatch_info": 7}]  # fmt: skip
    content = document(odd).replace(b'"text"', b'{"a" "b"}')
    with imported(write(tmp_path, content), tmp_path) as trace:
        found = rows(trace, "SELECT ts_ns, dur_ns, flags FROM event WHERE kind = 'kernel' ORDER BY 1")
        assert found == [(200, 100, 0), (300, 50, 0), (500, None, 4), (600, None, 1), (700, 10, 0)]
        said = quality(trace)
        assert said["records that are of another type than they should be: left out"][0] == 2
        assert said["records that are not JSON: left out"][0] == 1
        assert said["events without a start: left out"][0] == 2


def test_cut_off_keeps_what_was_whole(tmp_path: Path) -> None:
    long = process(10)
    long["buffer_records"] = {"kernel_dispatch": [dispatch(n * 100, n * 100 + 50, n) for n in range(1, 2_001)]}
    content = document(long)
    for cut in (content[:-200_000], gzip.compress(content)[:-2_000]):
        with imported(write(tmp_path, cut), tmp_path) as trace:
            starts = [start for (start,) in rows(trace, "SELECT ts_ns FROM event ORDER BY 1")]
            assert 1_000 < len(starts) < 2_000
            assert starts == [n * 100 for n in range(1, len(starts) + 1)]
            assert rows(trace, "SELECT count(*) FROM event WHERE dur_ns IS DISTINCT FROM 50") == [(0,)]
            assert "the file is cut off or damaged: what came before was taken" in quality(trace)


@pytest.mark.parametrize("content", [
    b'{"rocprofiler-sdk-tool": 5}', b'{"rocprofiler-sdk-tool": []}', b'{"rocprofiler-sdk-tool": [1, "a"]}',
    b'{"rocprofiler-sdk-tool"', b'{"rocprofiler-sdk-tool": [', b'["rocprofiler-sdk-tool"]',
    b'{"rocprofiler-sdk-tool": nope}',
])  # fmt: skip
def test_no_process_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputRefused, match=r"results\.json: "), imported(write(tmp_path, content), tmp_path):
        pass


def test_text_after_the_end(tmp_path: Path) -> None:
    with imported(write(tmp_path, document(process(10)) + b"\nrocprofv3 finished\n"), tmp_path) as trace:
        assert counts(trace) == EXPECTED
        assert quality(trace) == {"text after the end of the JSON: left out": (1, None)}


def stream(text: str) -> JsonStream:
    return JsonStream(io.BytesIO(text.encode()), lambda what, example: None)


WHOLE_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WHOLE_TEXT
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WHOLE_TEXT, inner, max_size=4), max_leaves=12
)


@settings(max_examples=60, deadline=None)
@given(value=VALUE)
def test_stream_reads_what_json_writes(value: Any) -> None:
    walk = stream(json.dumps([value, {"a": value}, value]))
    found: list[Any] = []
    for _ in walk.items():
        found.append({name: walk.value() for name in walk.members()} if len(found) == 1 else walk.value())
    assert found == [value, {"a": value}, value]
    assert walk.peek() == ""


@pytest.mark.parametrize("text", ['{"a": [1, {"b": "c', '{"a": tru', '{"a": 1', '"abc', '{"a" 5}'])
def test_stream_says_where_it_ends(text: str) -> None:
    walk = stream(text)
    with pytest.raises((CutOffError, BadValueError)):
        walk.value()


def test_deep_nesting_is_skipped() -> None:
    walk = stream('[{"a": ' + "[" * 100_000 + "]" * 100_000 + '}, {"b": 1}]')
    items = walk.items()
    next(items)
    with pytest.raises(BadValueError):
        walk.value()
    next(items)
    assert walk.value() == {"b": 1}


PLACES = [("buffer_records", group, 0) for group in process(1)["buffer_records"] if process(1)["buffer_records"][group]]
ANY: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=4)
    | st.just([])
    | st.just({})
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_field(tmp_path: Path, data: st.DataObject) -> None:
    """One field of one record, or of a table of names, is anything: the import goes through."""
    odd = copy.deepcopy(process(10))
    place = data.draw(st.sampled_from([*PLACES, ("strings",), ("agents", 1), ("metadata",), ("kernel_symbols", 1)]))
    target: Any = odd
    for step in place:
        target = target[step]
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(ANY)
    with imported(write(tmp_path, document(odd)), tmp_path) as trace:
        lost = sum(EXPECTED.values()) - sum(counts(trace).values())
        assert lost == sum(count for what, (count, _) in quality(trace).items() if "left out" in what)


def test_damaged_files(tmp_path: Path) -> None:
    data, dice = document(process(10)), random.Random(7)
    assert survivors(tmp_path, "damaged.json", (damaged(data, dice) for _ in range(60))) > 20


@pytest.mark.soak
def test_many_damaged_files(tmp_path: Path) -> None:
    data, dice = document(process(10)), random.Random(8)
    assert survivors(tmp_path, "damaged.json", (damaged(data, dice) for _ in range(5_000))) > 1_000
