"""What a dead collector left: to the event, once, whatever moment it died at, and only what is ours to believe."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ral_trace.tracer import _native, open_trace, salvage
from ral_trace.tracer.assemble import assemble
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.recording import JOURNAL, SPOOL, SPOOL_LINK

COLLECTOR = """
import os, signal, sys, time
from ral_trace.tracer.recording import Recording, Wanted
from ral_trace.tracer.journal import RingRow
dies_at = sys.argv[1]

class Mortal(Recording):
    def _drain(self, process):
        if dies_at == "nothing taken":
            return
        process.reader.drain(process.number, self.spool)
        finished = process.reader.finished()
        if finished and dies_at == "a ring noted":
            for ring in finished:
                self.notes.ring(process.number, RingRow.of(ring))
            os.kill(os.getpid(), signal.SIGKILL)
        if not finished or dies_at != "a ring read":
            super()._drain(process)
        else:
            os.kill(os.getpid(), signal.SIGKILL)

recording = Mortal(Wanted())
recording.begin()
print(recording.folder, flush=True)
while True:
    recording.poll()
    time.sleep(0.001)
"""
"""Says which session is its own."""

PROGRAM = """
import gc, sys, threading
gc.disable()                      # its pauses are events, too
from ral_trace.tracer import _native, annotate
assert _native.start("", "") is None

def work(times):
    for _ in range(times):
        with annotate("work"):
            pass

thread = threading.Thread(target=work, args=(70,))
thread.start()
thread.join()
print("a thread ended", flush=True)
sys.stdin.readline()
work(30)
"""


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as folder:
        monkeypatch.setenv("RAL_TRACE_DIR", folder)
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        yield Path(folder)


def left_behind(dies_at: str) -> salvage.Left:
    """A collector died, at a moment of its own or at ours; its program did not notice."""
    words = [sys.executable, "-c"]
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as running:
        collector = running.enter_context(subprocess.Popen([*words, COLLECTOR, dies_at], stdout=pipe, text=True))
        running.callback(collector.kill)
        assert collector.stdout is not None
        folder = Path(collector.stdout.readline().strip())
        program = running.enter_context(subprocess.Popen([*words, PROGRAM], stdin=pipe, stdout=pipe, text=True))
        assert program.stdout is not None
        assert program.stdout.readline() == "a thread ended\n"
        if dies_at in ("a ring noted", "a ring read"):
            collector.wait(timeout=30)
        else:
            # Whenever: it makes no difference to what must come out.
            time.sleep(0.05)
            collector.kill()
            collector.wait()
        program.communicate("go on\n")
        assert program.returncode == 0
    assert collector.returncode == -signal.SIGKILL
    return salvage.left_by(folder)


def works(left: salvage.Left, output: Path) -> int:
    """Events of that name in the trace that salvage makes. Every ring balances."""
    with salvage.salvaged(left) as snapshot:
        assert snapshot is not None
        assemble(snapshot, output)
    with open_trace(output) as trace:
        rows = trace.rows("FROM ledger")
        assert all(row["written"] == row["received"] + row["dropped"] + row["lost"] for row in rows)
        assert len({(row["process"], row["tid"]) for row in rows}) == len(rows)
        assert sum(row["written"] for row in rows) == 100
        found = trace.rows("SELECT count(*) AS n FROM event WHERE name = 'work'")[0]["n"]
        assert isinstance(found, int)
        return found


@pytest.mark.parametrize("dies_at", ["any time", "nothing taken", "a ring read", "a ring noted"])
def test_nothing_is_lost_and_nothing_is_there_twice(root: Path, tmp_path: Path, dies_at: str) -> None:
    left = left_behind(dies_at)
    assert works(left, tmp_path / "salvaged.duckdb") == 100
    # What was salvaged and not removed is the same again.
    assert works(left, tmp_path / "again.duckdb") == 100
    assert salvage.stale_sessions(_native.Sessions()) == [left.folder]
    left.remove()
    assert salvage.stale_sessions(_native.Sessions()) == []
    assert left.spool_folder is not None
    assert not left.spool_folder.exists()


def test_a_disk_without_room_for_the_rest_loses_nothing(root: Path, tmp_path: Path) -> None:
    left = left_behind("nothing taken")
    assert left.spool_folder is not None
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(RalTraceError, match="room"), salvage.salvaged(left):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert works(left, tmp_path / "salvaged.duckdb") == 100


def test_what_is_not_ours_alone_is_not_believed(root: Path, tmp_path: Path) -> None:
    left = left_behind("any time")
    folder, spool = left.folder, left.spool_folder
    assert spool is not None
    link = folder / SPOOL_LINK

    def found() -> bool:
        with salvage.salvaged(salvage.left_by(folder)) as snapshot:
            return snapshot is not None

    assert found()
    spool.chmod(0o755)
    assert not found()
    spool.chmod(0o700)
    (tmp_path / "way").symlink_to(spool)
    link.write_text(str(tmp_path / "way"))
    assert not found()
    for text in ("", "nowhere", str(tmp_path / "not there"), "x" * 5000, "nul\0byte"):
        link.write_text(text)
        assert not found()
    link.write_text(str(spool))
    if os.geteuid() == 0:
        os.chown(spool, 65534, 65534)
        assert not found()
        os.chown(spool, 0, 0)
    for name in (SPOOL, JOURNAL):
        (spool / name).rename(spool / "real")
        (spool / name).symlink_to(spool / "real")
        assert not found()
        (spool / name).unlink()
        (spool / "real").rename(spool / name)
    # The ticks of another boot say nothing.
    text = (spool / JOURNAL).read_text()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (spool / JOURNAL).write_text(text.replace(boot, "0" * len(boot)))
    assert not found()
    (spool / JOURNAL).write_text("")
    assert not found()
    (spool / JOURNAL).write_text(text)
    assert found()
    # The name of a process is no way out of its folder.
    (spool / JOURNAL).write_text(text + '{"process": "../../etc"}\n')
    with salvage.salvaged(salvage.left_by(folder)) as snapshot:
        assert snapshot is not None
        assert len(snapshot.processes) == 1


def test_sessions_that_are_alive_are_left_alone(root: Path) -> None:
    sessions = _native.Sessions()
    for number in (1, 2):
        (root / f"session-{number}").mkdir(0o700)
        sessions.begin(number, os.getpid(), 1024, f"session-{number}", 1, overwrite=False)
    dead = root / "session-3"
    dead.mkdir(0o700)
    assert salvage.stale_sessions(sessions) == [dead]
    assert len(sessions.taken()) == 2
