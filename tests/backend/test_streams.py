"""Streams and events: launches return at once, work overlaps, order holds where the program asks for it."""

import inspect
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator

import pytest
import torch

MS = 1_000_000
LATE = 60 * MS
"""ns; what a late copy or kernel takes more: far above what a busy machine delays a thread by."""


@pytest.fixture(autouse=True)
def models() -> Iterator[None]:
    """What a test makes slow is as before afterwards."""
    before = [torch.ral.device_model(index) for index in (0, 1)]
    yield
    for index in (0, 1):
        torch.ral.synchronize(index)
        torch.ral.set_device_model(index, **before[index])


def test_names_of_torch(device: str) -> None:
    stream = torch.Stream(device=device)
    assert isinstance(stream, torch.ral.Stream)
    assert stream.device == torch.device(device)
    before = torch.ral.current_stream(device)
    with torch.ral.stream(stream):
        assert torch.ral.current_stream(device) == stream
        assert torch.accelerator.current_stream(device) == stream
    assert torch.ral.current_stream(device) == before
    assert stream != before


def test_a_launch_returns_before_its_kernel_ran(device: str) -> None:
    x = torch.ones(8, device=device)
    y = x + 1  # the first call that looks like this waits, to learn what comes out
    torch.ral.set_device_model(device, launch_ns=LATE)
    event = torch.Event(device)
    y = x + 1
    event.record(torch.ral.current_stream(device))
    assert not event.query()
    assert not torch.ral.current_stream(device).query()
    event.synchronize()
    assert event.query()
    assert y.tolist() == [2.0] * 8


def test_elapsed_time_is_that_of_the_device(device: str) -> None:
    x = torch.ones(8, device=device)
    x + 1
    torch.ral.set_device_model(device, launch_ns=LATE)
    begin, end = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
    stream = torch.ral.current_stream(device)
    begin.record(stream)
    for _ in range(3):
        x + 1
    end.record(stream)
    with pytest.raises(RuntimeError, match="must be completed"):
        begin.elapsed_time(end)
    end.synchronize()
    assert begin.elapsed_time(end) >= 3 * LATE / MS


def test_without_wait_event_a_late_copy_is_missed_and_with_it_never() -> None:
    side = torch.Stream(device="ral:1")
    pinned = torch.full((1024,), 7.0).pin_memory()
    target = torch.zeros(1024, device="ral:1")
    torch.ral.synchronize("ral:1")
    target + 0  # learnt
    for waits in (False, True) * 3:
        target.zero_()
        torch.ral.synchronize("ral:1")
        torch.ral.set_device_model("ral:1", copy_latency_ns=LATE)
        with torch.ral.stream(side):
            target.copy_(pinned, non_blocking=True)
            event = side.record_event()
        if waits:
            torch.ral.current_stream("ral:1").wait_event(event)
        seen = target + 0
        torch.ral.synchronize("ral:1")
        torch.ral.set_device_model("ral:1", copy_latency_ns=0)
        assert seen.cpu().unique().tolist() == [7.0 if waits else 0.0]


def test_copies_run_during_compute() -> None:
    """A kernel and a copy that take a while each, on two streams: together not longer than the longer one and a bit."""
    side = torch.Stream(device="ral:1")
    pinned = torch.ones(1024).pin_memory()
    target = torch.zeros(1024, device="ral:1")
    x = torch.ones(8, device="ral:1")
    x + 1
    torch.ral.synchronize("ral:1")
    torch.ral.set_device_model("ral:1", copy_latency_ns=LATE, launch_ns=LATE)
    begin, kernel, copied = (torch.Event("ral:1", enable_timing=True) for _ in range(3))
    begin.record(torch.ral.current_stream("ral:1"))
    x + 1
    kernel.record(torch.ral.current_stream("ral:1"))
    with torch.ral.stream(side):
        target.copy_(pinned, non_blocking=True)
    copied.record(side)
    assert not copied.query()
    assert not kernel.query()
    torch.ral.synchronize("ral:1")
    assert begin.elapsed_time(kernel) < 2 * LATE / MS
    assert begin.elapsed_time(copied) < 2 * LATE / MS


def test_pinned_memory_is_read_when_the_copy_runs_and_other_memory_at_once(device: str) -> None:
    torch.ral.set_device_model(device, copy_latency_ns=LATE)
    plain = torch.ones(1024)
    there = plain.to(device, non_blocking=True)
    plain.zero_()
    assert there.cpu().unique().tolist() == [1.0]
    target = torch.zeros(4, device=device)
    pinned = torch.ones(1 << 20).pin_memory()
    big = torch.empty(1 << 20, device=device)
    begin = time.perf_counter()
    target.copy_(torch.ones(4).pin_memory(), non_blocking=True)
    big.copy_(pinned, non_blocking=True)
    assert (time.perf_counter() - begin) * 1000 < LATE / MS
    del pinned  # the copy keeps it
    assert big.sum().item() == 1 << 20


def test_copies_between_devices_wait_for_both() -> None:
    source = torch.ones(256, device="ral:0")
    target = torch.zeros(256, device="ral:1")
    for value in range(3, 6):
        torch.ral.set_device_model(0, launch_ns=LATE // 4)
        source.fill_(value)  # late
        target.copy_(source)
        source.fill_(-1)  # must not be what was copied
        seen = target + 0
        assert seen.cpu().unique().tolist() == [float(value)]


def test_an_error_in_a_kernel_surfaces_at_the_next_wait(device: str) -> None:
    table = torch.randn(4, 8, device=device)
    good = torch.tensor([0, 3]).to(device)
    assert torch.nn.functional.embedding(good, table).shape == (2, 8)
    bad = torch.tensor([0, 7]).to(device)
    torch.nn.functional.embedding(bad, table)  # nobody waits for it
    with pytest.raises(
        (RuntimeError, IndexError), match=rf"(?s)aten::(embedding|index_select).* on {device}, stream 0: "
    ):
        torch.ral.synchronize(device)
    torch.ral.synchronize(device)  # said once
    assert (table + 1).shape == (4, 8)


def test_the_error_names_the_line_that_launched_it(device: str) -> None:
    table = torch.randn(4, 8, device=device)
    torch.nn.functional.embedding(torch.tensor([0, 3]).to(device), table)
    bad = torch.tensor([0, 7]).to(device)
    torch.ral.record_launch_sites()
    torch.nn.functional.embedding(bad, table)
    line = inspect.currentframe().f_lineno - 1
    torch.ral.record_launch_sites(False)
    with pytest.raises((RuntimeError, IndexError)) as raised:
        torch.ral.synchronize(device)
    assert f"(launched at {__file__}:{line} in test_the_error_names_the_line_that_launched_it)" in str(raised.value)


def test_wrong_arguments_are_still_refused_at_the_launch(device: str) -> None:
    with pytest.raises(RuntimeError, match=r"must match|size"):
        torch.ones(3, device=device) + torch.ones(4, device=device)
    torch.ral.synchronize(device)


def test_random_numbers_come_in_the_order_of_the_program(device: str) -> None:
    def draw() -> list[float]:
        torch.ral.manual_seed_all(5)
        first = torch.rand(4, device=device)
        state = torch.ral.get_rng_state(device)
        second = torch.rand(4, device=device)
        torch.ral.set_rng_state(state, device)
        third = torch.rand(4, device=device)
        assert second.tolist() == third.tolist()
        return first.tolist() + second.tolist()

    draw()
    torch.ral.set_device_model(device, launch_ns=LATE // 10)
    assert draw() == draw()


def test_a_number_is_taken_when_the_call_is_made(device: str) -> None:
    x = torch.ones(4, device=device)
    scale = torch.tensor(2.0)
    x * scale
    torch.ral.set_device_model(device, launch_ns=LATE)
    y = x * scale
    scale.fill_(100.0)
    assert y.tolist() == [2.0] * 4


def test_several_threads_launch(device: str) -> None:
    wrong = []

    def work(number: int) -> None:
        x = torch.full((64,), float(number), device=device)
        for _ in range(100):
            x = x + 1
        if x.cpu().unique().tolist() != [number + 100.0]:
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_python_runs_on_threads_of_the_program_only(device: str) -> None:
    """What a late copy keeps alive may have a `__del__`; it must not run on the device's threads."""
    threads = []

    class Noisy(torch.Tensor):
        def __del__(self) -> None:
            threads.append(threading.current_thread().name)

    torch.ral.set_device_model(device, copy_latency_ns=LATE // 4)
    target = torch.empty(4, device=device)
    source = torch.ones(4).pin_memory().as_subclass(Noisy)
    target.copy_(source, non_blocking=True)
    del source
    torch.ral.synchronize(device)
    assert set(threads) <= {threading.main_thread().name}


def run(program: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    prelude = "import torch, ral_trace.backend as backend\nbackend.enable('host:1,sim:1')\n"
    command = [sys.executable, "-c", prelude + textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "1 / 0", "import os; os._exit(4)"])
def test_a_program_ends_with_work_still_queued(ending: str) -> None:
    """An hour of it, so that waiting for it would be seen."""
    done = run(f"""
        x = torch.ones(4, device="ral:1")
        x + 1
        torch.ral.set_device_model("ral:1", launch_ns=3600 * 10**9, copy_latency_ns=3600 * 10**9)
        for _ in range(20):
            y = x + 1
        z = torch.ones(4).pin_memory().to("ral:1", non_blocking=True)
        {ending}
    """)
    expected = {"": 0, "raise SystemExit(3)": 3, "1 / 0": 1, "import os; os._exit(4)": 4}[ending]
    assert done.returncode == expected, done.stderr
    assert ("ZeroDivisionError" in done.stderr) == (ending == "1 / 0")


def test_a_forked_child_is_told_and_ends() -> None:
    done = run("""
        import os
        x = torch.ones(4, device="ral:0") + 1
        child = os.fork()
        if child == 0:
            try:
                torch.ones(4, device="ral:0")
            except RuntimeError as error:
                os._exit(7 if "forked" in str(error) else 8)
            os._exit(9)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert x.tolist() == [2.0] * 4
    """)
    assert done.returncode == 0, done.stderr
