"""Rows of CSV files as other tools left them: cut off, with quotes left open, with bytes that are no text."""

import csv
import io
from collections.abc import Iterator
from typing import IO, Self

from ral_trace.tracer.importers.opening import DAMAGED

LONGEST_CHARACTERS = 1 << 20
LAST_ROW = "files whose last row has no end of line: it may be cut off"
ENDS: tuple[type[Exception], ...] = (EOFError, *DAMAGED)
"""What `Lines` and `rows_of` raise where a compressed file is cut off or damaged; what came before has been given."""
DAMAGED_FILES = "files that are damaged: read as far as that goes"


class Lines:
    """The lines of a file, none of them longer than LONGEST_CHARACTERS: of a longer one the rest is another line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._text = io.TextIOWrapper(file, "utf-8-sig", "replace", newline="")
        self._taken: list[str] = []
        self.last = "\n"
        self.replaced = 0
        """Lines with bytes that are not UTF-8."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = self._text.readline(LONGEST_CHARACTERS)
        if not line:
            raise StopIteration
        self.last = line
        self.replaced += "\ufffd" in line
        self._taken.append(line)
        return line

    def taken(self) -> list[str]:
        """The lines since the last call."""
        taken, self._taken = self._taken, []
        return taken


def header_of(lines: Lines) -> list[str]:
    """The cells of the first line; a quote in it that is never closed swallows none of the others."""
    csv.field_size_limit(LONGEST_CHARACTERS)
    header = next(csv.reader([next(lines, "").rstrip("\r\n")]), [])
    lines.taken()
    return header


def rows_of(lines: Lines, width: int) -> Iterator[list[str]]:
    """Rows that are not empty. A quote that is never closed costs its own line, not all that it swallows."""
    csv.field_size_limit(LONGEST_CHARACTERS)
    reader = csv.reader(lines)
    while True:
        try:
            row = next(reader, None)
        except csv.Error:
            row = []
            reader = csv.reader(lines)
        taken = lines.taken()
        if row is None and not taken:
            return
        if row is not None and (len(row) == width or len(taken) == 1):
            if row:
                yield row
        else:
            yield from (next(csv.reader([line.rstrip("\r\n")]), [""]) for line in taken)
