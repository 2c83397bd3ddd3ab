"""What a question to a trace is, and the pieces of SQL that several questions share."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ral_trace.analysis.wait_names import HOST_WAITS
from ral_trace.tracer.reading import Rows, Trace
from ral_trace.tracer.schema import FLAGS

__all__ = ["Analysis", "Column", "Need", "Row", "Rows"]

Row = dict[str, Any]

UNITS = {
    "text": "text out of the trace: untrusted, to be shown as text only",
    "id": "an id of the trace's tables, to join with",
    "count": "a number of things",
    "number": "a number that need not be whole, such as a mean",
    "ratio": "a number without a unit: how many times as much",
    "ns": "nanoseconds, an integer",
    "time": "nanoseconds since the trace's clock zero (the Unix epoch for live recordings), an integer",
    "bytes": "bytes, an integer",
    "bandwidth": "bytes a second",
    "percent": "0 to 100",
}

CHAPTERS = {
    "trust": "Can the numbers be believed",
    "overview": "What it holds",
    "advice": "What to do",
    "time": "Where the time goes",
    "devices": "How well the devices are used",
    "fallbacks": "What the devices could not do",
    "waits": "What waits, and what is copied",
    "memory": "Memory",
    "steps": "Steps",
    "ranks": "Communication between ranks",
}
"""What the questions are grouped by, in the order of the report: `Analysis.chapter`, and how it is headed."""


@dataclass(frozen=True)
class Column:
    """One column of an answer: its name, its unit (a key of UNITS), what it means, and how people see it headed."""

    name: str
    unit: str
    about: str
    heading: str = ""
    signed: bool = False
    """Whether values below 0 make sense: differences."""

    @property
    def shown_as(self) -> str:
        """The heading."""
        return self.heading or self.name.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")


@dataclass(frozen=True)
class Need:
    """What a trace must hold for a question to make sense: a condition in SQL, and what is said where it does not."""

    condition: str
    otherwise: str


def _kind(*kinds: str) -> str:
    return f"EXISTS (FROM event WHERE kind IN ({', '.join(repr(kind) for kind in kinds)}))"


SOME_HOST_ROWS = Need("EXISTS (FROM event WHERE thread IS NOT NULL)", "nothing of the host was recorded")
SOME_OPS = Need(_kind("op"), "no op was recorded")
SOME_DEVICE_WORK = Need(_kind("kernel", "transfer"), "no kernel and no copy was recorded: nothing ran on a device")
SOME_KERNELS = Need(_kind("kernel"), "no kernel was recorded")
SOME_LAUNCHES = Need(_kind("launch"), "no launch was recorded")
SOME_TRANSFERS = Need(_kind("transfer"), "no copy was recorded")
SOME_SYNCS = Need(f"EXISTS (FROM event e WHERE {HOST_WAITS})", "no wait of the host for a device was recorded")
SOME_FALLBACKS = Need(_kind("fallback"), "no fallback was recorded")
SOME_ALLOCATIONS = Need("EXISTS (FROM allocation)", "no allocation was recorded")
SOME_STEPS = Need(
    "EXISTS (FROM event WHERE step IS NOT NULL)", "no steps in this trace: mark them with ral_trace.tracer.step()"
)


@dataclass(frozen=True)
class Bars:
    """A chart: the largest values as bars, each device's in its vendor's colour."""

    label: str
    value: str


@dataclass(frozen=True)
class Lines:
    """A chart: values over time. Rows of the same `series` are one line; a value holds until the line's next row."""

    series: tuple[str, ...]
    time: str
    value: str


@dataclass(frozen=True)
class Heat:
    """A chart: a value for each pair of row and column."""

    row: str
    column: str
    value: str


@dataclass(frozen=True)
class Drawn:
    """A chart with a drawing of its own in report.js: timeline, steps."""

    name: str


Chart = Bars | Lines | Heat | Drawn


def no_remark(rows: Rows) -> str | None:
    """Nothing that one must see first."""
    del rows
    return None


def nothing_notable(row: Row) -> Collection[str]:
    """No cell that should catch the eye."""
    del row
    return ()


@dataclass(frozen=True)
class Analysis:
    """One question. `run(trace, **options)` gives rows with exactly `columns`; what cannot be known is None.

    All else is how people see the answer: report, dashboard and docs read it from here.
    """

    name: str
    title: str
    about: str
    columns: tuple[Column, ...]
    run: Callable[..., Rows]
    chapter: str
    """A key of CHAPTERS."""
    shown: str = ""
    """The columns of its table, the most important first; the last ones are left out where it is narrow. Empty: it is
    no table (a chart, or facts that are shown in another way)."""
    per_device: bool = False
    """A table for each device."""
    needs: tuple[Need, ...] = ()
    """What the trace must hold; the first that it does not hold is said in place of the rows."""
    most: int = 15
    """Rows that a terminal shows, of each table."""
    remark: Callable[[Rows], str | None] = no_remark
    """One sentence that must not be overlooked, above the table; names in it are untrusted text."""
    chart: Chart | None = None
    """How the rows are drawn, where a picture says more than a table."""
    detail: bool = False
    """The terminal shows it only when asked for: --all, --only."""
    told: Callable[[Row], tuple[str, str]] | None = None
    """For answers that are sentences: a row's headline and what stands below it, which a terminal shows uncut in place
    of a table. Names in them are untrusted text."""
    notable: Callable[[Row], Collection[str]] = nothing_notable
    """The columns of a row that should catch the eye."""

    @property
    def by_device(self) -> bool:
        """Whether `run` takes `device=`.

        That is a name as the column `device` shows it, or the bare label (ral:1) for the devices of all processes.
        """
        return any(column.name == "device" for column in self.columns)

    def missing(self, trace: Trace) -> str | None:
        """Why the question makes no sense for this trace; None: it does."""
        for need in self.needs:
            [(met,)] = trace.sql(f"SELECT {need.condition}").fetchall()
            if not met:
                return need.otherwise
        return None


DEVICE = Column("device", "text", "as people write it, ral:1; with the pid where several processes have one so named")
OP = Column("op", "text", "op that allocated; none: unknown")

NAMED_DEVICE = """named_device AS (
    SELECT d.id AS device, d.process, d.type, l.label, d.vendor, d.name, d.memory_bytes,
           row_number() OVER (ORDER BY d.type = 'cpu', d.type, d."index", d.process, d.id) AS position,
           coalesce(l.label, d.name, 'device ' || d.id) AS called,
           called || CASE
               WHEN count(*) OVER (PARTITION BY called) = 1 THEN ''
               WHEN count(*) OVER (PARTITION BY called, p.pid) = 1
                   THEN ' (' || coalesce('pid ' || p.pid, p.name, 'process ' || p.id) || ')'
               WHEN count(*) OVER (PARTITION BY called, p.id) = 1 THEN ' (process ' || p.id || ')'
               ELSE ' (device ' || d.id || ')' END AS shown
    FROM device d JOIN device_label l ON l.device = d.id JOIN process p ON p.id = d.process)"""
"""CTE: the devices with the name that answers use for them (`shown`), and their order (`position`)."""

WANTED = "($1::VARCHAR IS NULL OR d.shown = $1 OR d.label = $1)"
"""Condition on a named_device `d`: it is what the option `device`, the query's first parameter, asks for."""

VALID = f"(coalesce(e.flags, 0) & {FLAGS['INVALID']}) = 0"
"""Condition on an event `e`: its times can be."""

TIME_NS = f"CASE WHEN {VALID} AND e.dur_ns >= 0 THEN e.dur_ns END"
"""The duration of an event `e` that may be summed. NULL: unknown, or its times cannot be."""

KERNEL_CLASS = """CASE
    WHEN e.kind = 'transfer' THEN 'memory'
    WHEN regexp_matches(coalesce(e.name, ''), '(?i)(^|[^a-z])(nccl|rccl|hccl|hcom|oneccl|mscclpp)|^c10d::|^Hccl|^hcom_')
        THEN 'communication'
    WHEN regexp_matches(coalesce(e.name, ''), '(?i)^(memcpy|memset)') THEN 'memory'
    ELSE 'compute' END"""
"""What a kernel or copy `e` does, by its name (HolisticTraceAnalysis' classes): communication, memory, compute."""

SLASH = "[/\\\\]"
"""In a regular expression: what parts of a path are separated by, on any system."""

LIBRARY = f"(^|{SLASH})(torch|ral_trace|(site|dist)-packages){SLASH}|^<"
"""Files that are no part of the program, as a regular expression."""

LINE = f"""line_of AS (
    SELECT id AS stack, coalesce(
        list_filter(frames, lambda f: NOT regexp_matches(f.file, '{LIBRARY}'))[1],
        frames[1]) AS frame,
        frame['file'] || coalesce(':' || frame['line'], '') || coalesce(' ' || frame['function'], '') AS line
    FROM stack)"""
"""CTE: for each stack the line of the program that it stands for: its innermost frame outside of libraries."""
