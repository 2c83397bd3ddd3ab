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
    return None if fields is None else (fields[21] * PAGE_BYTES, (fields[11] + fields[12]) * NS_PER_CLOCK_TICK)


def parent(pid: int) -> int:
    """The pid of a process's parent; 0: it is gone."""
    fields = _stat(pid)
    return 0 if fields is None else fields[1]


def _stat(pid: int) -> list[int] | None:
    """The fields of /proc/<pid>/stat from the third one on, which is a letter and counts as 0 here."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return [0, *map(int, text.rpartition(")")[2].split()[1:])]
    except (OSError, ValueError):
        return None
