"""What a process takes of its host, read from /proc by the collector: nothing runs in the program for it."""

import os
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
NS_PER_CLOCK_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def usage(pid: int) -> tuple[int, int] | None:
    """(resident bytes, nanoseconds of CPU time since its begin) of a process, whose time counts in hundredths of a
    second. None: it is gone.
    """
    fields = _stat(pid)
    if not fields:
        return None
    return int(fields[21]) * PAGE_BYTES, (int(fields[11]) + int(fields[12])) * NS_PER_CLOCK_TICK


def is_zombie(pid: int) -> bool:
    """Whether a process has ended, and nobody has asked how."""
    return _stat(pid)[:1] == ["Z"]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the third one on (proc(5)); none: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
