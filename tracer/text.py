"""Text out of a trace is untrusted: how to show it where a terminal or a browser might act on it, or SQL would."""

import unicodedata


def plain(text: str) -> str:
    """`text` with every character written out that a terminal or a browser would act on.

    These are control characters (escape sequences, new lines), invisible format characters, and those that turn the
    direction of writing.
    """
    return "".join(_escaped(char) if unicodedata.category(char) in HARMFUL else char for char in text)


HARMFUL = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def _escaped(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def sql_text(value: object) -> str:
    """SQL: the literal of a text or a path, for statements that take no parameters."""
    return "'" + str(value).replace("'", "''") + "'"
