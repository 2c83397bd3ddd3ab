"""The rules of `advice`: each looks at the rows of other questions for one sort of thing worth doing."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from ral_trace.analysis.base import VALID, Row, Rows
from ral_trace.analysis.fallback_heat import fallback_heat
from ral_trace.analysis.fallback_tax import fallback_tax
from ral_trace.analysis.layout import layout_copies
from ral_trace.analysis.leaks import leaks
from ral_trace.analysis.steady import steady_steps
from ral_trace.analysis.syncs import syncs
from ral_trace.analysis.units import duration, human
from ral_trace.analysis.wait_reasons import REASONS
from ral_trace.tracer.reading import Trace

REMEDIES = {reason.name: reason.remedy for reason in REASONS[1:]}
"""What to do about a wait, by its reason. Those of fallbacks go with the fallback."""

LEAST_PERCENT, LEAST_TIMES = 1.0, 3
"""What gains less, or was seen less often, is not worth saying, or chance."""


@dataclass(frozen=True)
class Finding:
    """One thing worth doing. Names in it are untrusted text."""

    what: str
    to_do: str
    evidence: str
    found_by: tuple[str, ...]
    gain_ns: int | None
    """An upper bound; None: it is not about time."""
    count: int
    device: str | None = None
    line: str | None = None
    whole: bool = False
    """Of the whole trace, not only of its steady steps."""


class Findings:
    """What the rules ask of a trace, and what gains are compared with.

    Where there are steps only the steady ones count.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        steady = steady_steps(trace)
        self.steps = len(steady)
        self.base_ns: int = steady.total_ns if steady else self.span_ns

    @cached_property
    def span_ns(self) -> int:
        """From the first event to the last, over all processes."""
        [(total,)] = self.trace.sql(f"""
            SELECT coalesce(sum(ns), 0)::BIGINT FROM (
                SELECT max(e.ts_ns + coalesce(e.dur_ns, 0)) - min(e.ts_ns) AS ns
                FROM event e WHERE {VALID} GROUP BY e.process)""").fetchall()
        return int(total)

    @cached_property
    def syncs(self) -> Rows:
        """All rows of `syncs`."""
        return syncs(self.trace, steady=True, limit=None)

    @cached_property
    def tax(self) -> Rows:
        """All rows of `fallback_tax`."""
        return fallback_tax(self.trace, steady=True)

    def held_ns(self, device: str) -> int:
        """How long waits and fallbacks left a device without work."""
        waits = sum(row["idle_ns"] or 0 for row in self.syncs if row["device"] == device and row["reason"] in REMEDIES)
        return waits + sum(row["gain_ns"] or 0 for row in self.tax if row["device"] == device)

    def times(self, count: int) -> str:
        """How often that is, in words."""
        if self.steps and count >= self.steps:
            return f"{count:,} times ({count / self.steps:.3g} a step)"
        return f"{count:,} times"


def implement_ops(known: Findings) -> Iterator[Finding]:
    """Ops that fall back."""
    cells = fallback_heat(known.trace) if known.tax else Rows()
    reasons = {(row["name"], row["device"]): row["reason"] for row in cells if row["reason"]}
    for row in known.tax:
        if not row["gain_ns"]:
            continue
        why = reasons.get((row["name"], row["device"]))
        evidence = f"fell back {known.times(row['count'])}: {duration(row['tax_ns'])} of tax"
        if row["overlapped_ns"]:
            evidence += f", of that {duration(row['overlapped_ns'])} beside other work"
        yield Finding(
            "implement op",
            f"implement {row['name']} on {row['device']}",
            evidence + (f"; {why}" if why else ""),
            ("fallback_tax", "fallback_heat"),
            row["gain_ns"],
            row["count"],
            row["device"],
        )


def remove_waits(known: Findings) -> Iterator[Finding]:
    """Waits that leave a device without work."""

    def place(row: Row) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in ("device", "reason", "line", "name"))

    some = sorted((row for row in known.syncs if row["reason"] in REMEDIES and row["idle_ns"]), key=place)
    for _, group in groupby(some, key=place):
        rows = list(group)
        row = max(rows, key=lambda row: int(row["total_ns"]))
        count, total_ns, idle_ns = (sum(row[name] for row in rows) for name in ("count", "total_ns", "idle_ns"))
        waited = f", mostly for {row['waited_for']}" if row["waited_kind"] in ("kernel", "transfer") else ""
        yield Finding(
            "remove wait",
            f"{row['reason']}: {REMEDIES[row['reason']]}",
            f"{row['name']} waited {known.times(count)} for {duration(total_ns)}{waited}; "
            f"{row['device']} had nothing else to do for {duration(idle_ns)} because of it",
            ("syncs",),
            idle_ns,
            count,
            row["device"],
            row["line"],
        )


def change_layout(known: Findings) -> Iterator[Finding]:
    """Copies that only change how a tensor lies in memory: those of each line, and all that kernels convert."""

    def place(row: Row) -> tuple[str, bool, str]:
        converts = row["kind"] == "conversion"
        return str(row["device"]), converts, "" if converts else str(row["line"])

    found = sorted(layout_copies(known.trace, steady=True, limit=None), key=place)
    for (device, converts, _), group in groupby(found, key=place):
        rows = list(group)
        first = max(rows, key=lambda row: int(row["total_ns"]))
        count, total_ns, alone_ns = (sum(row[name] for row in rows) for name in ("count", "total_ns", "alone_ns"))
        others = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        yield Finding(
            "change layout",
            "keep tensors in the layout that the device's kernels take"
            + (" (convolutions: memory_format=torch.channels_last)" if converts else ", or do without the copy"),
            f"{first['name']}{others} copied {known.times(count)} for {duration(total_ns)} only to change the layout; "
            f"nothing else ran on {device} for {duration(alone_ns)} of that",
            ("layout_copies",),
            alone_ns,
            count,
            device,
            None if converts else first["line"],
        )


def stop_leaks(known: Findings) -> Iterator[Finding]:
    """Memory that grows in nearly every step."""
    for row in leaks(known.trace):
        if row["confidence"] in ("high", "medium"):
            source = f"blocks of {row['op']}" if row["op"] else "blocks of unknown origin"
            yield Finding(
                "stop leak",
                f"find what keeps {source} on {row['device']}: detach() what is kept across steps, or drop it",
                f"grew in {row['steps_grown']:,} of {row['steps'] - 1:,} {row['counted_in']}s, by "
                f"{human(row['bytes_per_step'], 'bytes')} a {row['counted_in']}",
                ("leaks",),
                None,
                row["steps_grown"],
                row["device"],
                row.get("line"),
            )
