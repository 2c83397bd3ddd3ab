"""ONNX Runtime profiles: nodes are operators, kernels of a GPU provider device rows beneath them."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import onnxruntime
from ral_trace.tracer.importers.opening import Head
from tests.importers.reading_back import busy_ns, imported_text, warnings

SHAPES = '"input_type_shape" : [{"float":[4,8]}],"output_type_shape" : [{"float":[4,4]}]'
THREADS = (
    '"thread_scheduling_stats" : {"main_thread": {"thread_pool_name": "session-1-intra-op",'
    ' "thread_id": "139647650859904",'
    ' "block_size": [], "core": -1, "Run": 0}, "sub_threads": {"139647388337856": {"num_run": 0, "core": -1}}}'
)  # fmt: skip


def line(category: str, name: str, ts: int, dur: int, args: str = "", *, pid: int = 16126, tid: int = 16127) -> str:
    """An event as ONNX Runtime 1.2x prints it."""
    return (
        f'{{"cat" : "{category}","pid" :{pid},"tid" :{tid},"dur" :{dur},"ts" :{ts},"ph" : "X","name" :"{name}",'
        f'"args" : {{{args}}}}}'
    )


def node(name: str, op: str, ts: int, dur: int, provider: str) -> str:
    args = f'"op_name" : "{op}","provider" : "{provider}","node_index" : "0",{SHAPES},{THREADS}'
    return line("Node", name, ts, dur, args)


def kernel(name: str, ts: int, dur: int, parent: str | None = None) -> str:
    args = '"stream" : "7","grid_x" : "32"' + (f',"parent_name" : "{parent}"' if parent else "")
    return line("Kernel", name, ts, dur, args, pid=-1, tid=-1)


def profile(*lines: str) -> str:
    return "[\n" + ",\n".join(lines) + "\n]\n"


CPU = profile(
    line("Session", "model_loading_array", 9, 18402),
    line("Session", "session_initialization", 18535, 9414),
    node("mm_kernel_time", "MatMul", 28209, 16307, "CPUExecutionProvider"),
    node("relu_kernel_time", "Relu", 44531, 25, "CPUExecutionProvider"),
    line("Session", "SequentialExecutor::Execute", 28207, 16357),
    line("Session", "model_run", 28179, 16396),
)
GPU = profile(
    line("Session", "session_initialization", 10, 90),
    node("mm_fence_before", "MatMul", 100, 1, "CUDAExecutionProvider"),
    node("mm_kernel_time", "MatMul", 101, 20, "CUDAExecutionProvider"),
    kernel("MemcpyHostToDevice", 105, 5, "mm_kernel_time"),
    kernel("sgemm_32x32", 110, 30),
    node("add_kernel_time", "Add", 122, 8, "CUDAExecutionProvider"),
    kernel("ort_add_cuda_kernel<float>", 130, 33),
    line("Session", "model_run", 99, 40),
)


def test_nodes_are_operators_inside_their_run(tmp_path: Path) -> None:
    with imported_text(CPU, tmp_path) as trace:
        found = trace.sql("""
            SELECT e.kind, e.name, e.ts_ns, e.dur_ns, up.name FROM event e LEFT JOIN event up ON up.id = e.parent
            ORDER BY e.ts_ns""").fetchall()
        assert found == [
            ("annotation", "model_loading_array", 9_000, 18_402_000, None),
            ("annotation", "session_initialization", 18_535_000, 9_414_000, None),
            ("annotation", "model_run", 28_179_000, 16_396_000, None),
            ("annotation", "SequentialExecutor::Execute", 28_207_000, 16_357_000, "model_run"),
            ("op", "mm_kernel_time", 28_209_000, 16_307_000, "SequentialExecutor::Execute"),
            ("op", "relu_kernel_time", 44_531_000, 25_000, "SequentialExecutor::Execute"),
        ]
        assert trace.sql("SELECT format, clock_zero FROM source").fetchall() == [("ONNX Runtime", "file")]
        assert trace.sql("SELECT pid FROM process").fetchall() == [(16126,)]
        assert trace.sql("SELECT tid FROM thread").fetchall() == [(16127,)]
        known = "SELECT args->>'op_name', args->>'provider' FROM event WHERE kind = 'op' ORDER BY ts_ns"
        assert trace.sql(known).fetchall() == [("MatMul", "CPUExecutionProvider"), ("Relu", "CPUExecutionProvider")]
        [(args,)] = trace.sql("SELECT args::VARCHAR FROM event WHERE name = 'mm_kernel_time'").fetchall()
        assert json.loads(args)["thread_scheduling_stats"]["main_thread"]["thread_id"] == "139647650859904"
        assert trace.sql("SELECT count(*) FROM device").fetchall() == [(0,)]


def test_kernels_are_on_the_providers_device_beneath_their_nodes(tmp_path: Path) -> None:
    with imported_text(GPU, tmp_path) as trace:
        found = trace.sql("""
            SELECT e.kind, e.category, e.name, e.ts_ns, e.dur_ns, e.thread, s.number, d.type, up.name
            FROM event e JOIN device d ON d.id = e.device JOIN stream s ON s.id = e.stream
            LEFT JOIN event up ON up.id = e.parent ORDER BY e.ts_ns""").fetchall()
        assert found == [
            ("transfer", "host_to_device", "MemcpyHostToDevice", 105_000, 5_000, None, 7, "cuda", "mm_kernel_time"),
            ("kernel", None, "sgemm_32x32", 110_000, 30_000, None, 7, "cuda", "mm_kernel_time"),
            ("kernel", None, "ort_add_cuda_kernel<float>", 130_000, 33_000, None, 7, "cuda", "add_kernel_time"),
        ]
        assert busy_ns(trace) == 58_000
        assert trace.sql("SELECT count(*) FROM event WHERE kind = 'op'").fetchall() == [(3,)]
        assert trace.sql("SELECT count(*) FROM process").fetchall() == [(1,)]


def test_a_cut_off_profile_keeps_what_was_whole(tmp_path: Path) -> None:
    with imported_text(CPU[: CPU.index("relu_kernel_time") + 30], tmp_path) as trace:
        assert trace.sql("SELECT name FROM event WHERE kind = 'op'").fetchall() == [("mm_kernel_time",)]
        assert any("cut off" in what for what in warnings(trace))


@pytest.mark.parametrize(
    ("data", "score"),
    [(CPU, 0.95), (GPU, 0.95), ('[{"cat":"Session","name":"x"}]', 0.0), ('{"traceEvents":[]}', 0.0), ("", 0.0)],
)
def test_it_knows_its_files(data: str, score: float) -> None:
    assert onnxruntime.sniff(Head(Path("file"), data.encode())) == score


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_said_in_words(tmp_path: Path, seed: int) -> None:
    check_mutated(tmp_path, seed)


@pytest.mark.soak
def test_much_damage_is_said_in_words(tmp_path: Path) -> None:
    for seed in range(1_000, 6_000):
        check_mutated(tmp_path, seed)


def check_mutated(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray((GPU if seed % 2 else CPU).encode())
    for _ in range(chance.choice([1, 2, 6])):
        at = chance.randrange(len(data))
        match chance.randrange(3):
            case 0:
                data[at : at + 1] = chance.choice([b"", b'"', b"}", b"]", b"-", b"1e400", b"null", b"\xff", b"\\"])
            case 1:
                del data[at : at + chance.choice([1, 5, 60])]
            case _:
                data[at] ^= 1 << chance.randrange(8)
    try:
        with imported_text(bytes(data), folder) as trace:
            found: list[tuple[Any, ...]] = trace.sql("SELECT count(*), count(args::VARCHAR) FROM event").fetchall()
            assert found[0][0] <= 9
    except InputRefused as refused:
        assert "\n" not in str(refused)  # noqa: PT017
