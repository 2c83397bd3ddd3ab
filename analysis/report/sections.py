"""What a report says, in which order. The renderers only differ in how they say it."""

from dataclasses import dataclass
from typing import Any

from ral_trace.analysis import ANALYSES, Analysis, Column, Rows
from ral_trace.analysis.summary import devices
from ral_trace.tracer.reading import Trace


@dataclass(frozen=True)
class Section:
    """An analysis and its rows, or why the question makes no sense for this trace."""

    analysis: Analysis
    rows: Rows
    missing: str | None = None

    @property
    def columns(self) -> list[str]:
        """What people are shown, the most important first; what is unknown in every row is left out."""
        shown = self.analysis.shown.split()
        return [name for name in shown if not self.rows or any(row[name] is not None for row in self.rows)]

    def column(self, name: str) -> Column:
        """One of the analysis' columns."""
        return next(found for found in self.analysis.columns if found.name == name)

    def by_device(self) -> dict[str, Rows]:
        """The rows of each device, in the order of the rows."""
        groups: dict[str, Rows] = {}
        for row in self.rows:
            groups.setdefault(row["device"], Rows()).append(row)
        return groups


@dataclass(frozen=True)
class Report:
    """All the answers of one trace: `name` is its file's, `device` the one device that was asked for, or None."""

    name: str
    device: str | None
    sections: dict[str, Section]

    def rows(self, analysis: str) -> Rows:
        """The rows of one analysis."""
        return self.sections[analysis].rows

    @property
    def summary(self) -> dict[str, Any]:
        """The one row of the summary."""
        return self.rows("summary")[0]


def collect(trace: Trace, device: str | None = None) -> Report:
    """Runs every analysis once."""
    options = _sizes(len(devices(trace, device=device)))
    sections = {}
    for analysis in ANALYSES:
        asked = {"device": device} if analysis.by_device else {}
        missing = analysis.missing(trace)
        rows = Rows() if missing else analysis.run(trace, **asked, **options.get(analysis.name, {}))
        sections[analysis.name] = Section(analysis, rows, missing)
    return Report(trace.path.name, device, sections)


def _sizes(count: int) -> dict[str, dict[str, int]]:
    """How finely the charts of `count` devices are drawn, so that a report of 64 is no larger than one of 4."""
    each = max(4, 16_000 // max(count, 8))
    return {"timeline": {"events": each // 5, "stretches": each * 2 // 5}, "memory_curve": {"points": each}}


def ledger_line(row: dict[str, Any]) -> tuple[str, str, bool]:
    """Who, what became of its events, and whether any are missing."""
    who = row["name"] or f"process {row['process']}"
    if row["pid"] is not None:
        who += f" (pid {row['pid']})"
    if row["written"] is None:
        return who, "no ledger: not a live recording", False
    what = f"{row['written']:,} written = " + " + ".join(f"{row[k]:,} {k}" for k in ("received", "dropped", "lost"))
    if row["shed"]:
        what += f"; {row['shed']:,} shed"
    if row["ended_how"]:
        what += f" · {row['ended_how']}"
    return who, what, bool(row["dropped"] or row["lost"] or row["shed"])
