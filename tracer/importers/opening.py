"""Opening files as others left them: plain, gzip or zip, told apart by content, cut off or not."""

import sqlite3
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast

from isal import igzip, igzip_lib

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.sqlite import SQLITE_MAGIC, table_names

HEAD_BYTES = 64 * 1024
HEAD_STEP_BYTES = 4 * 1024
GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK\x03\x04"
GZIP: Any = igzip.IGzipFile
DAMAGED: tuple[type[Exception], ...] = (
    zlib.error, igzip.BadGzipFile, cast(Any, igzip_lib).IsalError, zipfile.BadZipFile,
)  # fmt: skip


@dataclass(frozen=True)
class Head:
    """What an importer may look at before it says how sure it is that an input is its own."""

    path: Path
    data: bytes = b""
    """The first HEAD_BYTES, decompressed; empty for a folder."""
    names: frozenset[str] = frozenset()
    """Of the files in a folder; empty for a file."""

    @cached_property
    def tables(self) -> frozenset[str]:
        """Of an SQLite database; empty for anything else, and for one that is damaged."""
        if not self.data.startswith(SQLITE_MAGIC):
            return frozenset()
        try:
            return table_names(self.path)
        except (sqlite3.Error, OSError):
            return frozenset()


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed where they are gzip or zip. Raises InputRefused, also while they are read."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(ZIP_MAGIC))
            file.seek(0)
            if magic.startswith(GZIP_MAGIC):
                yield GZIP(fileobj=file, mode="rb")
            elif magic == ZIP_MAGIC:
                with zipfile.ZipFile(file) as archive, archive.open(_only_member(path, archive)) as member:
                    yield member
            else:
                yield file
    except EOFError as error:
        raise InputRefused(path, "the compressed file is cut off", "export or copy it again") from error
    except DAMAGED as error:
        raise InputRefused(path, f"the compressed file is damaged ({error})", "export or copy it again") from error
    except OSError as error:
        raise InputRefused(
            path, f"cannot be read ({error.strerror or error})", "check the file and its rights"
        ) from error


def _only_member(path: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = [member for member in archive.infolist() if not member.is_dir()]
    if len(members) != 1:
        raise InputRefused(path, f"is an archive of {len(members)} files", "unpack it, and give the trace in it")
    if members[0].flag_bits & 1:
        raise InputRefused(path, "is an encrypted archive", "unpack it, and give the trace in it")
    return members[0]


def head_of(path: Path) -> Head:
    """What an input begins with. Raises InputRefused."""
    if path.is_dir():
        return Head(path, names=frozenset(entry.name for entry in path.iterdir()))
    data = b""
    with opened(path) as file:
        # A little at a time, so that the begin of a compressed file that is cut off is seen all the same.
        try:
            while len(data) < HEAD_BYTES and (more := cast(Any, file).read1(HEAD_STEP_BYTES)):
                data += more
        except EOFError:
            if not data:
                raise
    return Head(path, data[:HEAD_BYTES])
