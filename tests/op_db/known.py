"""Differences that are right as they are, each with its reason."""

import re
from typing import Any

SPARSE = "ral devices hold strided tensors only, and say so"
KNOWN: list[tuple[str, str, str]] = [
    (r"to_sparse|sparse\..*", r"(other )?error: NotImplementedError: .* strided tensors only", SPARSE),
    (
        r"tensor_split",
        r"error: RuntimeError: tensor_split expected .* to be on cpu",
        "the sample's indices belong there",
    ),
    (
        r"nn\.functional\.scaled_dot_product_attention",
        r"layout: ",
        "torch composes attention for devices: the same values in other strides",
    ),
    (r"addr", r"no error: RuntimeError: (2D tensor expected|size mismatch)", "torch's boxed call cannot see in place"),
    (r"native_layer_norm", r"dtype: ", "sim: statistics in float32, as torch's meta kernel has them for every device"),
    (r"vdot", r"is_conj: ", "the conjugation is carried out, the value is the same"),
    (
        r"take|gather",
        r"no error: .* refer to a single memory location",
        "sim: the CPU works on copies, which do not overlap",
    ),
    (r"tensordot", r"layout: ", "sim: the CPU works on copies, which may be laid out anew"),
    (r"cat", r"no error: .* refer to a single memory location", "an output without memory cannot be told from another"),
    (r"addr", r"other error: ", "the same call is refused by the router, in other words"),
    (
        r"native_batch_norm",
        r"shape: ",
        "torch's meta kernel makes statistics in evaluation that the CPU's leaves empty",
    ),
    (
        r"nn\.functional\.linear",
        r"warning: An output with one or more elements was resized",
        "torch composes it with out=",
    ),
    (r"linalg\.lstsq.*", r"layout: ", "a result inside a larger storage is brought to the device without the gaps"),
]
"""(operator, kind and words of the difference, reason); the first two are regular expressions."""


def reason_of(difference: dict[str, Any]) -> str | None:
    """Why this difference is right, or None."""
    for op, what, reason in KNOWN:
        if re.fullmatch(op, difference["op"]) and re.match(what, f"{difference['kind']}: {difference['what']}"):
            return reason
    return None
