"""rocprofv3's CSV files, one by one and as sets, with the headers that its sources write."""

import csv
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ral_trace.tracer.importers import importer_of
from tests.importers.databases import busy_ns, counts, imported, quality, rows, survivors

KERNEL = """Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,
End_Timestamp,LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,SGPR_Count,Workgroup_Size_X,Workgroup_Size_Y,
Workgroup_Size_Z,Grid_Size_X,Grid_Size_Y,Grid_Size_Z""".replace("\n", "").split(",")
API = ["Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp", "End_Timestamp"]
COPY = """Kind,Direction,Stream_Id,Source_Agent_Id,Destination_Agent_Id,Correlation_Id,Start_Timestamp,
End_Timestamp""".replace("\n", "").split(",")
MEMORY = """Kind,Operation,Agent_Id,Allocation_Size,Address,Correlation_Id,Start_Timestamp,
End_Timestamp""".replace("\n", "").split(",")
AGENT = """Node_Id,Logical_Node_Id,Agent_Type,Cpu_Cores_Count,Name,Vendor_Name,Product_Name,
Model_Name""".replace("\n", "").split(",")
COUNTER = """Correlation_Id,Dispatch_Id,Agent_Id,Queue_Id,Process_Id,Thread_Id,Grid_Size,Kernel_Id,Kernel_Name,
Workgroup_Size,Counter_Name,Counter_Value,Start_Timestamp,End_Timestamp""".replace("\n", "").split(",")
NAME = 'void gemm<float, int>(float*, "quoted")'


def write(file: Path, header: Sequence[str], cells: Sequence[Sequence[Any]]) -> Path:
    with file.open("w", newline="") as text:
        writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
        writer.writerows([header, *cells])
    return file


def kernel(start: int, end: int, correlation: int, agent: str = "Agent 4") -> tuple[Any, ...]:
    return ("KERNEL_DISPATCH", agent, 1, 2, 99, correlation, 7, NAME, correlation, start, end, 16, 0, 8, 0, 16,
            64, 1, 1, 1024, 1, 1)  # fmt: skip


def folder_of(folder: Path, pid: int) -> Path:
    folder.mkdir(exist_ok=True)
    write(folder / f"{pid}_kernel_trace.csv", KERNEL, [kernel(200, 300, 1), kernel(300, 350, 1, "Agent 5")])
    write(folder / f"{pid}_hip_api_trace.csv", API, [
        ("HIP_RUNTIME_API", "hipLaunchKernel", pid, 99, 1, 100, 110),
        ("HIP_RUNTIME_API", "hipStreamSynchronize", pid, 99, 2, 120, 900)])  # fmt: skip
    write(folder / f"{pid}_marker_api_trace.csv", API, [
        ("MARKER_CORE_RANGE_API", "my range", pid, 99, 3, 50, 950),
        ("MARKER_CORE_RANGE_API", "mark", pid, 99, 4, 60, 60)])  # fmt: skip
    write(folder / f"{pid}_memory_copy_trace.csv", COPY, [
        ("MEMORY_COPY", "MEMORY_COPY_HOST_TO_DEVICE", 2, "Agent 0", "Agent 4", 0, 400, 450),
        ("MEMORY_COPY", "MEMORY_COPY_DEVICE_TO_DEVICE", 2, "Agent 4", "Agent 5", 0, 460, 470)])  # fmt: skip
    write(folder / f"{pid}_memory_allocation_trace.csv", MEMORY, [
        ("MEMORY_ALLOCATION", "MEMORY_ALLOCATION_ALLOCATE", "Agent 5", 4096, "0x00007f0000000000", 0, 10, 12),
        ("MEMORY_ALLOCATION", "MEMORY_ALLOCATION_FREE", "", 0, "0x00007f0000000000", 0, 800, 802)])  # fmt: skip
    write(folder / f"{pid}_agent_info.csv", AGENT, [
        (0, 0, "CPU", 64, "EPYC", "CPU", "EPYC", ""), (4, 1, "GPU", 0, "gfx90a", "AMD", "MI250X", ""),
        (5, 2, "GPU", 0, "gfx90a", "AMD", "MI250X", "")])  # fmt: skip
    return folder


KINDS = {"kernel": 2, "launch": 1, "sync": 1, "annotation": 1, "instant": 1, "transfer": 2, "alloc": 1, "free": 1}


def test_set_of_one_process(tmp_path: Path) -> None:
    with imported(folder_of(tmp_path / "set", 4242), tmp_path) as trace:
        assert counts(trace) == KINDS
        assert rows(trace, "SELECT pid FROM process") == [(4242,)]
        found = rows(trace, """
            SELECT e.name, d."index", d.name, s.number, l.name FROM flow JOIN event l ON l.id = from_event
            JOIN event e ON e.id = to_event JOIN device d ON d.id = e.device JOIN stream s ON s.id = e.stream
            ORDER BY e.ts_ns""")  # fmt: skip
        assert found == [(NAME, 0, "MI250X", 2, "hipLaunchKernel"), (NAME, 1, "MI250X", 2, "hipLaunchKernel")]
        found = rows(
            trace,
            """
            SELECT category, d."index" FROM event JOIN device d ON d.id = device
            WHERE kind = 'transfer' ORDER BY ts_ns""",
        )
        assert found == [("host_to_device", 0), ("device_to_device", 0)]
        assert rows(trace, "SELECT name, dur_ns FROM event WHERE kind IN ('annotation', 'instant') ORDER BY ts_ns") == [
            ("my range", 900), ("mark", 0)]  # fmt: skip
        assert rows(trace, "SELECT address, size_bytes, alloc_ns, free_ns FROM allocation") == [
            (0x7F00_0000_0000, 4096, 10, 800)
        ]
        assert busy_ns(trace) == 100 + 50 + 50 + 10
        assert quality(trace) == {}


def test_sets_of_two_processes(tmp_path: Path) -> None:
    """The same correlation in both: no launch gets the kernels of the other."""
    folder = folder_of(folder_of(tmp_path / "sets", 10), 20)
    (folder / "30_kernel_trace.csv.gz").write_bytes(b"\x1f\x8b broken")
    (folder / "10_kernel_stats.csv").write_text('"Name","Calls","TotalDurationNs"\n"k",1,2\n')
    with imported(folder, tmp_path) as trace:
        assert counts(trace) == {kind: 2 * count for kind, count in KINDS.items()}
        assert rows(trace, "SELECT pid FROM process ORDER BY 1") == [(10,), (20,)]
        assert rows(trace, "SELECT count(*) FROM flow") == [(4,)]
        assert quality(trace)["files that are damaged: read as far as that goes"][0] == 1
        assert quality(trace)["files of a folder that are not read"] == (1, "10_kernel_stats.csv")


def test_one_file_by_its_header(tmp_path: Path) -> None:
    """Whatever its name is; without agent_info the agent's own number is the device's."""
    with imported(write(tmp_path / "renamed.txt", KERNEL, [kernel(200, 300, 1)]), tmp_path) as trace:
        assert rows(trace, 'SELECT kind, e.name, "index" FROM event e JOIN device d ON d.id = device') == [
            ("kernel", NAME, 4)
        ]
    other = tmp_path / "kernel_trace.csv"
    other.write_text("a,b\n1,2\n")
    assert importer_of(other) is None


def test_counters_tell_their_dispatches(tmp_path: Path) -> None:
    """A run with --pmc has no trace of the kernels; a dispatch with two counters is one kernel."""
    cells = [(1, dispatch, "Agent 4", 1, 10, 99, 1024, 7, NAME, 64, counter, value, 100 * dispatch, 100 * dispatch + 50)
             for dispatch in (1, 2) for counter, value in (("SQ_WAVES", 16.0), ("GRBM_COUNT", 2.5))]  # fmt: skip
    with imported(write(tmp_path / "10_counter_collection.csv", COUNTER, cells), tmp_path) as trace:
        assert rows(trace, "SELECT ts_ns, dur_ns FROM event WHERE kind = 'kernel' ORDER BY 1") == [(100, 50), (200, 50)]
        found = rows(
            trace, "SELECT series, ts_ns, value FROM counter_value JOIN counter c ON c.id = counter ORDER BY ALL"
        )
        waves = [("SQ_WAVES", 100, 16.0), ("SQ_WAVES", 200, 16.0)]
        assert found == [("GRBM_COUNT", 100, 2.5), ("GRBM_COUNT", 200, 2.5), *waves]


def test_dirt(tmp_path: Path) -> None:
    """BOM, CRLF, bytes that are no UTF-8, a short row, text for a number, a cut-off end: each costs itself alone."""
    file = write(tmp_path / "k.csv", KERNEL, [kernel(100 * n, 100 * n + 50, n) for n in range(1, 5)])
    lines = file.read_bytes().replace(b"\n", b"\r\n").split(b"\r\n")
    lines[1] = lines[1].replace(b"gemm", b"ge\xffm")
    lines[2] = lines[2].replace(b",200,", b",soon,")
    lines[3] = b'"KERNEL_DISPATCH","Agent 4",1'
    file.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(lines[:5]))
    with imported(file, tmp_path) as trace:
        assert rows(trace, "SELECT ts_ns, name FROM event ORDER BY 1") == [
            (100, NAME.replace("gemm", "ge\ufffdm")),
            (400, NAME),
        ]
        said = quality(trace)
        assert said["rows with too few or too many columns: left out"] == (1, "k.csv: KERNEL_DISPATCH,Agent 4,1")
        assert said["events without a start: left out"][0] == 1
        assert said["parts of the text are not UTF-8: replaced"][0] == 1
        assert said["files whose last row has no end of line: it may be cut off"][0] == 1


def test_quote_that_is_never_closed(tmp_path: Path) -> None:
    """It costs its own row, wherever the next quote is; a name with a line break in it stays whole."""
    file = write(tmp_path / "k.csv", KERNEL, [kernel(100 * n, 100 * n + 50, n) for n in range(1, 6)])
    lines = file.read_text().splitlines()
    lines[2] = lines[2].replace('"Agent 4"', '"Agent 4')
    lines[5] = lines[5].replace("void gemm", "void\ngemm")
    file.write_text("\n".join(lines) + "\n")
    with imported(file, tmp_path) as trace:
        found = rows(trace, "SELECT ts_ns, name FROM event ORDER BY 1")
        assert found == [(100, NAME), (300, NAME), (400, NAME), (500, NAME.replace("void gemm", "void\ngemm"))]
        assert quality(trace)["rows with too few or too many columns: left out"][0] == 1


def test_gzip_of_two_members_and_cut_off(tmp_path: Path) -> None:
    whole = write(tmp_path / "k.csv", KERNEL, [kernel(100 * n, 100 * n + 50, n) for n in range(1, 2_001)]).read_bytes()
    packed = tmp_path / "k.csv.gz"
    packed.write_bytes(gzip.compress(whole[:1000]) + gzip.compress(whole[1000:]))
    with imported(packed, tmp_path) as trace:
        assert counts(trace) == {"kernel": 2_000}
    packed.write_bytes(gzip.compress(whole)[:-4000])
    with imported(packed, tmp_path) as trace:
        assert 10 < counts(trace)["kernel"] < 2_000
        assert "files that are damaged: read as far as that goes" in quality(trace)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cells=st.lists(
        st.lists(st.text(max_size=6) | st.integers(-(2**70), 2**70).map(str), min_size=22, max_size=22), max_size=5
    )
)
def test_any_text_in_any_cell(tmp_path: Path, cells: list[list[str]]) -> None:
    with imported(write(tmp_path / "k.csv", KERNEL, [kernel(100, 200, 1), *cells]), tmp_path) as trace:
        assert counts(trace)["kernel"] >= 1
        assert rows(trace, "SELECT count(*) FROM event WHERE ts_ns = 100 AND dur_ns = 100")[0][0] >= 1


def test_cut_anywhere(tmp_path: Path) -> None:
    data = write(tmp_path / "whole.csv", KERNEL, [kernel(100, 200, n) for n in range(5)]).read_bytes()
    assert survivors(tmp_path, "cut.csv", (data[:length] for length in range(1, len(data), 23))) > 10
