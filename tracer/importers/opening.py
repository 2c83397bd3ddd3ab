"""Opening files as others left them: plain, gzip or zip, UTF-8 or UTF-16, told apart by content, cut off or not."""

import codecs
import io
import lzma
import shlex
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast

from isal import igzip, igzip_lib

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers.sqlite import SQLITE_MAGIC, table_names

HEAD_BYTES = 64 * 1024
PIECE_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK\x03\x04"
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
"""Longer ones first: that of UTF-32 begins with that of UTF-16. UTF-8's is for readers to skip."""
LONGEST_MARK = 4
NO_MARK = "is UTF-16 without a byte order mark"
OTHER_FORMS = [
    (0, b"\x28\xb5\x2f\xfd", "is compressed with zstd", "decompress it first with: zstd -d"),
    (0, b"\xfd7zXZ\0", "is compressed with xz", "decompress it first with: xz -d -k"),
    (0, b"BZh", "is compressed with bzip2", "decompress it first with: bzip2 -d -k"),
    (0, b"\x04\x22\x4d\x18", "is compressed with lz4", "decompress it first with: lz4 -d"),
    (0, b"7z\xbc\xaf\x27\x1c", "is a 7z archive", "unpack it first with: 7z x"),
    (257, b"ustar", "is a tar archive", "unpack it first with: tar -xf"),
    (0, b"{\0", NO_MARK, "convert it first with: iconv -f UTF-16LE -t UTF-8 -o utf8.json"),
    (0, b"[\0", NO_MARK, "convert it first with: iconv -f UTF-16LE -t UTF-8 -o utf8.json"),
    (0, b"\0{", NO_MARK, "convert it first with: iconv -f UTF-16BE -t UTF-8 -o utf8.json"),
    (0, b"\0[", NO_MARK, "convert it first with: iconv -f UTF-16BE -t UTF-8 -o utf8.json"),
]
"""What can be told of a file that nobody here reads: where it has which bytes, what it is, what to do."""
DAMAGED: tuple[type[Exception], ...] = (
    zlib.error, igzip.BadGzipFile, cast(Any, igzip_lib).IsalError, zipfile.BadZipFile, lzma.LZMAError,
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
        """Of an SQLite database; empty for anything else. Raises InputRefused for one that is damaged."""
        return table_names(self.path) if self.data.startswith(SQLITE_MAGIC) else frozenset()


@contextmanager
def opened(path: Path, bad: Callable[..., None] = lambda what, *, count: None) -> Iterator[IO[bytes]]:
    """The file's bytes: decompressed where they are gzip or zip, and as UTF-8 where they begin as UTF-16 or UTF-32 do.

    What follows the end of compressed data is not read, which `bad`, a `Rows.bad`, is told. Raises InputRefused, also
    while they are read.
    """
    with _refusing(path), path.open("rb") as file:
        if file.peek(len(ZIP_MAGIC)).startswith((GZIP_MAGIC, ZIP_MAGIC, *BYTE_ORDER_MARKS)):
            unpacked = cast(Any, _Pieces(_without_rest(_pieces(path, file, lambda size: None), bad)))
            yield io.BufferedReader(unpacked, PIECE_BYTES)
        else:
            yield file


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Whatever of the file is wrong becomes an InputRefused."""
    try:
        must_be_file(path)
        yield
    except EOFError as error:
        raise InputRefused(path, "the compressed file is cut off", "export or copy it again") from error
    except DAMAGED as error:
        raise InputRefused(path, f"the compressed file is damaged ({error})", "export or copy it again") from error
    except OSError as error:
        with readable(path):
            raise error


def must_be_file(path: Path) -> None:
    """Raises InputRefused for a pipe, a socket or a device, which could keep a reader waiting for ever."""
    with readable(path):
        mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise InputRefused(path, "is a pipe or a device", "write what it gives to a file, and give that")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Whatever of the file system fails in it is a fault of the input."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputRefused(path, "there is no such file", "see what is here with: ls") from error
    except OSError as error:
        raise InputRefused(
            path, f"cannot be read ({error.strerror or error})", "check the file and its rights"
        ) from error


def _unzipped(path: Path, file: IO[bytes]) -> IO[bytes]:
    try:
        archive = zipfile.ZipFile(file)
        return archive.open(_only_member(path, archive))
    except (RuntimeError, ValueError, LookupError, struct.error, OverflowError) as error:
        # A method, a version, flags or a name that nobody knows; NotImplementedError and UnicodeDecodeError, too.
        raise InputRefused(
            path, f"the compressed file is damaged, or made in an unknown way ({error})", "unpack it, or copy it again"
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
    with readable(path):
        if path.is_dir():
            return Head(path, names=frozenset(entry.name for entry in path.iterdir()))
    data = b""
    try:
        for piece in pieces(path):
            data += piece
            if len(data) >= HEAD_BYTES:
                break
    except CutOff:
        if not data:
            raise
    return Head(path, data[:HEAD_BYTES])


def refuse_other_forms(head: Head) -> None:
    """Raises InputRefused for a file that somebody must bring into another form first."""
    for at, magic, what, remedy in OTHER_FORMS:
        if head.data[at:].startswith(magic):
            raise InputRefused(head.path, what, f"{remedy} {shlex.quote(str(head.path))}")


class CutOff(InputRefused):
    """A compressed file ends too early, or has something else behind its end; what was whole has been read.

    `what` and `count` are for `Rows.bad`.
    """

    what = "the compressed file is cut off: what follows is missing"
    count = 1


class Trailed(CutOff):
    """Behind a compressed file there are `count` bytes of something else."""

    what = "bytes behind the end of the compressed data: not read"

    def __init__(self, path: Path, count: int) -> None:
        super().__init__(path, f"{count} bytes follow the end of its compressed data", "export or copy it again")
        self.count = count


def pieces(path: Path, advance: Callable[[int], None] = lambda size: None) -> Iterator[bytes]:
    """What `opened` gives, in pieces. `advance` is called with the bytes of the file that were read.

    A compressed file that is cut off, or has something else behind it, gives all that it has, then raises CutOff.
    Raises InputRefused.
    """
    with _refusing(path), path.open("rb") as file:
        yield from _pieces(path, file, advance)


def _pieces(path: Path, file: io.BufferedReader, advance: Callable[[int], None]) -> Iterator[bytes]:
    magic = file.peek(len(ZIP_MAGIC))
    if magic.startswith(GZIP_MAGIC):
        yield from _as_utf8(_unpacked(path, file, advance))
    elif magic.startswith(ZIP_MAGIC):
        with _unzipped(path, file) as member:
            yield from _as_utf8(_read(member, advance))
    else:
        yield from _as_utf8(_read(file, advance))


def _read(file: IO[bytes], advance: Callable[[int], None]) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        advance(len(piece))
        yield piece


def _as_utf8(pieces: Iterator[bytes]) -> Iterator[bytes]:
    begin = b""
    while len(begin) < LONGEST_MARK and (piece := next(pieces, b"")):
        begin += piece
    encoding = next((name for mark, name in BYTE_ORDER_MARKS.items() if begin.startswith(mark)), None)
    if encoding is None:
        if begin:
            yield begin
            yield from pieces
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(begin).encode()
    for piece in pieces:
        yield decoder.decode(piece).encode()
    yield decoder.decode(b"", final=True).encode()


def _without_rest(pieces: Iterator[bytes], bad: Callable[..., None]) -> Iterator[bytes]:
    try:
        yield from pieces
    except Trailed as error:
        bad(error.what, count=error.count)
    except CutOff as error:
        raise EOFError(str(error)) from error


class _Pieces(io.RawIOBase):
    """A file of what comes in pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = memoryview(piece)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


def _unpacked(path: Path, file: IO[bytes], advance: Callable[[int], None]) -> Iterator[bytes]:
    """Of gzip, in one member or several. Zeros behind the last are padding."""
    member: Any = None
    whole = False
    while data := file.read(PIECE_BYTES // 4):
        advance(len(data))
        while data or (member is not None and not member.eof and not member.needs_input):
            if member is None and whole and not GZIP_MAGIC.startswith(data[: len(GZIP_MAGIC)]):
                raise Trailed(path, len(data) + _length(file, advance))
            if member is None:
                member = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
            if piece := member.decompress(data, PIECE_BYTES):
                yield piece
            data = b""
            if member.eof:
                data = member.unused_data.lstrip(b"\0")
                member = None
                whole = True
    if member is not None:
        raise CutOff(path, "the compressed file is cut off", "export or copy it again")


def _length(file: IO[bytes], advance: Callable[[int], None]) -> int:
    """Of what is left of a file."""
    length = 0
    while data := file.read(PIECE_BYTES):
        advance(len(data))
        length += len(data)
    return length
