"""torch.ral and torch.accelerator: devices, streams, random numbers, memory."""

import gc

import pytest
import torch

MIB = 1 << 20


def test_devices() -> None:
    assert torch.ral.is_available()
    assert torch.ral.device_count() == 2
    assert torch.accelerator.current_accelerator() == torch.device("ral")
    assert torch.accelerator.device_count() == 2
    assert torch.get_device_module("ral") is torch.ral
    assert torch.ral.get_device_properties(1)["vendor"] == "sim"
    assert "accelerator" in torch.ral.get_device_name("ral:1")


def test_current_device() -> None:
    assert torch.ral.current_device() == 0
    with torch.ral.device("ral:1"):
        assert torch.ral.current_device() == 1
        assert torch.empty(1, device="ral").device == torch.device("ral:1")
        with torch.ral.device(0):
            assert torch.ral.current_device() == 0
        assert torch.ral.current_device() == 1
    assert torch.ral.current_device() == 0
    with torch.ral.device_of(torch.ones(1, device="ral:1")):
        assert torch.accelerator.current_device_index() == 1
    with torch.ral.device(None):
        assert torch.ral.current_device() == 0
    torch.accelerator.set_device_index(1)
    assert torch.ral.current_device() == 1
    torch.ral.set_device(0)


@pytest.mark.parametrize("make", [lambda: torch.empty(1, device="ral:5"), lambda: torch.ral.set_device(2)])
def test_a_device_that_is_not_there(make) -> None:
    with pytest.raises(RuntimeError, match=r"no ral:\d: 2 ral device"):
        make()


def test_another_devices_module(device: str) -> None:
    with pytest.raises(ValueError, match="expected a ral device"):
        torch.ral.synchronize("cpu")
    torch.ral.synchronize(device)
    torch.accelerator.synchronize(device)


def test_streams_and_events(device: str) -> None:
    stream = torch.Stream(device=device)
    assert stream != torch.ral.current_stream(device)
    with torch.ral.stream(stream):
        assert torch.ral.current_stream(device) == stream
        tensor = torch.ones(4, device=device) + 1
    assert torch.ral.current_stream(device).stream_id == 0
    tensor.record_stream(stream)
    begin, end = torch.Event(device=device, enable_timing=True), torch.Event(device=device, enable_timing=True)
    begin.record(stream)
    tensor.mul_(2)
    end.record(stream)
    end.synchronize()
    assert end.query()
    assert begin.elapsed_time(end) > 0
    stream.wait_event(end)
    stream.synchronize()
    assert stream.query()


def test_a_stream_is_idle_after_an_error() -> None:
    with pytest.raises(RuntimeError):
        torch.linalg.cholesky(-torch.eye(3, device="ral:0"))
    assert torch.ral.current_stream("ral:0").query()
    with pytest.raises((RuntimeError, IndexError)):
        torch.ones(3, device="ral:0")[torch.tensor([7], device="ral:0")]
    assert torch.ral.current_stream("ral:0").query()


def test_random_numbers_belong_to_the_device(device: str) -> None:
    torch.manual_seed(3)
    first = torch.rand(5, device=device)
    torch.rand(5)  # the CPU's own numbers
    second = torch.rand(5, device=device)
    torch.manual_seed(3)
    both = torch.rand(5, device=device), torch.rand(5, device=device)
    assert torch.equal(first.cpu(), both[0].cpu())
    assert torch.equal(second.cpu(), both[1].cpu())
    state = torch.ral.get_rng_state(device)
    expected = torch.randn(5, device=device).cpu()
    torch.ral.set_rng_state(state, device)
    assert torch.equal(torch.randn(5, device=device).cpu(), expected)
    generator = torch.Generator(device=device).manual_seed(9)
    again = torch.Generator(device=device).manual_seed(9)
    assert torch.equal(
        torch.randperm(9, device=device, generator=generator).cpu(),
        torch.randperm(9, device=device, generator=again).cpu(),
    )


def test_fork_rng(device: str) -> None:
    torch.manual_seed(1)
    with torch.random.fork_rng(devices=range(2), device_type="ral"):
        inside = torch.rand(3, device=device)
    assert torch.equal(torch.rand(3, device=device).cpu(), inside.cpu())


def test_pinned_memory(device: str) -> None:
    pinned = torch.arange(6.0).pin_memory()
    assert pinned.is_pinned()
    assert pinned[2:].is_pinned()
    assert not torch.arange(6.0).is_pinned()
    assert torch.equal(pinned.to(device, non_blocking=True).cpu(), pinned)


def test_memory_statistics(device: str) -> None:
    gc.collect()
    before = torch.ral.memory_allocated(device)
    tensor = torch.empty(MIB, dtype=torch.uint8, device=device)
    assert torch.ral.memory_allocated(device) == before + MIB
    assert torch.accelerator.memory_allocated(device) == before + MIB
    small = torch.empty(1, device=device)
    assert torch.ral.memory_allocated(device) == before + MIB + 128
    assert small.data_ptr() % 128 == 0
    torch.accelerator.reset_peak_memory_stats(device)
    del tensor
    assert torch.ral.memory_allocated(device) == before + 128
    assert torch.accelerator.max_memory_allocated(device) == before + MIB + 128
    stats = torch.ral.memory_stats(device)
    assert stats["allocated_bytes.all.current"] == before + 128
    assert stats["requested_bytes.all.current"] <= stats["allocated_bytes.all.current"]
    assert torch.ral.memory_reserved(device) == stats["reserved_bytes.all.current"] >= before + 128
    free, total = torch.ral.mem_get_info(device)
    assert free == total - torch.ral.memory_reserved(device)


def test_empty_cache_gives_regions_back() -> None:
    tensor = torch.empty(200 * MIB, dtype=torch.uint8, device="ral:1")
    reserved = torch.ral.memory_reserved(1)
    del tensor
    assert torch.ral.memory_reserved(1) == reserved
    torch.accelerator.empty_cache()
    assert torch.ral.memory_reserved(1) <= reserved - 200 * MIB


def test_memory_fraction() -> None:
    torch.ral.empty_cache()
    torch.ral.set_per_process_memory_fraction(0.1, "ral:1")
    try:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 29, dtype=torch.uint8, device="ral:1")
    finally:
        torch.ral.set_per_process_memory_fraction(1.0, "ral:1")
    with pytest.raises(ValueError, match="from 0 to 1"):
        torch.ral.set_per_process_memory_fraction(1.5)


def test_autocast(device: str) -> None:
    layer = torch.nn.Linear(4, 4).to(device)
    with torch.autocast("ral", dtype=torch.bfloat16):
        out = layer(torch.randn(2, 4, device=device))
        assert out.dtype == torch.bfloat16
        assert torch.softmax(out, -1).dtype == torch.float32
    out.sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    assert torch.bfloat16 in torch.ral.get_amp_supported_dtype()


def test_default_device() -> None:
    with torch.device("ral:1"):
        assert torch.ones(2).device == torch.device("ral:1")
