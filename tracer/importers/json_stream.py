"""JSON read piece by piece, as tools really write it: with bytes that are no UTF-8, control characters, NaN, Windows
paths with single backslashes; cut off anywhere.

The caller walks through the big objects and lists, and takes small values whole. Only these are held in memory.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import IO, Any

from ral_trace.tracer.importers.rows import NOT_UTF8

CHUNK_BYTES = 1 << 20
MENDED = "values that were no JSON: mended"
LONGEST_VALUE_CHARACTERS = 256 << 20
NEAR_THE_END = 16
"""An error so close to the end of what was read may be due to that end: the longest literal is -Infinity."""

_DECODER = json.JSONDecoder(strict=False)
_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN = re.compile(_STRING + r'|["{}\[\]]', re.DOTALL)
_REPAIRED = re.compile(_STRING + r'|[^\s"{}\[\],:]+', re.DOTALL)
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.))', re.DOTALL)


class CutOffError(Exception):
    """The text ends, or stops to be JSON, at a place outside of any single value. Its message says where."""


class BadValueError(Exception):
    """A value is no JSON, and was skipped. Its message shows how it begins."""


class JsonStream:
    """Walks through one JSON text. `said(what, example)` is told of values that had to be mended.

    What the file raises while it is read passes through, and counts as its end where it is one of `ends`.
    """

    def __init__(
        self, file: IO[bytes], said: Callable[[str, str], None], ends: tuple[type[Exception], ...] = (EOFError,)
    ) -> None:
        self._file = file
        self._said = said
        self._ends = ends
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._text = ""
        self._at = 0
        self._before = 0
        self._ended = False

    def _fill(self, size: int = CHUNK_BYTES) -> bool:
        """Reads on. False at the end."""
        if self._ended:
            return False
        try:
            data = self._file.read(size)
        except self._ends:
            data = b""
        self._ended = not data
        self._before += self._at
        text = self._decoder.decode(data, final=self._ended)
        if "\ufffd" in text and text.count("\ufffd") > data.count(b"\xef\xbf\xbd"):
            at = text.index("\ufffd")
            self._said(NOT_UTF8, text[max(at - 20, 0) : at + 20])
        self._text = self._text[self._at :] + text
        self._at = 0
        return True

    def peek(self) -> str:
        """The next character that is not space; nothing at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._fill():
                return ""

    def _fail(self, what: str) -> CutOffError:
        where = self._before + self._at
        ended = "the text ends" if self.peek() == "" else f"{what} is missing"
        return CutOffError(f"{ended} at character {where:,}")

    def _take(self, character: str) -> None:
        if self.peek() != character:
            raise self._fail(repr(character))
        self._at += 1

    def members(self) -> Iterator[str]:
        """The names in an object; the caller takes the value of each before it goes on. Raises CutOffError."""
        self._take("{")
        while self.peek() != "}":
            name = self.value()
            self._take(":")
            yield str(name)
            if self.peek() != "}":
                self._take(",")
        self._at += 1

    def items(self) -> Iterator[None]:
        """Once for each item of a list; the caller takes it before it goes on. Raises CutOffError."""
        self._take("[")
        while self.peek() != "]":
            yield
            if self.peek() not in ("]", "{"):  # a comma that is missing between objects is no loss
                self._take(",")
        self._at += 1

    def value(self) -> Any:
        """The next value, whole. Raises BadValueError after having skipped it, or CutOffError."""
        self.peek()
        size = CHUNK_BYTES
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated") or error.pos > len(self._text) - NEAR_THE_END
                if not unfinished or self._ended or len(self._text) - self._at > LONGEST_VALUE_CHARACTERS:
                    return self._mended()
            except (ValueError, RecursionError):  # a number of more digits than Python takes; too deep
                return self._mended()
            else:
                if end < len(self._text) or self._ended:
                    self._at = end
                    return value
            self._fill(size)
            size *= 2

    def _mended(self) -> Any:
        """Skips a value that is no JSON, and reads it as what was probably meant."""
        raw = self._skipped()
        try:
            value = _DECODER.decode(_REPAIRED.sub(_repair, raw))
        except (ValueError, RecursionError):
            raise BadValueError(raw[:100]) from None
        self._said(MENDED, raw[:100])
        return value

    def _skipped(self) -> str:
        """The text of a value of any depth, found by its brackets and quotes."""
        if self.peek() not in ("{", "[", '"'):
            raise self._fail("a value")
        depth, begin, at = 0, self._at, self._at
        while True:
            match = _TOKEN.search(self._text, at)
            if match is None or match[0] == '"':  # a string that does not end here
                at = match.start() if match else len(self._text)
                at, begin = at - self._at, begin - self._at
                if len(self._text) > LONGEST_VALUE_CHARACTERS or not self._fill():
                    self._at = len(self._text)
                    raise self._fail("the end of a value")
                continue
            at = match.end()
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match[0], 0)
            if depth <= 0:
                self._at = at
                return self._text[begin:at]


def _repair(token: re.Match[str]) -> str:
    """A string with backslashes that start no escape doubled; a bare word that JSON does not know as null."""
    text = token[0]
    if text.startswith('"'):
        return _ESCAPE.sub(lambda escape: escape[0] if escape[1] else "\\\\" + json.dumps(escape[2])[1:-1], text)
    try:
        _DECODER.decode(text)
    except ValueError:
        return "null"
    return text
