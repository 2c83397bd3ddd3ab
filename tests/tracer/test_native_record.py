"""The record path from Python: what a program wrote is what DuckDB gets, and every event is accounted for."""

import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from ral_trace.tracer import _native, live

RING_RECORDS = 1024

PROGRAM = """
import mmap, sys, threading
from ral_trace.tracer import _native, annotate
threads, events, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
assert _native.start("", "") is None
file = open(path, "r+b")
page = memoryview(mmap.mmap(file.fileno(), 4096)).cast("q")

def work(number):
    done = 0
    while events == 0 or done < events:
        with annotate(f"thread {number}"):
            pass
        done += 1
        page[number] = done  # a page of our own: it survives us, and is not the ring

workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
"""
"""Annotates in several threads, and counts what it did in a page of its own. 0 events: for ever."""


class Session:
    """A recording of every process in a rendezvous of its own, without the command line."""

    def __init__(self, root: Path) -> None:
        self.sessions = _native.Sessions()
        (root / "session-1").mkdir(0o700)
        self.folder = root / "session-1"
        self.slot = self.sessions.begin(
            session=1,
            target_pid=0,
            ring_records=RING_RECORDS,
            folder="session-1",
            details=_native.DETAILS["ANNOTATIONS"],
            overwrite=False,
        )
        self.clocks = [_native.ClockSample.now()]
        self.spool = _native.Spool(str(root / "spool"))
        self.readers: list[_native.ProcessReader] = []

    def poll(self) -> None:
        known = {reader.pid for reader in self.readers}
        for folder in self.folder.glob("*-*"):
            if int(folder.name.partition("-")[0]) not in known and (found := _native.ProcessReader.open(str(folder))):
                self.readers.append(found)
        for number, reader in enumerate(self.readers):
            assert reader.drain(number, self.spool)

    def batch(self) -> _native.Batch:
        """All rows so far."""
        batch = _native.Batch()
        clock = _native.Calibration([*self.clocks, _native.ClockSample.now()])
        reader = _native.SpoolReader(str(self.folder.parent / "spool"))
        while reader.next(clock, 1 << 30, 0, batch):
            pass
        return batch

    def account(self) -> _native.Account:
        (reader,) = self.readers
        account = reader.account()
        assert account.written == account.received + account.dropped + account.lost
        return account

    def received(self) -> dict[str, int]:
        """How many records of each name DuckDB got."""
        names = dict(_native.NameList.read(str(next(self.folder.glob("*-*/names")))).names)
        with duckdb.connect() as connection:
            connection.register("batch", self.batch())
            counted = connection.execute("SELECT name, count(*) FROM batch GROUP BY ALL").fetchall()
            connection.unregister("batch")
        return {names[name]: count for name, count in counted}


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as folder:
        monkeypatch.setenv("RAL_TRACE_DIR", folder)
        yield Path(folder)


@contextmanager
def start(threads: int, events: int, page: Path) -> Iterator[subprocess.Popen[bytes]]:
    page.write_bytes(b"\0" * 4096)
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(threads), str(events), str(page)]) as program:
        try:
            yield program
        finally:
            program.kill()


def counts(page: Path, threads: int) -> list[int]:
    with page.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped:
        return list(struct.unpack_from(f"<{threads}q", mapped))


def test_all_that_threads_annotate_arrives(root: Path, tmp_path: Path) -> None:
    session = Session(root)
    with start(4, 3000, tmp_path / "page") as program:
        while program.poll() is None:
            session.poll()
            time.sleep(0.001)
    session.poll()
    account = session.account()
    assert program.returncode == 0
    assert counts(tmp_path / "page", 4) == [3000] * 4
    # The machine may be too busy for us to come in time; then the ring says so.
    assert account.written == 4 * 3000
    assert account.lost == 0
    received = session.received()
    assert set(received) == {f"thread {n}" for n in range(4)}
    assert sum(received.values()) == account.received
    if not account.dropped:
        assert set(received.values()) == {3000}
    assert session.readers[0].exited()


def test_a_killed_program_leaves_all_that_it_counted(root: Path, tmp_path: Path) -> None:
    session = Session(root)
    page = tmp_path / "page"
    with start(3, 0, page) as program:
        while min(counts(page, 3)) < 50:
            assert program.poll() is None
            time.sleep(0.001)
            session.poll()
        program.send_signal(signal.SIGKILL)
        program.wait()
    session.poll()
    account = session.account()
    counted = sum(counts(page, 3))
    # In each thread one event may have been written that was not counted yet; it may even be uncommitted.
    assert counted <= account.written <= counted + 3
    assert account.lost <= 3
    received = session.received()
    if not account.dropped:
        for number, count in enumerate(counts(page, 3)):
            assert received[f"thread {number}"] - count in (0, 1)
    assert not session.readers[0].exited()


def test_what_a_small_ring_drops_is_counted(root: Path, tmp_path: Path) -> None:
    session = Session(root)
    with start(2, 5000, tmp_path / "page") as program:
        program.wait()  # nobody reads meanwhile
    session.poll()
    account = session.account()
    assert account.written == sum(counts(tmp_path / "page", 2)) == 10_000
    assert (account.received, account.dropped, account.lost) == (2 * RING_RECORDS, 10_000 - 2 * RING_RECORDS, 0)
    assert session.received() == {"thread 0": RING_RECORDS, "thread 1": RING_RECORDS}


def test_an_ended_recording_gets_nothing_more(root: Path, tmp_path: Path) -> None:
    session = Session(root)
    page = tmp_path / "page"
    with start(1, 0, page) as program:
        while not session.readers or counts(page, 1)[0] < 50:
            assert program.poll() is None
            session.poll()
            time.sleep(0.001)
        session.sessions.end(session.slot)
        while not session.readers[0].detached():
            time.sleep(0.001)
        session.poll()
        before = counts(page, 1)[0]
        while counts(page, 1)[0] < before + 100:
            time.sleep(0.001)
        written = session.account().written
        session.poll()
        # One may have been on its way when the recording ended.
        assert session.account().written - written <= 1
        program.kill()


def test_the_arrow_stream_gives_exact_rows_as_often_as_it_is_asked(root: Path, tmp_path: Path) -> None:
    session = Session(root)
    with start(1, 100, tmp_path / "page") as program:
        program.wait()
    session.poll()
    batch = session.batch()
    assert len(batch) == 100
    with duckdb.connect() as connection:
        connection.register("batch", batch)
        rows = connection.execute("FROM batch").fetchall()
        assert connection.execute("FROM batch").fetchall() == rows
        kinds = connection.execute("SELECT sum(kind), min(process) FROM batch").fetchall()
        assert kinds == [(100 * _native.KINDS.index("annotation"), 0)]
        columns = [(column[0], str(column[1])) for column in connection.execute("DESCRIBE batch").fetchall()]
        connection.execute(live.STAGING)
        wanted = [(column[0], str(column[1])) for column in connection.execute("DESCRIBE record").fetchall()]
        assert columns == wanted
        batch.clear()
        assert len(batch) == 0
        assert connection.execute("SELECT count(*) FROM batch").fetchall() == [(0,)]
        connection.unregister("batch")
    times = [row[3] for row in rows]
    assert times == sorted(times)
    assert all(row[4] >= 0 for row in rows)
    assert abs(times[0] - time.time_ns()) < 3600 * 10**9
    assert len({row[1] for row in rows}) == 1


def test_a_stream_outlives_its_batch(root: Path, tmp_path: Path) -> None:
    session = Session(root)
    with start(1, 10, tmp_path / "page") as program:
        program.wait()
    session.poll()
    batch = session.batch()
    stream = batch.__arrow_c_stream__()
    batch.clear()
    del stream  # released without having been read
    relation = duckdb.connect()
    relation.register("batch", batch)
    assert relation.execute("FROM batch").fetchall() == []


def test_columns_of_different_lengths_are_refused() -> None:
    import numpy as np

    with pytest.raises(ValueError, match="same length"):
        _native.nest(np.zeros(2, np.int32), np.zeros(2, np.int64), np.zeros(1, np.int64), np.zeros(2, np.int64))


def test_process_started_tells_processes_apart() -> None:
    assert _native.process_started(os.getpid()) > 0
    assert _native.process_started(2**22 + 1) == 0
    assert _native.process_started(-1) == 0
