"""What a device adds to a kernel: by size, in mixed precision, with shapes that keep changing, and to look a plan up.

    python -m tests.benchmarks.bench_overhead

Each op is waited for, and timed against the same kernel called directly on the same sizes in the same run: for `host`
ATen on CPU tensors, for `sim` the C function of its library. They take turns, and medians are compared.
"""

import ctypes
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ral_trace import backend
from ral_trace.backend import _adapter, vendors

LARGE_AT_MOST = 1.10
"""Of what the kernel takes, where the tensors are over 100 MB."""
PLAN_NS = 150
SIZES = {"64 B": 16, "4 KiB": 1 << 10, "256 KiB": 1 << 16, "768 KiB": 192 << 10, "128 MiB": 32 << 20}
"""Elements of float32 in each argument."""
NEW_SHAPES = 60


@dataclass(frozen=True)
class Way:
    """One way to compute: `run` starts it, `wait` returns when it is done."""

    run: Callable[[], object]
    wait: Callable[[], None] = lambda: None


def medians_us(ways: list[Way], repeats: int) -> list[float]:
    """Of each, in turns: microseconds until it is done."""
    taken: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for way, column in zip(ways, taken, strict=True):
            begin = time.perf_counter_ns()
            kept = way.run()
            way.wait()
            column.append((time.perf_counter_ns() - begin) / 1000)
            del kept
    return [statistics.median(column) for column in taken]


def on_device(run: Callable[[], object], index: int) -> Way:
    return Way(run, lambda: torch.ral.synchronize(index))


# --- sim's kernel, called as the plugin header says ---


class CTensor(ctypes.Structure):
    """struct ral_tensor"""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
    ]


class CValue(ctypes.Structure):
    """struct ral_value; `as_` is its union, whose members are all 8 bytes."""

    _fields_ = [("tag", ctypes.c_int32), ("count", ctypes.c_int32), ("as_", ctypes.c_uint64)]


class CCall(ctypes.Structure):
    """struct ral_call"""

    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("arg_count", ctypes.c_int32),
        ("output_count", ctypes.c_int32),
        ("op", ctypes.c_char_p),
        ("args", ctypes.POINTER(CValue)),
        ("outputs", ctypes.POINTER(CTensor)),
        ("reason", ctypes.c_char_p),
        ("reason_size", ctypes.c_size_t),
    ]


RAL_TENSOR, RAL_INT, RAL_FLOAT32, RAL_BFLOAT16 = 1, 3, 6, 15


class DirectAdd:
    """`ral_sim_add` on memory of the host, without a device in between."""

    def __init__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        library = ctypes.CDLL(str(Path(next(iter(vendors.__path__))) / "sim" / "libral_sim.so"))
        self.function = library.ral_sim_add
        self.tensors = (CTensor * 3)(*(self._in_c(tensor) for tensor in (a, b, out)))
        at = [ctypes.addressof(tensor) for tensor in self.tensors]
        # add(self, other, alpha=1)
        self.values = (CValue * 3)(
            CValue(RAL_TENSOR, 1, at[0]), CValue(RAL_TENSOR, 1, at[1]), CValue(RAL_INT, 1, 1)
        )
        outputs = ctypes.cast(at[2], ctypes.POINTER(CTensor))
        self.call = CCall(ctypes.sizeof(CCall), 3, 1, b"aten::add.Tensor", self.values, outputs, bytes(256), 256)
        self.kept = (a, b, out)

    @staticmethod
    def _in_c(tensor: Tensor) -> CTensor:
        dims = ctypes.c_int64 * tensor.dim()
        dtype = {torch.float32: RAL_FLOAT32, torch.bfloat16: RAL_BFLOAT16}[tensor.dtype]
        return CTensor(tensor.data_ptr(), dims(*tensor.shape), dims(*tensor.stride()), tensor.dim(), dtype)

    def __call__(self) -> None:
        assert self.function(ctypes.byref(self.call)) == 0


# --- the comparisons ---


def by_size() -> bool:
    """An add into an output that exists, from small to large."""
    met = True
    print(f"{'add, each argument':>20} | {'vendor':>6} | {'device':>10} | {'kernel':>10} | {'added':>9} | ratio")
    for name, count in SIZES.items():
        a, b, out = torch.ones(count), torch.ones(count), torch.empty(count)
        repeats = 9 if count > 1 << 20 else 300
        for index, vendor in enumerate(("host", "sim")):
            x, y, z = (tensor.to(f"ral:{index}") for tensor in (a, b, out))
            direct = Way(lambda: torch.add(a, b, out=out)) if vendor == "host" else Way(DirectAdd(a, b, out))
            device = on_device(lambda: torch.add(x, y, out=z), index)  # noqa: B023
            medians_us([device, direct], 3)
            ours, theirs = medians_us([device, direct], repeats)
            if count * 4 > 100e6:
                met = met and ours <= LARGE_AT_MOST * theirs
            print(
                f"{name:>20} | {vendor:>6} | {ours:>7.1f} us | {theirs:>7.1f} us | {ours - theirs:>6.1f} us"
                f" | {ours / theirs:.2f}"
            )
            del x, y, z
        torch.ral.empty_cache()
    print(f"over 100 MB (budget {LARGE_AT_MOST}): {'met' if met else 'missed'}")
    return met


def mixed_precision() -> None:
    """A layer under autocast, forward and backward."""
    linear = torch.nn.Linear(256, 256)
    data = torch.randn(64, 256)
    for index, vendor in enumerate(("host", "sim")):
        moved = torch.nn.Linear(256, 256).to(f"ral:{index}")
        there = data.to(f"ral:{index}")

        def train(layer: torch.nn.Module, x: Tensor, kind: str) -> None:
            with torch.autocast(kind, dtype=torch.bfloat16):
                loss = layer(x).float().square().mean()
            loss.backward()

        device = on_device(lambda: train(moved, there, "ral"), index)  # noqa: B023
        direct = Way(lambda: train(linear, data, "cpu"))
        medians_us([device, direct], 5)
        ours, theirs = medians_us([device, direct], 100)
        print(f"autocast bf16, linear of 256, forward and backward: {vendor} {ours:.0f} us, CPU {theirs:.0f} us")


def changing_shapes() -> None:
    """A shape that was never seen: the first call learns what comes out of it, later ones know."""
    for index, vendor in enumerate(("host", "sim")):
        widths = itertools.count(1000)
        tensors = [torch.ones(next(widths), device=f"ral:{index}") for _ in range(NEW_SHAPES)]
        torch.ral.synchronize(index)

        def each(tensors: list[Tensor] = tensors, index: int = index) -> float:
            taken = []
            for x in tensors:
                begin = time.perf_counter_ns()
                x + x
                torch.ral.synchronize(index)
                taken.append((time.perf_counter_ns() - begin) / 1000)
            return statistics.median(taken)

        first, later = each(), min(each() for _ in range(5))
        print(f"add on {vendor}: {first:.1f} us for a shape that was never seen, {later:.1f} us later")


def plan_look_up() -> bool:
    """What the router spends to find the plan of a call that it has seen."""
    times = [_adapter.time_look_ups(0, 20_000) for _ in range(15)]
    read_ns, find_ns = (statistics.median(column) for column in zip(*times, strict=True))
    print(f"a known plan is found in {find_ns:.0f} ns (budget {PLAN_NS}), after {read_ns:.0f} ns to read the arguments")
    return find_ns <= PLAN_NS


def main() -> int:
    """Prints the tables. Returns 1 when a budget is missed."""
    backend.enable("host:1,sim:1")
    torch.set_num_threads(1)
    torch.ral.set_device_model(1, copy_latency_ns=0, copy_bytes_per_s=0)
    with torch.no_grad():
        met = [by_size()]
        changing_shapes()
        met.append(plan_look_up())
    mixed_precision()
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
