"""What the host waited for, why, and what it cost the device."""

from pathlib import Path

import pytest

from ral_trace.analysis.syncs import longest_syncs, syncs, syncs_said
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.schema import FLAGS
from tests.analysis.cases import Case
from tests.shared import TRACES, needs_shared


def kernel(case: Case, launch: int, start: int, end: int, correlation: int, device: int = 0) -> None:
    case.event("kernel", f"k{correlation}", start, end - start, device=device, correlation=correlation)
    case.event("launch", "aten::mm", launch, 5, device=device, correlation=correlation)


def test_what_it_waited_for_and_the_bubble(tmp_path: Path):
    case = Case()
    case.device()
    kernel(case, 0, 10, 100, 1)
    kernel(case, 6, 100, 180, 2)
    case.event("sync", "cudaDeviceSynchronize", 20, 180)  # until 200
    kernel(case, 230, 250, 260, 3)
    with case.open(tmp_path) as trace:
        (row,) = syncs(trace)
        (one,) = longest_syncs(trace)
    assert (row["device"], row["reason"], row["waited_kind"], row["waited_for"]) == (
        "ral:0",
        "synchronize",
        "kernel",
        "k2",
    )
    # Done at 180, back at 200, working again at 250: 20 + 50.
    assert (row["count"], row["total_ns"], row["pending_ns"], row["idle_ns"]) == (1, 180, 160, 70)
    assert (one["dur_ns"], one["pending_ns"], one["idle_ns"]) == (180, 160, 70)


def test_a_bubble_is_no_longer_than_the_wait_for_work(tmp_path: Path):
    case = Case()
    case.device()
    kernel(case, 0, 10, 30, 1)
    case.event("sync", "cudaStreamSynchronize", 20, 15)  # until 35
    kernel(case, 1000, 1010, 1020, 2)
    case.event("sync", "cudaStreamSynchronize", 2000, 7)
    with case.open(tmp_path) as trace:
        first, second = syncs(trace)
    # 5 of the wait, and 10 after it: by so much would the host have been ahead.
    assert (first["reason"], first["waited_for"], first["idle_ns"]) == ("stream", "k1", 15)
    # Nothing was pending, and nothing came after it.
    assert (second["waited_kind"], second["waited_for"], second["idle_ns"]) == ("nothing", None, 7)


def test_its_own_copy_is_not_what_it_waited_for(tmp_path: Path):
    """aten::item as Kineto records it: a copy and a wait beneath the same op."""
    case = Case()
    case.device(type="cuda")
    kernel(case, 0, 10, 100, 1)
    copied = {"category": "device_to_host", "correlation": 2}
    case.event("transfer", "Memcpy DtoH (Device -> Pageable)", 105, 5, device=0, **copied)
    case.event("launch", "cudaMemcpyAsync", 22, 5, correlation=2)
    case.event("sync", "cudaStreamSynchronize", 30, 90)
    case.event("op", "aten::_local_scalar_dense", 20, 101)
    case.event("op", "aten::item", 19, 103)
    case.event("python", "torch/_tensor.py(10): item", 18, 105)
    case.event("python", "train.py(42): step", 10, 500)
    with case.open(tmp_path) as trace:
        (row,) = syncs(trace)
        said = syncs_said([row])
    assert (row["device"], row["reason"], row["waited_for"], row["line"]) == (
        "cuda:0",
        "item",
        "k1",
        "train.py:42 step",
    )
    assert (row["pending_ns"], row["idle_ns"]) == (70, 20)  # the copy is part of the wait
    assert said == (
        "A hidden wait (item) at train.py:42 step held the host up once: that left cuda:0 without other work for 20 ns."
    )


CHAINS = [
    (["aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"], "branch"),
    (["aten::_local_scalar_dense", "aten::item"], "item"),
    (["aten::nonzero"], "nonzero"),
    (["aten::nonzero", "aten::index.Tensor"], "boolean index"),
    (["aten::nonzero", "aten::masked_select"], "masked_select"),
    (["aten::_unique2"], "shape of data"),
    (["aten::repeat_interleave.Tensor"], "shape of data"),
    (["aten::copy_", "aten::_to_copy", "aten::to.device"], "copy"),
    (["aten::something"], "stream"),
    ([], "stream"),
]


@pytest.mark.parametrize(("ops", "reason"), CHAINS)
def test_the_reason_is_in_the_ops_around_it(tmp_path: Path, ops: list[str], reason: str):
    case = Case()
    case.device()
    case.event("sync", "cudaStreamSynchronize", 100, 10, device=0)
    for number, name in enumerate(ops, 1):
        case.event("op", name, 100 - number, 10 + 2 * number)
    # What calls the op from Python says nothing of it.
    case.event("annotation", "forward", 50, 200)
    case.event("op", "aten::nonzero", 40, 220)
    with case.open(tmp_path) as trace:
        assert [row["reason"] for row in syncs(trace)] == [reason]


def test_copies_are_told_apart_by_direction_and_printing_by_its_caller(tmp_path: Path):
    case = Case()
    case.device()
    for number, (direction, flags) in enumerate(
        [("device_to_host", 0), ("host_to_device", 0), ("device_to_host", FLAGS["FORCED"])]
    ):
        at = number * 1000
        moved = {"category": direction, "correlation": number}
        case.event("transfer", "aten::_to_copy", at + 10, 5, device=0, **moved)
        case.event("sync", "aten::_to_copy", at + 5, 20, device=0, flags=flags)
        case.event("launch", "aten::_to_copy", at, 30, device=0, correlation=number)
    case.event("sync", "cudaStreamSynchronize", 5000, 10, device=0)
    case.event("op", "aten::item", 4990, 30)
    case.event("python", "torch/_tensor_str.py(200): _str", 4900, 300)
    case.event("python", "train.py(7): main", 4800, 500)
    with case.open(tmp_path) as trace:
        found = {row["reason"]: row for row in syncs(trace)}
    assert set(found) == {"copy to host", "copy to device", "unpinned copy", "print"}
    assert found["print"]["line"] == "train.py:7 main"


def test_a_copy_that_blocks_is_a_wait(tmp_path: Path):
    case = Case()
    case.device()
    kernel(case, 0, 10, 60, 1)
    case.event("transfer", "Memcpy DtoH", 60, 10, device=0, correlation=2, category="device_to_host")
    case.event("launch", "hipMemcpyWithStream", 20, 60, device=0, correlation=2)
    case.event("transfer", "Memcpy HtoD", 200, 10, device=0, correlation=3, category="host_to_device")
    case.event("launch", "cudaMemcpyAsync", 190, 5, device=0, correlation=3)
    with case.open(tmp_path) as trace:
        (row,) = syncs(trace)
    assert (row["name"], row["reason"], row["waited_for"]) == ("hipMemcpyWithStream", "copy to host", "k1")
    # 40 until the kernel is done; 20 for the copy; 40 at most of the 120 until 200.
    assert (row["pending_ns"], row["idle_ns"]) == (40, 60)


def test_waits_of_fallbacks_are_told_apart(tmp_path: Path):
    case = Case()
    case.device()
    case.event("sync", "aten::gelu", 110, 20, device=0, flags=FLAGS["FORCED"])
    case.event("fallback", "aten::gelu", 100, 50, device=0, correlation=1)
    case.event("sync", "aten::item", 300, None, device=0)
    with case.open(tmp_path) as trace:
        forced, unknown = syncs(trace)
        assert syncs_said([forced, unknown]) is None
        assert [row["reason"] for row in syncs(trace, device="ral:0", limit=1)] == ["fallback"]
    assert (forced["reason"], forced["total_ns"], forced["idle_ns"]) == ("fallback", 20, 20)
    assert (unknown["count"], unknown["total_ns"], unknown["idle_ns"], unknown["waited_kind"]) == (1, None, None, None)


def test_while_another_device_works_the_host_is_not_to_blame(tmp_path: Path):
    """ral:1 gets work at 130, but waits for ral:0, which works from 125 on."""
    case = Case()
    case.device(index=0)
    case.device(index=1)
    kernel(case, 0, 10, 100, 1, device=1)
    case.event("sync", "aten::item", 20, 90, device=1)  # until 110
    kernel(case, 120, 125, 400, 2, device=0)
    kernel(case, 130, 400, 420, 3, device=1)
    with case.open(tmp_path) as trace:
        (row,) = syncs(trace)
    assert row["idle_ns"] == 10 + (130 - 110)


def test_parents_in_a_circle_do_not_hang(tmp_path: Path):
    case = Case()
    case.device()
    case.event("sync", "aten::item", 0, 10, device=0, parent=1)
    case.event("op", "a", 0, 10, parent=2)
    case.event("op", "b", 0, 10, parent=1)
    with case.open(tmp_path) as trace:
        assert [row["count"] for row in syncs(trace)] == [1]


def test_a_trace_without_device_work(tmp_path: Path):
    case = Case()
    case.event("sync", "cudaDeviceSynchronize", 0, 10)
    with case.open(tmp_path) as trace:
        (row,) = syncs(trace)
    assert (row["device"], row["waited_kind"], row["idle_ns"]) == (None, None, None)


@pytest.fixture(scope="module")
def h100() -> Trace:
    with open_trace(TRACES / "kineto_h100_bert.json.gz") as trace:
        yield trace


@needs_shared
def test_of_torch_profiler(h100: Trace):
    found = {row["reason"]: row for row in syncs(h100)}
    assert set(found) == {"branch", "synchronize"}
    branch = found["branch"]
    assert (branch["count"], branch["total_ns"], branch["waited_kind"]) == (1, 7640, "its own copy")
    assert branch["line"] == "transformers/modeling_attn_mask_utils.py:429 _prepare_4d_attention_mask_for_sdpa"
    assert (found["synchronize"]["count"], found["synchronize"]["total_ns"]) == (2, 11910)
