"""rocmProfileData's databases (`runTracer.sh`, rpd_tracer): calls, what they started on the GPUs, and SMI counters.

https://github.com/ROCm/rocmProfileData, rocpd_python/rocpd/schema_data/tableSchema.cmd. The tables of rocprofv3, which
are named alike, are read by `rocpd`.
"""

from pathlib import Path

from ral_trace.tracer.importers.opening import Head
from ral_trace.tracer.importers.placing import Places
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.importers.sqlite import opened_database
from ral_trace.tracer.importers.staging import Staging, arguments, triple
from ral_trace.tracer.importers.tables import Tables

FORMAT = "rocmProfileData"

API = dict.fromkeys(
    ("id", "pid", "tid", "start", "end", "apiName_id", "args_id", "domain_id", "category_id"), "int")  # fmt: skip
OP = dict.fromkeys(("id", "gpuId", "queueId", "sequenceId", "start", "end", "description_id", "opType_id"), "int")
COPY = {
    **dict.fromkeys(("api_ptr_id", "size", "kind", "srcDevice", "dstDevice", "sync", "pinned"), "int"),
    "stream": "text", "src": "text", "dst": "text",
}  # fmt: skip
KERNEL = {
    **dict.fromkeys(
        ("api_ptr_id", "gridX", "gridY", "gridZ", "workgroupX", "workgroupY", "workgroupZ", "groupSegmentSize",
         "privateSegmentSize", "kernelName_id"), "int"),
    "stream": "text",
}  # fmt: skip
MONITOR = {
    **dict.fromkeys(("deviceId", "start", "end"), "int"), "deviceType": "text", "monitorType": "text", "value": "real",
}  # fmt: skip

USER_MARKER = "UserMarker"
"""The call's name for a roctx range or mark; its text is in the arguments."""
UNITS = {"sclk": "MHz", "mclk": "MHz", "power": "W", "temp": "C", "vram%": "percent", "busy%": "percent"}

TRANSFER = """(
    starts_with(op_type, 'Copy') OR starts_with(op_type, 'Fill'))"""
CATEGORY = """CASE
    WHEN starts_with(op_type, 'Fill') THEN 'memset'
    WHEN op_type LIKE '%HostToDevice%' THEN 'host_to_device'
    WHEN op_type LIKE '%DeviceToHost%' THEN 'device_to_host'
    WHEN op_type LIKE '%PeerToPeer%' OR srcDevice <> dstDevice THEN 'device_to_device'
    WHEN op_type LIKE '%DeviceToDevice%' THEN 'within_device'
    WHEN copies.kind = 1 THEN 'host_to_device' WHEN copies.kind = 2 THEN 'device_to_host'
    WHEN copies.kind = 3 THEN 'within_device' END"""
"""copies.kind is hipMemcpyKind."""


def sniff(head: Head) -> float:
    """Sure when calls and operations are there, and in one table each: rocprofv3 gives none of that name."""
    return 1.0 if {"rocpd_op", "rocpd_string"} <= head.tables or "rocpd_api_ops" in head.tables else 0.0


def read(path: Path, rows: Rows) -> None:
    """Adds calls, markers, kernels, copies and counters. Raises InputRefused."""
    places = Places("cuda", "AMD", lambda key: {"pid": int(key)})
    with opened_database(path, rows.bad) as database, Staging(rows, places) as staging:
        tables = Tables(database, path, staging)
        tables.stage("rocpd_string", "strings", {"id": "int", "string": "text"}, needs=("id", "string"), expected=True)
        staging.unique("strings", "id")
        _describe(tables, staging)
        _calls(tables, staging)
        _operations(tables, staging)
        staging.place()
        _monitor(tables, staging)
        tables.tell()


def _describe(tables: Tables, staging: Staging) -> None:
    tables.stage("rocpd_metadata", "metadata", {"tag": "text", "value": "text"})
    [(version,)] = staging.sql("SELECT max(value) FROM metadata WHERE tag = 'schema_version'")
    facts = staging.rows.facts
    facts["producer"] = "rocmProfileData" if version is None else f"rocmProfileData (schema {version})"
    facts["clock_zero"] = "file"  # CLOCK_MONOTONIC of the machine


def _calls(tables: Tables, staging: Staging) -> None:
    tables.stage("rocpd_api", "calls", API, needs=("start",), expected=True)
    tables.stage("rocpd_hsaApi", "hsa_calls", API, needs=("start",))
    details = arguments(arguments="nullif(args.string, '')", domain="domain.string", category="category.string")
    for table, category, correlation in (("calls", "NULL", "calls.id"), ("hsa_calls", "'hsa'", "NULL::BIGINT")):
        marker = f"names.string = '{USER_MARKER}'"
        staging.add(f"""
            SELECT CASE WHEN NOT coalesce({marker}, false) THEN 'runtime' WHEN "end" = start THEN 'instant'
                        ELSE 'annotation' END AS kind,
                   CASE WHEN NOT coalesce({marker}, false) THEN {category} END AS category,
                   CASE WHEN {marker} THEN args.string ELSE names.string END AS name,
                   start AS start_ns, "end" AS end_ns, pid::VARCHAR AS process, tid,
                   CASE WHEN NOT coalesce({marker}, false) THEN {correlation} END AS correlation,
                   CASE WHEN NOT coalesce({marker}, false) THEN {details} END AS args
            FROM {table} LEFT JOIN strings names ON names.id = apiName_id
            LEFT JOIN strings args ON args.id = args_id LEFT JOIN strings domain ON domain.id = domain_id
            LEFT JOIN strings category ON category.id = category_id""")


def _operations(tables: Tables, staging: Staging) -> None:
    tables.stage("rocpd_op", "ops", OP, needs=("start",), expected=True)
    tables.stage("rocpd_api_ops", "links", {"api_id": "int", "op_id": "int"}, needs=("api_id", "op_id"), expected=True)
    tables.stage("rocpd_copyapi", "copies", COPY, needs=("api_ptr_id",))
    tables.stage("rocpd_kernelapi", "launches", KERNEL, needs=("api_ptr_id",))
    staging.made("callers", "SELECT id, min(pid) AS pid FROM calls WHERE id IS NOT NULL GROUP BY id")
    staging.unique("copies", "api_ptr_id")
    staging.unique("launches", "api_ptr_id")
    staging.made("started", "SELECT op_id, min(api_id) AS api_id FROM links GROUP BY op_id")
    staging.made(
        "only_process",
        """
        SELECT CASE WHEN count(DISTINCT pid) = 1 THEN min(pid)::VARCHAR END AS process FROM calls""",
    )
    details = arguments(
        grid=triple("gridX", "gridY", "gridZ"), block=triple("workgroupX", "workgroupY", "workgroupZ"),
        stream="coalesce(launches.stream, copies.stream)", group_segment_bytes="groupSegmentSize",
        private_segment_bytes="privateSegmentSize", from_address="src", to_address="dst", pinned="pinned", sync="sync",
    )  # fmt: skip
    staging.add(f"""
        SELECT CASE WHEN {TRANSFER} THEN 'transfer' WHEN op_type IN ('Barrier', 'Marker') THEN 'wait'
                    ELSE 'kernel' END AS kind,
               CASE WHEN {TRANSFER} THEN {CATEGORY} END AS category,
               coalesce(nullif(description, ''), kernel_name.string, op_type) AS name,
               ops.start AS start_ns, ops."end" AS end_ns, coalesce(pid::VARCHAR, only_process.process) AS process,
               gpuId AS device, queueId AS stream, api_id AS correlation,
               CASE WHEN {TRANSFER} THEN copies.size END AS bytes, {details} AS args
        FROM (SELECT o.*, types.string AS op_type, texts.string AS description FROM ops o
              LEFT JOIN strings types ON types.id = opType_id
              LEFT JOIN strings texts ON texts.id = description_id) ops
        LEFT JOIN started ON op_id = ops.id
        LEFT JOIN callers ON callers.id = api_id
        LEFT JOIN copies ON copies.api_ptr_id = api_id LEFT JOIN launches ON launches.api_ptr_id = api_id
        LEFT JOIN strings kernel_name ON kernel_name.id = kernelName_id
        LEFT JOIN only_process ON true""")


def _monitor(tables: Tables, staging: Staging) -> None:
    """Counters of rocm-smi, which numbers devices in its own way; a value holds from its start to its end."""
    tables.stage("rocpd_monitor", "monitor", MONITOR, needs=("start", "value"))
    units = " ".join(f"WHEN '{series}' THEN '{unit}'" for series, unit in UNITS.items())
    staging.counters(f"""
        SELECT NULL::VARCHAR AS process, deviceId AS device,
               CASE WHEN deviceType = 'gpu' THEN monitorType ELSE concat_ws(' ', deviceType, monitorType) END AS series,
               CASE monitorType {units} END AS unit, start AS ts_ns, value
        FROM monitor""")
