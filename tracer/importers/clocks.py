"""Clocks of several ranks, brought together on what they did together.

The ranks of a collective leave it at the same time, give or take its last hop. So the clocks of two ranks differ by
the median difference between the ends of their common collectives; how far the differences scatter says how sure that
is. Ranks whose clock is that of one host are not moved.
"""

from collections.abc import Sequence

import numpy as np

from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.store import TraceBuilder

COLLECTIVE = "(?i)^(nccl|rccl|hccl|hcom|onecclkernel|mccl)"
"""Names of kernels that communicate: those of NVIDIA's, AMD's, Huawei's, Intel's and Moore Threads' libraries."""
FEWEST = 3
"""Common collectives, fewer of which are no evidence."""
SURE = 0.95
"""Share of the common collectives that the stated uncertainty covers."""

COMMON = f"""
WITH collective AS (
    SELECT p.source, e.name, coalesce(e.args->>'$."Process Group Name"', '') AS of_group, e.ts_ns + e.dur_ns AS end_ns,
           row_number() OVER same AS number, count(*) OVER (PARTITION BY p.source, e.name, of_group) AS times
    FROM event e JOIN process p ON p.id = e.process
    WHERE e.kind = 'kernel' AND e.dur_ns > 0 AND e.flags = 0 AND regexp_matches(e.name, '{COLLECTIVE}')
    WINDOW same AS (PARTITION BY p.source, e.name, of_group ORDER BY e.ts_ns))
SELECT a.end_ns AS first_ns, b.end_ns AS second_ns
FROM collective a JOIN collective b USING (name, of_group, number, times)
WHERE a.source = ? AND b.source = ? ORDER BY a.end_ns"""
"""The ends of collectives of two sources. Where one has fewer of a kind, nobody knows which is which."""


def align(builder: TraceBuilder, files: Sequence[Rows]) -> None:
    """Moves the times of every rank onto the clock of the lowest, where their collectives tell by how much.

    Offset and uncertainty stand in `source` and in `quality`; else that they are not aligned.
    """
    ranked = sorted((rows for rows in files if rows.facts.get("rank") is not None), key=lambda rows: rows.facts["rank"])
    if len(ranked) < 2:
        return
    base, others = ranked[0], ranked[1:]
    base.facts |= {"clock_offset_ns": _added(base), "clock_uncertainty_ns": 0}
    for rows in others:
        found = _offset(builder, base.source, rows.source)
        one_clock = _host(base) is not None and _host(base) == _host(rows) and _zero(base) == _zero(rows) != "file"
        if one_clock:
            rows.facts |= {"clock_offset_ns": _added(rows), "clock_uncertainty_ns": _error(found)}
        elif found is None:
            rows.bad(
                "clocks are not aligned: no matching collectives tell how they differ",
                f"rank {rows.facts['rank']}",
            )
        else:
            offset_ns, uncertainty_ns, number = found
            _shift(builder, rows.source, offset_ns)
            rows.facts |= {"clock_offset_ns": _added(rows) + offset_ns, "clock_uncertainty_ns": uncertainty_ns}
            rows.bad("collectives on which the clock was aligned with that of the lowest rank",
                     f"moved by {offset_ns} ns, give or take {uncertainty_ns} ns", count=number)  # fmt: skip


def _error(found: tuple[int, int, int] | None) -> int | None:
    """Of a clock that is not moved: all that the collectives differ by."""
    return None if found is None else abs(found[0]) + found[1]


def _added(rows: Rows) -> int:
    """What its importer has added to the source's own times already."""
    return int(rows.facts.get("clock_offset_ns") or 0)


def _host(rows: Rows) -> str | None:
    found = rows.builder.connection.execute(
        "SELECT any_value(host) FROM process WHERE source = ? HAVING count(DISTINCT host) = 1", [rows.source]
    ).fetchone()
    return found[0] if found else None


def _zero(rows: Rows) -> str:
    return str(rows.facts.get("clock_zero", "file"))


def _offset(builder: TraceBuilder, first: int, second: int) -> tuple[int, int, int] | None:
    """(nanoseconds to add to the second's times, their uncertainty, how many collectives say so); None: unknown."""
    ends = builder.connection.execute(COMMON, [first, second]).fetchnumpy()
    if len(ends["first_ns"]) < FEWEST:
        return None
    differences = np.sort(ends["first_ns"] - ends["second_ns"])
    offset = int(differences[len(differences) // 2])
    scatter = np.sort(np.abs(differences - offset))
    uncertainty = int(scatter[min(len(scatter) - 1, int(len(scatter) * SURE))])
    # Further apart than from one collective to the next: they may not be the same ones.
    apart = np.diff(ends["first_ns"])
    return None if uncertainty * 4 >= np.median(apart) else (offset, uncertainty, len(differences))


def _shift(builder: TraceBuilder, source: int, offset_ns: int) -> None:
    processes = f"(SELECT id FROM process WHERE source = {source})"
    devices = f"(SELECT id FROM device WHERE process IN {processes})"
    counters = f"(SELECT id FROM counter WHERE process IN {processes} OR device IN {devices})"
    for table, whose in [
        ("event", f"process IN {processes}"),
        ("counter_value", f"counter IN {counters}"),
        ("memory_change", f"device IN {devices}"),
    ]:
        builder.connection.execute(f"UPDATE {table} SET ts_ns = ts_ns + ? WHERE {whose}", [offset_ns])
    builder.connection.execute(
        f"UPDATE process SET started_ns = started_ns + $1, ended_ns = ended_ns + $1 WHERE id IN {processes}",
        [offset_ns],
    )
