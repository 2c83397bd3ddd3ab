"""The native parts: what `native/*.cpp` gives to Python."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

# module.cpp

KINDS: tuple[str, ...]
KIND_DEVICE: int
KIND_STREAM: int
STREAM_BITS: int
FLAGS: dict[str, int]
DIRECTIONS: tuple[str, ...]
ANNOTATION_SORTS: tuple[str, ...]
DETAILS: dict[str, int]
KIND_ACCESS: int
AUTOGRAD_BITS: int
HOST_MEMORY: int
SESSION_VARIABLE: str
RECORD_BYTES: int
STRIPE_BITS: int
CLOCK: str

def integer_column(rows: Sequence[tuple[object, ...]], column: int) -> tuple[NDArray[np.int64], int, object]:
    """A column of rows as integers, -2**63 for what is unknown; how many values were no integers, and one of them."""

def nest(
    thread: NDArray[np.int32],
    start_ns: NDArray[np.int64],
    end_ns: NDArray[np.int64],
    id: NDArray[np.int64],
    tolerance_ns: int = 0,
) -> NDArray[np.int64]:
    """The id of each row's innermost enclosing row, -1: none. Rows by thread, then start, then longest first."""

def own_times(
    thread: NDArray[np.int32], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], tolerance_ns: int = 0
) -> NDArray[np.int64]:
    """The nanoseconds of each row that belong to no row within it: each moment is the row's that started last.

    Never negative; they add up to the union of the rows of a thread. Rows by thread, then start, then longest first. A
    row that ends up to `tolerance_ns` after the row that it lies in (its times are rounded) keeps its time, and the
    other loses it.
    """

def unions(
    group: NDArray[np.int32], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], groups: int
) -> NDArray[np.int64]:
    """How many nanoseconds the rows of each group 0, 1, ... cover together. Rows by start."""

def longest_paths(
    source: NDArray[np.int32], target: NDArray[np.int32], weight: NDArray[np.int64], value: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The longest path to each node, which begins with `value`, and the edge by which it comes, -1: none.

    Of edges as good the last one counts. Raises ValueError where an edge does not lead to a higher number.
    """

def start(hooks: str, note: str) -> str | None:
    """Starts the watcher of this process, once, and joins recordings that run.

    Returns why that is impossible, or None.
    """

def sync() -> None:
    """Joins and leaves recordings as the page says now, without waiting for the watcher."""

def recording() -> bool:
    """Whether any session records this process now."""

class ClockSample:
    """The clocks at one moment: the ticks, and nanoseconds of CLOCK_MONOTONIC and CLOCK_REALTIME."""

    ticks: int
    monotonic_ns: int
    realtime_ns: int
    def __init__(self, ticks: int, monotonic_ns: int, realtime_ns: int) -> None: ...
    @staticmethod
    def now() -> ClockSample: ...

class Calibration:
    """Ticks to nanoseconds since the Unix epoch: the zero from the first sample, the rates from each to the next."""

    def __init__(self, samples: Sequence[ClockSample]) -> None: ...
    def epoch_ns(self, ticks: int) -> int: ...

class Batch:
    """Drained records as columns (native/columns.h). DuckDB reads it; `clear` begins the next one."""

    def __init__(self) -> None: ...
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
    """Of the received: what devices say of themselves, what was there before the recording, uses of blocks. The rest
    is events.
    """
    shed: int
    """Left out to stay within an overhead; not among the written."""
    damaged_rings: int

class RingAccount:
    """The account of one ring, and whose it is."""

    ring: int
    tid: int
    thread_name: str
    closed: bool
    """Its thread is gone."""
    finished: bool
    """... and all is read, or it is damaged."""
    spent_ticks: int
    """What recording took on that thread, estimated from a sample."""
    account: Account

class Spool:
    """What is drained, in a file (native/spool.h). Raises RuntimeError when it cannot be made, or is not ours alone."""

    bytes: int
    def __init__(self, path: str) -> None: ...

class SpoolReader:
    """Reads a spool, whose writer may go on. Raises RuntimeError where there is none."""

    def __init__(self, path: str) -> None: ...
    def next(self, clock: Calibration, rows: int, since_ticks: int, into: Batch) -> bool:
        """Appends until there are `rows`, without what had ended before `since_ticks`; False: nothing is left."""

class NameList:
    """The names and stacks of a process; nothing where the file is no such table."""

    names: list[tuple[int, str]]
    stacks: list[tuple[int, int, int]]
    """(id, caller, name of the frame) of each node."""
    refused: int
    cut: int
    refused_stacks: int
    @staticmethod
    def read(path: str) -> NameList: ...

class ProcessReader:
    """What one traced process wrote for one session."""

    pid: int
    parent: int
    """pid of the process that started it, when it joined."""
    started: int
    attached_ticks: int
    command: bytes
    """Words ended by NUL, then NULs."""
    note: str
    alarm: int
    @staticmethod
    def open(folder: str) -> ProcessReader | None:
        """None while the process is still making its files, or when they are not ours."""

    @staticmethod
    def resume(folder: str, spool: Spool, process: int) -> ProcessReader | None:
        """The same, and goes on where the collector stopped that wrote the spool."""

    def drain(self, process: int, spool: Spool) -> bool:
        """Moves what is committed out of all rings. False: the disk has no room for it."""

    def look(self) -> None:
        """Brings the accounts of all rings up to date without taking anything."""

    def detached(self) -> bool: ...
    def exited(self) -> bool: ...
    def alarms(self) -> int:
        """How often the program asked for a dump."""

    def shed(self, details: int) -> None:
        """Takes back details; the program learns of it when the page changes."""

    def account(self) -> Account: ...
    def rings(self) -> list[RingAccount]: ...
    def unrecorded(self) -> int:
        """Events of threads for whose rings there was no room."""

    def spent_ticks(self) -> int:
        """What recording took on all threads, estimated from a sample."""

    def finished(self) -> list[RingAccount]: ...
    def forget_finished(self) -> list[RingAccount]:
        """Takes the finished ones out of rings(), and gives their memory back."""

    def finish(self) -> None:
        """Its process is gone: nothing more will come."""

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
    def begin(
        self, session: int, target_pid: int, ring_records: int, folder: str, details: int, overwrite: bool
    ) -> int:
        """The slot, or -1 when all are taken."""

    def announce(self) -> None:
        """Wakes every traced process."""

    def end(self, slot: int) -> None: ...
    def release(self, slot: int) -> None: ...
    def release_dead(self, slot: int) -> None:
        """Frees the slot of a collector that died, unless a live one has it by now."""

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

# python_bindings.cpp

ALARM_UNCAUGHT_EXCEPTION: int
ALARM_OUT_OF_MEMORY: int

class Annotation:
    """A named span of the thread that enters it, while somebody wants annotations; `sort` is an index of
    ANNOTATION_SORTS.
    """

    name: str
    def __new__(cls, name: str, sort: int = 0) -> Self: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

def annotating() -> bool:
    """Whether somebody wants annotations now."""

def now() -> int:
    """The clock of the records, in ticks."""

def end_whole(name: str, start_ticks: int) -> None:
    """An annotation from then to now that was suspended in between. 0: there is none."""

def end_module(name: str, class_name: str, start_ticks: int) -> None:
    """A call of a module from then to now."""

def collected(phase: str, info: dict[str, int]) -> None:
    """An entry of gc.callbacks."""

def details() -> int:
    """What some recording wants of this process now: bits of DETAILS."""

def step() -> None: ...
def raise_alarm(alarm: int) -> None:
    """Asks the collectors to write out what they hold."""

def forked() -> None:
    """In a forked child, as soon as Python works there."""

def close() -> None:
    """Python is about to end: nothing calls into it from outside any more."""

def python_stack() -> int:
    """The node of the calling thread's stack; 0: nobody records."""

def use_public_frames(use: bool) -> None:
    """Reads frames through Python's public API, as on a Python whose frames we do not know."""

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
    def add_process(
        self, key: int, pid: int, name: str, rank: int, command_line: str, labels: Sequence[str]
    ) -> None: ...
    def add_thread(self, key: int, pid: int, tid: int, name: str, rank: int) -> None: ...
    def add_track(self, key: int, parent: int, name: str, rank: int) -> None: ...
    def add_counter(self, key: int, parent: int, name: str, unit: str) -> None: ...
    def slices(self, rows: ArrowStream, arrows: ArrowStream) -> None: ...
    def counters(self, rows: ArrowStream) -> None: ...
    def finish(self) -> None: ...

class JsonLines:
    """The elements of a JSON array, a line each, with commas between them; `sink` is called with each chunk of them.

    What `sink` and `place` raise comes through; a query that fails is a RuntimeError.
    """

    def __init__(self, sink: Callable[[bytes], object], *, chunk_bytes: int = 1 << 20) -> None: ...
    def line(self, text: str) -> None: ...
    def objects(self, rows: ArrowStream) -> None:
        """An object a row: BIGINT, VARCHAR, and BLOB that is JSON already, where they are not NULL."""

    def slices(self, rows: ArrowStream, arrows: ArrowStream, *, zero_ns: int, place: Callable[[int, int], str]) -> None:
        """The rows of `drawn.slices_sql` and `drawn.arrows_sql`; times are counted from `zero_ns`.

        `place(track, lane)` gives the members that say where that is drawn. It is called once, and may call `line`.
        """

    def counters(self, rows: ArrowStream, *, zero_ns: int, frame: Callable[[int], tuple[str, str] | None]) -> None:
        """Rows: a counter's key, ts_ns, value (BIGINT or DOUBLE); by key.

        `frame(key)` gives what stands before the time and between it and the value; None: it is not drawn.
        """

    def finish(self) -> None:
        """Hands what is left to the sink."""

class TrackLanes:
    """Spreads the slices of each track over lanes, so that those of one lane nest."""

    def place(
        self, track: NDArray[np.int64], start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The lane of each slice, from 0.

        Slices by start, longest first; several calls go on where the last one ended.
        """

# trace_json_bindings.cpp

class NotATrace(ValueError):
    """The text is no trace in Chrome's format at all; says where."""

class TraceJsonScanner:
    """Chrome's JSON in, cut anywhere; rows out; see native/trace_json.h.

    `fields` are (key in args, column, 'int', 'uint', 'text' or 'label'): they get columns, and are left out of args, as
    are the keys of `leave_out`. Arrows of the categories `skip_arrows` become no rows. A unit of ts and dur is
    10^nanoseconds_exponent ns. Of the text of args `most_text` bytes stay in memory, the rest goes to a file in
    `spill_folder`. Works without the GIL.
    """

    table: TraceTable
    """The rows; complete after `finish`."""
    cut_off: bool
    """The text ended before its list or object did."""
    whole_microseconds: bool
    """No time had a part below a microsecond."""
    def __init__(
        self,
        *,
        fields: Sequence[tuple[str, str, str]] = ...,
        leave_out: Sequence[str] = ...,
        skip_arrows: Sequence[str] = ...,
        nanoseconds_exponent: int = ...,
        spill_folder: str = ...,
        most_text: int = ...,
    ) -> None: ...
    def feed(self, data: bytes) -> None:
        """Raises NotATrace; OSError: the text of args cannot be written to its file."""
    def finish(self) -> None:
        """Raises NotATrace."""
    def groups(self) -> list[tuple[int, str, str | None, str | None, str | None, int, bool]]:
        """(track, ph, cat, pid, tid, rows, skipped), by number. A track is a pid and a tid."""
    def metadata(self) -> list[tuple[str, str]]:
        """Members of the file besides traceEvents, as JSON."""
    def faults(self) -> list[tuple[str, int, str]]:
        """(what, how often, an example)"""

# trace_events_bindings.cpp

class TraceStream:
    """Rows as columns, a batch at a time. DuckDB reads it."""

    columns: list[str]
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...

class TraceTable:
    """Rows of the scanner, numbered in the order of the file; see native/trace_table.h. Its length: how many labels."""

    rows: int
    first_row: int
    """Rows before it are superseded by a second list of the same name, and in nothing that is asked."""
    def __len__(self) -> int: ...
    def labels(self, begin: int, end: int) -> list[tuple[int, str | None, tuple[int | None, ...], int, int]]:
        """(group, name, values of the fields 'label', rows, rows with a time)"""
    def raw(self, groups: Sequence[bool], columns: Sequence[str]) -> TraceStream:
        """n, grp, ts_ns, and those of the columns that have values, of the rows of some groups."""
    def texts(self, column: str) -> list[str]:
        """The different values of a field 'text'."""
    def shift(self, nanoseconds: int) -> None:
        """Adds to all times."""
    def rows_of(
        self, labels: Sequence[bool]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Number, label, ts_ns and dur_ns (-1: unknown) of the rows of some labels that have a time."""
    def numbers_of(self, labels: Sequence[bool]) -> list[int]:
        """All rows of some labels."""
    def row(self, row: int) -> tuple[int, str | None, int | None, str | None]:
        """(group, name, dur_ns, args)"""

class TraceEvents:
    """What the rows of a table are, by their labels; see native/trace_events.h for the order of the calls.

    Kinds are numbers of KINDS, or CALL, SYNC_CALL, LEFT_OUT; traits are bits; -1 stands for none. What is odd comes as
    (how many rows, the first, its duration, bytes or start).
    """

    CALL: int
    SYNC_CALL: int
    LEFT_OUT: int
    NO_STEP: int
    POINT: int
    COMPLETE: int
    OPERATOR: int
    MEMORY: int
    MAY_BE_NEGATIVE: int
    ARROW_END: int
    COUNTED: int
    timeless: tuple[int, int, int | None]
    negative: tuple[int, int, int | None]
    odd_bytes: tuple[int, int, int | None]
    def __init__(
        self,
        table: TraceTable,
        *,
        kind: NDArray[np.uint8],
        depth: NDArray[np.uint8],
        traits: NDArray[np.uint8],
        category: NDArray[np.int32],
        process: NDArray[np.int32],
        thread: NDArray[np.int32],
        device: NDArray[np.int32],
        stream: NDArray[np.int32],
        step: NDArray[np.int64],
        inner_first: bool = ...,
    ) -> None: ...
    def amend(self, row: int, dur_ns: int, flags: int, args: str) -> None: ...
    def end_overruns(self, labels: Sequence[bool], stop_ns: int) -> None: ...
    def settle(self) -> None: ...
    def flag_leftovers(self, start_ns: int) -> tuple[int, int, int | None]: ...
    def first_start(self, on_threads: bool) -> int | None: ...
    def find_launches(self) -> None: ...
    def place(
        self,
        process: NDArray[np.int64],
        step: NDArray[np.int64],
        start_ns: NDArray[np.int64],
        end_ns: NDArray[np.int64],
        tolerance_ns: int,
    ) -> None:
        """Finds parents and steps, of which these are the times."""
    def state_parents(self) -> None: ...
    def rows(
        self, first: int, stack_first: int, categories: Sequence[str], backward: int, rows_a_batch: int
    ) -> TraceStream:
        """The rows of `event`, whose ids are first + number."""
    def launched(self, first: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ids of launches and of what they started."""
    def arrow_ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Numbers of ends of arrows on threads, of the slices around them, and of the next ones; -1: none."""

# plain_pickle.cpp

def read_plain_pickle(data: bytes) -> tuple[object, int, int]:
    """The plain data in a pickle, where it ends, and how many texts in it are not UTF-8 (decoded with replacement).

    Makes dictionaries with text keys, lists, tuples, text, bytes, numbers, truth and None, and nothing else. Raises
    ValueError, with the byte where it is, for whatever else a pickle holds, and for one that is damaged.
    """
