"""CSV files of torch_npu's profiler: kernels, blocks of memory, memory over time.

Numbers are decimal text (times in us with a trailing tab, sizes in KB or MB): integers by decimal arithmetic. Columns
have changed their order and number over the versions, and are found by name.
https://gitee.com/ascend/pytorch/tree/master/torch_npu/profiler/analysis/prof_view
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.args import args_text
from ral_trace.tracer.importers.ascend_tasks import (
    BYTES_PER_KB,
    BYTES_PER_MB,
    DEVICE_TYPE,
    NS_PER_US,
    VENDOR,
    scaled,
    task_kind,
)
from ral_trace.tracer.importers.csv_rows import DAMAGED_FILES, ENDS, LAST_ROW, Lines, header_of, rows_of
from ral_trace.tracer.importers.opening import head_of, opened
from ral_trace.tracer.importers.rows import NOT_UTF8, Rows
from ral_trace.tracer.importers.trace_events import integer

KERNELS, MEMORY, RECORD = "kernel_details.csv", "operator_memory.csv", "memory_record.csv"
HEADS = {
    KERNELS: ("Name", "Start Time(us)", "Duration(us)"),
    MEMORY: ("Name", "Size(KB)", "Allocation Time(us)"),
    RECORD: ("Component", "Timestamp(us)", "Total Allocated(MB)"),
}
SHOWN = (
    "Type", "Accelerator Core", "OP State", "Block Dim", "Mix Block Dim", "Input Shapes", "Input Data Types",
    "Input Formats", "Output Shapes", "Output Data Types", "Output Formats", "Task ID", "Step Id",
)  # fmt: skip
"""Of a kernel's columns: what goes into args."""
CURVES = {
    "Total Allocated(MB)": "allocated", "Total Reserved(MB)": "reserved", "Total Active(MB)": "active",
}  # fmt: skip
NOTHING = ("", "N/A", "NA", "None")
STEP_BYTES = 256
"""Between the numbers that stand for addresses."""
NO_ADDRESSES = "blocks whose address the file does not say: numbered in their order instead"
UNREADABLE = "lines of CSV that are not what they should be: left out"

Row = dict[str, str]


def known_csv(head: bytes) -> str | None:
    """Which of the files begins so."""
    first = head.lstrip(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")
    names = {name.strip().strip('"') for name in first.split(",")}
    return next((file for file, wanted in HEADS.items() if names.issuperset(wanted)), None)


def read_csv(path: Path, rows: Rows, process: int | None) -> int:
    """Adds what a file has, to a process that there is or a new one, which it returns. Raises InputRefused."""
    kind = known_csv(head_of(path).data)
    readers: dict[str | None, Callable[[Iterator[Row], Rows, int], None]] = {
        KERNELS: _kernels, MEMORY: _blocks, RECORD: _curves,
    }  # fmt: skip
    if kind not in readers:
        raise InputRefused(path, "is no CSV file of torch_npu's profiler", "give kernel_details.csv or trace_view.json")
    rows.facts.setdefault("clock_zero", "unix epoch")
    rows.facts.setdefault("producer", "torch_npu profiler")
    number = rows.process("main") if process is None else process
    readers[kind](_lines(path, rows), rows, number)
    return number


def _lines(path: Path, rows: Rows) -> Iterator[Row]:
    """The lines by column; of a file that is cut off or damaged, those before that."""
    with opened(path, rows.bad) as file:
        lines = Lines(file)
        names = [name.strip() for name in header_of(lines)]
        try:
            for values in rows_of(lines, len(names)):
                if len(values) == len(names):
                    yield {name: value.strip() for name, value in zip(names, values, strict=True)}
                else:
                    rows.bad(UNREADABLE, f"{path.name}: {','.join(values)}")
        except EOFError:
            rows.bad("the compressed file is cut off: what follows is missing", path.name)
        except ENDS as error:
            rows.bad(DAMAGED_FILES, f"{path.name}: {error}")
        if lines.replaced:
            rows.bad(NOT_UTF8, path.name, count=lines.replaced)
        if not lines.last.endswith(("\n", "\r")):
            rows.bad(LAST_ROW, path.name)


def _device(row: Row, rows: Rows, process: int) -> int:
    """By `NPU:0`, or a column with its number; else the process's only one."""
    index = integer(row.get("Device Type", "").rpartition(":")[2] or row.get("Device_id") or row.get("Device ID"))
    return rows.device(process, DEVICE_TYPE, index, vendor=VENDOR)


def _kernels(lines: Iterator[Row], rows: Rows, process: int) -> None:
    for row in lines:
        ts_ns, dur_ns = scaled(row["Start Time(us)"], NS_PER_US), scaled(row["Duration(us)"], NS_PER_US)
        if ts_ns is None:
            rows.bad("kernels without a time: left out", row["Name"])
            continue
        if dur_ns is None and row["Duration(us)"] not in NOTHING:
            rows.bad("kernels without a duration", f"{row['Name']}: {row['Duration(us)']}")
        device, number = _device(row, rows, process), integer(row.get("Stream ID") or row.get("Stream Id"))
        stream = None if number is None else rows.stream(device, number)
        core = row.get("Accelerator Core", "")
        kind, category = (
            ("kernel", "communication") if core in ("HCCL", "COMMUNICATION") else task_kind(row["Name"], core)
        )
        args = args_text({key: row[key] for key in SHOWN if row.get(key, "") not in NOTHING})
        rows.event(
            kind, row["Name"], ts_ns, dur_ns, process, category=category, device=device, stream=stream, args=args
        )


def _blocks(lines: Iterator[Row], rows: Rows, process: int) -> None:
    """A block a line, with both ends; without addresses, so that each has a number of its own."""
    for number, row in enumerate(lines, 1):
        size = scaled(row["Size(KB)"], BYTES_PER_KB)
        begin = scaled(row["Allocation Time(us)"], NS_PER_US)
        end = scaled(row.get("Release Time(us)"), NS_PER_US)
        if size is None or size < 0 or (begin is None and end is None):
            rows.bad("blocks without a size or a time: left out", row["Name"])
            continue
        device, address = _device(row, rows, process), number * STEP_BYTES
        rows.bad(NO_ADDRESSES)
        for action, ts_ns in (("alloc", begin), ("free", end)):
            if ts_ns is not None:
                event = rows.event(action, row["Name"], ts_ns, 0, process, device=device, bytes=size)
                rows.memory(action, event, ts_ns, device, address, size_bytes=size)


def _curves(lines: Iterator[Row], rows: Rows, process: int) -> None:
    for row in lines:
        ts_ns = scaled(row["Timestamp(us)"], NS_PER_US)
        if ts_ns is None:
            rows.bad("values of memory without a time: left out", row["Component"])
            continue
        device = _device(row, rows, process)
        for column, what in CURVES.items():
            value = scaled(row.get(column), BYTES_PER_MB)
            if value is not None:
                counter = rows.counter(f"{row['Component']} {what}", "bytes", process=process, device=device)
                rows.value(counter, ts_ns, value)
