"""What every exporter needs: private files, and which part of a trace it writes."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from isal import igzip

from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.schema import FLAGS, KINDS
from ral_trace.tracer.text import sql_text

VALID = f"(coalesce(flags, 0) & {FLAGS['INVALID']}) = 0"
UNFINISHED = f"(coalesce(flags, 0) & {FLAGS['UNFINISHED']}) != 0"
MAX_NS = 2**63 - 1
GZIP: Any = igzip.IGzipFile
COMPRESSION_LEVEL = 1
"""isal's: 0 to 3."""

CHOSEN = "memory.main.chosen_event"
"""Ids of the events that have to do with the chosen devices, in the database in memory that the trace is attached to:
every cursor sees it, and it spills to the trace's private folder.
"""

COUNTED_KINDS = {
    "allocation": ("alloc", "free"),
    "allocation_piece": ("alloc", "free"),
    "region": ("region",),
    "counter_value": ("counter",),
}
"""The tables beside `event` whose rows are of certain kinds, too."""


@dataclass(frozen=True)
class Window:
    """The part of a trace to write. Times are integer nanoseconds from the trace's first event; None: no limit."""

    from_ns: int | None = None
    to_ns: int | None = None
    devices: tuple[str, ...] = ()
    """Such as ral:1, or ral for all of that type, with the host rows that belong to their work; empty: all."""
    kinds: tuple[str, ...] = ()
    """Of `event.kind`; empty: all. Counters go with the kind of event that they count."""
    run: str | None = None
    """The name of the run in a data set (Parquet); None: the trace's file name."""
    table: str | None = None
    """Of a table (.csv, .tsv): the name of a table or view; None: events."""
    query: str | None = None
    """Of a table: a person's own SELECT instead."""


@dataclass(frozen=True)
class Selection:
    """A window in the trace's own time, `to_ns` exclusive. `first_ns` is the trace's first valid event."""

    first_ns: int
    from_ns: int | None
    to_ns: int | None
    device_ids: tuple[int, ...] | None = None
    """None: all."""
    window: Window = Window()

    @property
    def everything(self) -> bool:
        return not self.conditions

    @property
    def conditions(self) -> list[str]:
        """What of a trace is left out, in words."""
        window, begin, end = self.window, "its begin", "its end"
        words = []
        if self.from_ns is not None or self.to_ns is not None:
            begin, end = (
                edge if ns is None else f"{ns} ns after its first event"
                for ns, edge in ((window.from_ns, begin), (window.to_ns, end))
            )
            words.append(f"from {begin} to {end}")
        if window.devices:
            words.append("of " + ", ".join(window.devices))
        if window.kinds:
            words.append("of the kinds " + ", ".join(window.kinds))
        return words

    @property
    def shift_ns(self) -> int:
        """Viewers' times are unsigned: a trace whose clock begins below zero is moved up to it."""
        return min(0, self.first_ns)

    def moved(self, column: str) -> str:
        """SQL: a time as viewers get it. One that then has no place in 64 bits is at their end."""
        if not self.shift_ns:
            return column
        return f"least({column}::HUGEINT - ({self.shift_ns}), {MAX_NS})::BIGINT"

    def events(self) -> str:
        """SQL: whether a row of `event` is in the part. Rows are taken or left whole, never cut."""
        # HUGEINT: the times of an untrusted file may add up to more than 64 bits.
        conditions = self._overlaps(
            "ts_ns",
            f"CASE WHEN dur_ns IS NULL AND {UNFINISHED} THEN {MAX_NS} ELSE ts_ns::HUGEINT + coalesce(dur_ns, 0) END",
        )
        if self.window.kinds:
            conditions.append(f"kind IN ({_texts(self.window.kinds)})")
        if self.device_ids is not None:
            conditions.append(f"id IN (SELECT id FROM {CHOSEN})")
        return _all_of(conditions)

    def tables(self) -> dict[str, str]:
        """SQL conditions by table: which rows belong to the part. Tables that are not named belong whole."""
        if self.everything:
            return {}
        event = f"(SELECT id FROM event WHERE {self.events()})"
        lives = self._beside(
            "allocation", self._overlaps(f"coalesce(alloc_ns, {-MAX_NS})", f"coalesce(free_ns, {MAX_NS})"), self.on()
        )
        opened = self._overlaps(f"coalesce(opened_ns, {-MAX_NS})", f"coalesce(closed_ns, {MAX_NS})")
        counter = f"counter IN (SELECT id FROM counter WHERE {self.on(or_none=True)})"
        return {
            "event": self.events(),
            "flow": f"from_event IN {event} AND to_event IN {event}",
            "counter_value": self._beside("counter_value", self._overlaps("ts_ns", "ts_ns"), counter),
            "region": self._beside("region", opened, self.on()),
            "allocation": lives,
            "allocation_piece": f"allocation IN (SELECT id FROM allocation WHERE {lives})",
            "access": f"event IN {event}",
        }

    def at(self, column: str) -> str:
        """SQL: whether a moment is in the window."""
        return _all_of(self._overlaps(column, column))

    def on(self, column: str = "device", *, or_none: bool = False) -> str:
        """SQL: whether a row is of a chosen device, or with `or_none` of no device at all."""
        if self.device_ids is None:
            return "true"
        chosen = f"{column} IN ({', '.join(map(str, self.device_ids)) or 'NULL'})"
        return f"({chosen} OR {column} IS NULL)" if or_none else chosen

    def has(self, *kinds: str) -> bool:
        """Whether rows of one of these kinds belong to the part."""
        return not self.window.kinds or any(kind in self.window.kinds for kind in kinds)

    def _beside(self, table: str, overlaps: list[str], on: str) -> str:
        return _all_of([*overlaps, on]) if self.has(*COUNTED_KINDS[table]) else "false"

    def _overlaps(self, begin: str, end: str) -> list[str]:
        """A row that begins or ends on the window's very first nanosecond is in it when it begins there."""
        conditions = []
        if self.from_ns is not None:
            conditions.append(f"({begin} >= {self.from_ns} OR {end} > {self.from_ns})")
        if self.to_ns is not None:
            conditions.append(f"{begin} < {self.to_ns}")
        return conditions


def select(trace: Trace, window: Window) -> Selection:
    """Turns a window, which counts from the first valid event, into the trace's own time and ids. Raises UsageError."""
    if unknown := [kind for kind in window.kinds if kind not in KINDS]:
        raise UsageError(f"there is no kind of event '{unknown[0]}'; choose from: {', '.join(KINDS)}")
    [(first,)] = trace.sql(f"SELECT min(ts_ns) FROM event WHERE {VALID}").fetchall()
    zero = 0 if first is None else int(first)
    selection = Selection(
        first_ns=zero,
        from_ns=None if window.from_ns is None else zero + window.from_ns,
        to_ns=None if window.to_ns is None else zero + window.to_ns,
        device_ids=_device_ids(trace, window.devices) if window.devices else None,
        window=window,
    )
    if selection.device_ids is not None:
        _choose_events(trace, selection)
    return selection


def _device_ids(trace: Trace, wanted: Sequence[str]) -> tuple[int, ...]:
    known = trace.sql('SELECT id, type, "index" FROM device ORDER BY id').fetchall()
    names = {number: (kind, f"{kind}:{index}") for number, kind, index in known}
    for name in wanted:
        if not any(name in either for either in names.values()):
            there = ", ".join(sorted({label for _, label in names.values()})) or "none"
            raise UsageError(f"{trace.path}: there is no device {name} in it; its devices: {there}")
    return tuple(number for number, either in names.items() if set(either) & set(wanted))


def _choose_events(trace: Trace, selection: Selection) -> None:
    """Finds the devices' own rows, the launches that led to them, and the host rows around both.

    A launch of another tool's trace does not say its device, so that it is found by its correlation.
    """
    trace.connection.execute(f"""
        CREATE OR REPLACE TABLE {CHOSEN} AS
        WITH RECURSIVE own AS (SELECT id, process, correlation, parent FROM event WHERE {selection.on()}),
        launch AS (
            SELECT l.id, l.parent FROM event l SEMI JOIN own ON own.process = l.process
            AND own.correlation = l.correlation WHERE l.thread IS NOT NULL),
        around AS (
            SELECT id, parent FROM own UNION SELECT id, parent FROM launch
            UNION
            SELECT e.id, e.parent FROM event e JOIN around ON around.parent = e.id)
        SELECT DISTINCT id FROM around""")


def cut_note(selection: Selection) -> str:
    """SQL to follow a SELECT of `quality`: a row that says which part this is, because the ledger counts the whole."""
    if selection.everything:
        return ""
    what = f"only a part of the recording was exported, {', '.join(selection.conditions)}: rows that were left out"
    return (
        f" UNION ALL SELECT NULL, NULL, {_texts([what])},"
        f" (SELECT count(*) FROM event WHERE NOT coalesce({selection.events()}, false)), NULL"
    )


@contextmanager
def create_packed(path: Path) -> Iterator[IO[bytes]]:
    """Creates a private file that is gzip where its name ends in .gz; the same content gives the same bytes."""
    with create_private(path) as file:
        if path.name.endswith(".gz"):
            with GZIP(fileobj=file, mode="wb", compresslevel=COMPRESSION_LEVEL, mtime=0) as packed:
                yield packed
        else:
            yield file


def create_private(path: Path) -> IO[bytes]:
    """Creates a file for its owner only: a trace holds paths, command lines and source lines. Raises OSError.

    What is there already goes first, such as what an export of the same process number left when it was killed. It is
    never written to: in a folder for all it could be a link, or a file that its owner lets everybody read.
    """
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb")


def _all_of(conditions: Sequence[str]) -> str:
    return " AND ".join(one for one in conditions if one != "true") or "true"


def _texts(values: Sequence[str]) -> str:
    """SQL: a list of literals."""
    return ", ".join(map(sql_text, values))
