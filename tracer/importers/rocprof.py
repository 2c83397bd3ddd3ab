"""What rocprofv3 records, whichever of its formats it comes in: calls, dispatches, copies, allocations, counters.

Each reader fills the tables below; `place` says what their rows are. Names of domains and operations are those of
rocprofiler-sdk: https://github.com/ROCm/rocm-systems, projects/rocprofiler-sdk/source/lib/output
"""

from typing import Any

from ral_trace.tracer.importers.placing import Places
from ral_trace.tracer.importers.staging import Staging, address, arguments, triple

SPAN = {"process": "text", "start": "int", "end": "int", "correlation": "int"}
TABLES = {
    # domain: HIP_RUNTIME_API, HSA_CORE_API, MARKER_CORE_RANGE_API, ...; message: of a marker
    "roc_call": {**SPAN, "tid": "int", "domain": "text", "name": "text", "message": "text", "arguments": "text"},
    "roc_dispatch": {
        **SPAN, "agent": "text", "queue": "text", "stream": "int", "dispatch": "int", "name": "text",
        **dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "lds", "scratch"), "int"),
    },
    "roc_copy": {**SPAN, "operation": "text", "source": "text", "target": "text", "stream": "int", "bytes": "int"},
    # operation: ALLOC, FREE
    "roc_memory": {
        **SPAN, "tid": "int", "operation": "text", "level": "text", "agent": "text", "address": "text", "bytes": "int",
    },
    "roc_counter": {
        "process": "text", "agent": "text", "ts": "int", "series": "text", "value": "real", "dispatch": "int",
    },
    "roc_agent": {"process": "text", "agent": "text", "gpu": "int", "index": "int", "vendor": "text", "name": "text"},
}  # fmt: skip
"""An agent is known by the id that its file gives it, as text; `index` counts the GPUs of the process."""


def places() -> Places:
    """Processes are known by their pid, after a prefix and a colon where a file holds several of one pid."""
    return Places("cuda", "AMD", lambda key: {"pid": _pid(key)})


def _pid(key: str) -> int | None:
    digits = key.rpartition(":")[2]
    return int(digits) if digits.lstrip("-").isascii() and digits.lstrip("-").isdigit() else None


def prepare(staging: Staging) -> None:
    """Makes the tables."""
    for table, columns in TABLES.items():
        staging.table(table, columns)


def place(staging: Staging) -> None:
    """Makes events and counters of all rows."""
    staging.rows.facts["clock_zero"] = "file"  # CLOCK_BOOTTIME of the machine
    _agents(staging)
    _calls(staging)
    _dispatches(staging)
    _copies(staging)
    _memory(staging)
    staging.place()
    staging.counters("""
        SELECT c.process, coalesce(index, try_cast(c.agent AS BIGINT)) AS device, series, NULL::VARCHAR AS unit,
               ts AS ts_ns, sum(value) AS value
        FROM roc_counter c LEFT JOIN agents a ON a.agent = c.agent AND a.process IS NOT DISTINCT FROM c.process
        WHERE ts IS NOT NULL GROUP BY c.process, index, c.agent, series, ts, dispatch""")


def _agents(staging: Staging) -> None:
    """Fills `agents`: one row each. An agent of no process is one of all that have no such agent of their own."""
    staging.made(
        "everybody",
        """
        SELECT DISTINCT process FROM (
            SELECT process FROM roc_call UNION ALL SELECT process FROM roc_dispatch UNION ALL
            SELECT process FROM roc_copy UNION ALL SELECT process FROM roc_memory UNION ALL
            SELECT process FROM roc_counter)""",
    )
    staging.made(
        "agents",
        """
        SELECT DISTINCT ON (process, agent) * FROM (
            SELECT everybody.process, agent, gpu = 1 AS gpu, index, vendor, name, a.process IS NULL AS shared
            FROM roc_agent a JOIN everybody ON a.process IS NULL OR a.process = everybody.process)
        WHERE agent IS NOT NULL ORDER BY process, agent, shared, gpu, index, vendor, name""",
    )
    found = staging.sql("SELECT process, index, vendor, name FROM agents WHERE gpu AND index IS NOT NULL ORDER BY ALL")
    for process, index, vendor, name in found:
        staging.places.devices[process, index] = {"vendor": vendor or staging.places.vendor, "name": name}


def _calls(staging: Staging) -> None:
    marker = "coalesce(starts_with(domain, 'MARKER'), false)"
    details = arguments(arguments="try_cast(arguments AS JSON)")
    staging.add(f"""
        SELECT CASE WHEN NOT {marker} THEN 'runtime' WHEN "end" = start THEN 'instant' ELSE 'annotation' END AS kind,
               CASE WHEN NOT {marker} THEN lower(regexp_extract(domain, '^([A-Za-z]+)', 1)) END AS category,
               CASE WHEN {marker} THEN coalesce(nullif(message, ''), name) ELSE name END AS name,
               start AS start_ns, "end" AS end_ns, process, tid,
               CASE WHEN NOT {marker} THEN nullif(correlation, 0) END AS correlation, {details} AS args
        FROM roc_call""")


def _device_of(alias: str, agent: str) -> str:
    """SQL: which of the process's devices an agent is, and the join that finds it."""
    return f"""
        LEFT JOIN agents {alias} ON {alias}.agent = {agent} AND {alias}.process IS NOT DISTINCT FROM r.process"""


def _number(alias: str, agent: str) -> str:
    return f"coalesce({alias}.index, CASE WHEN {alias}.agent IS NULL THEN try_cast({agent} AS BIGINT) END)"


def _dispatches(staging: Staging) -> None:
    details = arguments(
        grid=triple("gridX", "gridY", "gridZ"), block=triple("blockX", "blockY", "blockZ"), queue="queue",
        lds_bytes="lds", scratch_bytes="scratch", dispatch="dispatch",
    )  # fmt: skip
    staging.add(f"""
        SELECT 'kernel' AS kind, r.name, start AS start_ns, "end" AS end_ns, r.process,
               {_number("a", "r.agent")} AS device, coalesce(stream, try_cast(queue AS BIGINT)) AS stream,
               nullif(correlation, 0) AS correlation, {details} AS args
        FROM roc_dispatch r""" + _device_of("a", "r.agent"))  # fmt: skip


def _copies(staging: Staging) -> None:
    """A copy between devices is shown on the one that it comes from."""
    details = arguments(from_agent="r.source", to_agent="r.target")
    staging.add(f"""
        SELECT 'transfer' AS kind, coalesce(operation, 'MEMORY_COPY') AS name,
               CASE WHEN way = 'device_to_device' AND source = target THEN 'within_device' ELSE way END AS category,
               start AS start_ns, "end" AS end_ns, r.process, stream, nullif(correlation, 0) AS correlation, bytes,
               CASE WHEN way = 'host_to_device' THEN {_number("t", "r.target")}
                    ELSE {_number("s", "r.source")} END AS device, {details} AS args
        FROM (SELECT c.*, coalesce(
                  nullif(regexp_extract(lower(operation), '(host|device)_to_(host|device)'), ''),
                  CASE WHEN sa.gpu THEN 'device' WHEN NOT sa.gpu THEN 'host' END || '_to_'
                  || CASE WHEN ta.gpu THEN 'device' WHEN NOT ta.gpu THEN 'host' END) AS way
              FROM roc_copy c
              LEFT JOIN agents sa ON sa.agent = c.source AND sa.process IS NOT DISTINCT FROM c.process
              LEFT JOIN agents ta ON ta.agent = c.target AND ta.process IS NOT DISTINCT FROM c.process) r
        """ + _device_of("s", "r.source") + _device_of("t", "r.target"))  # fmt: skip


def _memory(staging: Staging) -> None:
    """Allocations; a free does not say whose memory it was, so that it is that of the last block at the address.

    Memory of the host has no device, and so no place in the devices' memory.
    """
    staging.tell(
        "allocations and frees of which it is not known which they are: left out",
        "FROM roc_memory WHERE operation IS NULL OR operation NOT IN ('ALLOC', 'FREE')",
        "operation",
    )
    details = arguments(level="lower(level)", agent="r.agent")
    signed = address("try_cast(m.address AS BIGINT)")
    at = f"CASE WHEN starts_with(m.address, '-') THEN {signed} ELSE try_cast(m.address AS UBIGINT) END"
    staging.add(f"""
        SELECT lower(operation) AS kind, lower(operation) AS name, start AS start_ns, "end" AS end_ns, r.process, tid,
               bytes, block AS address, nullif(correlation, 0) AS correlation,
               CASE WHEN coalesce(a.gpu, true) AND coalesce(level, 'REAL') = 'REAL' THEN {_number("a", "r.agent")} END
                   AS device, {details} AS args
        FROM (
            SELECT m.* REPLACE (coalesce(m.agent, earlier.agent) AS agent), {at} AS block FROM roc_memory m
            ASOF LEFT JOIN (SELECT process, address, start, agent FROM roc_memory
                            WHERE operation = 'ALLOC' AND start IS NOT NULL) earlier
              ON earlier.process = m.process AND earlier.address = m.address AND m.start >= earlier.start
            WHERE m.operation IN ('ALLOC', 'FREE') AND coalesce(block <> 0, true)) r
        """ + _device_of("a", "r.agent"))  # fmt: skip


def described(**columns: Any) -> dict[str, Any]:
    """Columns of a process that are known."""
    return {column: value for column, value in columns.items() if value is not None}
