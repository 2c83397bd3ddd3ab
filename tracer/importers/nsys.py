"""Nsight Systems' SQLite export (`nsys export --type sqlite`), of 2022 to 2026.

Tables come and go with what was traced and with the version, so that each is optional, and each column but a few.
https://docs.nvidia.com/nsight-systems/UserGuide/index.html#sqlite-schema-reference
"""

from pathlib import Path

from ral_trace.tracer.importers.opening import Head
from ral_trace.tracer.importers.placing import Places
from ral_trace.tracer.importers.rows import LIMIT, Rows
from ral_trace.tracer.importers.sqlite import opened_database
from ral_trace.tracer.importers.staging import Staging, address, arguments, triple
from ral_trace.tracer.importers.tables import Tables
from ral_trace.tracer.schema import FLAGS

FORMAT = "Nsight Systems SQLite"

TIMED = {"start": "int", "end": "int"}
WORK = {**TIMED, **dict.fromkeys(
    ("deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphNodeId"), "int")}  # fmt: skip
KERNEL = {**WORK, **dict.fromkeys(
    ("shortName", "demangledName", "mangledName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
     "registersPerThread", "staticSharedMemory", "dynamicSharedMemory"), "int")}  # fmt: skip
COPY = {**WORK, **dict.fromkeys(
    ("bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId"), "int")}  # fmt: skip
SET = {**WORK, **dict.fromkeys(("bytes", "value", "memKind"), "int")}
WAIT = {**WORK, **dict.fromkeys(("syncType", "eventId"), "int")}
GRAPH = {**WORK, "graphId": "int", "graphExecId": "int"}
CALL = {**TIMED, **dict.fromkeys(("globalTid", "correlationId", "nameId", "textId", "returnValue"), "int")}
RANGE = {
    **TIMED, **dict.fromkeys(
        ("eventType", "rangeId", "category", "globalTid", "textId", "domainId", "uint64Value", "int64Value",
         "uint32Value", "int32Value", "jsonTextId"), "int"),
    "text": "text", "jsonText": "text", "doubleValue": "real", "floatValue": "real",
}  # fmt: skip
MEMORY = dict.fromkeys(
    ("start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType", "correlationId"), "int"
)
ENUM = {"id": "int", "label": "text", "name": "text"}

OTHER_CALLS = (
    "OSRT_API", "CUDNN_EVENTS", "CUBLAS_EVENTS", "MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_START_WAIT_EVENTS",
    "MPI_OTHER_EVENTS",
)  # fmt: skip
"""Host calls that start no work on a device themselves; the name of the table is their category."""

MARK, PUSH_POP, START_END, CATEGORY, DOMAIN = 34, 59, 60, 33, 75
"""ENUM_NSYS_EVENT_TYPE: which rows of NVTX_EVENTS are what."""

COPY_KINDS = [
    # copyKind (ENUM_CUDA_MEMCPY_OPER, as CUpti_ActivityMemcpyKind), our category, the name as torch.profiler has it
    (1, "host_to_device", "Memcpy HtoD"),
    (2, "device_to_host", "Memcpy DtoH"),
    (3, "host_to_device", "Memcpy HtoA"),
    (4, "device_to_host", "Memcpy AtoH"),
    (5, "within_device", "Memcpy AtoA"),
    (6, "within_device", "Memcpy AtoD"),
    (7, "within_device", "Memcpy DtoA"),
    (8, "within_device", "Memcpy DtoD"),
    (9, "host_to_host", "Memcpy HtoH"),
    (10, "device_to_device", "Memcpy PtoP"),
    (11, "host_to_device", "Memcpy HtoD (unified memory)"),
    (12, "device_to_host", "Memcpy DtoH (unified memory)"),
    (13, "device_to_device", "Memcpy DtoD (unified memory)"),
]
MEMORY_KINDS = ["Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown"]
ON_DEVICE_MEMORY = (2, 3, 4, 5, 6)
SYNC_TYPES = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
"""ENUM_CUPTI_SYNC_TYPE, in the words of torch.profiler."""
WORK_TABLES = tuple(
    f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "GRAPH_TRACE")
)
NO_STREAM = (2**32 - 1, -1)

PID = "(globalPid >> 24)::VARCHAR"
"""Key of a process: hardware, virtual machine and pid of a serialized identifier; its lowest 24 bits are the tid."""
LOWEST_24_BITS = 0xFFFFFF


def sniff(head: Head) -> float:
    """Sure when the activity tables are there: nvprof's files name them alike, but keep strings elsewhere."""
    if "StringIds" not in head.tables:
        return 0.0
    known = {"META_DATA_EXPORT", "ANALYSIS_DETAILS", "NVTX_EVENTS", "OSRT_API", "TARGET_INFO_GPU", "ThreadNames"}
    return 1.0 if any(name.startswith("CUPTI_") or name in known for name in head.tables) else 0.3


def read(path: Path, rows: Rows) -> None:
    """Adds what was on the host's threads and on the devices, and counters. Raises InputRefused."""
    places = Places("cuda", "NVIDIA", lambda key: {"pid": _pid(key)})
    with opened_database(path, rows.bad) as database, Staging(rows, places) as staging:
        tables = Tables(database, path, staging)
        tables.stage("StringIds", "strings", {"id": "int", "value": "text"}, needs=("id", "value"), expected=True)
        staging.unique("strings", "id")
        offset_ns = _clock(tables, staging)
        _describe(tables, staging)
        _calls(tables, staging)
        _device_work(tables, staging)
        _ranges(tables, staging)
        _memory(tables, staging)
        staging.place(offset_ns=offset_ns)
        _metrics(tables, staging, offset_ns)
        tables.tell()


def _clock(tables: Tables, staging: Staging) -> int:
    """What to add to the file's times, which count from the begin of the session, to have them since 1970."""
    tables.stage("TARGET_INFO_SESSION_START_TIME", "session", {"utcEpochNs": "int"})
    found = staging.sql(
        f"SELECT min(utcEpochNs), max(utcEpochNs) FROM session WHERE utcEpochNs BETWEEN 1 AND {LIMIT - 1}"
    )
    first, last = found[0]
    facts = staging.rows.facts
    if first is None or first != last:  # several sessions: whose times are whose is not said
        facts["clock_zero"] = "file"
        return 0
    facts["clock_zero"], facts["clock_offset_ns"] = "unix epoch", first
    return int(first)


def _describe(tables: Tables, staging: Staging) -> None:
    """Producer, host, processes, threads, devices."""
    for table in ("META_DATA_EXPORT", "META_DATA_CAPTURE"):
        tables.stage(table, table, {"name": "text", "value": "text"})
    facts = dict(staging.sql("SELECT name, value FROM META_DATA_EXPORT"))
    product = facts.get("EXPORT_PRODUCT_NAME") or "NVIDIA Nsight Systems"
    version = facts.get("EXPORT_PRODUCT_VERSION")
    staging.rows.facts["producer"] = f"{product} {version}" if version else product
    tables.stage("TARGET_INFO_SYSTEM_ENV", "environment", {"name": "text", "value": "text"})
    found = staging.sql("SELECT value FROM environment WHERE name IN ('Hostname', 'HostName') ORDER BY ALL LIMIT 1")
    host = found[0][0] if found else None
    tables.stage("PROCESSES", "processes", {"globalPid": "int", "pid": "int", "name": "text"})
    tables.stage("ThreadNames", "thread_names", {"globalTid": "int", "nameId": "int"})
    places = staging.places
    for key, pid, name in staging.sql(
        f"SELECT {PID}, pid, name FROM processes WHERE globalPid IS NOT NULL ORDER BY ALL"
    ):
        places.processes[key] = {"pid": pid, "name": name, "host": host}
    threads = f"""SELECT {PID.replace("Pid", "Tid")}, globalTid & {LOWEST_24_BITS}, value FROM thread_names
                  JOIN strings ON id = nameId WHERE globalTid IS NOT NULL ORDER BY ALL"""
    for key, tid, name in staging.sql(threads):
        places.threads[key, tid] = {"name": name}
        places.processes.setdefault(key, {"pid": _pid(key), "host": host})
    _describe_devices(tables, staging)


def _pid(key: str) -> int | None:
    """Of a process's key; None where there is none, as in exports that were made smaller."""
    return int(key) & LOWEST_24_BITS or None


def _describe_devices(tables: Tables, staging: Staging) -> None:
    """A process may see the GPUs under other numbers than the system: TARGET_INFO_CUDA_DEVICE says which."""
    tables.stage("TARGET_INFO_GPU", "gpus", {"id": "int", "name": "text", "totalMemory": "int"})
    tables.stage("TARGET_INFO_CUDA_DEVICE", "cuda_devices", {"gpuId": "int", "cudaId": "int", "pid": "int"})
    gpus = {
        index: {"name": name, "memory_bytes": memory, "vendor": "NVIDIA"}
        for index, name, memory in staging.sql("SELECT id, name, totalMemory FROM gpus ORDER BY ALL")
    }
    devices = staging.places.devices
    devices.update({(None, index): known for index, known in gpus.items()})
    keys = {known["pid"]: key for key, known in staging.places.processes.items()}
    for gpu, index, pid in staging.sql("SELECT gpuId, cudaId, pid FROM cuda_devices ORDER BY ALL"):
        if gpu in gpus:
            devices[keys.get(pid, str(pid)), index] = gpus[gpu]


def _calls(tables: Tables, staging: Staging) -> None:
    """Calls of the runtime and driver, and of other libraries."""
    sources: dict[str, str | None] = {"CUPTI_ACTIVITY_KIND_RUNTIME": None, "CUPTI_ACTIVITY_KIND_DRIVER": None}
    sources |= {table: table.lower().removesuffix("_api").removesuffix("_events") for table in OTHER_CALLS}
    details = arguments(return_value="nullif(returnValue, 0)")
    for table, category in sources.items():
        expected = table == "CUPTI_ACTIVITY_KIND_RUNTIME"
        tables.stage(table, "calls", CALL, needs=("start",), expected=expected)
        named = "NULL" if category is None else f"'{category}'"
        staging.add(f"""
            SELECT 'runtime' AS kind, {named} AS category, value AS name, start AS start_ns, "end" AS end_ns,
                   (globalTid >> 24)::VARCHAR AS process, globalTid & {LOWEST_24_BITS} AS tid,
                   nullif(correlationId, 0) AS correlation, {details} AS args
            FROM calls LEFT JOIN strings ON id = coalesce(nameId, textId)""")
        staging.drop("calls")
    _learn_processes(tables, staging)


def _learn_processes(tables: Tables, staging: Staging) -> None:
    """Which process made which call, for work on devices that does not say it, as in exports that were made smaller."""
    needed = any(table in tables and "globalpid" not in tables.columns(table) for table in WORK_TABLES)
    staging.made(
        "callers",
        f"""
        SELECT correlation, min(process) AS process FROM raw
        WHERE kind = 'runtime' AND correlation IS NOT NULL AND {needed}
        GROUP BY correlation HAVING count(DISTINCT process) = 1""",
    )
    only = staging.sql("SELECT DISTINCT process FROM raw LIMIT 2")
    staging.made("only_process", f"SELECT {repr(only[0][0]) if len(only) == 1 and only[0][0] else 'NULL'} AS process")


def _work(staged: str, columns: str) -> str:
    """SQL: rows of a device's stream, with their process."""
    return f"""
        SELECT {columns}, start AS start_ns, "end" AS end_ns, deviceId AS device,
               CASE WHEN streamId NOT IN {NO_STREAM} THEN streamId END AS stream,
               nullif(correlationId, 0) AS correlation,
               coalesce({PID}, callers.process, only_process.process) AS process
        FROM {staged} LEFT JOIN callers ON callers.correlation = correlationId AND globalPid IS NULL
        LEFT JOIN only_process ON true"""


def _device_work(tables: Tables, staging: Staging) -> None:
    tables.stage("CUPTI_ACTIVITY_KIND_KERNEL", "kernels", KERNEL, needs=("start",), expected=True)
    details = arguments(
        grid=triple("gridX", "gridY", "gridZ"), block=triple("blockX", "blockY", "blockZ"),
        registers_per_thread="registersPerThread",
        shared_memory_bytes="staticSharedMemory::HUGEINT + dynamicSharedMemory",
        context="contextId", graph_node="graphNodeId",
    )  # fmt: skip
    staging.add(
        _work(
            "kernels",
            f"""
            'kernel' AS kind, coalesce(demangled.value, mangled.value, short.value) AS name, {details} AS args""",
        )
        + """
        LEFT JOIN strings demangled ON demangled.id = demangledName
        LEFT JOIN strings mangled ON mangled.id = mangledName LEFT JOIN strings short ON short.id = shortName"""
    )
    staging.drop("kernels")
    tables.stage("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graphs", GRAPH, needs=("start",))
    details = arguments(graph="graphId", graph_exec="graphExecId", context="contextId")
    staging.add(
        _work(
            "graphs",
            f"""
        'kernel' AS kind, 'graph' AS category, concat_ws(' ', 'CUDA graph', graphId) AS name, {details} AS args""",
        )
    )
    _copies(tables, staging)
    tables.stage("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "waits", WAIT, needs=("start",))
    names = " ".join(f"WHEN {number} THEN '{name}'" for number, name in SYNC_TYPES.items())
    details = arguments(context="contextId", cuda_event="CASE WHEN syncType IN (1, 2) THEN eventId END")
    staging.add(
        _work(
            "waits",
            f"""
        'wait' AS kind, CASE syncType {names} ELSE 'Sync' END AS name, {details} AS args""",
        )
    )


def _copies(tables: Tables, staging: Staging) -> None:
    staging.table("copy_kinds", {"kind_id": "int", "category_of": "text", "kind_name": "text"})
    staging.append("copy_kinds", ("kind_id", "category_of", "kind_name"), COPY_KINDS)
    staging.table("memory_kinds", {"memory_id": "int", "memory": "text"})
    staging.append("memory_kinds", ("memory_id", "memory"), list(enumerate(MEMORY_KINDS)))
    tables.stage("CUPTI_ACTIVITY_KIND_MEMCPY", "copies", COPY, needs=("start",), expected=True)
    details = arguments(
        context="contextId", graph_node="graphNodeId", from_memory="source.memory", to_memory="target.memory",
        from_device="srcDeviceId", to_device="dstDeviceId",
    )  # fmt: skip
    between = "copyKind IN (8, 13) AND srcDeviceId IS NOT NULL AND dstDeviceId IS NOT NULL"
    staging.add(
        _work(
            "copies",
            f"""
            'transfer' AS kind, bytes, CASE WHEN {between} AND srcDeviceId <> dstDeviceId THEN 'device_to_device'
                WHEN {between} THEN 'within_device' ELSE category_of END AS category,
            coalesce(kind_name, 'Memcpy') AS name, {details} AS args""",
        )
        + """
        LEFT JOIN copy_kinds ON kind_id = copyKind
        LEFT JOIN memory_kinds source ON source.memory_id = srcKind
        LEFT JOIN memory_kinds target ON target.memory_id = dstKind"""
    )
    tables.stage("CUPTI_ACTIVITY_KIND_MEMSET", "sets", SET, needs=("start",))
    details = arguments(context="contextId", graph_node="graphNodeId", value="sets.value", memory="memory")
    staging.add(
        _work(
            "sets",
            f"""
            'transfer' AS kind, 'memset' AS category, 'Memset' AS name, bytes, {details} AS args""",
        )
        + " LEFT JOIN memory_kinds ON memory_id = memKind"
    )


def _ranges(tables: Tables, staging: Staging) -> None:
    """NVTX: ranges become annotations, marks instants. A range from start to end may cross others of its thread."""
    tables.stage("NVTX_EVENTS", "ranges", RANGE, needs=("start",), expected=True)
    staging.made(
        "domains",
        f"""
        SELECT domainId AS id, globalTid >> 24 AS process, min(coalesce(text, value)) AS domain_name FROM ranges
        LEFT JOIN strings ON strings.id = textId WHERE eventType = {DOMAIN} GROUP BY ALL""",
    )
    staging.made(
        "categories",
        f"""
        SELECT category AS id, domainId AS domain, globalTid >> 24 AS process, min(coalesce(text, value)) AS label
        FROM ranges LEFT JOIN strings ON strings.id = textId WHERE eventType = {CATEGORY} GROUP BY ALL""",
    )
    details = arguments(
        domain="coalesce(domain_name, nullif(domainId, 0)::VARCHAR)",
        category="coalesce(label, nullif(category, 0)::VARCHAR)",
        payload="coalesce(int64Value::HUGEINT, uint64Value, int32Value, uint32Value)",
        payload_float="coalesce(doubleValue, floatValue)",
        payload_json="coalesce(jsonText, payload.value)",
    )
    staging.add(f"""
        SELECT CASE WHEN eventType = {MARK} OR (eventType IS NULL AND "end" IS NULL) THEN 'instant'
                    ELSE 'annotation' END AS kind,
               coalesce(text, names.value) AS name, start AS start_ns, "end" AS end_ns,
               (globalTid >> 24)::VARCHAR AS process, globalTid & {LOWEST_24_BITS} AS tid, {details} AS args,
               CASE WHEN eventType = {START_END} THEN {FLAGS["SUSPENDED"]} ELSE 0 END AS flags
        FROM ranges LEFT JOIN strings names ON names.id = textId LEFT JOIN strings payload ON payload.id = jsonTextId
        LEFT JOIN domains ON domains.id = domainId AND domains.process = globalTid >> 24
        LEFT JOIN categories ON categories.id = category AND categories.process = globalTid >> 24
             AND categories.domain IS NOT DISTINCT FROM domainId
        WHERE eventType IS NULL OR eventType IN ({MARK}, {PUSH_POP}, {START_END})""")
    staging.tell(
        "rows of NVTX_EVENTS that are no ranges or marks: left out",
        f"FROM ranges WHERE eventType NOT IN ({MARK}, {PUSH_POP}, {START_END}, {CATEGORY}, {DOMAIN}, {DOMAIN + 1})",
        "eventType",
    )


def _memory(tables: Tables, staging: Staging) -> None:
    """Allocations of the driver; those in the host's memory are events without a device."""
    tables.stage("CUDA_GPU_MEMORY_USAGE_EVENTS", "usage", MEMORY, needs=("start", "memoryOperationType"))
    staging.tell(
        "allocations and frees of which it is not known which they are: left out",
        "FROM usage WHERE memoryOperationType IS NULL OR memoryOperationType NOT IN (0, 1)",
        "memoryOperationType",
    )
    details = arguments(memory="memory")
    staging.add(f"""
        SELECT CASE memoryOperationType WHEN 0 THEN 'alloc' WHEN 1 THEN 'free' END AS kind,
               CASE memoryOperationType WHEN 0 THEN 'cudaMalloc' ELSE 'cudaFree' END AS name,
               start AS start_ns, start AS end_ns, {PID} AS process, bytes, {address("address")} AS address,
               CASE WHEN memKind IN {ON_DEVICE_MEMORY} THEN deviceId END AS device,
               nullif(correlationId, 0) AS correlation, {details} AS args
        FROM usage LEFT JOIN memory_kinds ON memory_id = memKind WHERE memoryOperationType IN (0, 1)""")


def _metrics(tables: Tables, staging: Staging, offset_ns: int) -> None:
    """Samples of the GPUs' counters; the lowest byte of typeId is the GPU.

    https://docs.nvidia.com/nsight-systems/UserGuide/index.html#gpu-metrics
    """
    columns = {**dict.fromkeys(("timestamp", "typeId", "metricId"), "int"), "value": "real"}
    tables.stage("GPU_METRICS", "metrics", columns, needs=("timestamp", "value"))
    tables.stage("TARGET_INFO_GPU_METRICS", "metric_names", {"metricId": "int", "typeId": "int", "metricName": "text"})
    staging.counters(
        """
        SELECT NULL::VARCHAR AS process, m.typeId & 255 AS device,
               coalesce(metricName, 'metric ' || m.metricId) AS series,
               CASE WHEN contains(metricName, '[Throughput %]') THEN 'percent' END AS unit, timestamp AS ts_ns, value
        FROM metrics m LEFT JOIN (
            SELECT metricId, typeId, min(metricName) AS metricName FROM metric_names GROUP BY ALL) names
          ON names.metricId = m.metricId AND coalesce(names.typeId = m.typeId, true)""",
        offset_ns=offset_ns,
    )
