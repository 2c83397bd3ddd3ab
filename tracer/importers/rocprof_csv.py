"""rocprofv3's CSV files (`--output-format csv`): one of them, or a folder with those that belong together.

Each kind of file is known by its header. Of which process a kernel is, only the calls say, and the files' names, which
begin with the pid. https://github.com/ROCm/rocm-systems, projects/rocprofiler-sdk/source/lib/output/generateCSV.cpp
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import rocprof
from ral_trace.tracer.importers.csv_rows import DAMAGED_FILES, ENDS, LAST_ROW, Lines, header_of, rows_of
from ral_trace.tracer.importers.opening import Head, head_of, opened
from ral_trace.tracer.importers.rows import NOT_UTF8, Rows
from ral_trace.tracer.importers.staging import Staging

FORMAT = "rocprofv3 CSV"

BATCH_ROWS = 20_000
NAME = re.compile(
    r"(?P<set>.*?)_?(?:kernel|memory_copy|memory_allocation|counter|agent|scratch_memory|"
    r"(?:hip|hip_runtime|hip_compiler|hsa|hsa_core|hsa_amd_ext|marker|rccl|rocdecode|rocjpeg|hipfile|ompt)_api)_[a-z]+$"
)
"""A file's name: what comes before its kind tells the sets of a folder apart."""

TIMES = {"start": "Start_Timestamp", "end": "End_Timestamp", "correlation": "Correlation_Id"}


@dataclass(frozen=True)
class Kind:
    """One kind of file: the header's columns that tell it, and which of them fills which column of a table."""

    table: str
    telling: frozenset[str]
    columns: Mapping[str, str]


KINDS = [
    Kind("roc_counter_row", frozenset({"Counter_Name", "Counter_Value", "Dispatch_Id", "Start_Timestamp"}), {
        **TIMES, "agent": "Agent_Id", "pid": "Process_Id", "series": "Counter_Name", "value": "Counter_Value",
        "dispatch": "Dispatch_Id", "name": "Kernel_Name", "queue": "Queue_Id"}),
    Kind("roc_dispatch", frozenset({"Kernel_Name", "Start_Timestamp", "End_Timestamp"}), {
        **TIMES, "agent": "Agent_Id", "queue": "Queue_Id", "stream": "Stream_Id", "dispatch": "Dispatch_Id",
        "name": "Kernel_Name", "lds": "LDS_Block_Size", "scratch": "Scratch_Size",
        "gridX": "Grid_Size_X", "gridY": "Grid_Size_Y", "gridZ": "Grid_Size_Z",
        "blockX": "Workgroup_Size_X", "blockY": "Workgroup_Size_Y", "blockZ": "Workgroup_Size_Z"}),
    Kind("roc_copy", frozenset({"Direction", "Source_Agent_Id", "Start_Timestamp"}), {
        **TIMES, "operation": "Direction", "source": "Source_Agent_Id", "target": "Destination_Agent_Id",
        "stream": "Stream_Id"}),
    Kind("roc_memory", frozenset({"Operation", "Allocation_Size", "Address", "Start_Timestamp"}), {
        **TIMES, "operation": "Operation", "agent": "Agent_Id", "address": "Address", "bytes": "Allocation_Size"}),
    Kind("roc_call", frozenset({"Domain", "Function", "Start_Timestamp"}), {
        **TIMES, "pid": "Process_Id", "tid": "Thread_Id", "domain": "Domain", "name": "Function"}),
    Kind("roc_agent", frozenset({"Node_Id", "Agent_Type"}), {
        "node": "Node_Id", "logical": "Logical_Node_Id", "type": "Agent_Type", "vendor": "Vendor_Name",
        "name": "Name", "product": "Product_Name"}),
]  # fmt: skip
EXTRA = {
    **dict.fromkeys(("pid", "tid", "node", "logical"), "int"),
    **dict.fromkeys(("type", "vendor", "product"), "text"),
}
TYPES = EXTRA | {column: kind for table in rocprof.TABLES.values() for column, kind in table.items()}


def sniff(head: Head) -> float:
    """Sure of a file with a header of these kinds, and of a folder that holds one with work or calls."""
    if not head.names:
        kind = _kind(_header(head.data))
        return 0.0 if kind is None else 0.95
    kinds = [_kind_of(file) for file in _files(head.path)]
    return 0.9 if any(kind is not None and kind.table != "roc_agent" for kind in kinds) else 0.0


def _kind_of(file: Path) -> Kind | None:
    """None also when it cannot be read; a neighbour that can is worth more."""
    try:
        return _kind(_header(head_of(file).data))
    except InputRefused:
        return None


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.is_file() and ".csv" in file.suffixes)


def _header(data: bytes) -> list[str]:
    lines = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").splitlines()
    return next(csv.reader(lines[:1]), [])


def _kind(header: list[str]) -> Kind | None:
    there = frozenset(header)
    return next((kind for kind in KINDS if kind.telling <= there), None)


def read(path: Path, rows: Rows) -> None:
    """Adds all files of the set, or of the sets, in a folder. Raises InputRefused."""
    files = _files(path) if path.is_dir() else [path]
    with Staging(rows, rocprof.places()) as staging:
        rocprof.prepare(staging)
        sets: dict[str, list[Path]] = {}
        for file in files:
            sets.setdefault(_set_of(file), []).append(file)
        for number, of_set in enumerate(sets):
            _Set(staging, rows, number, of_set, alone=len(files) == 1).read(sets[of_set])
        rows.facts["producer"] = "rocprofv3"
        rocprof.place(staging)


def _set_of(file: Path) -> str:
    match = NAME.match(file.name.split(".csv")[0])
    return match["set"] if match else ""


class _Set:
    """The files of one process. What does not say whose it is belongs to the process that the others name."""

    def __init__(self, staging: Staging, rows: Rows, number: int, prefix: str, *, alone: bool) -> None:
        self.alone = alone
        self.staging = staging
        self.rows = rows
        self.number = number
        self.prefix = prefix

    def read(self, files: list[Path]) -> None:
        connection = self.staging.connection
        for kind in KINDS:
            columns = {column: TYPES[column] for column in kind.columns}
            self.staging.table(f"csv_{kind.table}", columns)
        for file in files:
            try:
                self._read(file)
            except InputRefused as error:
                if self.alone:
                    raise
                self.rows.bad(DAMAGED_FILES, error)
        found = self.staging.sql("""
            SELECT DISTINCT pid FROM (SELECT pid FROM csv_roc_call UNION ALL SELECT pid FROM csv_roc_counter_row)
            WHERE pid IS NOT NULL LIMIT 2""")
        named = re.search(r"\d+$", self.prefix)
        known = str(found[0][0]) if len(found) == 1 else named[0] if named and len(found) == 0 else ""
        whole = f"'{self.number}:{known}'"
        own = f"'{self.number}:' || coalesce(pid::VARCHAR, '{known}')"
        connection.execute(f"INSERT INTO roc_call BY NAME SELECT * EXCLUDE (pid), {own} AS process FROM csv_roc_call")
        for table in ("roc_dispatch", "roc_copy"):
            connection.execute(f"INSERT INTO {table} BY NAME SELECT *, {whole} AS process FROM csv_{table}")
        connection.execute(f"""
            INSERT INTO roc_memory BY NAME
            SELECT * REPLACE (CASE WHEN contains(operation, 'FREE') THEN 'FREE' WHEN contains(operation, 'ALLOC')
                              THEN 'ALLOC' END AS operation,
                              nullif(agent, '') AS agent),
                   CASE WHEN contains(operation, 'VMEM') THEN 'VIRTUAL' WHEN contains(operation, 'SCRATCH')
                        THEN 'SCRATCH' ELSE 'REAL' END AS level, {whole} AS process
            FROM csv_roc_memory""")
        connection.execute(f"""
            INSERT INTO roc_counter BY NAME
            SELECT {own} AS process, agent, start AS ts, series, value, dispatch FROM csv_roc_counter_row""")
        self._dispatches_of_counters(own)
        self._agents()

    def _dispatches_of_counters(self, process: str) -> None:
        """A run for counters alone has no trace of the kernels; each row of a counter then tells its dispatch."""
        self.staging.connection.execute(f"""
            INSERT INTO roc_dispatch BY NAME
            SELECT DISTINCT ON (pid, dispatch) {process} AS process, start, "end", correlation, agent, queue,
                   dispatch, name
            FROM csv_roc_counter_row WHERE (SELECT count(*) FROM csv_roc_dispatch) = 0 ORDER BY pid, dispatch, start""")

    def _agents(self) -> None:
        """An agent is written 'Agent N', its number among all, or 'GPU N', its number among the GPUs."""
        self.staging.connection.execute("""
            INSERT INTO roc_agent BY NAME
            WITH agent AS (SELECT *, row_number() OVER (PARTITION BY type ORDER BY node) - 1 AS number
                           FROM (SELECT DISTINCT * FROM csv_roc_agent)),
                 told AS (SELECT DISTINCT agent AS written FROM (
                              SELECT agent FROM roc_dispatch UNION ALL SELECT source FROM roc_copy
                              UNION ALL SELECT target FROM roc_copy UNION ALL SELECT agent FROM roc_memory
                              UNION ALL SELECT agent FROM roc_counter) WHERE agent IS NOT NULL),
                 parsed AS (SELECT written, upper(regexp_extract(written, '^[A-Za-z]*')) AS word,
                                   try_cast(regexp_extract(written, '(\\d+)$', 1) AS BIGINT) AS written_number
                            FROM told)
            SELECT written AS agent,
                   CASE WHEN word IN ('GPU', 'CPU') THEN (word = 'GPU')::BIGINT WHEN type IS NOT NULL
                        THEN (type = 'GPU')::BIGINT ELSE 1 END AS gpu,
                   coalesce(number, written_number) AS index, vendor, coalesce(nullif(product, ''), name) AS name
            FROM parsed LEFT JOIN agent ON CASE WHEN word IN ('GPU', 'CPU') THEN type = word AND number = written_number
                                                ELSE node = written_number END""")

    def _read(self, file: Path) -> None:
        with opened(file, self.rows.bad) as binary:
            lines = Lines(binary)
            header = header_of(lines)
            kind = _kind(header)
            if kind is None:
                self.rows.bad("files of a folder that are not read", file.name)
                return
            spelt = {name: index for index, name in enumerate(header)}
            columns = {column: spelt[name] for column, name in kind.columns.items() if name in spelt}
            for batch in self._batches(file, lines, len(header), list(columns.values())):
                self.staging.append(f"csv_{kind.table}", list(columns), batch)
            if lines.replaced:
                self.rows.bad(NOT_UTF8, file.name, count=lines.replaced)
            if not lines.last.endswith(("\n", "\r")):
                self.rows.bad(LAST_ROW, file.name)
        self.rows.advance(file.stat().st_size)

    def _batches(self, file: Path, lines: Lines, width: int, picked: list[int]) -> Iterator[list[tuple[str, ...]]]:
        batch: list[tuple[str, ...]] = []
        pick = itemgetter(*picked)  # several columns tell a kind, so that this gives tuples
        try:
            for row in rows_of(lines, width):
                if len(row) != width:
                    self.rows.bad("rows with too few or too many columns: left out", f"{file.name}: {','.join(row)}")
                    continue
                batch.append(pick(row))
                if len(batch) == BATCH_ROWS:
                    yield batch
                    batch = []
        except ENDS as error:
            self.rows.bad(DAMAGED_FILES, f"{file.name}: {error}")
        yield batch
