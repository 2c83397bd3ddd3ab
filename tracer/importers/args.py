"""`event.args` as JSON text that every reader can hold: no NaN, no infinity, no NUL, no lone surrogate."""

import json
import math
from collections.abc import Mapping
from typing import Any

from ral_trace.tracer.importers.rows import text


def args_text(args: Mapping[str, Any]) -> str | None:
    """The JSON text of what is known; members that are None are left out. None: nothing is known.

    Numbers that are not finite are text, because JSON has none.
    """
    known = {text(key): _clean(value) for key, value in args.items() if value is not None}
    return json.dumps(known, ensure_ascii=False) if known else None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {text(str(key)): _clean(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_clean(member) for member in value]
    return value
