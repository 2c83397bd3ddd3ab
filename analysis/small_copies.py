"""Small copies in a row that could be one."""

from dataclasses import dataclass

import numpy as np

from ral_trace.analysis.base import DEVICE, NAMED_DEVICE, SOME_TRANSFERS, TIME_NS, WANTED, Analysis, Column, Rows
from ral_trace.analysis.origins import origins
from ral_trace.analysis.remember import answered
from ral_trace.analysis.work import Columns
from ral_trace.tracer import _native
from ral_trace.tracer.reading import Trace

SMALL_BYTES = 1 << 16
LEAST_COPIES = 4
DIRECTIONS = list(_native.DIRECTIONS)
MOST_PLACES = 10_000
"""Runs whose places in the program are looked up: the longest."""

FITS = f"""
    WITH copy AS (
        SELECT e.device, e.category, e.process, e.correlation, {TIME_NS} AS ns, e.bytes FROM event e
        WHERE e.kind = 'transfer' AND e.device IS NOT NULL),
    fit AS (
        SELECT device, category, min(ns) AS least_ns, count(DISTINCT bytes) AS sizes,
               regr_intercept(ns, bytes) AS at_zero_ns
        FROM copy WHERE ns > 0 AND bytes > 0 GROUP BY ALL),
    launch AS (
        SELECT c.device, c.category, median(greatest(l.dur_ns - CASE WHEN l.dur_ns >= c.ns THEN c.ns ELSE 0 END, 0))
                   AS apart_ns
        FROM copy c JOIN event l ON l.kind = 'launch' AND l.process = c.process AND l.correlation = c.correlation
        WHERE l.dur_ns >= 0 GROUP BY ALL)
    SELECT l.device, coalesce(l.category, ''), l.apart_ns,
           CASE WHEN f.sizes > 1 THEN greatest(least(f.at_zero_ns, f.least_ns), 0) END
    FROM launch l LEFT JOIN fit f ON f.device = l.device AND f.category IS NOT DISTINCT FROM l.category"""
"""For each device and direction: what launching a copy costs the host, and what a copy of nothing would take: where
the line through (bytes, time) of all copies begins, at most the shortest copy's time. NULL: all have one size.
"""


@dataclass(frozen=True)
class _Run:
    """Copies [first, end) of the rows, of one stream and direction."""

    first: int
    end: int


@answered
def small_copies(trace: Trace, *, device: str | None = None, limit: int | None = 200) -> Rows:
    """A row for each stream, direction and place in the program, those that could save the most first.

    A run is at least LEAST_COPIES copies below SMALL_BYTES of one direction on one stream, nothing else on it between
    them, each less after the one before than launching a copy usually costs.
    """
    fits = {(at, direction): (apart, latency) for at, direction, apart, latency in trace.sql(FITS).fetchall()}
    rows = dict(
        trace.sql(
            f"""
            WITH {NAMED_DEVICE}
            SELECT e.id, e.device, coalesce(e.stream, -1) AS stream, coalesce(e.category, '') AS direction, e.ts_ns,
                   coalesce(list_position({DIRECTIONS}, e.category), 0) AS code, e.ts_ns + {TIME_NS} AS end_ns,
                   coalesce(e.bytes, 0) AS bytes,
                   e.kind = 'transfer' AND coalesce(e.bytes < {SMALL_BYTES}, false)
                       AND coalesce(e.category, '') <> 'memset' AS small
            FROM event e JOIN named_device d USING (device)
            WHERE e.kind IN ('kernel', 'transfer') AND {TIME_NS} IS NOT NULL AND {WANTED}
            ORDER BY e.device, stream, e.ts_ns, e.id""",
            [device],
        ).fetchnumpy()
    )
    runs = _runs(rows, {key: apart for key, (apart, _) in fits.items()})
    return Rows(_by_place(trace, rows, runs, {key: latency for key, (_, latency) in fits.items()})[:limit])


def _runs(rows: Columns, apart: dict[tuple[int, str], float]) -> list[_Run]:
    """The runs, the longest first."""
    small = np.flatnonzero(rows["small"])
    if not len(small):
        return []
    key = rows["device"][small] * np.int64(len(DIRECTIONS) + 1) + rows["code"][small]
    _, example, kind = np.unique(key, return_index=True, return_inverse=True)
    named = [(int(rows["device"][one]), str(rows["direction"][one])) for one in small[example].tolist()]
    most = np.array([apart.get(each, -1) for each in named])[kind]
    begins = np.ones(len(small), bool)
    gap = rows["ts_ns"][small[1:]] - rows["end_ns"][small[:-1]]
    begins[1:] = (
        (np.diff(small) > 1)
        | (rows["stream"][small[1:]] != rows["stream"][small[:-1]])
        | (key[1:] != key[:-1])
        | (gap >= most[1:])
    )
    first = np.flatnonzero(begins)
    end = np.append(first[1:], len(small))
    long = np.flatnonzero(end - first >= LEAST_COPIES)
    long = long[np.argsort(first[long] - end[long], kind="stable")]
    return [_Run(int(small[first[one]]), int(small[end[one] - 1]) + 1) for one in long.tolist()]


def _by_place(trace: Trace, rows: Columns, runs: list[_Run], latency: dict[tuple[int, str], float | None]) -> Rows:
    if not runs:
        return Rows()
    known = origins(trace, rows["id"][[run.first for run in runs[:MOST_PLACES]]])
    places = known + [(None, None)] * (len(runs) - len(known))
    named = dict(trace.sql(f"WITH {NAMED_DEVICE} SELECT device, shown FROM named_device").fetchall())
    numbers = dict(trace.sql("SELECT id, number FROM stream").fetchall())
    found: dict[tuple[object, ...], dict[str, object]] = {}
    for run, (op, line) in zip(runs, places, strict=True):
        at, direction = int(rows["device"][run.first]), str(rows["direction"][run.first])
        start_ns = latency.get((at, direction))
        part = slice(run.first, run.end)
        key = (at, int(rows["stream"][run.first]), direction, op, line)
        row = found.setdefault(
            key,
            {
                "device": named[at],
                "stream": numbers.get(key[1]),
                "direction": direction or None,
                "op": op,
                "line": line,
                "runs": 0,
                "count": 0,
                "bytes": 0,
                "total_ns": 0,
                "latency_ns": None if start_ns is None else round(start_ns),
                "saved_ns": None if start_ns is None else 0,
            },
        )
        count, total = run.end - run.first, int((rows["end_ns"][part] - rows["ts_ns"][part]).sum())
        saved = None if start_ns is None else min(round(start_ns * (count - 1)), total)
        more = {
            "runs": 1,
            "count": count,
            "bytes": int(rows["bytes"][part].sum()),
            "total_ns": total,
            "saved_ns": saved,
        }
        for name, value in more.items():
            if value is not None:
                row[name] += value  # type: ignore[operator]
    answer = Rows(found.values())
    answer.sort(key=lambda row: (-(row["saved_ns"] or 0), -row["count"], *(str(value) for value in row.values())))
    return answer


SMALL_COPIES = Analysis(
    "small_copies",
    "Small copies that could be one",
    f"Runs of {LEAST_COPIES} and more copies below {SMALL_BYTES >> 10} KiB of one direction on one stream, nothing "
    "else between them, each less after the one before than the host usually takes to launch one (the median). What "
    "one copy of all would save is the time that a copy takes however small it is, by a line through all copies of the "
    "device and direction (time = latency + bytes / bandwidth); what launching them costs the host comes on top.",
    (
        DEVICE,
        Column("stream", "count", "number of the stream, as the source counts them; none: not known"),
        Column("direction", "text", "host_to_device, ...; none: unknown"),
        Column("op", "text", "op that made the first copy of a run; none: unknown"),
        Column("line", "text", "its line; none: no stack was recorded"),
        Column("runs", "count", "runs"),
        Column("count", "count", "copies in them"),
        Column("bytes", "bytes", "bytes copied"),
        Column("total_ns", "ns", "sum of the durations"),
        Column("latency_ns", "ns", "what a copy of nothing would take; none: all copies have one size"),
        Column("saved_ns", "ns", "latency_ns for each copy but one of each run; none: latency_ns is unknown", "saves"),
    ),
    small_copies,
    chapter="waits",
    detail=True,
    shown="device direction count runs bytes total_ns saved_ns line op latency_ns stream",
    needs=(SOME_TRANSFERS,),
)
