"""Calls that look alike and are not, memory that is not there, kernels that are Python: what a plan must not mix up."""

import subprocess
import sys
import textwrap

import pytest
import torch


def run(program: str, seconds: float = 90) -> subprocess.CompletedProcess[str]:
    prelude = "import torch, ral_trace.backend as backend\nbackend.enable('host:1,sim:1')\n"
    command = [sys.executable, "-c", prelude + textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


def test_the_default_dtype_is_part_of_what_a_call_looks_like(device: str) -> None:
    whole = torch.tensor([1, 2, 3])
    there = whole.to(device)
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            for _ in range(2):
                assert torch.equal((there / there).cpu(), whole / whole)
                assert (there / there).dtype == dtype
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("operator", [torch._foreach_add, torch._foreach_mul, torch._foreach_clamp_min])
def test_numbers_in_lists_count_with_their_type(device: str, operator: object) -> None:
    whole = [torch.tensor([1, 2]), torch.tensor([3, 4])]
    for numbers in ([1, 2], [1.5, 2.5], [1, 2], [1.5, 2]):
        expected = operator(whole, numbers)  # type: ignore[operator]
        for _ in range(2):
            found = operator([each.to(device) for each in whole], numbers)  # type: ignore[operator]
            assert [each.dtype for each in found] == [each.dtype for each in expected]
            assert all(torch.equal(a.cpu(), b) for a, b in zip(found, expected, strict=True))


def test_many_views_of_one_tensor_joined_into_it_are_refused_as_on_the_cpu(device: str) -> None:
    base = torch.arange(20.0)
    for where in ("cpu", device):
        there = base.to(where)
        views = [there[i : i + 1] for i in reversed(range(20))]
        with pytest.raises(RuntimeError, match=r"memory location|overlap"):
            torch.cat(views, out=there)


def test_a_tensor_that_reaches_beyond_its_storage_is_never_touched(device: str) -> None:
    x = torch.zeros(64, device=device)
    x.untyped_storage().resize_(64)
    beside = torch.zeros(64, device=device)
    for touch in (lambda: x + 1, lambda: x.copy_(torch.full((64,), 9.0)), x.cpu, lambda: beside.copy_(x)):
        with pytest.raises(RuntimeError, match=r"RAL_ERROR_OUT_OF_BOUNDS: .* 192 bytes beyond its storage of 64 bytes"):
            touch()
    assert beside.sum().item() == 0


def test_a_stream_that_does_not_exist_is_named() -> None:
    here = torch.ral.current_stream("ral:0")
    stranger = torch.Stream(stream_id=29, device_index=0, device_type=here.device_type)
    with pytest.raises(RuntimeError, match="there is no stream 29 on ral:0"):
        torch.ral.set_stream(stranger)
    assert torch.ral.current_stream("ral:0") == here


def test_a_stream_that_waits_for_an_event_is_busy() -> None:
    side, other = torch.Stream(device="ral:1"), torch.Stream(device="ral:1")
    x = torch.ones(4, device="ral:1")
    x + 1
    torch.ral.synchronize("ral:1")
    torch.ral.set_device_model("ral:1", launch_ns=200_000_000)
    with torch.ral.stream(side):
        x + 1
        event = side.record_event()
    torch.ral.set_device_model("ral:1", launch_ns=0)
    other.wait_event(event)
    assert not other.query()
    other.synchronize()
    assert event.query()
    assert other.query()


def test_priorities_are_what_was_asked_for_as_long_as_there_are_streams() -> None:
    done = run("""
        urgent = [torch.Stream(device="ral:0", priority=-1) for _ in range(20)]
        calm = [torch.Stream(device="ral:0") for _ in range(20)]
        assert {s.stream_id for s in urgent}.isdisjoint(s.stream_id for s in calm)
        assert len({s.stream_id for s in urgent + calm}) == 30
    """)
    assert done.returncode == 0, done.stderr


def test_another_librarys_python_kernel_runs_on_the_programs_thread() -> None:
    """On a device's thread it would wait for the GIL, which a waiting program may hold."""
    done = run("""
        import threading
        seen = []
        @torch.library.custom_op("shop::twice", mutates_args=())
        def twice(x: torch.Tensor) -> torch.Tensor:
            seen.append(threading.current_thread() is threading.main_thread())
            return x * 2
        for device in ("ral:0", "ral:1"):
            x = torch.ones(4, device=device)
            for _ in range(3):
                y = torch.ops.shop.twice(x)
            x.untyped_storage().resize_(64)
            assert y.tolist() == [2.0] * 4
        assert seen and all(seen), seen
    """)
    assert done.returncode == 0, done.stderr


def test_an_operator_that_is_defined_anew_is_looked_at_anew() -> None:
    done = run("""
        for arguments, count in (("Tensor x", 1), ("Tensor x, Tensor y, Tensor z", 3), ("Tensor x, int n", 1)):
            library = torch.library.Library("shop", "DEF")
            library.define(f"f({arguments}) -> Tensor")
            library.impl("f", lambda x, *rest: x + len(rest), "CPU")
            x = torch.ones(2, device="ral:0")
            rest = [7] if "int" in arguments else [x] * (count - 1)
            for _ in range(2):
                assert torch.ops.shop.f(x, *rest).tolist() == [1.0 + len(rest)] * 2
            library._destroy()
    """)
    assert done.returncode == 0, done.stderr


def test_a_failure_that_nobody_waited_for_is_said_at_the_end() -> None:
    done = run("""
        table = torch.ones(4, 8, device="ral:0")
        torch.nn.functional.embedding(torch.tensor([0]).to("ral:0"), table)
        torch.nn.functional.embedding(torch.tensor([9]).to("ral:0"), table)
        import time; time.sleep(0.5)
    """)
    assert done.returncode == 0
    assert "ral: nobody waited to hear that aten::" in done.stderr


def test_a_failure_reaches_who_reads_its_result_from_another_device() -> None:
    table = torch.ones(4, 8, device="ral:1")
    torch.nn.functional.embedding(torch.tensor([0]).to("ral:1"), table)
    bad = torch.nn.functional.embedding(torch.tensor([9]).to("ral:1"), table)
    with pytest.raises((RuntimeError, IndexError), match="ral:1, stream 0"):
        bad.to("ral:0").cpu()
