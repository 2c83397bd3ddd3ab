"""What can be wrong with an input before anybody reads what is in it: archives, folders, links, pipes."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import socket
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.exporters import export
from ral_trace.tracer.import_command import _size_bytes
from ral_trace.tracer.importers import as_trace_file, import_files
from ral_trace.tracer.importers.opening import opened, pieces
from ral_trace.tracer.reading import open_trace
from tests.synthetic import training

EVENT = b'{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}'
TRACE = b'{"traceEvents": [' + EVENT + b"]}"


def events_and_quality(paths: list[Path], folder: Path) -> tuple[int, dict[str, int]]:
    with open_trace(import_files(paths, folder / "out.duckdb")) as trace:
        [(events,)] = trace.sql("SELECT count(*) FROM event").fetchall()
        return events, {row["what"]: row["count"] for row in trace.rows("SELECT what, count FROM quality")}


def archive(method: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        made.writestr("trace.json", TRACE * 20)
    return file.getvalue()


def read(path: Path) -> bytes | str:
    try:
        return b"".join(pieces(path))
    except InputRefused as refused:
        return str(refused)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_archive_is_refused(tmp_path: Path, method: int) -> None:
    """Every byte of it, changed by itself to what turns other methods, versions, flags and names on."""
    data = archive(method)
    path = tmp_path / "trace.zip"
    chance = random.Random(method)
    for at in [
        *range(4, 60),
        *range(len(data) - 100, len(data)),
        *(chance.randrange(60, len(data)) for _ in range(40)),
    ]:
        for byte in (0x00, 0x08, 0x21, 0x63, 0x80, 0xFF):
            path.write_bytes(data[:at] + bytes([byte]) + data[at + 1 :])
            found = read(path)
            assert found == TRACE * 20 or isinstance(found, str), at


def test_faults_of_whoever_reads_an_archive_are_not_those_of_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "trace.zip"
    path.write_bytes(archive(zipfile.ZIP_DEFLATED))
    with pytest.raises(NotImplementedError), opened(path):
        raise NotImplementedError


@pytest.mark.parametrize("behind", [b"x", b"garbage" * 100_000, b"\0\0\0not gzip"])
def test_what_follows_compressed_data_costs_nothing_of_it(tmp_path: Path, behind: bytes) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(TRACE[:20]) + gzip.compress(TRACE[20:]) + behind)
    assert events_and_quality([path], tmp_path) == (
        1, {"bytes behind the end of the compressed data: not read": len(behind.lstrip(b"\0"))}
    )  # fmt: skip


@pytest.fixture(scope="module")
def of_every_reader(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A small file for each importer that reads files from their begin to their end."""
    folder = tmp_path_factory.mktemp("exports")
    with open_trace(training(folder / "run.duckdb", launches=10, steps=2)) as trace:
        own = {name: export(trace, folder / f"run.{name}").read_bytes() for name in ("json", "pftrace", "pickle")}
    record = {"kind": 1, "operation": 0, "thread_id": 9, "start_timestamp": 5, "end_timestamp": 7,
              "correlation_id": {"internal": 1}}  # fmt: skip
    names = {"strings": {"buffer_records": [{"kind": "NONE"}, {"kind": "HIP_RUNTIME_API", "operations": ["hipFree"]}]}}
    rocprof = [{"metadata": {"pid": 1}, **names, "buffer_records": {"hip_api": [record]}}]
    header = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp"
    return own | {
        "chrome": TRACE,
        "memory timeline": b"[[-1, 1, 100, 0], [1763324225770003000, 2, 7, 3]]",
        "rocprof": json.dumps({"rocprofiler-sdk-tool": rocprof}).encode(),
        "rocprof CSV": f"{header}\nHIP_RUNTIME_API,hipFree,1,9,1,5,7\n".encode(),
        "Ascend CSV": b"Name,Start Time(us),Duration(us)\nmm,2,3\n",
    }


READERS = ("json", "pftrace", "pickle", "chrome", "memory timeline", "rocprof", "rocprof CSV", "Ascend CSV")


def rows_and_quality(path: Path) -> tuple[dict[str, int], list[tuple[str, int]]]:
    """How many rows each table has, and what is said of this file that is not said of every one."""
    out = path.with_name("out.duckdb")
    with open_trace(import_files([path], out)) as trace:
        tables = ("event", "allocation", "counter_value", "flow", "stack")
        rows = {table: trace.rows(f"SELECT count(*) AS n FROM {table}")[0]["n"] for table in tables}
        return rows, trace.sql("SELECT what, count FROM quality ORDER BY ALL").fetchall()


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_takes_what_is_packed_whatever_follows(
    tmp_path: Path, of_every_reader: dict[str, bytes], reader: str
) -> None:
    content = of_every_reader[reader]
    path = tmp_path / "given"
    path.write_bytes(content)
    rows, quality = rows_and_quality(path)
    assert sum(rows.values()) > 0
    half = len(content) // 2
    packed = gzip.compress(content[:half]) + gzip.compress(content[half:])
    for behind in (b"", b"\0" * 512):
        path.write_bytes(packed + behind)
        assert rows_and_quality(path) == (rows, quality)
    path.write_bytes(packed + b"\0no gzip")
    assert rows_and_quality(path) == (
        rows, sorted([*quality, ("bytes behind the end of the compressed data: not read", 7)])
    )  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("reader", [reader for reader in READERS if reader not in ("pftrace", "pickle")])
def test_text_of_two_or_four_bytes_a_character(
    tmp_path: Path, of_every_reader: dict[str, bytes], reader: str, encoding: str
) -> None:
    """As PowerShell's `>` writes it."""
    content = of_every_reader[reader]
    path = tmp_path / "given"
    path.write_bytes(content)
    expected = rows_and_quality(path)
    recoded = ("\ufeff" + content.decode()).encode(encoding)
    for given in (recoded, gzip.compress(recoded)):
        path.write_bytes(given)
        assert rows_and_quality(path) == expected


def test_characters_come_through_wherever_a_piece_ends(tmp_path: Path) -> None:
    text = "\ufeff" + "\U0001f600é" * 200_000
    path = tmp_path / "text"
    path.write_bytes(text.encode("utf-16-le"))
    with opened(path) as file:
        assert file.read().decode() == text[1:]
    path.write_bytes(text.encode("utf-16-le")[:-1])
    assert b"".join(pieces(path)).decode() == text[1:-1] + "\ufffd"


def tar_of(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        member = tarfile.TarInfo("trace.json")
        member.size = len(content)
        made.addfile(member, io.BytesIO(content))
    return file.getvalue()


ZSTD = bytes.fromhex("28b52ffd2002110000") + b"{}"
"""The frame that `zstd` makes of two bytes, but for its checksum."""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (ZSTD, r"is compressed with zstd; decompress it first with: zstd -d '\S*my trace'$"),
        (lzma.compress(TRACE), r"is compressed with xz; decompress it first with: xz -d -k '\S*my trace'$"),
        (bz2.compress(TRACE), r"is compressed with bzip2; decompress it first with: bzip2 -d -k '\S*my trace'$"),
        (tar_of(TRACE), r"is a tar archive; unpack it first with: tar -xf '\S*my trace'$"),
        (gzip.compress(tar_of(TRACE)), r"is a tar archive; unpack it first with: tar -xf '\S*my trace'$"),
        (TRACE.decode().encode("utf-16-le"), r"is UTF-16 without a byte order mark; .* iconv -f UTF-16LE .*my trace'$"),
        (TRACE.decode().encode("utf-16-be"), r"is UTF-16 without a byte order mark; .* iconv -f UTF-16BE .*my trace'$"),
    ],
)
def test_other_forms_are_refused_with_the_command_that_helps(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "my trace"
    path.write_bytes(content)
    with pytest.raises(InputRefused, match=words):
        import_files([path], tmp_path / "out.duckdb")


def test_a_packed_file_among_others_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "rank0.json").write_bytes(TRACE)
    (folder / "rank1.json.zst").write_bytes(ZSTD)
    refused: list[InputRefused] = []
    import_files([folder], tmp_path / "out.duckdb", refused=refused.append)
    assert ["rank1.json.zst: is compressed with zstd" in str(error) for error in refused] == [True]


def test_links_in_a_folder_are_said_and_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "trace.json").write_bytes(TRACE)
    for name in ("a", "b"):
        (folder / name).symlink_to(folder)
    assert _size_bytes(folder) == len(TRACE)
    assert events_and_quality([folder], tmp_path) == (1, {"links in a folder: not followed": 2})


def test_a_folder_of_links_alone_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").symlink_to(folder)
    with pytest.raises(InputRefused, match="folder without any file of a format"):
        import_files([folder], tmp_path / "out.duckdb")


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(InputRefused, match="cannot be read"):
        import_files([link], tmp_path / "out.duckdb")


def test_folders_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        for _ in range(1500):
            Path("d").mkdir()
            os.chdir("d")
        Path("trace.json").write_bytes(TRACE)
        os.chdir(tmp_path)
        assert _size_bytes(Path("d")) == len(TRACE)
        with pytest.raises(InputRefused, match="folders deep"):
            import_files([Path("d")], tmp_path / "out.duckdb")
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)  # deeper than Python's own goes


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_without_rights_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    for mode in (0o000, 0o600):
        folder.chmod(mode)
        assert _size_bytes(folder) == 0
        with pytest.raises(InputRefused, match="cannot be read"):
            import_files([folder], tmp_path / "out.duckdb")
    folder.chmod(0o700)


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
def test_what_is_not_a_file_is_never_opened(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("odd") if kind != "device" else Path("/dev/zero")
    if kind == "pipe":
        os.mkfifo(path)
    with socket.socket(socket.AF_UNIX) as bound:
        if kind == "socket":
            bound.bind(str(path))
        for use in (lambda: import_files([path], Path("out.duckdb")), lambda: as_trace_file(path).__enter__(),
                    lambda: opened(path).__enter__()):  # fmt: skip
            with pytest.raises(InputRefused, match="is a pipe or a device"):
                use()
