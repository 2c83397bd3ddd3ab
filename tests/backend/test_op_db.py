"""A sample of PyTorch's own operator database; `python -m tests.op_db` runs all of it."""

import dataclasses

import pytest
import torch

pytest.importorskip("expecttest")  # of torch's own tests, and torch does not bring it

from torch.testing._internal.common_methods_invocations import op_db

from tests.op_db.compare import differences, name_of
from tests.op_db.known import reason_of

EVERY = 12
"""One operator of so many; the operators that were wrong once are all here."""
ONCE_WRONG = {
    "sum",
    "nn.functional.cross_entropy",
    "nn.functional.conv3d",
    "ldexp",
    "logical_and",
    "sgn",
    "mode",
    "geqrf",
    "linalg.eig",
    "gather",
    "cat",
    "nn.functional.dropout",
    "to_sparse",
}
SAMPLE = [op for index, op in enumerate(op_db) if index % EVERY == 0 or name_of(op) in ONCE_WRONG]
OTHER_DTYPES = [torch.int64, torch.bool, torch.bfloat16, torch.complex64]


def unknown(op, device: str, dtype: torch.dtype, limit: int) -> list[str]:
    found = [dataclasses.asdict(each) for each in differences(op, device, dtype, limit)]
    return sorted({f"{each['variant']}: {each['kind']}: {each['what']}" for each in found if reason_of(each) is None})


@pytest.mark.parametrize("op", SAMPLE, ids=name_of)
def test_agrees_with_the_cpu(device: str, op) -> None:
    if torch.float32 not in op.supported_dtypes("cpu"):
        pytest.skip("the CPU has no float32 kernel")
    assert unknown(op, device, torch.float32, 2) == []


@pytest.mark.parametrize("op", SAMPLE[::8], ids=name_of)
def test_agrees_in_other_dtypes(device: str, op) -> None:
    for dtype in OTHER_DTYPES:
        if dtype in op.supported_dtypes("cpu"):
            assert unknown(op, device, dtype, 1) == []
