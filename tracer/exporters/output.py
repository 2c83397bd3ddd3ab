"""What every exporter needs: private files, and what a time window selects."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ral_trace.tracer.reading import Trace
from ral_trace.tracer.schema import FLAGS

VALID = f"(coalesce(flags, 0) & {FLAGS['INVALID']}) = 0"
UNFINISHED = f"(coalesce(flags, 0) & {FLAGS['UNFINISHED']}) != 0"
MAX_NS = 2**63 - 1


@dataclass(frozen=True)
class Window:
    """The part of a trace to write: integer nanoseconds from the trace's first event; None: no limit."""

    from_ns: int | None = None
    to_ns: int | None = None


@dataclass(frozen=True)
class Options:
    """What only the exporter of tables takes: the name of a table or view, or a person's own SELECT."""

    table: str | None = None
    query: str | None = None


@dataclass(frozen=True)
class Selection:
    """A window in the trace's own time, `to_ns` exclusive. `first_ns` is the trace's first valid event."""

    first_ns: int
    from_ns: int | None
    to_ns: int | None

    @property
    def everything(self) -> bool:
        return self.from_ns is None and self.to_ns is None

    def events(self) -> str:
        """SQL: whether a row of `event` overlaps the window. Rows are taken or left whole, never cut."""
        # HUGEINT: the times of an untrusted file may add up to more than 64 bits.
        return self._overlaps(
            "ts_ns", f"CASE WHEN {UNFINISHED} THEN {MAX_NS} ELSE ts_ns::HUGEINT + coalesce(dur_ns, 0) END"
        )

    def tables(self) -> dict[str, str]:
        """SQL conditions by table: which rows belong to the window. Tables that are not named belong whole."""
        if self.everything:
            return {}
        event = f"(SELECT id FROM event WHERE {self.events()})"
        lives = self._overlaps(f"coalesce(alloc_ns, {-MAX_NS})", f"coalesce(free_ns, {MAX_NS})")
        return {
            "event": self.events(),
            "flow": f"from_event IN {event} AND to_event IN {event}",
            "counter_value": self._overlaps("ts_ns", "ts_ns"),
            "region": self._overlaps(f"coalesce(opened_ns, {-MAX_NS})", f"coalesce(closed_ns, {MAX_NS})"),
            "allocation": lives,
            "allocation_piece": f"allocation IN (SELECT id FROM allocation WHERE {lives})",
            "access": f"event IN {event}",
        }

    def _overlaps(self, begin: str, end: str) -> str:
        """A row that begins or ends on the window's very first nanosecond is in it when it begins there."""
        conditions = []
        if self.from_ns is not None:
            conditions.append(f"({begin} >= {self.from_ns} OR {end} > {self.from_ns})")
        if self.to_ns is not None:
            conditions.append(f"{begin} < {self.to_ns}")
        return " AND ".join(conditions) or "true"


def select(trace: Trace, window: Window) -> Selection:
    """Turns a window, which counts from the first valid event, into the trace's own time."""
    [(first,)] = trace.sql(f"SELECT min(ts_ns) FROM event WHERE {VALID}").fetchall()
    zero = 0 if first is None else int(first)
    return Selection(
        first_ns=zero,
        from_ns=None if window.from_ns is None else zero + window.from_ns,
        to_ns=None if window.to_ns is None else zero + window.to_ns,
    )


def cut_note(selection: Selection) -> str:
    """SQL to follow a SELECT of `quality`: a row that says which part this is, because the ledger counts the whole."""
    if selection.everything:
        return ""
    begin, end = (
        edge if ns is None else f"{ns - selection.first_ns} ns after its first event"
        for ns, edge in ((selection.from_ns, "its begin"), (selection.to_ns, "its end"))
    )
    what = f"only a part of the recording was exported, from {begin} to {end}: rows that were left out"
    return (
        f" UNION ALL SELECT NULL, NULL, '{what}', (SELECT count(*) FROM event WHERE NOT ({selection.events()})), NULL"
    )


def create_private(path: Path) -> IO[bytes]:
    """Creates a file for its owner only: a trace holds paths, command lines and source lines. Raises OSError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb")
