"""Single fields of a memory snapshot, as wrong as a file may have them; and the stacks, which many entries share."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.plain_pickle import AGAIN
from ral_trace.tracer.importers.rows import EXAMPLE_CHARACTERS, LIMIT, SUM_LIMIT, Frame, Rows

MOST_BYTES = SUM_LIMIT
"""Of all that a device's events add up to, so that no sum over them leaves 64 bits."""
MOST_SIZE = LIMIT - 1
"""Of one block or segment."""
FX_FIELDS = ("fx_node_op", "fx_node_name", "fx_original_trace")
"""What `_snapshot(augment_with_fx_traces=True)` adds to a frame of code that torch.fx made."""


def integer(entry: Mapping[str, Any], key: str, least: int, most: int, *, missing: int | None = None) -> int | None:
    """A whole number within bounds; None where there is none. `missing` is for entries without the key."""
    value = entry.get(key, missing)
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    return None


def shown(value: object) -> str:
    """Text or a number as an example; of anything else only its type: a short file can hold lists without end."""
    if isinstance(value, str):
        return value[:EXAMPLE_CHARACTERS]
    if isinstance(value, int):
        return str(value)
    return type(value).__name__


def texts(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields that are text."""
    return ((key, value) for key, value in entry.items() if isinstance(value, str))


class Stacks:
    """Numbers the stacks of a snapshot. Entries share lists of frames, each of which is looked at once."""

    def __init__(self, path: Path, rows: Rows, most_frames: int) -> None:
        self._path = path
        self._rows = rows
        self._left = most_frames
        self._known: dict[int, tuple[object, int | None, dict[str, str]]] = {}
        """By the identity of a list of frames, which is kept beside: as long as it lives, no other has its id."""
        self._frames: dict[int, tuple[object, Frame]] = {}
        """Likewise for single frames, which lists share."""

    def of(self, entry: Mapping[str, Any]) -> int | None:
        """The id of an entry's stack, innermost line first; None: it has none."""
        return self._look(entry.get("frames"))[1]

    def fx_of(self, entry: Mapping[str, Any]) -> dict[str, str]:
        """Of the innermost frame that torch.fx made: its node, and the line of the model that it came from."""
        return self._look(entry.get("frames"))[2]

    def _look(self, frames: Any) -> tuple[object, int | None, dict[str, str]]:
        found = self._known.get(id(frames))
        if found is None:
            listed = frames if isinstance(frames, list | tuple) else []
            self._take(len(listed))
            shown = [frame for frame in listed if isinstance(frame, dict)]
            if len(shown) < len(listed):
                self._rows.bad("frames of a stack that cannot be read: left out", count=len(listed) - len(shown))
            # Our own exporter shows the op that allocated as the innermost frame.
            shown = [frame for frame in shown if "is_op" not in frame]
            fx = next((frame for frame in shown if "fx_node_name" in frame), {})
            named = {key: text for key, text in texts(fx) if key in FX_FIELDS} if fx else {}
            found = self._known[id(frames)] = (frames, self._rows.stack([self._frame(frame) for frame in shown]), named)
        return found

    def _frame(self, frame: Mapping[str, Any]) -> Frame:
        found = self._frames.get(id(frame))
        if found is None:
            file, name = (value if isinstance(value, str) else None for value in map(frame.get, ("filename", "name")))
            shown = (file, integer(frame, "line", -(2**31), 2**31 - 1), name)
            found = self._frames[id(frame)] = (frame, shown)
        return found[1]

    def _take(self, frames: int) -> None:
        self._left -= frames
        if self._left < 0:
            raise InputRefused(self._path, "lists more frames than its bytes can hold", AGAIN)
