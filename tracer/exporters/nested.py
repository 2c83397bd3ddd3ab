"""The slices of a trace as begins and ends that nest, track by track: what flame graphs are made of.

What is a slice, and on which track, is said in `drawn.py`. Slices of a track that overlap without nesting are told
apart by lanes. Points are no slices, so they are left out; a slice without an end lasts until the trace ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ral_trace.tracer import _native
from ral_trace.tracer.exporters import drawn
from ral_trace.tracer.exporters.drawn_tracks import tracks
from ral_trace.tracer.exporters.output import MAX_NS, Selection
from ral_trace.tracer.reading import Trace

ROWS_AT_ONCE = 20_000
SLICES = f"shape <> {drawn.SHAPE_POINT}"


@dataclass(frozen=True)
class Slice:
    """A slice; `stack` is stack.id."""

    name: str
    stack: int | None


@dataclass(frozen=True)
class Step:
    """A slice begins (`begins` is it) or the innermost open one of its lane ends."""

    lane: int
    at_ns: int
    begins: Slice | None


class Nested:
    """The tracks of a trace that have slices, and what happens on each."""

    def __init__(self, trace: Trace, selection: Selection) -> None:
        self._trace = trace
        self._slices = drawn.slices_sql(selection)
        [(first, last)] = trace.sql(f"""
            SELECT min(start_ns), max(start_ns::HUGEINT + if(shape = {drawn.SHAPE_SLICE}, dur_ns, 0))
            FROM ({self._slices}) WHERE {SLICES}
        """).fetchall()
        self.first_ns = 0 if first is None else int(first)
        self.last_ns = 0 if last is None else min(int(last), MAX_NS)
        found = trace.sql(f"SELECT DISTINCT track FROM ({self._slices}) WHERE {SLICES} ORDER BY track").fetchall()
        self.tracks: list[int] = [track for (track,) in found]
        self._described = {track.key: track for track in tracks(trace)}

    def path(self, track: int) -> list[str]:
        """The names of a track and of those above it, outermost first."""
        names: list[str] = []
        key: int | None = track
        while key is not None and key in self._described:
            names.insert(0, self._described[key].name)
            key = self._described[key].parent
        return names or ["unknown track"]

    def steps(self, track: int) -> Iterator[Step]:
        """Begins and ends of a track's slices: in each lane they nest, and times never go back."""
        lanes = _native.TrackLanes()
        opened: dict[int, list[int]] = {}
        with drawn.cursor(self._trace) as connection:
            found = connection.execute(f"""
                SELECT s.start_ns, s.name, e.stack, CASE s.shape WHEN {drawn.SHAPE_SLICE}
                       THEN least(s.start_ns::HUGEINT + s.dur_ns, {MAX_NS})::BIGINT END
                FROM ({self._slices}) s JOIN event e ON e.id = s.id WHERE s.track = {track} AND {SLICES}
                ORDER BY s.start_ns, if(s.shape = {drawn.SHAPE_OPEN}, {MAX_NS}, s.dur_ns) DESC, s.id DESC""")
            while rows := found.fetchmany(ROWS_AT_ONCE):
                for lane, (start, name, stack, end) in zip(_placed(lanes, track, rows), rows, strict=True):
                    ends = opened.setdefault(lane, [])
                    while ends and ends[-1] <= start:
                        yield Step(lane, ends.pop(), None)
                    yield Step(lane, start, Slice(name, stack))
                    ends.append(self.last_ns if end is None else end)
        for lane, ends in opened.items():
            while ends:
                yield Step(lane, ends.pop(), None)


def _placed(lanes: _native.TrackLanes, track: int, rows: list[tuple[Any, ...]]) -> list[int]:
    starts = np.array([row[0] for row in rows], np.int64)
    ends = np.array([MAX_NS if row[3] is None else row[3] for row in rows], np.int64)
    placed: list[int] = lanes.place(np.full(len(rows), track, np.int64), starts, ends).tolist()
    return placed
