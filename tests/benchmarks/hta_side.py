"""HolisticTraceAnalysis' side of bench_hta: run by a Python that has HTA. Prints its numbers, or its times, as JSON.

python hta_side.py numbers FILE | python hta_side.py times FILE
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
logging.disable(logging.CRITICAL)

KERNEL_WAIT_US = 30
"""HTA documents its argument as ns, and compares it with times in us."""


def loaded(path: str) -> Any:
    """HTA's analysis of one file as rank 0, with the last profiler step."""
    from hta.trace_analysis import TraceAnalysis

    return TraceAnalysis(trace_files={0: path}, include_last_profiler_step=True)


def temporal(found: Any) -> dict[str, float]:
    """get_temporal_breakdown, in us."""
    row = found.get_temporal_breakdown(visualize=False).iloc[0]
    names = {"idle": "idle_time(us)", "compute": "compute_time(us)", "non-compute": "non_compute_time(us)",
             "total": "kernel_time(us)"}  # fmt: skip
    return {name: float(row[column]) for name, column in names.items()}


def overlap(found: Any) -> dict[str, float]:
    """get_comm_comp_overlap, in percent."""
    return {"overlap": float(found.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0])}


def idle(found: Any) -> dict[str, float]:
    """get_idle_time_breakdown, the sum over all streams, in us."""
    rows, _ = found.get_idle_time_breakdown(ranks=[0], consecutive_kernel_delay=KERNEL_WAIT_US, visualize=False)
    by_reason = rows.groupby("idle_category")["idle_time"].sum()
    return {name: float(by_reason.get(name, 0.0)) for name in ("host_wait", "kernel_wait", "other")}


def kernels(found: Any) -> dict[str, float]:
    """get_gpu_kernel_breakdown: the sum of each kernel, in us."""
    _, rows = found.get_gpu_kernel_breakdown(
        visualize=False, duration_ratio=1.0, num_kernels=10**9, include_memory_kernels=False
    )
    sums: dict[str, float] = rows.groupby("name")["sum (us)"].sum().to_dict()
    return sums


def queues(found: Any) -> dict[str, float]:
    """get_queue_length_summary: the longest queue of each stream."""
    rows = found.get_queue_length_summary(ranks=[0])
    return {f"stream {stream}": float(row["queue_length"]["max"]) for (_, stream), row in rows.iterrows()}


def launches(found: Any) -> dict[str, float]:
    """get_cuda_kernel_launch_stats: how many, and the mean delay in us."""
    rows = found.get_cuda_kernel_launch_stats(ranks=[0], include_memory_events=True, visualize=False)[0]
    return {"count": float(len(rows)), "mean delay": float(rows["launch_delay"].mean())}


def copies(found: Any) -> dict[str, float]:
    """get_memory_bw_summary: the highest bandwidth of each direction, in GB/s."""
    rows = found.get_memory_bw_summary(ranks=[0])
    return {name: float(row["memory_bw_gbps"]["max"]) for (_, name), row in rows.iterrows()}


QUESTIONS: dict[str, Callable[[Any], dict[str, float]]] = {
    "temporal breakdown": temporal,
    "overlap": overlap,
    "idle breakdown": idle,
    "kernel breakdown": kernels,
    "queue length": queues,
    "launch delay": launches,
    "copy bandwidth": copies,
}


def numbers(path: str) -> dict[str, Any]:
    """What HTA answers, and the error where it does not; `rows` is how many rows on streams it kept."""
    try:
        found = loaded(path)
    except Exception as error:  # noqa: BLE001 - another program's: whatever it raises is its answer
        return {name: _refusal(error) for name in QUESTIONS}
    answers: dict[str, Any] = {"rows": int((found.t.get_trace(0)["stream"] != -1).sum())}
    for name, ask in QUESTIONS.items():
        try:
            answers[name] = ask(found)
        except Exception as error:  # noqa: BLE001 - as above
            answers[name] = _refusal(error)
    return answers


def _refusal(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:100]


def times(path: str) -> dict[str, float]:
    """Seconds of CPU of each question, the better of two."""
    found = loaded(path)
    best: dict[str, float] = {}
    for name, ask in QUESTIONS.items():
        for _ in range(2):
            begin = time.process_time()
            ask(found)
            best[name] = min(best.get(name, float("inf")), time.process_time() - begin)
    return best


if __name__ == "__main__":
    print(json.dumps({"numbers": numbers, "times": times}[sys.argv[1]](sys.argv[2])))
