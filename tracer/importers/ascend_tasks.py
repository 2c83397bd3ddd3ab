"""What Ascend's words mean: tasks of a stream, calls of CANN, categories of torch_npu's own events.

Task types: https://www.hiascend.com/document (msprof, "Task Type"); msprof writes them in three spellings, as in
EVENT_WAIT_SQE, Notify Wait, NOTIFY_WAIT.
"""

import re
from decimal import Decimal, InvalidOperation

from ral_trace.tracer.importers.rows import LIMIT, Frame

DEVICE_TYPE = "npu"
VENDOR = "Huawei"
NO_NUMBER = 4294967295
"""What stands for no model, stream, task or context."""

COPY_DIRECTION = re.compile(r"(host_to_device|device_to_host|device_to_device)")
"""In the name of what torch_npu puts into its queue: Dequeue@acl_memcpy_host_to_device."""
COPIES = re.compile(r"MEMCPY|PCIE|SDMA|RDMA|ASYNC_MEMORY|REDUCE_INLINE")
SETS = re.compile(r"MEMSET")
SYNCHRONISES = re.compile(
    r"WAIT|RECORD|PLACE_HOLDER|WRITE_VALUE|NOTIFY|PROFILING|MAINTENANCE|FLIP|LABEL"
    r"|STREAM_SWITCH|STREAM_ACTIVE|END_GRAPH"
)
ANNOTATIONS = re.compile(r"ProfilerStep#\d+\Z|Optimizer\.|enumerate\(DataLoader\)#")
"""Ranges of torch.profiler, which torch_npu writes among the operators."""
FRAME = re.compile(r"(?P<file>.+)\((?P<line>\d{1,9})\): (?P<function>.+)\Z", re.DOTALL)
MOST_DIGITS = 20
INTEGERS = range(-LIMIT + 1, LIMIT)
NS_PER_US, BYTES_PER_KB, BYTES_PER_MB = 1_000, 1024, 1024 * 1024


def task_kind(name: str, task_type: str) -> tuple[str, str | None]:
    """Kind and category of a task on a stream, by its name and type.

    Records of events and notifications, markers and placeholders take no time of the device's engines: they are rows
    that only keep streams in step, as waits are.
    """
    kind_words = task_type.upper().replace(" ", "_")
    if SETS.search(kind_words):
        return "transfer", "memset"
    if COPIES.search(kind_words) or name.upper().startswith("MEMCPY"):
        return "transfer", "within_device" if kind_words == "SDMA_SQE" else None
    if SYNCHRONISES.search(kind_words) and not kind_words.startswith(("KERNEL", "AI", "MIX")):
        return "wait", kind_words.removesuffix("_SQE").lower()
    return "kernel", None


def scaled(text: str | None, factor: int) -> int | None:
    """A decimal number times `factor`, rounded to an integer, exactly; None: it is not a number."""
    try:
        number = Decimal((text or "").strip())
    except InvalidOperation:
        return None
    if not number.is_finite() or not -MOST_DIGITS < number.adjusted() < MOST_DIGITS:
        return 0 if number.is_finite() and number.adjusted() < 0 else None
    found = int((number * factor).to_integral_value())
    return found if found in INTEGERS else None


def frames_of(stack: str | None) -> list[Frame]:
    """The lines of a call stack, innermost first: `file(line): function`, separated by semicolons and line ends."""
    found: list[Frame] = []
    for line in re.split(r";?\r?\n|;(?=\S)", stack or ""):
        match = FRAME.match(line.strip())
        if match:
            found.append((match["file"], int(match["line"]), match["function"]))
    return found
