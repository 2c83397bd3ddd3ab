"""Pickles of plain data, as PyTorch's memory snapshots are. A pickle can hold code; nothing here could run it.

`native/plain_pickle.cpp` makes dictionaries, lists, tuples, text and numbers, and knows no other instruction.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ral_trace.tracer import _native
from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.opening import opened
from ral_trace.tracer.importers.rows import Rows

AGAIN = "write the snapshot again, with torch.cuda.memory._dump_snapshot"


def read_pickle(path: Path, rows: Rows) -> tuple[object, int]:
    """What a pickle holds, and its length in bytes, which bounds how much that can honestly be.

    Counts text that is not UTF-8 and bytes behind the end as faults. Raises InputRefused for what is not plain data.
    """
    with opened(path, rows.bad) as file:
        data = file.read()
    rows.advance(path.stat().st_size)
    if not data:
        raise InputRefused(path, "the file is empty", AGAIN)
    try:
        with without_collections():
            value, used, replaced = _native.read_plain_pickle(data)
    except ValueError as error:
        raise InputRefused(path, f"is not a snapshot that can be read ({error})", AGAIN) from error
    except MemoryError as error:
        remedy = "record fewer events: torch.cuda.memory._record_memory_history(max_entries=...)"
        raise InputRefused(path, "is too large for the memory of this machine", remedy) from error
    if replaced:
        rows.bad("texts that are not UTF-8: bad bytes replaced", count=replaced)
    if used < len(data):
        rows.bad("bytes behind the end of the snapshot: not read", f"byte {used}", count=len(data) - used)
    return value, len(data)


@contextmanager
def without_collections() -> Iterator[None]:
    """Millions of new objects, none of them garbage, would make Python look for garbage over and over."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
