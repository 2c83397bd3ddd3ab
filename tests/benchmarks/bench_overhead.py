"""What a device adds to a kernel: by size, in mixed precision, with shapes that keep changing, and to look a plan up.

    python -m tests.benchmarks.bench_overhead

Each op is waited for, and timed against the same kernel called directly on the same sizes in the same run: for `host`
ATen on CPU tensors, for `sim` the C function of its library. They take turns, and lower quartiles are compared.
"""

import ctypes
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

VENDORS = ("host", "sim")
LARGE_BYTES = 100e6
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


def quartiles_us(ways: list[Way], repeats: int) -> list[float]:
    """Of each, in turns: microseconds until it is done. The lower quartile: runs in which nobody else had the core."""
    taken: list[list[float]] = [[] for _ in ways]
    for _ in range(repeats):
        for way, column in zip(ways, taken, strict=True):
            begin = time.perf_counter_ns()
            kept = way.run()
            way.wait()
            column.append((time.perf_counter_ns() - begin) / 1000)
            del kept
    return [statistics.quantiles(column, n=4)[0] if repeats > 1 else column[0] for column in taken]


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
        self.values = (CValue * 3)(CValue(RAL_TENSOR, 1, at[0]), CValue(RAL_TENSOR, 1, at[1]), CValue(RAL_INT, 1, 1))
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


def add_us(vendor: str, index: int, count: int) -> list[float]:
    """Quartiles of an add into an output that exists: on the device, and its kernel alone."""
    a, b, out = torch.ones(count), torch.ones(count), torch.empty(count)
    x, y, z = (tensor.to(f"ral:{index}") for tensor in (a, b, out))
    direct = Way(lambda: torch.add(a, b, out=out)) if vendor == "host" else Way(DirectAdd(a, b, out))
    ways = [on_device(lambda: torch.add(x, y, out=z), index), direct]
    quartiles_us(ways, 3)
    return quartiles_us(ways, 300 if count * 4 < LARGE_BYTES else 25)


def by_size() -> bool:
    """From small to large."""
    met = True
    print(f"{'add, each argument':>20} | {'vendor':>6} | {'device':>10} | {'kernel':>10} | {'added':>9} | ratio")
    for name, count in SIZES.items():
        for index, vendor in enumerate(VENDORS):
            ours, theirs = add_us(vendor, index, count)
            met = met and (count * 4 < LARGE_BYTES or ours <= LARGE_AT_MOST * theirs)
            print(
                f"{name:>20} | {vendor:>6} | {ours:>7.1f} us | {theirs:>7.1f} us | {ours - theirs:>6.1f} us"
                f" | {ours / theirs:.2f}"
            )
            torch.ral.empty_cache()
    print(f"over 100 MB (budget {LARGE_AT_MOST}): {'met' if met else 'missed'}")
    return met


def train_under_autocast(layer: torch.nn.Module, x: Tensor) -> None:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        loss = layer(x).float().square().mean()
    loss.backward()


def mixed_precision_us(index: int) -> list[float]:
    """Quartiles of a layer's forward and backward: on the device, and on the CPU."""
    layers = [torch.nn.Linear(256, 256), torch.nn.Linear(256, 256).to(f"ral:{index}")]
    data = torch.randn(64, 256)
    there = data.to(f"ral:{index}")
    ways = [
        on_device(lambda: train_under_autocast(layers[1], there), index),
        Way(lambda: train_under_autocast(layers[0], data)),
    ]
    quartiles_us(ways, 5)
    return quartiles_us(ways, 100)


def mixed_precision() -> None:
    """Casts and matrix products of bfloat16."""
    for index, vendor in enumerate(VENDORS):
        ours, theirs = mixed_precision_us(index)
        print(f"autocast bf16, linear of 256, forward and backward: {vendor} {ours:.0f} us, CPU {theirs:.0f} us")


def median_add_us(tensors: list[Tensor], index: int) -> float:
    return statistics.median(quartiles_us([on_device(lambda: x + x, index)], 1)[0] for x in tensors)  # noqa: B023


def changing_shapes() -> None:
    """A shape that was never seen: the first call learns what comes out of it, later ones know."""
    for index, vendor in enumerate(VENDORS):
        tensors = [torch.ones(1000 + number, device=f"ral:{index}") for number in range(NEW_SHAPES)]
        torch.ral.synchronize(index)
        first = median_add_us(tensors, index)
        later = min(median_add_us(tensors, index) for _ in range(5))
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
