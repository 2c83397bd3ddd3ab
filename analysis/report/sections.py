"""What a report says, in which order. The renderers only differ in how they say it."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ral_trace.analysis import ANALYSES, Analysis, Column, Rows
from ral_trace.analysis.base import CHAPTERS
from ral_trace.analysis.summary import SUMMARY, devices
from ral_trace.analysis.trust import LEDGER, QUALITY, warnings
from ral_trace.tracer.reading import Trace

ALWAYS = (LEDGER, QUALITY, SUMMARY)
"""What every report begins with, whatever was asked for."""


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

    @property
    def nameless(self) -> bool:
        """Whether each device's rows are told apart by text and none of them has any: such a table says nothing."""
        texts = [name for name in self.analysis.shown.split() if self.column(name).unit == "text"]
        return (
            self.analysis.per_device
            and bool(texts and self.rows)
            and not any(row[name] is not None for row in self.rows for name in texts)
        )

    @property
    def remark(self) -> str | None:
        """What must not be overlooked."""
        return self.analysis.remark(self.rows)

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
    """The answers of one trace: `name` is its file's, `device` the one device that was asked for, or None."""

    name: str
    device: str | None
    sections: dict[str, Section]
    warnings: dict[str, list[str]] = field(default_factory=dict)
    """For each chapter, what changes the reading of its numbers."""

    def rows(self, analysis: str) -> Rows:
        """The rows of one analysis; none where it was not asked."""
        section = self.sections.get(analysis)
        return Rows() if section is None else section.rows

    @property
    def summary(self) -> dict[str, Any]:
        """The one row of the summary."""
        return self.rows("summary")[0]

    @property
    def zero_ns(self) -> int:
        """Where times are counted from for people: the first event's start."""
        return self.summary["started_ns"] or 0

    def chapters(self) -> dict[str, list[Section]]:
        """The sections of each chapter that has any, in the report's order."""
        found = {chapter: [s for s in self.sections.values() if s.analysis.chapter == chapter] for chapter in CHAPTERS}
        return {chapter: sections for chapter, sections in found.items() if sections}


def collect(trace: Trace, device: str | None = None, names: Collection[str] | None = None) -> Report:
    """Runs every analysis once, or those `names` and what every report begins with."""
    options = _sizes(len(devices(trace, device=device)))
    sections = {}
    for analysis in ANALYSES:
        if names is None or analysis.name in names or analysis in ALWAYS:
            asked = {"device": device} if analysis.by_device else {}
            missing = analysis.missing(trace)
            rows = Rows() if missing else analysis.run(trace, **asked, **options.get(analysis.name, {}))
            sections[analysis.name] = Section(analysis, rows, missing)
    return Report(trace.path.name, device, sections, warnings(sections[QUALITY.name].rows))


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


def ledger_lines(report: Report) -> list[tuple[str, str, bool]]:
    """The ledger of each process; of imported files, which have none, where the events come from."""
    rows = report.rows(LEDGER.name)
    live = [ledger_line(row) for row in rows if row["written"] is not None]
    others = len(rows) - len(live)
    if others:
        who = "1 process" if others == 1 else f"{others:,} processes"
        live.append((who, "imported: the file has no ledger that could say what is missing", False))
    return live
