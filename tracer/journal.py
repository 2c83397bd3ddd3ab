"""What a collector knows besides the records it drains, a line of JSON each, on disk beside them.

Together with the spool (native/spool.h) and what the programs left in shared memory it is the whole recording: the
trace is made from these when a recording ends, while it runs, and after its collector died.
"""

import contextlib
import errno
import functools
import json
import os
import re
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, get_type_hints

from ral_trace.tracer import _native

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Begin:
    """The first line: how the recording was asked for."""

    session: int
    command_line: str
    host: str
    boot_id: str
    """Ticks mean nothing after another boot."""
    details: int
    ring_bytes: int
    overwrite: bool
    flight_ns: int | None = None


@dataclass(frozen=True)
class RingRow:
    """The account of one ring, as the ledger has it. `tid` None: of threads without a ring."""

    tid: int | None
    thread_name: str
    written: int
    received: int
    dropped: int
    lost: int
    shed: int
    damaged: int = 0
    facts: int = 0
    number: int | None = None
    """Of the ring in its process."""

    @classmethod
    def of(cls, ring: _native.RingAccount) -> Self:
        account = ring.account
        return cls(
            ring.tid,
            ring.thread_name,
            account.written,
            account.received,
            account.dropped,
            account.lost,
            account.shed,
            account.damaged_rings,
            account.facts,
            ring.ring,
        )


@dataclass(frozen=True)
class HostSample:
    """What a process had taken by one moment: resident memory, and CPU time since it began."""

    ticks: int
    rss_bytes: int
    cpu_ns: int
    spent_ticks: int
    """What recording has taken of that, estimated from a sample."""


@dataclass(frozen=True)
class Shed:
    """The governor took back details (bits of _native.DETAILS) at one moment, because recording took such a share."""

    ticks: int
    details: int
    share: float


@dataclass
class Journal:
    """All lines, sorted by what they are about."""

    begin: Begin
    clocks: list[_native.ClockSample] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    """The folder of each process, by its number."""
    gone: dict[int, int] = field(default_factory=dict)
    """By number of the process: ticks when its end was noticed."""
    exits: dict[int, int] = field(default_factory=dict)
    """By pid: how our own child ended, as subprocess says it (negative: a signal)."""
    rings: dict[int, list[RingRow]] = field(default_factory=lambda: defaultdict(list))
    """By number of the process: rings whose threads are gone."""
    samples: dict[int, list[HostSample]] = field(default_factory=lambda: defaultdict(list))
    sheds: dict[int, list[Shed]] = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)
    """Sentences for `quality`."""

    def as_of_now(self) -> "Journal":
        """A copy that does not grow, for another thread to read."""
        return Journal(
            self.begin,
            list(self.clocks),
            list(self.processes),
            dict(self.gone),
            dict(self.exits),
            defaultdict(list, {number: list(rows) for number, rows in self.rings.items()}),
            defaultdict(list, {number: list(rows) for number, rows in self.samples.items()}),
            defaultdict(list, {number: list(rows) for number, rows in self.sheds.items()}),
            list(self.notes),
        )

    def take(self, line: dict[str, Any]) -> None:
        """Adds what one line says. Raises ValueError where it says it wrongly."""
        match line:
            case {"clock": [ticks, monotonic_ns, realtime_ns]}:
                self.clocks.append(_native.ClockSample(*map(_count, (ticks, monotonic_ns, realtime_ns))))
            case {"process": str(folder)} if PROCESS.fullmatch(folder):
                self.processes.append(folder)
            case {"gone": int(number), "ticks": int(ticks)}:
                self.gone[number] = _count(ticks)
            case {"exit": int(pid), "status": int(status)}:
                self.exits[pid] = status
            case {"ring": dict(row), "of": int(number)}:
                self.rings[number].append(_checked(RingRow, row))
            case {"sample": dict(row), "of": int(number)}:
                self.samples[number].append(_checked(HostSample, row))
            case {"shed": dict(row), "of": int(number)}:
                self.sheds[number].append(_checked(Shed, row))
            case {"note": str(what)}:
                self.notes.append(what)


class JournalWriter:
    """Appends lines to the file, and keeps what they say. Raises OSError when the disk is full."""

    def __init__(self, path: Path, begin: Begin) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        self.journal = Journal(begin)
        self.on_disk = True
        """Whether all further lines are written, or only the processes, which salvage cannot do without: a flight
        recorder would fill the disk.
        """
        self._append({"begin": asdict(begin)})

    def clock(self) -> _native.ClockSample:
        """Notes what the clocks say now."""
        now = _native.ClockSample.now()
        self._note({"clock": [now.ticks, now.monotonic_ns, now.realtime_ns]})
        return now

    def process(self, folder: str) -> int:
        """A process has joined. Returns its number."""
        self._note({"process": folder}, always=True)
        return len(self.journal.processes) - 1

    def gone(self, number: int, ticks: int) -> None:
        self._note({"gone": number, "ticks": ticks})

    def exit(self, pid: int, status: int) -> None:
        self._note({"exit": pid, "status": status})

    def ring(self, number: int, row: RingRow) -> None:
        self._note({"ring": asdict(row), "of": number})

    def sample(self, number: int, sample: HostSample) -> None:
        self._note({"sample": asdict(sample), "of": number})

    def shed(self, number: int, shed: Shed) -> None:
        self._note({"shed": asdict(shed), "of": number})

    def note(self, what: str) -> None:
        """A sentence that belongs into `quality`."""
        self._note({"note": what})

    def close(self) -> None:
        os.close(self._file)

    def _note(self, line: dict[str, Any], *, always: bool = False) -> None:
        self.journal.take(line)
        if self.on_disk or always:
            self._append(line)

    def _append(self, line: dict[str, Any]) -> None:
        text = json.dumps(line).encode() + b"\n"
        size_bytes = os.fstat(self._file).st_size
        if os.write(self._file, text) != len(text):
            os.ftruncate(self._file, size_bytes)  # half a line would spoil the next one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def read(path: Path) -> Journal | None:
    """What a collector that died has written, but for a line that it was in the middle of. None: not even its first."""
    lines = path.read_bytes().splitlines()
    try:
        journal = Journal(_checked(Begin, json.loads(lines[0])["begin"]))
    except (IndexError, KeyError, TypeError, ValueError, RecursionError):
        return None
    for line in lines[1:]:
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(line)
            if isinstance(parsed, dict):
                journal.take(parsed)
    return journal


MOST = 1 << 63
PROCESS = re.compile(r"\d+-\d+(\.\d+)?")
"""Of a process: its pid, when it started, which image of it (native/layout.h)."""
Row = TypeVar("Row", bound="DataclassInstance")


def _count(value: object) -> int:
    """A number that fits the trace's columns."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST:
        raise ValueError(f"{value!r}: must be a number from 0 to 2^63")
    return value


@functools.cache
def _types(row: type) -> dict[str, Any]:
    return get_type_hints(row)


def _checked(row: type[Row], values: object) -> Row:
    """A row whose values have the types that it says. Raises ValueError."""
    if not isinstance(values, dict):
        raise ValueError(f"{values!r}: must be a row")
    types = _types(row)
    if values.keys() - types.keys():
        raise ValueError(f"{sorted(values.keys() - types.keys())}: nobody knows these")
    for name, value in values.items():
        fits = isinstance(value, types[name]) and (types[name] is bool or not isinstance(value, bool))
        if not fits:
            raise ValueError(f"{name}: {value!r} is no {types[name]}")
        if isinstance(value, int) and not isinstance(value, bool):
            _count(value)
    try:
        return row(**values)
    except TypeError as error:
        raise ValueError(f"{error}") from error
