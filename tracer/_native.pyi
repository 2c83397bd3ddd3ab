"""The native parts: what `native/*.cpp` gives to Python."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# module.cpp

KINDS: tuple[str, ...]
FLAGS: dict[str, int]

def nest(
    thread: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    id: NDArray[np.int64],
    tolerance_ns: int = 0,
) -> NDArray[np.int64]:
    """The id of each row's innermost enclosing row, -1: none. Rows by thread, then start, then longest first."""

# perfetto_bindings.cpp

PERFETTO_NO_PARENT: int

class ArrowStream(Protocol):
    """What gives columns in batches: a DuckDB relation, for one."""

    def __arrow_c_stream__(self) -> object: ...

class PerfettoEncoder:
    """Columns in, packets of a Perfetto trace out; see native/perfetto_encoder.h. Raises RuntimeError with the words of a failed query."""

    def __init__(
        self,
        sink: Callable[[bytes], object],
        *,
        unix_epoch: bool,
        chunk_bytes: int = ...,
        intern_bytes: int = ...,
    ) -> None: ...
    def add_process(self, key: int, pid: int, name: str, command_line: str, labels: Sequence[str]) -> None: ...
    def add_thread(self, key: int, pid: int, tid: int, name: str) -> None: ...
    def add_track(self, key: int, parent: int, name: str, rank: int) -> None: ...
    def add_counter(self, key: int, parent: int, name: str, unit: str) -> None: ...
    def slices(self, rows: ArrowStream, arrows: ArrowStream) -> None: ...
    def counters(self, rows: ArrowStream) -> None: ...
    def finish(self) -> None: ...

class TrackLanes:
    """Spreads the slices of each track over lanes, so that those of one lane nest."""

    def place(
        self, track: NDArray[np.int64], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The lane of each slice, from 0. Slices by start, longest first; several calls go on where the last one ended."""
