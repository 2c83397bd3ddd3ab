"""Memory goes from stream to stream only when it may: what is computed in reused memory stays right."""

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_results_in_reused_memory(device: str, seed: int) -> None:
    """Random work on four streams whose inputs go at once; each result is known from its number alone."""
    chance = random.Random(seed)
    streams = [torch.Stream(device=device) for _ in range(4)]
    kept: list[tuple[int, int, Any, Any]] = []
    for number in range(150):
        size = chance.choice([10, 5_000, 100_000])
        first, second = chance.sample(streams, 2)
        with first:
            made = torch.full((size,), float(number), device=device)
            doubled = made * 2
            del made
        second.wait_stream(first)
        with second:
            result = doubled + 1
        doubled.record_stream(second)
        del doubled
        kept.append((number, size, second, result))
        if len(kept) > 20:
            number, size, stream, result = kept.pop(chance.randrange(len(kept)))
            stream.synchronize()
            assert torch.equal(result.cpu(), torch.full((size,), 2.0 * number + 1))
    torch.accelerator.synchronize(torch.device(device))
    for number, size, _, result in kept:
        assert torch.equal(result.cpu(), torch.full((size,), 2.0 * number + 1))


def test_all_is_given_back_after_the_work(device: str) -> None:
    stream = torch.Stream(device=device)
    tensor = torch.ones(1 << 20, device=device)
    with stream:
        stream.wait_stream(torch.accelerator.current_stream())
        result = tensor * 3
    tensor.record_stream(stream)
    del tensor, result
    torch.accelerator.empty_cache()
    stats = torch.ral.memory_stats(device)
    assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"]
    assert stats["active.all.current"] == stats["allocation.all.current"]
