"""Texts of a Perfetto trace, which are bytes where they are not UTF-8."""

from typing import Any

from ral_trace.tracer.importers.rows import NOT_UTF8, Rows


class Texts:
    """Makes text of what protobuf gives, and counts what could not be decoded."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __call__(self, value: Any) -> str:
        """A field of type string or bytes as text; what is not UTF-8 is replaced."""
        if isinstance(value, str):
            return value
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            text = bytes(value).decode("utf-8", "replace")
            self._rows.bad(NOT_UTF8, text)
            return text
