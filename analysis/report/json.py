"""The report for programs. docs/report-json.md describes it, and is made here so that it cannot go stale."""

import json
from typing import Any

from ral_trace.analysis import ANALYSES
from ral_trace.analysis.base import UNITS
from ral_trace.analysis.report.sections import Report

SCHEMA_VERSION = 1
"""Rises when something is removed or changes its meaning; new keys and columns may appear without."""


def document(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "trace": report.name,
        "device": report.device,
        "analyses": {
            name: {
                "title": section.analysis.title,
                "columns": [{"name": column.name, "unit": column.unit} for column in section.analysis.columns],
                "rows": section.rows,
            }
            for name, section in report.sections.items()
        },
    }


def render(report: Report) -> str:
    """The report as JSON, in ASCII: a name in it cannot steer the terminal that it is printed on."""
    return json.dumps(document(report), indent=1, allow_nan=False)


INTRODUCTION = """\
# The report as JSON

`ral-trace --report [TRACE] --json` (or `ral-trace report [TRACE] --json`) prints one object:

| key | value |
|---|---|
| `schema_version` | {version}; rises when something goes or changes its meaning, not for new keys and columns |
| `trace` | file name of the trace |
| `device` | the device that `--device` asked for, else null |
| `analyses` | an object: a key for each analysis below, with `title`, `columns` (`name` and `unit` each) and `rows` |

A row is an object that has every column of its analysis. A value that cannot be known is null, never 0. Integers may
exceed 2^53 (times since the Unix epoch do): read them with a parser that keeps 64-bit integers, as those of Python and
jq 1.7 do. Text out of the trace is untrusted.

```sh
ral-trace report run.duckdb --json | jq '.analyses.fallbacks.rows[] | {{device, name, count, total_ns}}'
```

| unit | meaning |
|---|---|"""


def describe() -> str:
    """docs/report-json.md."""
    lines = [
        INTRODUCTION.format(version=SCHEMA_VERSION),
        *[f"| {unit} | {about} |" for unit, about in UNITS.items()],
        "",
        "This page is generated: `python -m ral_trace.analysis.report.json > docs/report-json.md`.",
    ]
    for analysis in ANALYSES:
        lines += [
            "",
            f"## `{analysis.name}`: {analysis.title}",
            "",
            analysis.about,
            "",
            "| column | unit | meaning |",
            "|---|---|---|",
        ]
        lines += [f"| `{column.name}` | {column.unit} | {column.about} |" for column in analysis.columns]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(describe())
