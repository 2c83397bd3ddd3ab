"""How far the numbers can be trusted: where they come from, what is missing, and which numbers that changes."""

import re
from dataclasses import dataclass

from ral_trace.analysis.base import CHAPTERS, Analysis, Column, Rows
from ral_trace.tracer.reading import Trace


@dataclass(frozen=True)
class Bearing:
    """What a remark of `quality` changes: which chapters' numbers, and how to read them then."""

    pattern: str
    chapters: tuple[str, ...]
    reading: str


COUNTED = ("time", "devices", "fallbacks", "waits", "memory", "steps", "ranks")
TIMED = ("time", "devices", "fallbacks", "waits", "steps", "ranks")

BEARINGS = [
    Bearing(r"dropped|lost|cut off|damaged|disk was full|overwritten|ended early", COUNTED,
            "events are missing: counts and sums are lower bounds"),
    Bearing(r"overlap on one in-order stream", ("time", "devices"),
            "a kernel's duration runs over its successors': sums are too high, unions are not"),
    Bearing(r"times that cannot be|negative duration|time that no clock|without a time", TIMED,
            "events whose times cannot be are in no sum of times"),
    Bearing(r"end was never seen|without a duration", TIMED,
            "events of unknown duration are counted, but in no sum of times"),
    Bearing(r"launches without", ("devices", "waits"), "what these launches started is missing from the device's work"),
    Bearing(r"launches whose device", ("devices", "waits"), "these launches are in no device's queue"),
    Bearing(r"clock", ("devices", "ranks"), "times of different sources compare only as well as their clocks agree"),
    Bearing(r"\brank", ("ranks",), "waits between ranks are known only among the ranks that are here"),
    Bearing(r"block|address|frees|allocat|segment|region|changes of memory|history", ("memory",),
            "levels of memory are right only but for these"),
    Bearing(r"\bshed\b|detail", TIMED, "detail was left out on purpose: rare things may not show"),
    Bearing(r"name table|names were|UTF-8", ("time", "fallbacks"), "some names are not those of the program"),
]  # fmt: skip
"""From the gravest. The first that fits is said."""


def bearing(what: str) -> Bearing | None:
    """What a remark changes; None: it changes no number that is shown."""
    return next((found for found in BEARINGS if re.search(found.pattern, what, re.IGNORECASE)), None)


def quality(trace: Trace) -> Rows:
    """What to know before believing the numbers, and which numbers it changes."""
    rows = trace.rows("""
        SELECT coalesce(s.program, s.path) AS source, p.pid, q.what, q.count, q.example
        FROM quality q LEFT JOIN source s ON s.id = q.source LEFT JOIN process p ON p.id = q.process
        ORDER BY q.count DESC NULLS LAST, q.what, p.pid, q.example""")
    for row in rows:
        found = bearing(row["what"] or "")
        row["reading"] = None if found is None else found.reading
        row["chapters"] = None if found is None else " ".join(found.chapters)
    return rows


def warnings(rows: Rows) -> dict[str, list[str]]:
    """How the remarks of `quality` change the reading of each chapter: a sentence each, none twice."""
    found: dict[str, list[str]] = {chapter: [] for chapter in CHAPTERS}
    for row in rows:
        for chapter in (row["chapters"] or "").split():
            if row["reading"] not in found[chapter]:
                found[chapter].append(row["reading"])
    return found


QUALITY = Analysis(
    "quality",
    "Quality",
    "What to know before believing the numbers.",
    (
        Column("source", "text", "program or file; none: the whole trace"),
        Column("pid", "id", "process; none: the whole source"),
        Column("what", "text", "one sentence"),
        Column("count", "count", "how many events it concerns"),
        Column("example", "text", "one of them"),
        Column("reading", "text", "how it changes the reading of numbers; none: it does not"),
        Column("chapters", "text", f"whose numbers: some of {', '.join(CHAPTERS)}"),
    ),
    quality,
    chapter="trust",
)


def ledger(trace: Trace) -> Rows:
    """What became of the events of each process: written = received + dropped + lost."""
    return trace.rows("""
        SELECT p.id AS process, p.pid, p.name, p.rank, written, received, dropped, lost, shed, p.ended_how
        FROM process p LEFT JOIN (
            SELECT process, sum(written)::BIGINT AS written, sum(received)::BIGINT AS received,
                   sum(dropped)::BIGINT AS dropped, sum(lost)::BIGINT AS lost, sum(shed)::BIGINT AS shed
            FROM ledger GROUP BY process) l ON l.process = p.id ORDER BY p.id""")


LEDGER = Analysis(
    "ledger",
    "Ledger",
    "What became of the events of each process: written = received + dropped + lost.",
    (
        Column("process", "id", "process.id"),
        Column("pid", "id", "as the operating system counts them"),
        Column("name", "text", "short name of the program"),
        Column("rank", "id", "distributed rank"),
        Column("written", "count", "events past the filter; none: not a live recording"),
        Column("received", "count", "events that the collector read"),
        Column("dropped", "count", "events that found no room in their ring"),
        Column("lost", "count", "events not yet committed when the process died"),
        Column("shed", "count", "detail left out on purpose, to keep within an overhead budget; not among `written`"),
        Column("ended_how", "text", "exited, killed by SIGKILL, still running"),
    ),
    ledger,
    chapter="trust",
)


def sources(trace: Trace) -> Rows:
    """Where the events come from, and how the clocks of several sources were brought together."""
    return trace.rows("""
        SELECT coalesce(s.program, s.path) AS source, s.format, s.producer, s.rank, s.clock_zero,
               s.clock_offset_ns, s.clock_uncertainty_ns, coalesce(h.processes, 0) AS processes, h.events
        FROM source s LEFT JOIN (
            SELECT p.source, count(*) AS processes, sum(e.events)::BIGINT AS events FROM process p
            LEFT JOIN (SELECT process, count(*) AS events FROM event GROUP BY process) e ON e.process = p.id
            GROUP BY p.source) h ON h.source = s.id
        ORDER BY s.id""")


SOURCES = Analysis(
    "sources",
    "Sources",
    "Where the events come from, and how the clocks of several sources were brought together.",
    (
        Column("source", "text", "program or file"),
        Column("format", "text", "live, or the format of the file"),
        Column("producer", "text", "tool and version that made the events"),
        Column("rank", "id", "distributed rank"),
        Column("clock_zero", "text", "what time 0 means: unix epoch, or file for a zero of its own"),
        Column("clock_offset_ns", "ns", "added to its own times; none: not aligned", "clock moved by", signed=True),
        Column("clock_uncertainty_ns", "ns", "of that offset; none: unknown", "give or take"),
        Column("processes", "count", "processes in it"),
        Column("events", "count", "events of these; none: there are none"),
    ),
    sources,
    chapter="trust",
    shown="source format events processes rank producer clock_zero clock_offset_ns clock_uncertainty_ns",
    detail=True,
)
