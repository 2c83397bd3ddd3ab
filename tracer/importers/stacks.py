"""Stacks that other tools write as one text: "file.py(12): function;caller.py(3): <module>", innermost first."""

from ral_trace.tracer.importers.rows import Rows

FRAME = r"^\s*(.*)\((\d+)\): ?(.*?)\s*$"


def add_call_stacks(rows: Rows) -> bool:
    """Makes rows of `stack` from the texts in `full_row.call_stack`, and `call_stack_id` (text, id). False: none."""
    connection = rows.builder.connection
    [(count,)] = connection.execute("""
        CREATE OR REPLACE TEMP TABLE call_stack_id AS
        SELECT call_stack AS text, (row_number() OVER () - 1)::INTEGER AS id FROM full_row
        WHERE call_stack IS NOT NULL GROUP BY call_stack""").fetchall()
    if not count:
        return False
    first = rows.builder.new_ids("stack", count)
    connection.execute("UPDATE call_stack_id SET id = id + ?", [first])
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
            FROM call_stack_id ORDER BY id""",
    )
    return True
