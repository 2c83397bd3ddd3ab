"""Ascend: what torch_npu's profiler and msprof leave, a folder, one of its files, or a database.

In a folder, events come from one place only: trace_view.json, else a database `ascend_pytorch_profiler*.db` or
`msprof*.db`, else kernel_details.csv. Beside a file that is no database it takes what that has not: blocks of memory
(operator_memory.csv) and memory over time (memory_record.csv). Statistics and summaries are not read: the trace
answers them itself.
"""

import re
from pathlib import Path

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.ascend_csv import KERNELS, MEMORY, RECORD, known_csv, read_csv
from ral_trace.tracer.importers.ascend_db import is_ascend_database, read_database
from ral_trace.tracer.importers.ascend_json import read_json
from ral_trace.tracer.importers.opening import Head, head_of
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.importers.sqlite import SQLITE_MAGIC

FORMAT = "Ascend"

OUTPUT = "ASCEND_PROFILER_OUTPUT"
TRACE = ("trace_view.json", "trace_view.json.gz")
DATABASE = re.compile(r"(ascend_pytorch_profiler|msprof)(_\d+)*\.db\Z")
RANK = re.compile(r"profiler_info_(\d{1,6})\.json\Z")
LAYER = rb'\{\s*"name"\s*:\s*"(?:Ascend Hardware|CANN|Overlap Analysis|AI Core Freq)"\s*\}'
LAYERS = re.compile(rb'"process_name"[^{}]*' + LAYER + rb"|" + LAYER + rb'[^{}]*"process_name"')
QUEUE = re.compile(rb'"cat"\s*:\s*"(enqueue|dequeue|async_npu|async_task_queue|HostToDevice)"')
"""Words in the places that they have in Ascend's files: anybody's operator may be called CANN."""

FRAMEWORK = re.compile(rb'"cat"\s*:\s*"(cpu_op|python_function)"')
TEXT_TIME = re.compile(rb'"ts"\s*:\s*"\d{16}')
"""A file may begin with megabytes of the framework's events; Kineto, which has the same categories, writes numbers."""


def sniff(head: Head) -> float:
    """Sure of what only Ascend writes: its layers, its tables, the columns of its CSV files."""
    if head.names:
        return 1.0 if OUTPUT in head.names or head.names & {*TRACE, KERNELS} or _databases(head.names) else 0.0
    if head.data.startswith(SQLITE_MAGIC):
        return 1.0 if is_ascend_database(head.tables) else 0.0
    if head.data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"[", b"{"):
        if LAYERS.search(head.data) or QUEUE.search(head.data):
            return 0.97
        return 0.9 if TEXT_TIME.search(head.data) and FRAMEWORK.search(head.data) else 0.0
    return 0.9 if known_csv(head.data) else 0.0


def _databases(names: frozenset[str]) -> list[str]:
    return sorted(name for name in names if DATABASE.match(name))


def read(path: Path, rows: Rows) -> None:
    """Adds the rows of a folder, or of one file. Raises InputRefused."""
    if path.is_dir():
        _read_folder(path, rows)
        return
    data = head_of(path).data
    if data.startswith(SQLITE_MAGIC):
        read_database(path, rows)
    elif known_csv(data):
        read_csv(path, rows, None)
    else:
        read_json(path, rows)


def _read_folder(path: Path, rows: Rows) -> None:
    inner = path / OUTPUT
    folder = inner if inner.is_dir() and not inner.is_symlink() else path
    ranks = [int(match[1]) for entry in path.iterdir() if (match := RANK.match(entry.name))]
    if len(ranks) == 1:
        rows.facts["rank"] = ranks[0]
    files = {entry.name: entry for entry in folder.iterdir() if entry.is_file() and not entry.is_symlink()}
    databases = _databases(frozenset(files))
    traces = [name for name in TRACE if name in files]
    process: int | None = None
    if traces:
        process = read_json(files[traces[0]], rows)
    elif databases:
        read_database(files[databases[0]], rows)
        return
    elif KERNELS in files:
        process = read_csv(files[KERNELS], rows, None)
    else:
        cause = "holds neither trace_view.json nor kernel_details.csv nor a database"
        raise InputRefused(folder, cause, "export the profile as text or as a database")
    for name in (MEMORY, RECORD):
        if name in files:
            read_csv(files[name], rows, process)
