"""What a prepared launch costs the host, against launching the same kernels op by op, in one run.

    python -m tests.benchmarks.bench_prepared

A vendor of its own whose kernels do next to nothing, so that only launching counts: both sides enqueue the same four
functions on the same small tensors, and the device is waited for outside of the timing.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

OPERATIONS = 4
LAUNCHES = 32
"""Between two waits: what is queued must not fill the stream."""
REPEATS = 60
BUDGET = 0.7
"""Of what the launches cost that a prepared one stands for."""

SOURCE = r"""
#include <string.h>
#include "ral_plugin.h"
static int init(const ral_host* host, char* error, size_t size) { (void)host, (void)error, (void)size; return RAL_OK; }
static int device_count(void) { return 1; }
static int describe(int32_t index, ral_descriptor* out) {
  ral_descriptor d = {.struct_size = sizeof d, .name = "Bench"};
  (void)index;
  d.memory_bytes = UINT64_C(1) << 28, d.alignment = 128, d.max_handles_pf = 16, d.max_handles_vf = 8, d.domains = 1;
  d.dtypes = RAL_DTYPE_BIT(RAL_FLOAT32), d.pipelines = RAL_PIPELINE_COMPUTE;
  memcpy(out, &d, out->struct_size < sizeof d ? out->struct_size : sizeof d);
  return RAL_OK;
}
RAL_PLUGIN_EXPORT const ral_plugin* ral_plugin_entry(void) {
  static const ral_plugin table = {.struct_size = sizeof table,
                                   .abi_version = RAL_PLUGIN_ABI_VERSION,
                                   .vendor = "bench",
                                   .version = "1.0",
                                   .init = init,
                                   .device_count = device_count,
                                   .describe = describe};
  return &table;
}
RAL_PLUGIN_EXPORT int add(const ral_call* call) {
  const float* a = (const float*)call->args[0].as.tensors->data;
  const float* b = (const float*)call->args[1].as.tensors->data;
  for (int i = 0; i < 16; ++i) ((float*)call->outputs[0].data)[i] = a[i] + b[i];
  return RAL_OK;
}
"""

KERNEL = {
    "op_name": "aten::add",
    "backend": "bench",
    "supported_dtypes": ["float32"],
    "min_shape_rank": 2,
    "max_shape_rank": 2,
    "requires_contiguous": True,
    "kernel_path": "libbench.so:add",
}


def write_artefact(folder: Path) -> None:
    """One folder that is the plugin and the artefact: y = ((x + x) + x) + …"""
    from ral_trace.backend import plugins

    dims = {"dtype": "float32", "dims": [4, 4]}
    temporaries = {f"t{i}": {"role": "temporary"} | dims for i in range(OPERATIONS - 1)}
    symbols = {"x": {"role": "input"} | dims, **temporaries, "y": {"role": "output"} | dims}
    chain = ["x", *temporaries, "y"]
    operations = [
        {"kind": "compute", "function": "add", "args": [chain[i], "x"], "outputs": [chain[i + 1]]}
        for i in range(OPERATIONS)
    ]
    plan = {"name": "bench", "vendor": "bench", "library": "libbench.so", "symbols": symbols, "operations": operations}
    files = {
        "plan.json": plan,
        "plugin.json": {"name": "bench", "version": "1.0", "library": "libbench.so"},
        "kernel_manifest.json": {"vendor": "bench", "kernels": [KERNEL]},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "bench.c").write_text(SOURCE)
    compiler = ["gcc", "-O2", "-shared", "-fPIC", f"-I{plugins.INCLUDE}", str(folder / "bench.c")]
    subprocess.run([*compiler, "-o", str(folder / "libbench.so")], check=True)


def medians_ns(*calls: Callable[[], object], wait: Callable[[], None]) -> list[float]:
    """Of one call each, in turns, so that all see the same machine."""
    taken: list[list[float]] = []
    for _ in range(REPEATS):
        row = []
        for call in calls:
            start = time.perf_counter_ns()
            for _ in range(LAUNCHES):
                call()
            row.append((time.perf_counter_ns() - start) / LAUNCHES)
            wait()
        taken.append(row)
    return [statistics.median(column) for column in zip(*taken, strict=True)]


def main() -> int:
    """Prints the comparison. Returns 1 when the budget is missed."""
    import torch

    from ral_trace.backend import enable

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_artefact(folder)
        os.environ["RAL_PLUGIN_PATH"] = name
        enable("bench:1")
        plan = torch.ral.prepare_kernel(folder)
        x = torch.ones(4, 4, device="ral")

        def plain() -> torch.Tensor:
            y = x
            for _ in range(OPERATIONS):
                y = y + x
            return y

        def prepared() -> list[torch.Tensor]:
            return torch.ral.launch_jobplan(plan, [x, None])

        assert torch.equal(plain().cpu(), prepared()[0].cpu())
        plain_ns, prepared_ns = medians_ns(plain, prepared, wait=torch.ral.synchronize)
    print(
        f"{OPERATIONS} kernels: {plain_ns / 1000:.1f} us launched op by op, {prepared_ns / 1000:.1f} us prepared:"
        f" {prepared_ns / plain_ns:.2f} x (budget {BUDGET})"
    )
    return 0 if prepared_ns <= BUDGET * plain_ns else 1


if __name__ == "__main__":
    sys.exit(main())
