"""The slices of a trace as begins and ends that nest, track by track: what flame graphs are made of.

What is a slice, and on which track, is said in `drawn.py`. Slices of a track that overlap without nesting are told
apart by lanes. Points are no slices, so they are left out; a slice without an end lasts until the trace ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import numpy as np

from ral_trace.tracer import _native
from ral_trace.tracer.exporters import drawn, drawn_tracks
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
        self._slices = f"(SELECT * FROM ({drawn.shown_sql(selection)}) WHERE {SLICES})"
        [(first, last)] = trace.sql(f"""
            SELECT min(start_ns), max(start_ns::HUGEINT + if(shape = {drawn.SHAPE_SLICE}, dur_ns, 0))
            FROM {self._slices}
        """).fetchall()
        self.first_ns = 0 if first is None else int(first)
        self.last_ns = 0 if last is None else min(int(last), MAX_NS)
        self._described = {track.key: track for track in drawn_tracks.tracks(trace)}

    def path(self, track: int) -> list[str]:
        """The names of a track and of those above it, outermost first."""
        names: list[str] = []
        key: int | None = track
        while key is not None and key in self._described:
            names.insert(0, self._described[key].name)
            key = self._described[key].parent
        return names or ["unknown track"]

    def tracks(self) -> Iterator[tuple[int, Iterator[Step]]]:
        """The tracks, and begins and ends of the slices of each: in each lane they nest, and times never go back.

        They come from one query, so that those of a track are gone when the next one is asked for.
        """
        for track, placed in groupby(self._placed(), key=itemgetter(0)):
            yield track, self._steps(placed)

    def _steps(self, placed: Iterator["_Placed"]) -> Iterator[Step]:
        opened: dict[int, list[int]] = {}
        for _, lane, start, end, begun in placed:
            ends = opened.setdefault(lane, [])
            while ends and ends[-1] <= start:
                yield Step(lane, ends.pop(), None)
            yield Step(lane, start, begun)
            ends.append(self.last_ns if end is None else end)
        for lane, ends in opened.items():
            while ends:
                yield Step(lane, ends.pop(), None)

    def _placed(self) -> Iterator["_Placed"]:
        """All slices, track by track; of those that begin together the one that encloses first."""
        lanes = _native.TrackLanes()
        with self._trace.cursor() as connection:
            found = connection.execute(f"""
                SELECT track, start_ns, CASE shape WHEN {drawn.SHAPE_SLICE}
                       THEN least(start_ns::HUGEINT + dur_ns, {MAX_NS})::BIGINT END, name, stack
                FROM {self._slices} ORDER BY track, start_ns, span DESC, id DESC""")
            while rows := found.fetchmany(ROWS_AT_ONCE):
                tracks = np.array([row[0] for row in rows], np.int64)
                starts = np.array([row[1] for row in rows], np.int64)
                ends = np.array([MAX_NS if row[2] is None else row[2] for row in rows], np.int64)
                for lane, (track, start, end, name, stack) in zip(
                    lanes.place(tracks, starts, ends).tolist(), rows, strict=True
                ):
                    yield track, lane, start, end, Slice(name, stack)


_Placed = tuple[int, int, int, int | None, Slice]
"""Track, lane, start, end (None: never seen), the slice."""
