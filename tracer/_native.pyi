"""The native parts: what `native/*.cpp` gives to Python."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

# module.cpp

KINDS: tuple[str, ...]
KIND_DEVICE: int
KIND_STREAM: int
STREAM_BITS: int
FLAGS: dict[str, int]
DIRECTIONS: tuple[str, ...]
RECORD_BYTES: int
STRIPE_BITS: int
CLOCK: str

def nest(
    thread: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    id: NDArray[np.int64],
    tolerance_ns: int = 0,
) -> NDArray[np.int64]:
    """The id of each row's innermost enclosing row, -1: none. Rows by thread, then start, then longest first."""

def start(hooks: str, note: str) -> str | None:
    """Starts the watcher of this process, once, and joins recordings that run.

    Returns why that is impossible, or None.
    """

def sync() -> None:
    """Joins and leaves recordings as the page says now, without waiting for the watcher."""

def recording() -> bool:
    """Whether any session records this process now."""

def step() -> None: ...

class Annotation:
    def __init__(self, name: str) -> None: ...
    def __enter__(self) -> Annotation: ...
    def __exit__(self, *error: object) -> None: ...

class ClockSample:
    """The clocks at one moment: nanoseconds of CLOCK_MONOTONIC and CLOCK_REALTIME, and the ticks (not shown)."""

    monotonic_ns: int
    realtime_ns: int
    @staticmethod
    def now() -> ClockSample: ...

class Calibration:
    """Ticks to nanoseconds since the Unix epoch: the zero from `first`, the rate from both."""

    def __init__(self, first: ClockSample, second: ClockSample) -> None: ...
    def epoch_ns(self, at: ClockSample) -> int: ...

class Batch:
    """Drained records as columns (native/columns.h). DuckDB reads it; `clear` begins the next one."""

    def __len__(self) -> int: ...
    def clear(self) -> None: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...

class Account:
    """What became of events: written = received + dropped + lost."""

    written: int
    received: int
    dropped: int
    lost: int
    facts: int
    """Of the received: what devices say of themselves, and what was there before the recording. The rest is events."""
    damaged_rings: int

class ProcessReader:
    """What one traced process wrote for one session."""

    pid: int
    started: int
    command: bytes
    """Words ended by NUL, then NULs."""
    note: str
    @staticmethod
    def open(folder: str) -> ProcessReader | None:
        """None while the process is still making its files, or when they are not ours."""

    def drain(self, process: int, clock: Calibration, into: Batch) -> int:
        """Moves what is committed out of all rings; returns how many records."""

    def attached_ns(self, clock: Calibration) -> int: ...
    def detached(self) -> bool: ...
    def exited(self) -> bool: ...
    def account(self) -> Account: ...
    def threads(self) -> list[tuple[int, str]]: ...
    def names(self) -> tuple[list[tuple[int, str]], int]:
        """(id, text) of every name, and how many found no room."""

class SessionView:
    """A taken slot of the page."""

    slot: int
    session: int
    collector_pid: int
    collector_alive: bool
    folder: str

class Sessions:
    """The collector's side of the page. Raises RuntimeError when the rendezvous is not safe or not there."""

    folder: str
    def __init__(self) -> None: ...
    def begin(self, session: int, target_pid: int, ring_records: int, folder: str) -> int:
        """The slot, or -1 when all are taken."""

    def end(self, slot: int) -> None: ...
    def release(self, slot: int) -> None: ...
    def attach_failures(self, slot: int) -> int: ...
    def taken(self) -> list[SessionView]: ...

class Rendezvous:
    """The page that all programs of this user share."""

    folder: str
    @staticmethod
    def open() -> Rendezvous:
        """Raises RuntimeError when the place is not safe or not there."""

    def request_reload(self) -> None:
        """Asks programs with `ral` devices to read their kernel manifests again."""

def notify_reloads(descriptor: int) -> bool:
    """Adds 1 to an eventfd at each such request from now on; False: there can be no more threads.

    Raises RuntimeError when the page is not safe or not there.
    """

def process_started(pid: int) -> int:
    """When a process began, in clock ticks since boot (proc(5), field 22); 0: there is none."""

# perfetto_bindings.cpp

PERFETTO_NO_PARENT: int

class ArrowStream(Protocol):
    """What gives columns in batches: a DuckDB relation, for one."""

    def __arrow_c_stream__(self) -> object: ...

class PerfettoEncoder:
    """Columns in, packets of a Perfetto trace out; see native/perfetto_encoder.h.

    Raises RuntimeError with the words of a failed query.
    """

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
        """The lane of each slice, from 0.

        Slices by start, longest first; several calls go on where the last one ended.
        """
