"""Ascend's tables in CSV: quotes, lines and numbers as they come, cut off and damaged."""

import gzip
from pathlib import Path

import pytest

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import import_files
from tests.importers.reading_back import imported, kinds, warnings


def test_a_kernel_table_with_times_that_no_clock_shows(tmp_path: Path) -> None:
    far = 2**63 // 1000
    path = tmp_path / "kernel_details.csv"
    path.write_text(f"Name,Start Time(us),Duration(us)\nfar,{far},1\nlong,1,{far}\nok,2,3\n")
    with imported(path, tmp_path) as trace:
        found = trace.sql("SELECT name, ts_ns, end_ns FROM events ORDER BY ts_ns").fetchall()
        assert found == [("long", 1_000, None), ("ok", 2_000, 5_000)]
        assert set(warnings(trace)) == {"kernels without a time: left out", "kernels without a duration"}


CSV = (
    "Name,Type,Accelerator Core,Start Time(us),Duration(us),Stream ID,Task ID,Input Shapes\n"
    'mm,MatMul,AI_CORE,1736408883704643.212\t,53.741,2,1,"""4,4"""\n'
)


def test_a_kernel_table(tmp_path: Path) -> None:
    path = tmp_path / "given.csv"
    path.write_bytes(
        b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n").encode()
        + b"bad,x\r\nlate,MatMul,AI_CORE,soon,1,2,2,x\r\nno\0name\xff,Add,AI_CORE,1736408883704700.001,N/A,N/A,3,x\r\n"
        + b'cut,MatMul,AI_CORE,1736408883704643.2'
    )  # fmt: skip
    with imported(path, tmp_path) as trace:
        found = trace.sql("SELECT name, ts_ns, dur_ns, stream FROM event ORDER BY ts_ns").fetchall()
        assert found == [("mm", 1736408883704643212, 53741, 0), ("no\ufffdname\ufffd", 1736408883704700001, None, None)]
        assert warnings(trace) == {
            "lines of CSV that are not what they should be: left out": 2, "kernels without a time: left out": 1,
            "parts of the text are not UTF-8: replaced": 1,
            "files whose last row has no end of line: it may be cut off": 1,
        }  # fmt: skip


def table_of(rows: int) -> bytes:
    head, row = CSV.splitlines()
    return "\n".join([head, *(row.replace("mm", f"mm{n}") for n in range(rows)), ""]).encode()


def test_a_kernel_table_that_is_compressed(tmp_path: Path) -> None:
    path, whole = tmp_path / "kernel_details.csv.gz", gzip.compress(table_of(5_000))
    path.write_bytes(whole)
    with imported(path, tmp_path) as trace:
        assert kinds(trace) == {"kernel": 5_000}
    content = bytearray(whole)
    content[len(content) // 2 :] = b"\xff" * (len(content) - len(content) // 2)
    for damaged in (whole[: len(whole) // 2], bytes(content)):
        path.write_bytes(damaged)
        with imported(path, tmp_path) as trace:
            assert 100 < kinds(trace)["kernel"] < 5_000
            assert any("cut off" in what or "damaged" in what for what in warnings(trace))


def test_a_quote_that_is_never_closed(tmp_path: Path) -> None:
    path = tmp_path / "kernel_details.csv"
    path.write_bytes(table_of(10).replace(b"mm3,MatMul", b'mm3,"MatMul'))
    with imported(path, tmp_path) as trace:
        names = {name for (name,) in trace.sql("SELECT name FROM event").fetchall()}
        assert names == {f"mm{n}" for n in range(10) if n != 3}
        assert warnings(trace) == {"lines of CSV that are not what they should be: left out": 1}


def test_a_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "kernel_details.csv"
    path.write_bytes(table_of(1) + b"x" * 3_000_000 + b"\n" + table_of(2).split(b"\n", 1)[1])
    with imported(path, tmp_path) as trace:
        assert kinds(trace) == {"kernel": 3}
        assert warnings(trace) == {"lines of CSV that are not what they should be: left out": 3}


def test_another_tools_csv_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernel_details.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputRefused, match="of no format"):
        import_files([path], tmp_path / "back.duckdb")
