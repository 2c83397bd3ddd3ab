"""rocprofv3's own format, rocpd: an SQLite database with a set of tables a process, each with its GUID in the names.

Views of the plain names may join them; only the tables are read. The schema, up to version 3.0.1:
https://github.com/ROCm/rocm-systems, projects/rocprofiler-sdk/source/share/rocprofiler-sdk-rocpd/rocpd_tables.sql
"""

from pathlib import Path

from ral_trace.tracer.importers import rocprof
from ral_trace.tracer.importers.opening import Head
from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.importers.sqlite import opened_database
from ral_trace.tracer.importers.staging import Staging
from ral_trace.tracer.importers.tables import Tables

FORMAT = "rocpd (rocprofv3)"

BASES = (
    "metadata", "string", "info_node", "info_process", "info_thread", "info_agent", "info_queue", "info_stream",
    "info_pmc", "info_code_object", "info_kernel_symbol", "track", "event", "arg", "pmc_event", "region", "sample",
    "kernel_dispatch", "memory_copy", "memory_allocate", "event_operation",
)  # fmt: skip
TELLING = ("rocpd_kernel_dispatch", "rocpd_region", "rocpd_memory_copy", "rocpd_info_", "rocpd_memory_allocate")

PLACED = dict.fromkeys(("id", "pid", "tid", "start", "end", "event_id"), "int")
DISPATCH = {**PLACED, **dict.fromkeys(
    ("agent_id", "kernel_id", "dispatch_id", "queue_id", "stream_id", "private_segment_size", "group_segment_size",
     "workgroup_size_x", "workgroup_size_y", "workgroup_size_z", "grid_size_x", "grid_size_y", "grid_size_z",
     "region_name_id"), "int")}  # fmt: skip
COPY = {**PLACED, **dict.fromkeys(("name_id", "dst_agent_id", "src_agent_id", "size", "stream_id"), "int")}
MEMORY = {**PLACED, **dict.fromkeys(("agent_id", "address", "size"), "int"), "type": "text", "level": "text"}
AGENT = {
    **dict.fromkeys(("id", "pid", "absolute_index", "logical_index", "type_index"), "int"),
    **dict.fromkeys(("type", "name", "vendor_name", "product_name"), "text"),
}
NAMES_BY_ID = "kernels named by their kernel_id in rocpd_string, for want of rocpd_info_kernel_symbol"


def sniff(head: Head) -> float:
    """Sure when a table of rocprofiler-sdk is there, with or without a GUID."""
    return 1.0 if any(name.startswith(TELLING) for name in head.tables) else 0.0


def read(path: Path, rows: Rows) -> None:
    """Adds the rows of all processes of the database. Raises InputRefused."""
    with opened_database(path, rows.bad) as database, Staging(rows, rocprof.places()) as staging:
        tables = Tables(database, path, staging)
        rocprof.prepare(staging)
        versions: set[str] = set()
        for number, suffix in enumerate(_suffixes(tables)):
            _Set(tables, staging, suffix, str(number)).read()
            found = staging.sql("SELECT max(value) FROM metadata WHERE tag = 'schema_version'")
            versions.update(version for (version,) in found if version)
        named = f"rocprofv3 (rocpd {', '.join(sorted(versions))})" if versions else "rocprofv3 (rocpd)"
        rows.facts["producer"] = named
        rocprof.place(staging)
        tables.tell()


def _suffixes(tables: Tables) -> list[str]:
    """What the names of each set end in: `_<guid>`, or nothing."""
    found = set()
    for name in tables.names():
        for base in sorted(BASES, key=len, reverse=True):
            if name.startswith(f"rocpd_{base}"):
                suffix = name.removeprefix(f"rocpd_{base}")
                if not suffix or suffix.startswith("_"):
                    found.add(suffix)
                    break
    return sorted(found)


class _Set:
    """The tables of one GUID. A process is known by the number of its set and its pid."""

    def __init__(self, tables: Tables, staging: Staging, suffix: str, number: str) -> None:
        self.tables = tables
        self.staging = staging
        self.suffix = suffix
        self.number = number

    def read(self) -> None:
        self._stage("metadata", "metadata", {"tag": "text", "value": "text"})
        self._stage("string", "strings", {"id": "int", "string": "text"}, needs=("id", "string"), expected=True)
        self._stage("info_process", "processes", {
            **dict.fromkeys(("id", "nid", "pid", "start", "end"), "int"), "command": "text"})  # fmt: skip
        self._stage("info_node", "nodes", {"id": "int", "hostname": "text"})
        self._stage("info_thread", "threads", {**dict.fromkeys(("id", "pid", "tid"), "int"), "name": "text"})
        self._stage("info_agent", "gpu_agents", AGENT)
        self._stage("event", "events", {
            **dict.fromkeys(("id", "category_id", "stack_id"), "int"), "extdata": "text"}, needs=("id",))  # fmt: skip
        for table in ("strings", "processes", "nodes", "threads", "gpu_agents", "events"):
            self.staging.unique(table, "id")
        self._describe()
        self._regions()
        self._dispatches()
        self._copies()
        self._memory()
        self._counters()

    def _stage(self, base: str, as_table: str, columns: dict[str, str], **how: object) -> None:
        self.tables.stage(f"rocpd_{base}{self.suffix}", as_table, columns, **how)  # type: ignore[arg-type]

    def _process(self, alias: str) -> str:
        """SQL: the key of a row's process; its pid is the id of a row of `processes` where there are any."""
        return (
            f"'{self.number}:' || coalesce((SELECT any_value(pid) FROM processes WHERE id = {alias}.pid), {alias}.pid)"
        )

    def _describe(self) -> None:
        places = self.staging.places
        for pid, start, end, command, host in self.staging.sql("""
                SELECT p.pid, p.start, p."end", command, hostname FROM processes p LEFT JOIN nodes ON nodes.id = nid
                WHERE p.pid IS NOT NULL ORDER BY ALL"""):  # fmt: skip
            places.processes[f"{self.number}:{pid}"] = rocprof.described(
                pid=pid, started_ns=start, ended_ns=end, command_line=command, host=host)  # fmt: skip
        for key, tid, name in self.staging.sql(f"""
                SELECT {self._process("t")}, tid, name FROM threads t
                WHERE name IS NOT NULL AND tid IS NOT NULL ORDER BY ALL"""):
            places.threads[key, tid] = {"name": name}
        self._insert(
            "roc_agent",
            f"""
            SELECT {self._process("g")} AS process, id::VARCHAR AS agent, (type = 'GPU')::BIGINT AS gpu,
                   coalesce(type_index, logical_index, absolute_index, id) AS index, vendor_name AS vendor,
                   coalesce(nullif(product_name, ''), g.name) AS name FROM gpu_agents g""",
        )

    def _insert(self, table: str, query: str) -> None:
        self.staging.connection.execute(f"INSERT INTO {table} BY NAME {query}")

    def _regions(self) -> None:
        """Calls and markers; those without a length are samples. A row's correlation is its event's stack_id."""
        message = "try_cast(extdata AS JSON)->>'message' AS message"
        self._stage("region", "regions", {**PLACED, "name_id": "int"}, needs=("start",), expected=True)
        self._insert(
            "roc_call",
            f"""
            SELECT {self._process("r")} AS process, coalesce(threads.tid, r.tid) AS tid, r.start, r."end",
                   coalesce(stack_id, r.id) AS correlation, category.string AS domain, named.string AS name, {message}
            FROM regions r LEFT JOIN events ON events.id = event_id LEFT JOIN threads ON threads.id = r.tid
            LEFT JOIN strings category ON category.id = category_id LEFT JOIN strings named ON named.id = name_id""",
        )
        self._stage("sample", "samples", dict.fromkeys(("id", "track_id", "timestamp", "event_id"), "int"))
        self._stage("track", "tracks", dict.fromkeys(("id", "pid", "tid", "name_id"), "int"))
        self.staging.unique("tracks", "id")
        self._stage("pmc_event", "values", {**dict.fromkeys(("event_id", "pmc_id"), "int"), "value": "real"})
        self._insert(
            "roc_call",
            f"""
            SELECT {self._process("t")} AS process, coalesce(threads.tid, t.tid) AS tid, timestamp AS start,
                   timestamp AS "end", stack_id AS correlation, category.string AS domain, named.string AS name,
                   {message}
            FROM samples s LEFT JOIN tracks t ON t.id = track_id LEFT JOIN events ON events.id = event_id
            LEFT JOIN threads ON threads.id = t.tid LEFT JOIN strings category ON category.id = category_id
            LEFT JOIN strings named ON named.id = name_id
            WHERE event_id IS NULL OR event_id NOT IN (SELECT event_id FROM "values" WHERE event_id IS NOT NULL)""",
        )

    def _dispatches(self) -> None:
        staging = self.staging
        self._stage("info_kernel_symbol", "symbols", {
            "id": "int", "kernel_name": "text", "display_name": "text"}, needs=("id",))  # fmt: skip
        staging.unique("symbols", "id")
        self._stage("kernel_dispatch", "dispatches", DISPATCH, needs=("start",), expected=True)
        name = "coalesce(nullif(display_name, ''), nullif(kernel_name, ''))"
        if f"rocpd_info_kernel_symbol{self.suffix}" not in self.tables:
            name = "by_id.string"
            [(count, example)] = staging.sql(
                "SELECT count(*), min(string) FROM dispatches JOIN strings ON strings.id = kernel_id"
            )
            if count:
                staging.rows.bad(NAMES_BY_ID, example, count=count)
        self._insert(
            "roc_dispatch",
            f"""
            SELECT {self._process("d")} AS process, d.start, d."end", stack_id AS correlation,
                   agent_id::VARCHAR AS agent, queue_id::VARCHAR AS queue, stream_id AS stream, dispatch_id AS dispatch,
                   {name} AS name,
                   grid_size_x AS gridX, grid_size_y AS gridY, grid_size_z AS gridZ, workgroup_size_x AS blockX,
                   workgroup_size_y AS blockY, workgroup_size_z AS blockZ, group_segment_size AS lds,
                   private_segment_size AS scratch
            FROM dispatches d LEFT JOIN events ON events.id = event_id LEFT JOIN symbols ON symbols.id = kernel_id
            LEFT JOIN strings by_id ON by_id.id = kernel_id""",
        )

    def _copies(self) -> None:
        self._stage("memory_copy", "memory_copies", COPY, needs=("start",))
        self._insert(
            "roc_copy",
            f"""
            SELECT {self._process("c")} AS process, c.start, c."end", stack_id AS correlation, string AS operation,
                   src_agent_id::VARCHAR AS source, dst_agent_id::VARCHAR AS target, stream_id AS stream, size AS bytes
            FROM memory_copies c LEFT JOIN events ON events.id = event_id LEFT JOIN strings ON strings.id = name_id""",
        )

    def _memory(self) -> None:
        self._stage("memory_allocate", "allocations", MEMORY, needs=("start", "type"))
        self._insert(
            "roc_memory",
            f"""
            SELECT {self._process("m")} AS process, coalesce(threads.tid, m.tid) AS tid, m.start, m."end",
                   stack_id AS correlation, type AS operation, level, agent_id::VARCHAR AS agent,
                   address::VARCHAR AS address,
                   size AS bytes
            FROM allocations m LEFT JOIN events ON events.id = event_id LEFT JOIN threads ON threads.id = m.tid""",
        )

    def _counters(self) -> None:
        """Values of a dispatch, at its start, or of a sample."""
        self._stage("info_pmc", "pmcs", {"id": "int", "agent_id": "int", "name": "text", "symbol": "text"})
        self.staging.unique("pmcs", "id")
        self._insert(
            "roc_counter",
            f"""
            SELECT {self._process("d")} AS process, d.agent_id::VARCHAR AS agent, d.start AS ts,
                   coalesce(name, symbol) AS series, value, d.id AS dispatch
            FROM "values" v JOIN dispatches d ON d.event_id = v.event_id LEFT JOIN pmcs ON pmcs.id = pmc_id
            UNION ALL BY NAME
            SELECT {self._process("t")} AS process, agent_id::VARCHAR AS agent, timestamp AS ts,
                   coalesce(name, symbol) AS series, value, s.id AS dispatch
            FROM "values" v JOIN samples s ON s.event_id = v.event_id JOIN tracks t ON t.id = track_id
            LEFT JOIN pmcs ON pmcs.id = pmc_id""",
        )
