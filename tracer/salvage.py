"""What a collector that died has left: its journal and spool on disk, the programs' rings and names in shared memory.

`--salvage` makes the trace of them that the collector would have made: everything that it had drained, and everything
that the rings still hold.
"""

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ral_trace.tracer import _native, journal
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.recording import (
    JOURNAL,
    NAMES,
    SPOOL,
    SPOOL_LINK,
    SPOOL_PREFIX,
    ProcessView,
    Snapshot,
    TracedProcess,
    boot_id,
    view_of,
)


def stale_sessions(sessions: _native.Sessions) -> list[Path]:
    """The folders of sessions whose collector died. Their slots are freed, which ends what programs write for them."""
    alive = set()
    for session in sessions.taken():
        if session.collector_alive:
            alive.add(session.folder)
        else:
            sessions.release_dead(session.slot)
    return [folder for folder in sorted(Path(sessions.folder).glob("session-*")) if folder.name not in alive]


@dataclass(frozen=True)
class Left:
    """A session whose collector died, and where that put what it drained."""

    folder: Path
    spool_folder: Path | None

    def remedy(self) -> str:
        """What to do about it."""
        folders = " ".join(shlex.quote(str(folder)) for folder in (self.folder, self.spool_folder) if folder)
        return f"write out what it had with: ral-trace --salvage; or give its memory back with: rm -r {folders}"

    def remove(self) -> None:
        """Gives its memory and its disk back."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.spool_folder is not None:
            shutil.rmtree(self.spool_folder, ignore_errors=True)


def left_by(folder: Path) -> Left:
    """Where the collector of a session kept its files; a folder that is not ours alone is not believed."""
    try:
        spool = Path((folder / SPOOL_LINK).read_text())
        ours = _is_ours(spool) and spool.is_dir()
    except (OSError, ValueError):
        return Left(folder, None)
    # remove() takes away the whole of it.
    named = spool.is_absolute() and spool.name.startswith(SPOOL_PREFIX)
    return Left(folder, spool if ours and named else None)


def _is_ours(path: Path) -> bool:
    """Not of a link: its mode is open to all."""
    status = path.lstat()
    return status.st_uid == os.geteuid() and status.st_mode & 0o077 == 0


@contextmanager
def salvaged(left: Left) -> Iterator[Snapshot | None]:
    """What there is of a session. None: nothing that can be read, or ticks of another boot.

    Raises RalTraceError where there is no room for what the rings hold.
    """
    found = None if left.spool_folder is None else _read_journal(left.spool_folder / JOURNAL)
    if found is None or left.spool_folder is None or found.begin.boot_id != boot_id():
        yield None
        return
    try:
        spool = _native.Spool(str(left.spool_folder / SPOOL))
    except RuntimeError:
        yield None
        return
    found.notes.append("the collector died: this is what it had taken by then, and what was still in the rings")
    views = _drain(left, found, spool)
    found.clocks.append(_native.ClockSample.now())
    yield Snapshot(found, left.spool_folder / SPOOL, views)


def _read_journal(path: Path) -> journal.Journal | None:
    try:
        return journal.read(path) if _is_ours(path) and path.is_file() else None
    except OSError:
        return None


def _drain(left: Left, found: journal.Journal, spool: _native.Spool) -> list[ProcessView]:
    """Goes on where the collector stopped. Processes that it never saw are there, too."""
    assert left.spool_folder is not None
    unseen = [entry.name for entry in sorted(left.folder.iterdir()) if entry.is_dir() and not entry.is_symlink()]
    found.processes += [name for name in unseen if name not in found.processes]
    views = []
    for number, name in enumerate(found.processes):
        reader = _native.ProcessReader.resume(str(left.folder / name), spool, number)
        if reader is None:
            continue
        if not reader.drain(number, spool):
            cause = "there is no room for what the programs still hold"
            raise RalTraceError(f"{left.spool_folder}: {cause}; make some, then: ral-trace --salvage")
        moved = left.spool_folder / f"{NAMES}-{number}"
        names = moved if moved.exists() else left.folder / name / NAMES
        process = TracedProcess(number, reader, names)
        if not process.alive() and number not in found.gone:
            found.gone[number] = _native.ClockSample.now().ticks
        views.append(_without(found.rings[number], view_of(process)))
    return views


def _without(accounted: list[journal.RingRow], view: ProcessView) -> ProcessView:
    """Between noting a ring's last account and removing the ring, the collector may have died."""
    known = {row.number for row in accounted}
    return replace(view, rings=[row for row in view.rings if row.number not in known])
