"""Opening files as others left them: plain or gzip, told apart by content, cut off or not."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from isal import igzip, igzip_lib

from ral_trace.tracer.errors import InputRefused

GZIP_MAGIC = b"\x1f\x8b"
GZIP: Any = igzip.IGzipFile
DAMAGED: tuple[type[Exception], ...] = (zlib.error, igzip.BadGzipFile, cast(Any, igzip_lib).IsalError)


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, decompressed where they are gzip. Raises InputRefused, also while they are read."""
    try:
        with path.open("rb") as file:
            packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            file.seek(0)
            yield GZIP(fileobj=file, mode="rb") if packed else file
    except EOFError as error:
        raise InputRefused(path, "the compressed file is cut off", "export or copy it again") from error
    except DAMAGED as error:
        raise InputRefused(path, f"the compressed file is damaged ({error})", "export or copy it again") from error
    except OSError as error:
        raise InputRefused(
            path, f"cannot be read ({error.strerror or error})", "check the file and its rights"
        ) from error


def read_head(path: Path, size: int) -> bytes:
    """The first `size` bytes of the file, decompressed. Raises InputRefused."""
    with opened(path) as file:
        return file.read(size)
