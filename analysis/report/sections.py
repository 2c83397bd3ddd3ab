"""What a report says, in which order. The renderers only differ in how they say it."""

from dataclasses import dataclass
from typing import Any

from ral_trace.analysis import ANALYSES, Analysis, Rows
from ral_trace.analysis.summary import devices
from ral_trace.analysis.units import duration, human, percent
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

SHOWN = {
    "devices": "device vendor busy_percent busy_ns launches fallbacks fallback_ns peak_bytes memory_bytes "
    "transferred_bytes kernels transfers name",
    "hotspots": "name total_ns percent count mean_ns p99_ns fallbacks median_ns max_ns",
    "kernels": "name total_ns percent count mean_ns p99_ns median_ns max_ns",
    "fallbacks": "device name count total_ns copied_bytes percent_of_launches reason forced_syncs copies routed",
    "memory_peak": "device peak_bytes memory_bytes at_ns live_blocks reserved_bytes end_bytes",
    "peak_holders": "op bytes percent blocks before_trace",
    "lifetimes": "op blocks bytes median_ns p99_ns still_live still_live_bytes before_trace",
    "growth": "device op bytes_per_step steps_grown steps grown_bytes grown_blocks last_bytes first_bytes steps_shrunk",
    "steps": "step pid dur_ns launches fallbacks syncs kernel_ns transferred_bytes",
}
"""Analyses that people see as tables: their columns, the most important first. Narrow terminals leave out the last."""

HEADINGS = {
    "busy_percent": "busy",
    "busy_ns": "busy time",
    "fallback_ns": "fallback time",
    "percent_of_launches": "of launches",
    "percent": "share",
    "memory_bytes": "capacity",
    "bytes_per_step": "per step",
    "copied_bytes": "copied",
    "transferred_bytes": "copied",
    "end_bytes": "at end",
    "at_ns": "at",
    "dur_ns": "duration",
    "kernel_ns": "in kernels",
    "live_blocks": "blocks then",
    "reserved_bytes": "reserved then",
    "still_live_bytes": "live bytes",
    "p99_ns": "p99",
    "first_bytes": "first step",
    "last_bytes": "last step",
    "grown_bytes": "grown",
    "steps_grown": "grew in",
    "steps_shrunk": "shrank in",
}


@dataclass(frozen=True)
class Section:
    """An analysis and its rows."""

    analysis: Analysis
    rows: Rows

    @property
    def columns(self) -> list[str]:
        """What people are shown, the most important first; what is unknown in every row is left out."""
        shown = SHOWN[self.analysis.name].split()
        return [name for name in shown if not self.rows or any(row[name] is not None for row in self.rows)]

    def unit(self, column: str) -> str:
        """The unit of one of the analysis' columns."""
        return next(found.unit for found in self.analysis.columns if found.name == column)

    def by_device(self) -> dict[str, Rows]:
        """The rows of each device, in the order of the rows."""
        groups: dict[str, Rows] = {}
        for row in self.rows:
            groups.setdefault(row["device"], []).append(row)
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


def heading(column: str) -> str:
    """A column's name for people."""
    return HEADINGS.get(column) or column.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")


def collect(trace: Trace, device: str | None = None) -> Report:
    """Runs every analysis once."""
    options = _sizes(len(devices(trace, device=device)))
    sections = {}
    for analysis in ANALYSES:
        asked = {"device": device} if analysis.by_device else {}
        sections[analysis.name] = Section(analysis, analysis.run(trace, **asked, **options.get(analysis.name, {})))
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


def fallback_sentence(report: Report) -> str | None:
    """What the fallbacks cost, and which one to implement first. None without fallbacks."""
    rows = report.rows("fallbacks")
    if not rows:
        return None
    calls = sum(row["count"] for row in rows)
    said = f"{calls:,} {'call' if calls == 1 else 'calls'} fell back to PyTorch's CPU kernels"
    known, span = [row["total_ns"] for row in rows if row["total_ns"] is not None], report.summary["span_ns"]
    if known:
        said += f" and took {duration(sum(known))}"
    if known and span:
        said += f", {percent(100 * sum(known) / span)} of the span"
    return f"{said}. Implement first: {plain(str(rows[0]['name']))} on {plain(str(rows[0]['device']))}."


LEAK_STEPS, LEAK_SHARE = 5, 0.8
"""Memory that grew in this share of at least so many steps is called a leak."""


def leaks(row: dict[str, Any]) -> bool:
    """Whether a row of `growth` looks like a leak: it grew in nearly every step."""
    return bool(row["steps"] >= LEAK_STEPS and row["steps_grown"] >= LEAK_SHARE * (row["steps"] - 1))


def leak_sentence(report: Report) -> str | None:
    """The largest leak, with its evidence. None where nothing grows in nearly every step."""
    row = next((row for row in report.rows("growth") if leaks(row)), None)
    if row is None:
        return None
    op = "memory of unknown origin" if row["op"] is None else f"memory from {plain(row['op'])}"
    evidence = f"grew in {row['steps_grown']:,} of {row['steps'] - 1:,} steps"
    a_step = human(row["bytes_per_step"], "bytes")
    return f"Looks like a leak: {op} on {plain(row['device'])} {evidence}, by {a_step} a step."
