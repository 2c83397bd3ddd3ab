"""Whom a recording takes: the children of a command however they came about, one program of several, nobody else's;
eight recordings at once.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ral_trace.tracer import open_trace
from tests.integration.programs import (
    HEAVY,
    LIGHT,
    Counts,
    assert_every_ring_balances,
    python,
    ral_trace,
    recorded,
    running,
    start,
    wait_for,
)

FAMILY = (
    HEAVY
    + """
import subprocess
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        work(40 + index, 30)
        return index

def main():
    work(0, 10)
    if os.fork() == 0:
        work(1, 20)
        os._exit(0)
    os.wait()
    for number, method in enumerate(("fork", "spawn", "forkserver"), start=2):
        child = torch.multiprocessing.get_context(method).Process(target=work, args=(number, 10 + number))
        child.start()
        child.join()
        assert child.exitcode == 0
    assert sorted(int(batch) for batch in DataLoader(Numbers(), num_workers=2, batch_size=1)) == [0, 1]
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", __file__, "rank"]
    subprocess.run([sys.executable, *words], check=True)

if __name__ == "__main__":
    if "rank" in sys.argv:
        work(20 + int(os.environ["RANK"]), 25)
    else:
        main()
"""
)


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counts:
    counts = Counts(tmp_path / "counts")
    monkeypatch.setenv("RAL_TEST_COUNTS", str(counts.path))
    return counts


def session_begins() -> None:
    wait_for(lambda: any(Path(os.environ["RAL_TRACE_DIR"]).glob("session-*/control")), "the recording begins")


def test_children_however_they_came_about(tmp_path: Path, counts: Counts) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    done = ral_trace("-o", "family.duckdb", "--", sys.executable, "family.py", cwd=tmp_path, PYTHONWARNINGS="ignore")
    assert done.returncode == 0, done.stderr
    # The main program, its fork, three of torch.multiprocessing, two workers, two ranks.
    assert sorted(counts.by_pid().values()) == [10, 12, 13, 14, 20, 25, 25, 30, 30]
    with open_trace(tmp_path / "family.duckdb") as trace:
        assert recorded(trace, "aten::mul.Tensor") == counts.by_pid()
        assert assert_every_ring_balances(trace) == (0, 0)


def test_one_program_and_its_children(tmp_path: Path, counts: Counts) -> None:
    """Another one, which is no relation, is left alone: it does not even get a ring."""
    chosen = LIGHT + "os.fork()\nwork(os.getpid() % 1000, 10**9)"
    other = LIGHT + "work(1001, 10**9)"
    with running(python(chosen)) as parent, running(python(other)) as stranger:
        try:
            wait_for(lambda: len(counts.by_pid()) == 3, "all three work")
            recording = start("--pid", str(parent.pid), "--duration", "60s", "-o", "one.duckdb", cwd=tmp_path)
            session_begins()
            folder = next(Path(os.environ["RAL_TRACE_DIR"]).glob("session-*"))
            wait_for(lambda: len(list(folder.glob("*-*/ring-0"))) == 2, "both join")
            time.sleep(0.3)
            recording.send_signal(signal.SIGINT)
            _, said = recording.communicate(timeout=60)
            pids = set(counts.by_pid())
        finally:
            for pid in counts.by_pid():
                os.kill(pid, signal.SIGKILL)
    assert recording.returncode == 0, said
    with open_trace(tmp_path / "one.duckdb") as trace:
        assert set(recorded(trace)) == pids - {stranger.pid}
        assert {row["pid"] for row in trace.rows("SELECT pid FROM process")} == pids - {stranger.pid}
        assert_every_ring_balances(trace)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_programs_of_other_users_are_never_touched(tmp_path: Path, counts: Counts) -> None:
    """Not even one that could read and search everything: it refuses our place, and we its files."""
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    nobody += ["--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"]
    program = LIGHT + "print(refused)\nwork(0, 100)"
    rendezvous = Path(os.environ["RAL_TRACE_DIR"])
    recording = start("--duration", "60s", "-o", "ours.duckdb", cwd=tmp_path)
    session_begins()
    folder = next(rendezvous.glob("session-*"))
    before = sorted(rendezvous.rglob("*"))
    theirs = subprocess.run(
        [*nobody, *python(program)], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert theirs.returncode == 0, theirs.stderr
    assert "must be a folder of yours" in theirs.stdout
    assert counts.slot(0)[1] == 100
    assert sorted(rendezvous.rglob("*")) == before
    # Files of theirs in the middle of ours, that say all the right things, are nobody's.
    with running(python(LIGHT + "work(1, 50)\nwhile True: time.sleep(1)")) as ours:
        wait_for(lambda: counts.slot(1)[1] == 50, "our program works")
        (real,) = folder.glob(f"{ours.pid}-*")
        forged = folder / "1-1"
        subprocess.run(["cp", "-r", str(real), str(forged)], check=True)
        subprocess.run(["chown", "-R", "65534:65534", str(forged)], check=True)
        time.sleep(0.2)
        ours.kill()
    recording.send_signal(signal.SIGINT)
    _, said = recording.communicate(timeout=60)
    assert recording.returncode == 0, said
    with open_trace(tmp_path / "ours.duckdb") as trace:
        assert recorded(trace) == {ours.pid: 50}
        assert len(trace.rows("FROM process")) == 1


def test_eight_recordings_at_once_are_each_complete(tmp_path: Path, counts: Counts) -> None:
    recordings = [start("--duration", "120s", "-o", f"{number}.duckdb", cwd=tmp_path) for number in range(8)]
    try:
        wait_for(lambda: len(list(Path(os.environ["RAL_TRACE_DIR"]).glob("session-*/control"))) == 8, "all begin")
        time.sleep(0.5)
        ninth = ral_trace("-o", "ninth.duckdb", "--", *python(LIGHT + "work(0, 1)"), cwd=tmp_path)
        assert ninth.returncode == 1
        assert "eight recordings are running already" in ninth.stderr
        assert counts.slot(0)[1] == 0
        threads = "threads = [threading.Thread(target=work, args=(n, 1000)) for n in range(4)]\n"
        threads += "for t in threads: t.start()\nfor t in threads: t.join()"
        subprocess.run(python(LIGHT + threads), check=True, timeout=60)
    finally:
        for recording in recordings:
            recording.send_signal(signal.SIGINT)
        said = [recording.communicate(timeout=100)[1] for recording in recordings]
    assert [recording.returncode for recording in recordings] == [0] * 8, said
    for number in range(8):
        with open_trace(tmp_path / f"{number}.duckdb") as trace:
            assert recorded(trace) == counts.by_pid()
            assert assert_every_ring_balances(trace) == (0, 0)
