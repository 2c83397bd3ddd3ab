"""Handing tensors to another process: torch shares the memory of the CPU only, and here it says so in words."""

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.multiprocessing import reductions

from ral_trace.backend.errors import NotShared


def install() -> None:
    """From now on a `ral` tensor that is put into a queue or handed to a child raises NotShared. torch's ways else."""
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _reduce)


def _reduce(tensor: torch.Tensor) -> Any:
    if tensor.device.type == "ral":
        raise NotShared(
            f"a tensor on {tensor.device} cannot be shared with another process, whose memory it is not in:"
            " send tensor.cpu() and move it to the device there"
        )
    return reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]
