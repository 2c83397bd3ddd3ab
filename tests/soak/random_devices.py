"""What all threads of a random program share: the devices, what they may fail with, and what must add up at the end."""

import gc
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

INJECTED = re.compile(r"out of (range|bounds)")


@dataclass
class Held:
    """Storage on a device, views of it with their shadows, and who used it last."""

    home: torch.Stream
    views: list[tuple[Tensor, Tensor]]
    written: torch.Event
    reads: dict[torch.Stream, torch.Event] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return self.home.device


class Devices:
    """What all threads share."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.models = [torch.ral.device_model(index) for index in range(count)]
        self.lock = threading.Lock()
        self.offered: list[Held] = []
        self.injected = self.surfaced = 0

    def retry(self, action: Callable[[], Any]) -> Any:
        """Repeats what failed for the sake of an earlier kernel's error; that error was meant."""
        while True:
            try:
                return action()
            except (RuntimeError, IndexError) as error:
                if isinstance(error, torch.OutOfMemoryError) or not INJECTED.search(str(error)):
                    raise
                with self.lock:
                    others = re.search(r"\((\d+) later failures", str(error))
                    self.surfaced += 1 + (int(others[1]) if others else 0)
                    if self.surfaced > self.injected:
                        raise

    def fail(self, action: Callable[[], Any]) -> None:
        """Launches what must fail, now or at some later wait."""
        with self.lock:
            self.injected += 1
        once = iter([action])
        self.retry(lambda: [one() for one in once])


def balance(count: int) -> list[int]:
    """Bytes in use on each device, after all is done. Raises where the books of a device do not add up."""
    from ral_trace.backend import _adapter

    gc.collect()
    for index in range(count):
        torch.ral.synchronize(index)
    torch.ral.empty_cache()
    used = []
    for index in range(count):
        stats = torch.ral.memory_stats(index)
        assert _adapter.check_memory(index) == "", (index, _adapter.check_memory(index))
        assert stats["active_bytes.all.current"] == stats["allocated_bytes.all.current"], "something is still pending"
        assert torch.ral.current_stream(index).query(), "a stream has work after it was waited for"
        used.append(int(stats["allocated_bytes.all.current"]))
    return used
