"""Compiles one operator for one kind of call: `python -m ral_trace.backend.compile_op FOLDER < job`.

The job is compiled.py's, as JSON. Leaves FOLDER/kernel.so, or prints "refused: why". A process of its own, because
what Inductor does to a process (threads, caches, the compiler's locks) is nothing for the middle of a launch.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config, decomposition, lowering
from torch.export import export

# Inductor calls ATen's kernel for these: it would be the CPU's, and nothing would be gained.
_CALLED_WHOLE = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::convolution", "aten::_int_mm")
# In the order of c10::MemoryFormat.
_MEMORY_FORMATS = (
    torch.contiguous_format,
    torch.preserve_format,
    torch.channels_last,
    torch.channels_last_3d,
)


class Refused(Exception):
    """Inductor can do no better than the CPU's kernel."""


class OneOperator(torch.nn.Module):
    """The call as a function of its tensors alone. Gives what the operator makes anew, then what it writes."""

    def __init__(self, op: Any, arguments: list[dict[str, Any]]) -> None:
        super().__init__()
        self.op = op
        self.arguments = arguments
        self.schema = op._schema
        self.of_dtypes = {tensor.dtype for tensor in _examples(arguments) if tensor.dim() > 0}

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        given = iter(tensors)
        written: list[torch.Tensor] = []
        positional, named = [], {}
        for described, argument in zip(self.arguments, self.schema.arguments, strict=True):
            value = self._number(described["number"]) if "number" in described else _value(described, given)
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = [tensor.clone() for tensor in value] if isinstance(value, list) else value.clone()
                written += value if isinstance(value, list) else [value]
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                positional.append(value)
        made = self.op(*positional, **named)
        returned = made if len(self.schema.returns) > 1 else [made]
        fresh: list[torch.Tensor] = []
        for result, declared in zip(returned, self.schema.returns, strict=False):
            if declared.alias_info is None:
                fresh += result if isinstance(result, (list, tuple)) else [result]
        return fresh + written

    def _number(self, value: complex) -> torch.Tensor:
        """A number among the tensors, without a say in what the result's type is."""
        if isinstance(value, int) and self.of_dtypes:
            return torch.full([], value, dtype=torch.int64)
        if isinstance(value, float) and any(dtype.is_floating_point for dtype in self.of_dtypes):
            return torch.full([], value, dtype=torch.float64)
        raise Refused("a number that decides the result's type")


def _value(described: dict[str, Any], tensors: Any) -> Any:
    ((kind, value),) = described.items()
    if kind == "tensor":
        return None if value is None else next(tensors)
    if kind == "tensors":
        return [None if tensor is None else next(tensors) for tensor in value]
    if kind == "dtype":
        return getattr(torch, value.removeprefix("torch."))
    if kind == "device":
        return torch.device(value)
    if kind == "layout":
        return torch.strided
    if kind == "memory_format":
        return _MEMORY_FORMATS[value]
    return value


def _examples(arguments: list[dict[str, Any]]) -> list[torch.Tensor]:
    described = [value for argument in arguments for value in (argument.get("tensors") or [argument.get("tensor")])]
    return [
        torch.empty_strided(one["sizes"], one["strides"], dtype=getattr(torch, one["dtype"].removeprefix("torch.")))
        for one in described
        if one is not None
    ]


def _find(name: str) -> Any:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def _check(graph: torch.fx.Graph) -> None:
    """Raises Refused where Inductor would call a kernel of ATen."""
    for node in graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = node.target._schema.name
        if torch.Tag.nondeterministic_seeded in node.target.tags:
            raise Refused(f"{name} draws random numbers")
        if node.target in lowering.fallbacks or node.target not in lowering.lowerings or name in _CALLED_WHOLE:
            raise Refused(f"no decomposition ({name} would be the CPU's own kernel)")


def _check_results(program: torch.export.ExportedProgram, expected: list[dict[str, Any]]) -> None:
    """Raises Refused where it does not make what the program is given memory for."""
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    made = [node.meta["val"] for node in output.args[0][: len(expected)]]
    for tensor, wanted in zip(made, expected, strict=True):
        if str(tensor.dtype) != wanted["dtype"] or list(tensor.shape) != wanted["sizes"]:
            raise Refused(f"Inductor makes {tensor.dtype} of {list(tensor.shape)}")


def compile_job(job: dict[str, Any], folder: Path) -> None:
    """Leave the job's library in the folder. Raises Refused, and what Inductor raises where it fails."""
    examples = tuple(_examples(job["arguments"]))
    program = export(OneOperator(_find(job["op"]), job["arguments"]), examples)
    program = program.run_decompositions(decomposition.select_decomp_table())
    _check(program.graph)
    _check_results(program, job["results"])
    options = {"aot_inductor.output_path": str(folder / "kernel.so"), "cpp.dynamic_threads": True}
    with config.patch(implicit_fallbacks=False):
        torch._inductor.aot_compile(program.module(), examples, options=options)


def main() -> int:
    """The command."""
    try:
        compile_job(json.load(sys.stdin), Path(sys.argv[1]))
    except Refused as refused:
        sys.stdout.write(f"refused: {refused}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
