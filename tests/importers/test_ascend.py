"""Ascend profiles: two real ranks against counts made here, and the shapes of files and folders."""

import csv
import gzip
import json
import shutil
from collections import Counter
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import ascend, import_files
from ral_trace.tracer.importers.ascend_tasks import scaled
from ral_trace.tracer.importers.opening import Head, head_of
from ral_trace.tracer.reading import Trace, open_trace
from tests.importers.reading_back import busy_ns, imported, imported_events, imported_text, kinds, union, warnings
from tests.shared import CASES, TRACES, needs_shared

RANKS = ["ascend_level1_rank0", "ascend_level1_rank1"]
SHUFFLED = ("EVENT_RECORD_SQE", "EVENT_WAIT_SQE", "PLACE_HOLDER_SQE", "Notify Wait", "Write Value")
COPIES = ("PCIE_DMA_SQE", "SDMA_SQE", "SDMA")


def ns(microseconds: Any) -> int:
    return int((Decimal(str(microseconds)) * 1000).to_integral_value())


class Original:
    """What plain `json` and `csv` say of a rank."""

    def __init__(self, name: str) -> None:
        self.folder = TRACES / name
        text = gzip.decompress((self.folder / "trace_view.json.gz").read_bytes())
        self.events = json.loads(text, parse_float=Decimal)
        names = {e["pid"]: e["args"]["name"] for e in self.events if e["name"] == "process_name"}
        self.layers: dict[str, list[Any]] = {name: [] for name in names.values()}
        for event in self.events:
            if event["ph"] == "X":
                self.layers[names[event["pid"]]].append(event)
        self.pid = next(pid for pid, layer in names.items() if layer == "Python")
        threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in self.events if e["name"] == "thread_name"}
        self.collectives = [
            e for e in self.layers["HCCL"] if threads[e["pid"], e["tid"]].startswith("Group")
        ]  # fmt: skip

    def table(self, name: str) -> list[dict[str, str]]:
        with (self.folder / name).open(newline="") as file:
            return list(csv.DictReader(file))

    def tasks(self, *types: str, but: bool = False) -> list[Any]:
        return [e for e in self.layers["Ascend Hardware"] if (e["args"]["Task Type"] in types) != but]

    def host(self, category: str) -> list[Any]:
        return [e for e in self.layers["Python"] if e["cat"] == category]


original = cache(Original)


@pytest.fixture(scope="module", params=RANKS)
def rank(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not TRACES.exists():
        pytest.skip("the shared files are not here")
    folder = tmp_path_factory.mktemp(request.param)
    with imported(TRACES / request.param, folder) as trace:
        yield original(request.param), trace


def test_events_by_kind(rank: tuple[Original, Trace]) -> None:
    plain, trace = rank
    kernels = [*plain.tasks(*SHUFFLED, *COPIES, but=True), *plain.collectives]
    started = [*plain.tasks(*SHUFFLED, but=True), *plain.collectives]
    device_connections = {e["args"]["connection_id"] for e in started}
    calls = plain.layers["CANN"]
    launches = [e for e in calls if e["args"]["connection_id"] in device_connections]
    syncs = [e for e in calls if "Synchronize" in e["name"] and e not in launches]
    steps = [e for e in plain.host("cpu_op") if e["name"].startswith(("ProfilerStep#", "Optimizer.", "enumerate(Data"))]
    blocks = plain.table("operator_memory.csv")
    assert kinds(trace) == {
        "kernel": len(kernels), "transfer": len(plain.tasks(*COPIES)), "wait": len(plain.tasks(*SHUFFLED)),
        "launch": len(launches), "sync": len(syncs),
        "runtime": len(calls) - len(launches) - len(syncs) + len(plain.host("enqueue")) + len(plain.host("dequeue")),
        "op": len(plain.host("cpu_op")) - len(steps), "annotation": len(steps),
        "python": len(plain.host("python_function")),
        "alloc": sum(bool(row["Allocation Time(us)"].strip()) for row in blocks),
        "free": sum(bool(row["Release Time(us)"].strip()) for row in blocks),
    }  # fmt: skip


def test_kernels_are_those_of_the_vendors_own_table(rank: tuple[Original, Trace]) -> None:
    plain, trace = rank
    table = Counter(row["Name"] for row in plain.table("kernel_details.csv"))
    assert Counter(name for (name,) in trace.sql("SELECT name FROM kernels").fetchall()) == table


def test_time_on_the_device(rank: tuple[Original, Trace]) -> None:
    plain, trace = rank
    work = [*plain.tasks(*SHUFFLED, but=True), *plain.collectives]
    spans = sorted((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])) for e in work)
    assert abs(busy_ns(trace) - union(spans)) <= len(work)
    [step] = plain.table("step_trace_time.csv")
    for column, condition in (("Communication", "= 'communication'"), ("Computing", "IS NULL")):
        found = trace.sql(
            f"SELECT ts_ns, end_ns FROM kernels WHERE category {condition} ORDER BY ts_ns"
        ).fetchall()  # fmt: skip
        # The table is made of kernels in whole nanoseconds, the timeline of 1/32.
        assert abs(union(found) - ns(step[column])) <= len(found)


def test_starts_are_exact(rank: tuple[Original, Trace]) -> None:
    plain, trace = rank
    expected = sorted(ns(e["ts"]) for e in plain.layers["CANN"])
    found = trace.sql("""
        SELECT ts_ns FROM event
        WHERE kind IN ('launch', 'sync') OR (kind = 'runtime' AND category NOT IN ('enqueue', 'dequeue'))
        ORDER BY ts_ns""").fetchall()  # fmt: skip
    assert [ts_ns for (ts_ns,) in found] == expected


def test_places(rank: tuple[Original, Trace]) -> None:
    plain, trace = rank
    number = int(plain.folder.name[-1])
    assert trace.sql("SELECT pid, name FROM process").fetchall() == [(plain.pid, "Python")]
    assert trace.sql('SELECT type, "index", vendor FROM device').fetchall() == [("npu", number, "Huawei")]
    streams = {e["tid"] for e in plain.layers["Ascend Hardware"]}
    assert {stream for (stream,) in trace.sql("SELECT number FROM stream").fetchall()} == streams
    tids = {e["tid"] for layer in ("Python", "CANN") for e in plain.layers[layer]}
    assert {tid for (tid,) in trace.sql("SELECT tid FROM thread").fetchall()} == tids
    assert trace.sql("SELECT format, clock_zero FROM source").fetchall() == [("Ascend", "unix epoch")]


def test_device_rows_hang_on_their_launches_and_those_on_their_operators(rank: tuple[Original, Trace]) -> None:
    plain, trace = rank
    calls = {e["args"]["connection_id"]: e for e in plain.layers["CANN"]}
    launching = {e["args"]["connection_id"] for e in [*plain.tasks(*SHUFFLED, but=True), *plain.collectives]}
    work = [*plain.layers["Ascend Hardware"], *plain.collectives]
    work = [e for e in work if e["args"]["connection_id"] in launching]
    expected = Counter(
        (ns(calls[e["args"]["connection_id"]]["ts"]), ns(e["ts"]))
        for e in work if e["args"]["connection_id"] in calls
    )  # fmt: skip
    found = trace.sql("""
        SELECT l.ts_ns, d.ts_ns FROM event l JOIN event d USING (process, correlation)
        WHERE l.kind = 'launch' AND d.kind <> 'launch'""").fetchall()
    assert Counter(found) == expected
    operators = {(e["pid"], e["tid"], e["ts"]): e for e in plain.host("cpu_op")}
    starts = {e["id"]: e for e in plain.events if e["ph"] == "s" and e["name"] == "torch_to_npu"}
    ends = {
        (e["pid"], e["tid"], e["ts"]): starts[e["id"]] for e in plain.events if e["ph"] == "f" and e["id"] in starts
    }
    by_launch = {}
    for task in work:
        start = ends.get((task["pid"], task["tid"], task["ts"]))
        if start is not None:
            operator = operators[start["pid"], start["tid"], start["ts"]]
            by_launch[ns(calls[task["args"]["connection_id"]]["ts"])] = (operator["name"], ns(operator["ts"]))
    found = trace.sql("""
        SELECT l.ts_ns, op.name, op.ts_ns FROM event l JOIN event op ON op.id = l.parent
        WHERE l.kind = 'launch' AND op.kind = 'op'""").fetchall()
    stated = {ts_ns: (name, at) for ts_ns, name, at in found}
    assert len(by_launch) > 180
    assert {ts_ns: stated.get(ts_ns) for ts_ns in by_launch} == by_launch


def test_copies_know_their_bytes_and_ranks(rank: tuple[Original, Trace]) -> None:
    plain, trace = rank
    moved = [e["args"] for e in plain.layers["HCCL"] if e["name"] in ("Memcpy", "Reduce_Inline")]
    between = [a for a in moved if a["dst rank"] != a["src rank"] and 4294967295 not in (a["src rank"], a["dst rank"])]
    found = trace.sql("SELECT count(bytes), sum(bytes) FROM event WHERE kind = 'transfer'").fetchall()
    assert found == [(len(moved), sum(a["size(Byte)"] for a in moved))]
    across = trace.sql("SELECT count(*), sum(bytes) FROM transfers WHERE category = 'device_to_device'").fetchall()
    assert across == [(len(between), sum(a["size(Byte)"] for a in between))]
    queued = [e for e in plain.host("dequeue") if e["name"].endswith("acl_memcpy_host_to_device")]
    assert trace.sql("SELECT count(*) FROM transfers WHERE category = 'host_to_device'").fetchall() == [(len(queued),)]


def test_memory(rank: tuple[Original, Trace]) -> None:
    plain, trace = rank
    changes: list[tuple[int, int]] = []
    for row in plain.table("operator_memory.csv"):
        size = int(Decimal(row["Size(KB)"]) * 1024)
        for column, sign in (("Allocation Time(us)", 1), ("Release Time(us)", -1)):
            if row[column].strip():
                changes.append((ns(row[column].strip()), sign * size))
    live, curve = 0, {}
    for ts_ns, change in sorted(changes):
        live += change
        curve[ts_ns] = live
    assert trace.sql("SELECT max(allocated_bytes) FROM memory_curve").fetchall() == [(max(curve.values()),)]
    record = plain.table("memory_record.csv")
    peak = max(Decimal(row["Total Allocated(MB)"]) for row in record if row["Component"] == "PTA")
    [(found,)] = trace.sql(
        "SELECT max(value) FROM counter_value JOIN counter c ON c.id = counter WHERE series = 'PTA allocated'"
    ).fetchall()
    assert found == int(peak * 1024 * 1024)


def test_counters(rank: tuple[Original, Trace]) -> None:
    plain, trace = rank
    values = [e for e in plain.events if e["ph"] == "C" and not e["name"].startswith("PTA")]
    [(found,)] = trace.sql("""
        SELECT count(*) FROM counter_value JOIN counter c ON c.id = counter WHERE unit IS DISTINCT FROM 'bytes'
    """).fetchall()
    assert found == len(values)
    assert trace.sql("SELECT DISTINCT unit FROM counter WHERE series = 'AI Core Freq'").fetchall() == [("MHz",)]


def test_stacks_and_arrows(rank: tuple[Original, Trace]) -> None:
    plain, trace = rank
    stacked = [e for e in plain.host("cpu_op") if e["args"].get("Call stack")]
    assert trace.sql("SELECT count(*) FROM event WHERE stack IS NOT NULL").fetchall() == [(len(stacked),)]
    arrows = Counter(e["name"] for e in plain.events if e["ph"] == "s")
    flows = dict(trace.sql("SELECT kind, count(*) FROM flow WHERE kind <> 'launch' GROUP BY ALL").fetchall())
    assert flows == {"autograd": arrows["fwdbwd"], "queue": arrows["enqueue_to_dequeue"]}


def test_what_the_tool_derived_is_left_out_and_said(rank: tuple[Original, Trace]) -> None:
    plain, trace = rank
    said = warnings(trace)
    [what] = [what for what in said if what.startswith("rows of Overlap Analysis")]
    assert said[what] == len(plain.layers["Overlap Analysis"])


@needs_shared
def test_two_ranks_in_a_folder_are_two_ranks(tmp_path: Path) -> None:
    for name in RANKS:
        shutil.copytree(TRACES / name, tmp_path / "run" / f"host_{name}_ascend_pt" / "ASCEND_PROFILER_OUTPUT")
    for number, name in enumerate(RANKS):
        (tmp_path / "run" / f"host_{name}_ascend_pt" / f"profiler_info_{number + 4}.json").write_text("{}")
    with open_trace(import_files([tmp_path / "run"], tmp_path / "back.duckdb")) as trace:
        assert trace.sql("SELECT rank FROM process ORDER BY rank").fetchall() == [(4,), (5,)]
        assert trace.sql("SELECT count(*) FROM kernels").fetchall() == [(2 * 191,)]


@needs_shared
@pytest.mark.parametrize(
    "name", ["trace_view.json.gz", "kernel_details.csv", "operator_memory.csv", "memory_record.csv"]
)
def test_each_file_alone(tmp_path: Path, name: str) -> None:
    plain = original(RANKS[0])
    with imported(plain.folder / name, tmp_path) as trace:
        found = kinds(trace)
        if name == "kernel_details.csv":
            assert found == {"kernel": len(plain.table(name))}
            spans = trace.sql("SELECT ts_ns, dur_ns FROM event ORDER BY id").fetchall()
            rows = plain.table(name)
            assert spans == [(ns(row["Start Time(us)"].strip()), ns(row["Duration(us)"])) for row in rows]
        elif name == "memory_record.csv":
            assert found == {}
            values = sum(bool(row[f"Total {what}(MB)"]) for row in plain.table(name)
                         for what in ("Allocated", "Reserved", "Active"))  # fmt: skip
            assert trace.sql("SELECT count(*) FROM counter_value").fetchall() == [(values,)]
        elif name == "operator_memory.csv":
            assert trace.sql("SELECT count(*) FROM allocation").fetchall() == [(len(plain.table(name)),)]


def test_starts_in_the_thousandths_of_microseconds(tmp_path: Path) -> None:
    """float64 holds an epoch in microseconds to a quarter only. The file is in Kineto's shape as well as Ascend's."""
    if not CASES.exists():
        pytest.skip("the shared files are not here")
    with imported(CASES / "epoch_precision.json", tmp_path) as trace:
        starts = trace.sql("SELECT ts_ns, dur_ns FROM kernels ORDER BY ts_ns").fetchall()
    assert starts == [(1774670741777420027 + 20 * n, 20) for n in range(3)]


def layered(*events: dict[str, Any]) -> list[dict[str, Any]]:
    """With the processes of a device 3, for a program with the pid 77."""
    layers = [("Ascend Hardware", 13), ("CANN", 7), ("Communication", 15)]
    head: list[dict[str, Any]] = []
    for name, order in layers:
        pid = 77 << 10 | order << 5 | 3
        head.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
        head.append({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": order}})
    return [*head, *events]


def hardware(name: str, kind: str, ts: str, dur: Any, stream: int = 2, **args: Any) -> dict[str, Any]:
    pid = 77 << 10 | 13 << 5 | 3
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": {"Task Type": kind, **args},
    }


def call(name: str, ts: str, dur: Any, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": 77 << 10 | 7 << 5 | 3, "tid": 78, "ts": ts, "dur": dur, "args": args}


def test_msprof_without_a_framework(tmp_path: Path) -> None:
    events = layered(
        call("AscendCL@aclopExecute", "100.000", 30, connection_id=5),
        call("Runtime@KernelLaunch", "110", 5, connection_id=5),
        call("AscendCL@aclrtSynchronizeDevice", "200.5", 40, connection_id=6),
        hardware("MatMul", "AI_CORE", "120.25", "10.125", connection_id=5),
        hardware("EVENT_WAIT", "EVENT_WAIT_SQE", "131", 3, connection_id=7),
    )  # fmt: skip
    with imported_events(events, tmp_path) as trace:
        found = trace.sql("SELECT kind::VARCHAR, name, ts_ns, dur_ns, correlation FROM event ORDER BY ts_ns").fetchall()
        assert found == [
            ("runtime", "AscendCL@aclopExecute", 100_000, 30_000, None),
            ("launch", "Runtime@KernelLaunch", 110_000, 5_000, 5),
            ("kernel", "MatMul", 120_250, 10_125, 5), ("wait", "EVENT_WAIT", 131_000, 3_000, 7),
            ("sync", "AscendCL@aclrtSynchronizeDevice", 200_500, 40_000, None),
        ]  # fmt: skip
        assert trace.sql("SELECT pid FROM process").fetchall() == [(77,)]
        assert trace.sql('SELECT "index" FROM device').fetchall() == [(3,)]
        assert busy_ns(trace) == 10_125


@pytest.mark.parametrize(
    ("task_type", "name", "kind"),
    [
        ("AI_CORE", "MatMul", "kernel"), ("MIX_AIC", "FlashAttention", "kernel"), ("AI_CPU", "Unique", "kernel"),
        ("KERNEL_AIVEC", "Add", "kernel"), ("AI_CORE", "MemSet", "kernel"), ("DSA_SQE", "Dropout", "kernel"),
        ("AI_VECTOR_CORE", "EventWaitKernel", "kernel"), ("PCIE_DMA_SQE", "MEMCPY_ASYNC", "transfer"),
        ("SDMA_SQE", "MEMCPY_ASYNC", "transfer"), ("RDMASend", "RDMASend", "transfer"),
        ("Notify Wait", "Notify Wait", "wait"),
        ("NOTIFY_WAIT_SQE", "x", "wait"), ("EVENT_RECORD", "EVENT_RECORD", "wait"), ("PLACE_HOLDER_SQE", "x", "wait"),
    ],
)  # fmt: skip
def test_task_types(tmp_path: Path, task_type: str, name: str, kind: str) -> None:
    with imported_events(layered(hardware(name, task_type, "1.5", 2)), tmp_path) as trace:
        assert trace.sql("SELECT kind::VARCHAR FROM event").fetchall() == [(kind,)]


def test_odd_events_cost_themselves_only(tmp_path: Path) -> None:
    events = layered(
        hardware("ok", "AI_CORE", "1.5", 2), hardware("negative", "AI_CORE", "3", -1),
        hardware("soon", "AI_CORE", "soon", 1),
        {"ph": "X", "name": None, "pid": None, "tid": [], "ts": "7", "dur": "x", "args": "no"},
        {"ph": "C", "name": "HBM", "pid": 1, "tid": 0, "ts": "8", "args": {"Read(MB/s)": None, "Write(MB/s)": "x"}},
        hardware("x" * 5_000, "AI_CORE", "9", 1, connection_id=2**70),
        hardware("late", "AI_CORE", "10", 1, stream=2**62),
    )  # fmt: skip
    with imported_events(events, tmp_path) as trace:
        found = dict(trace.sql("SELECT name, dur_ns FROM kernels").fetchall())
        assert found == {"ok": 2_000, "negative": None, "x" * 5_000: 1_000, "late": 1_000}
        assert busy_ns(trace) == 4_000
        assert any("negative duration" in what for what in warnings(trace))
        assert any("without a time" in what or "time" in what for what in warnings(trace))


def test_numbers_beyond_all_bounds(tmp_path: Path) -> None:
    """An integer of thousands of digits is text, and a value that no float holds is a gap."""
    long = "7" * 5_000
    counters = f"""{{"ph": "C", "name": "HBM", "pid": 1, "tid": 0, "ts": "8", "args": {{"a": {"9" * 400}, "b": 2}}}},
        {{"ph": "C", "name": "HBM", "pid": 1, "tid": 0, "ts": "9", "args": {{"b": {long}}}}}"""
    name = f"""{{"ph": "M", "name": "process_name", "pid": 9, "args": {{"name": {long}}}}}"""
    task = json.dumps(hardware("mm", "AI_CORE", "1.5", 2, number=0)).replace(": 0}", f": {long}}}")
    text = f"""[{json.dumps(layered())[1:-1]}, {name}, {task}, {counters}]"""
    with imported_text(text, tmp_path) as trace:
        assert trace.sql("SELECT name, args->>'number' FROM event").fetchall() == [("mm", long)]
        values = trace.sql("SELECT series, value FROM counter_value JOIN counter ON id = counter ORDER BY ts_ns, 1")
        assert values.fetchall() == [("HBM a", None), ("HBM b", 2.0), ("HBM b", None)]


def test_times_that_no_clock_shows(tmp_path: Path) -> None:
    far = 2**63 // 1000
    events = layered(
        call("AscendCL@aclopExecute", str(far), far, connection_id=5), hardware("ok", "AI_CORE", "1.5", 2),
        {**call("Dequeue@acl_memcpy_host_to_device", str(far), far), "cat": "dequeue"},
        hardware("far", "AI_CORE", str(far), far, connection_id=5),
    )  # fmt: skip
    with imported_events(events, tmp_path) as trace:
        assert trace.sql("SELECT name, end_ns FROM events").fetchall() == [("ok", 3_500)]
        assert warnings(trace) == {"events without a time: left out": 3}


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1736408883704643.212\t", 1736408883704643212), (" 0.0005 ", 0), ("1e3", 1_000_000), ("-2.5", -2_500),
        ("2305843009213693.951", 2**61 - 1), ("2305843009213693.952", None), ("1e999999999", None), ("1e-999999999", 0),
        ("nan", None), ("-Infinity", None), ("", None), (None, None), ("1.2.3", None), ("0x10", None),
        ("9" * 5_000, None),
    ],
)  # fmt: skip
def test_decimal_text_becomes_integers_exactly(text: str | None, ns: int | None) -> None:
    assert scaled(text, 1_000) == ns


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x_ascend_pt" / "ASCEND_PROFILER_OUTPUT").mkdir(parents=True)
    with pytest.raises(InputRefused, match="holds neither trace_view"):
        import_files([tmp_path / "x_ascend_pt"], tmp_path / "back.duckdb")


@pytest.mark.parametrize(
    ("data", "score"),
    [
        (b'[{"name": "process_name", "args": {"name": "Ascend Hardware"}}]', 0.97),
        (b'[{"ph": "X", "cat": "enqueue", "ts": "1736408883694756.090"}]', 0.97),
        (b'[{"ph": "X", "cat": "cpu_op", "ts": "1736408883694756.090"}]', 0.9),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": 1736408883694756.090}]}', 0),
        (b'[{"args": {"name": "CANN"}, "pid": 1, "name": "process_name"}]', 0.97),
        (b'[{"ph": "s", "cat": "HostToDevice", "ts": "1"}]', 0.97), (b'[{"name": "CANN", "cat": "cpu_op"}]', 0),
        (b'[{"name": "process_name", "args": {"name": "python"}}, {"name": "CANN"}]', 0),
        (b'[{"cat": "cpu_op", "name": "HostToDevice", "args": {"word": "Ascend Hardware"}}]', 0),
        (b"Name,Type,Start Time(us),Duration(us)\n", 0.9), (b"", 0), (b"\r\r\n\0", 0),
    ],
)  # fmt: skip
def test_it_knows_its_files(data: bytes, score: float) -> None:
    assert ascend.sniff(Head(Path("file"), data)) == score


def test_it_knows_its_folders(tmp_path: Path) -> None:
    assert ascend.sniff(head_of(tmp_path)) == 0
    (tmp_path / "trace_view.json").write_text("[]")
    assert ascend.sniff(head_of(tmp_path)) == 1
