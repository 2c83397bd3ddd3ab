"""What a process takes of its host, read from /proc by the collector: nothing runs in the program for it."""

import os
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
NS_PER_CLOCK_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def usage(pid: int) -> tuple[int, int] | None:
    """(resident bytes, nanoseconds of CPU time since its begin) of a process: fields 24, 14 and 15 of
    /proc/<pid>/stat, whose time counts in hundredths of a second. None: it is gone.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = text.rpartition(")")[2].split()
        return int(fields[21]) * PAGE_BYTES, (int(fields[11]) + int(fields[12])) * NS_PER_CLOCK_TICK
    except (OSError, IndexError, ValueError):
        return None
