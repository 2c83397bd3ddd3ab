"""What lies beneath fallbacks: their own launches, waits and copies."""

from ral_trace.analysis.remember import once
from ral_trace.tracer.reading import Trace

BELOW = """
    CREATE TEMP TABLE below_fallback AS
    WITH RECURSIVE below(fallback, id, kind, process, correlation) AS (
        SELECT id, id, kind, process, NULL::BIGINT FROM event WHERE kind = 'fallback'
        UNION ALL
        SELECT b.fallback, e.id, e.kind, e.process, e.correlation
        FROM below b JOIN event e ON e.parent = b.id WHERE e.kind <> 'fallback')
    FROM below"""
COPIES = """
    CREATE TEMP TABLE copy_inside AS
    SELECT id, min(fallback) AS fallback FROM (
        SELECT id, fallback FROM below_fallback WHERE kind = 'transfer'
        UNION ALL
        SELECT t.id, b.fallback
        FROM below_fallback b JOIN event t ON t.process = b.process AND t.correlation = b.correlation
        WHERE b.kind = 'launch' AND t.kind = 'transfer')
    GROUP BY id"""


@once
def find_inside_fallbacks(trace: Trace) -> None:
    """Makes the temporary tables `below_fallback` (fallback, id, kind, process, correlation), the rows beneath each
    fallback and itself, and `copy_inside` (id, fallback), the copies that fallbacks made.

    The rows end at a fallback beneath a fallback, which has rows of its own. So a circle of parents ends, too.
    """
    trace.connection.execute(BELOW)
    trace.connection.execute(COPIES)
