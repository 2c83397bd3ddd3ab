"""The rows that broke an assertion, in lines that are harmless to look at."""

from ral_trace.analysis.base import LINE, NAMED_DEVICE
from ral_trace.analysis.metrics import Metric, Selection, wanted
from ral_trace.analysis.units import duration, human
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.text import plain

MOST_ROWS = 10
"""That are shown of an assertion."""


def occasions(trace: Trace, metric: Metric, chosen: Selection, step: int | None) -> list[str]:
    """The events that a metric counted (in one step), by name, place and line, the most frequent first."""
    if not metric.events:
        return []
    condition, parameters = wanted(metric, chosen)
    rows = trace.sql(
        f"""WITH {NAMED_DEVICE}, {LINE}
        SELECT count(*) AS n, e.name, d.shown, l.line, e.args->>'reason' AS reason,
               e.args->>'waited_for' AS waited_for, sum(e.bytes)::BIGINT AS bytes
        FROM event e LEFT JOIN named_device d ON d.device = e.device LEFT JOIN line_of l ON l.stack = e.stack
        WHERE {condition} AND ($4::BIGINT IS NULL OR e.step = $4)
        GROUP BY ALL ORDER BY n DESC, e.name, d.shown, l.line, reason, waited_for LIMIT {MOST_ROWS + 1}""",
        [*parameters, step],
    ).fetchall()
    where = "" if step is None else f" in step {step}"
    told = [_occasion(row, where, metric.unit) for row in rows[:MOST_ROWS]]
    return [*told, *(["… and more"] if len(rows) > MOST_ROWS else [])]


def _occasion(row: tuple[object, ...], where: str, unit: str) -> str:
    count, name, device, line, reason, waited_for, size = row
    text = f"{count:,} × {plain(str(name))}"
    text += f" on {plain(str(device))}" if device is not None else ""
    text += where
    text += f", {human(size, 'bytes')}" if unit == "bytes" and size is not None else ""
    text += f", waited for {plain(str(waited_for))}" if waited_for is not None else ""
    text += f", {plain(str(line))}" if line is not None else ""
    return text + (f" ({plain(str(reason))})" if reason is not None else "")


def single(trace: Trace, ids: list[int]) -> list[str]:
    """Single events, in the order of their ids given."""
    rows = trace.sql(
        f"""WITH {NAMED_DEVICE}, {LINE}
        SELECT e.id, e.name, d.shown, e.dur_ns, e.step, l.line FROM event e
        LEFT JOIN named_device d ON d.device = e.device LEFT JOIN line_of l ON l.stack = e.stack
        WHERE e.id IN (SELECT unnest($1::BIGINT[]))""",
        [ids],
    ).fetchall()
    told = {number: _event(*row) for number, *row in rows}
    return [told[number] for number in ids]


def _event(name: object, device: object, ns: int, step: int | None, line: object) -> str:
    text = f"{plain(str(name))}: {duration(ns)}"
    text += f" on {plain(str(device))}" if device is not None else ""
    text += f" in step {step}" if step is not None else ""
    return text + (f", {plain(str(line))}" if line is not None else "")
