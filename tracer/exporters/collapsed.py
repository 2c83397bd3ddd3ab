"""`.collapsed` and `.folded`: stacks with their self time, for flamegraph.pl, inferno, speedscope and others.

A line is `outermost;...;innermost N`, N nanoseconds of self time: that of a slice less that of the slices in it.
A stack is the process, its thread or device and stream, the Python lines where the slice or one around it has them,
then the slices that enclose each other (see `nested.py`). Form: https://github.com/brendangregg/FlameGraph. A semicolon
in a name is written as a colon, since nothing escapes it there, and a line break as a space."""

from collections.abc import Iterator
from pathlib import Path

from ral_trace.tracer.exporters.nested import Nested, Slice, Step
from ral_trace.tracer.exporters.output import Window, create_private, select
from ral_trace.tracer.reading import Trace

FORMAT = "collapsed stacks"
ENDINGS: tuple[str, ...] = (".collapsed", ".folded")

UNSAFE = {ord(";"): ":", **dict.fromkeys((*range(32), 127, 0x85, 0x2028, 0x2029), " ")}
"""What would end a frame or a line. Readers take the last space of a line for the end of the stack."""


def write(trace: Trace, out: Path, window: Window) -> None:
    """Writes a line for each stack that has self time. Raises duckdb.Error, OSError."""
    tree = _Tree(_python_frames(trace))
    nested = Nested(trace, select(trace, window))
    for track, steps in nested.tracks():
        tree.add(nested.path(track), steps)
    with create_private(out) as file:
        for line in tree.lines():
            file.write(f"{line}\n".encode())


def _python_frames(trace: Trace) -> dict[int, list[str]]:
    """The frames of each stack, outermost first, as flame graphs show them."""
    rows = trace.sql("SELECT id, frames FROM stack WHERE frames IS NOT NULL").fetchall()
    return {
        number: [
            f"{frame['function'] or '?'} ({frame['file'] or '?'}:{frame['line'] or 0})" for frame in reversed(frames)
        ]
        for number, frames in rows
    }


class _Tree:
    """All stacks, each by its outer one and its last frame, and their self times."""

    def __init__(self, python_frames: dict[int, list[str]]) -> None:
        self._python_frames = python_frames
        self._nodes: dict[tuple[int, str], int] = {}
        self._self_ns: list[int] = []

    def add(self, path: list[str], steps: Iterator[Step]) -> None:
        """The slices of a track. Of each lane: node, whether Python lines are above it, its begin, the time inside."""
        root = self._below(-1, path)
        lanes: dict[int, list[list[int]]] = {}
        for step in steps:
            opened = lanes.setdefault(step.lane, [])
            if step.begins is not None:
                node, lined = self._placed(opened[-1] if opened else [root, 0], step.begins)
                opened.append([node, lined, step.at_ns, 0])
            else:
                node, _, begin, inside = opened.pop()
                self._self_ns[node] += step.at_ns - begin - inside
                if opened:
                    opened[-1][3] += step.at_ns - begin

    def _placed(self, outer: list[int], begun: Slice) -> tuple[int, int]:
        """The node of a slice. Python lines come once: an inner slice's own would be the same again."""
        frames = [] if outer[1] or begun.stack is None else self._python_frames.get(begun.stack, [])
        return self._below(outer[0], [*frames, begun.name]), int(bool(outer[1] or frames))

    def _below(self, node: int, names: list[str]) -> int:
        for name in names:
            found = self._nodes.get((node, name))
            if found is None:
                found = self._nodes[node, name] = len(self._self_ns)
                self._self_ns.append(0)
            node = found
        return node

    def lines(self) -> list[str]:
        """By name, as other tools sort them."""
        paths: list[str] = []
        for (outer, name), _ in self._nodes.items():
            shown = name.translate(UNSAFE) or "?"
            paths.append(shown if outer < 0 else f"{paths[outer]};{shown}")
        times = zip(paths, self._self_ns, strict=True)
        totals: dict[str, int] = {}
        for path, self_ns in times:
            totals[path] = totals.get(path, 0) + self_ns
        return [f"{path} {self_ns}" for path, self_ns in sorted(totals.items()) if self_ns > 0]
