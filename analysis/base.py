"""What a question to a trace is, and the pieces of SQL that several questions share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ral_trace.tracer.schema import FLAGS

Rows = list[dict[str, Any]]

UNITS = {
    "text": "text out of the trace: untrusted, to be shown as text only",
    "id": "an id of the trace's tables, to join with",
    "count": "a number of things",
    "ns": "nanoseconds, an integer",
    "time": "nanoseconds since the trace's clock zero (the Unix epoch for live recordings), an integer",
    "bytes": "bytes, an integer",
    "percent": "0 to 100",
}


@dataclass(frozen=True)
class Column:
    """One column of an answer: its name, its unit (a key of UNITS), what it means."""

    name: str
    unit: str
    about: str


@dataclass(frozen=True)
class Analysis:
    """One question. `run(trace, **options)` gives rows with exactly `columns`; what cannot be known is None."""

    name: str
    title: str
    about: str
    columns: tuple[Column, ...]
    run: Callable[..., Rows]

    @property
    def by_device(self) -> bool:
        """Whether `run` takes `device=`.

        That is a name as the column `device` shows it, or the bare label (ral:1) for the devices of all processes.
        """
        return any(column.name == "device" for column in self.columns)


DEVICE = Column("device", "text", "as people write it, ral:1; with the pid where several processes have one so named")
OP = Column("op", "text", "op that allocated; none: unknown")

NAMED_DEVICE = """named_device AS (
    SELECT d.id AS device, d.process, d.type, l.label, d.vendor, d.name, d.memory_bytes,
           row_number() OVER (ORDER BY d.type = 'cpu', d.type, d."index", d.process, d.id) AS position,
           coalesce(l.label, d.name, 'device ' || d.id) || CASE
               WHEN count(*) OVER (PARTITION BY l.label) = 1 THEN ''
               WHEN count(*) OVER (PARTITION BY l.label, p.pid) = 1
                   THEN ' (' || coalesce('pid ' || p.pid, p.name, 'process ' || p.id) || ')'
               ELSE ' (process ' || p.id || ')' END AS shown
    FROM device d JOIN device_label l ON l.device = d.id JOIN process p ON p.id = d.process)"""
"""CTE: the devices with the name that answers use for them (`shown`), and their order (`position`)."""

WANTED = "($1::VARCHAR IS NULL OR d.shown = $1 OR d.label = $1)"
"""Condition on a named_device `d`: it is what the option `device`, the query's first parameter, asks for."""

VALID = f"(coalesce(e.flags, 0) & {FLAGS['INVALID']}) = 0"
"""Condition on an event `e`: its times can be."""

TIME_NS = f"CASE WHEN {VALID} AND e.dur_ns >= 0 THEN e.dur_ns END"
"""The duration of an event `e` that may be summed. NULL: unknown, or its times cannot be."""

INSIDE_FALLBACK = """
    below(fallback, id, kind, process, correlation) AS (
        SELECT id, id, kind, process, NULL::BIGINT FROM event WHERE kind = 'fallback'
        UNION ALL
        SELECT b.fallback, e.id, e.kind, e.process, e.correlation
        FROM below b JOIN event e ON e.parent = b.id WHERE e.kind <> 'fallback'),
    copy_inside AS (
        SELECT id, min(fallback) AS fallback FROM (
            SELECT id, fallback FROM below WHERE kind = 'transfer'
            UNION ALL
            SELECT t.id, b.fallback FROM below b JOIN event t ON t.process = b.process AND t.correlation = b.correlation
            WHERE b.kind = 'launch' AND t.kind = 'transfer')
        GROUP BY id)"""
"""CTEs (WITH RECURSIVE): the rows beneath each fallback, and the copies that it made.

They end at a fallback beneath a fallback, which has rows of its own. So a circle of parents ends, too.
"""
