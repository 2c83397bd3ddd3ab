"""What can be wrong with an input before anybody reads what is in it: archives, folders, links, pipes."""

import bz2
import gzip
import io
import lzma
import os
import random
import socket
import subprocess
import zipfile
from pathlib import Path

import pytest

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.import_command import _size_bytes
from ral_trace.tracer.importers import as_trace_file, import_files
from ral_trace.tracer.importers.opening import opened, pieces
from ral_trace.tracer.reading import open_trace

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


def test_other_compressions_alone_are_of_no_format(tmp_path: Path) -> None:
    for data in (bz2.compress(TRACE), lzma.compress(TRACE)):
        (tmp_path / "trace").write_bytes(data)
        with pytest.raises(InputRefused, match="is of no format"):
            import_files([tmp_path / "trace"], tmp_path / "out.duckdb")


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
