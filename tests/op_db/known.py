"""Differences that are right as they are, each with its reason."""

import re
from typing import Any

KNOWN: list[tuple[str, str, str]] = []
"""(operator, kind and words of the difference, reason); the first two are regular expressions."""


def reason_of(difference: dict[str, Any]) -> str | None:
    """Why this difference is right, or None."""
    for op, what, reason in KNOWN:
        if re.fullmatch(op, difference["op"]) and re.match(what, f"{difference['kind']}: {difference['what']}"):
            return reason
    return None
