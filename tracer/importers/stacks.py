"""Stacks that other tools write as one text: "file.py(12): function;caller.py(3): <module>", innermost first."""

from collections.abc import Sequence

import numpy as np

from ral_trace.tracer.importers.rows import Rows

FRAME = r"^\s*(.*)\((\d+)\): ?(.*?)\s*$"


def add_call_stacks(rows: Rows, texts: Sequence[str]) -> int:
    """Makes a row of `stack` of each text, and returns the id of the first; the others follow."""
    first = rows.builder.new_ids("stack", len(texts))
    if not texts:
        return first
    connection = rows.builder.connection
    connection.register("call_stack", {"text": np.array(texts, object), "id": np.arange(first, first + len(texts))})
    rows.builder.insert(
        "stack",
        ("id", "frames"),
        f"""SELECT id, list_transform(
                list_filter(string_split(text, ';'), lambda line: trim(line, chr(10) || chr(13) || ' ') <> ''),
                lambda line: CASE WHEN regexp_matches(line, '{FRAME}', 's') THEN
                    {{'file': regexp_extract(line, '{FRAME}', 1, 's'),
                      'line': try_cast(regexp_extract(line, '{FRAME}', 2, 's') AS INTEGER),
                      'function': regexp_extract(line, '{FRAME}', 3, 's')}}
                    ELSE {{'file': NULL, 'line': NULL, 'function': trim(line, chr(10) || chr(13) || ' ')}} END)
            FROM call_stack ORDER BY id""",
    )
    connection.unregister("call_stack")
    return first
