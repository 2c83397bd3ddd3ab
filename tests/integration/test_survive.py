"""Whatever becomes of a program, of its collector, of the room there is: what the program did is in the trace, to the
event, or in the ledger as missing.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ral_trace.tracer import open_trace
from tests.integration.programs import (
    LIGHT,
    Counts,
    assert_every_ring_balances,
    python,
    ral_trace,
    recorded,
    start,
    wait_for,
)

CGROUPS = Path("/sys/fs/cgroup/memory")
ROOT = os.geteuid() == 0

DEATHS = {
    "killed": "work(0, 200); os.kill(os.getpid(), signal.SIGKILL)",
    "segfault": "work(1, 200); ctypes.string_at(0)",
    "at once": "work(2, 200); os._exit(3)",
    "abort": "work(3, 200); os.abort()",
    "daemon": """
def die():
    work(4, 200)
    raise ValueError("of a daemon thread")
thread = threading.Thread(target=die, daemon=True)
thread.start()
thread.join()
work(5, 100)
""",
    "daemon goes on": """
threading.Thread(target=work, args=(6, 10**9), daemon=True).start()
while _page[2 * 6 + 1] < 200:
    time.sleep(0.001)
""",
    "out of memory": """
cgroup = os.environ.get("RAL_TEST_CGROUP")
if cgroup:
    open(cgroup + "/cgroup.procs", "w").write(str(os.getpid()))
    work(7, 200)
    held = []
    while True:
        held.append(bytearray(b"x" * (1 << 20)))
""",
}
"""Each is a program of its own; the slots in which they count differ."""


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counts:
    counts = Counts(tmp_path / "counts")
    monkeypatch.setenv("RAL_TEST_COUNTS", str(counts.path))
    return counts


@pytest.fixture
def small_cgroup() -> Iterator[Path | None]:
    """A memory cgroup of 16 MiB; None where none can be made."""
    cgroup = CGROUPS / f"ral-test-{os.getpid()}"
    try:
        cgroup.mkdir()
        (cgroup / "memory.limit_in_bytes").write_text(str(16 << 20))
    except OSError:
        yield None
        return
    yield cgroup
    wait_for(lambda: not (cgroup / "cgroup.procs").read_text().split(), "its program is gone")
    cgroup.rmdir()


@contextmanager
def tmpfs(place: Path, size: str, options: str = "") -> Iterator[Path]:
    """A file system of that size. The test is skipped where none can be mounted."""
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700{options}", "none", str(place)]
    if not ROOT or subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def light(source: str) -> list[str]:
    return list(python(LIGHT + source))


def test_each_way_to_die_leaves_what_was_done(tmp_path: Path, counts: Counts, small_cgroup: Path | None) -> None:
    recording = start("--duration", "300s", "-o", "deaths.duckdb", cwd=tmp_path)
    try:
        wait_for(lambda: any(Path(os.environ["RAL_TRACE_DIR"]).glob("session-*/control")), "the recording begins")
        environment = {**os.environ, **({"RAL_TEST_CGROUP": str(small_cgroup)} if small_cgroup else {})}
        programs = {
            name: subprocess.Popen(light(source), env=environment, stderr=subprocess.PIPE)
            for name, source in DEATHS.items()
        }
        errors = {name: program.communicate(timeout=60)[1] for name, program in programs.items()}
        recording.send_signal(signal.SIGINT)
        _, said = recording.communicate(timeout=60)
    finally:
        recording.kill()
    assert recording.returncode == 0, said
    codes = {name: program.returncode for name, program in programs.items()}
    oom = -signal.SIGKILL if small_cgroup else 0
    assert codes == {
        "killed": -signal.SIGKILL,
        "segfault": -signal.SIGSEGV,
        "at once": 3,
        "abort": -signal.SIGABRT,
        "daemon": 0,
        "daemon goes on": 0,
        "out of memory": oom,
    }
    assert b"of a daemon thread" in errors["daemon"]
    with open_trace(tmp_path / "deaths.duckdb") as trace:
        found = recorded(trace)
        assert_every_ring_balances(trace)
        ended = {row["pid"]: row["ended_how"] for row in trace.rows("SELECT pid, ended_how FROM process")}
    pids = {name: program.pid for name, program in programs.items()}
    right = {pids["killed"]: 200, pids["segfault"]: 200, pids["at once"]: 200, pids["abort"]: 200, pids["daemon"]: 300}
    if small_cgroup:
        right[pids["out of memory"]] = 200
    # Its thread was in the middle of something when the interpreter ended: that was written, and not counted yet.
    missing = found.pop(pids["daemon goes on"]) - counts.slot(6)[1]
    assert missing in (0, 1)
    assert found == right
    assert ended[pids["daemon"]] == "exited"
    assert "crash or a kill" in ended[pids["segfault"]]


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        pytest.param("os.closerange(3, 4096); work(0, 3000)", 3000, id="descriptors"),
        pytest.param("os.chdir('/'); os.umask(0o777); work(0, 3000)", 3000, id="folder and umask"),
        # Its ring stays as large as it was then, and a later thread has none: what finds no room is counted.
        pytest.param(
            "import resource; work(0, 100); resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); work(0, 3000)",
            None,
            id="the right to write files",
        ),
    ],
)
def test_a_program_may_give_up(tmp_path: Path, counts: Counts, source: str, kept: int | None) -> None:
    later = "\nthread = threading.Thread(target=work, args=(1, 50)); thread.start(); thread.join()"
    done = ral_trace("-o", "less.duckdb", "--", *light(source + later), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [counts.slot(number)[1] for number in (0, 1)] == [3000, 50]
    emitted = 3050 if kept else 3150
    with open_trace(tmp_path / "less.duckdb") as trace:
        dropped, lost = assert_every_ring_balances(trace)
        assert lost == 0
        assert sum(recorded(trace).values()) + dropped == emitted
        assert dropped == 0 if kept else dropped >= 50


@pytest.mark.skipif(not ROOT, reason="needs another user to become")
def test_a_program_that_becomes_another_user_is_left(tmp_path: Path, counts: Counts) -> None:
    source = "work(0, 100); os.setuid(65534); work(0, 3000)"
    done = ral_trace("-o", "less.duckdb", "--", *light(source), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert counts.slot(0)[1] == 3000
    with open_trace(tmp_path / "less.duckdb") as trace:
        assert_every_ring_balances(trace)
        (row,) = trace.rows("FROM ledger")
        # When it sees that the page is no longer its own is a matter of moments.
        assert 100 <= row["written"] <= 3100
        assert sum(recorded(trace).values()) + row["dropped"] == row["written"]


def test_what_a_dead_collector_left_is_salvaged_to_the_event(tmp_path: Path, counts: Counts) -> None:
    program = light("""
threading.Thread(target=work, args=(1, 300)).start()     # its ring ends before the collector does
for round in range(20):
    work(2 + round, 100)
    time.sleep(0.05)
""")
    recording = start("-o", "never.duckdb", "--", *program, cwd=tmp_path, TMPDIR=str(tmp_path))
    wait_for(lambda: counts.slot(6)[1] > 50, "the program works")
    recording.kill()
    recording.communicate()
    assert not (tmp_path / "never.duckdb").exists()
    # The program has noticed nothing.
    wait_for(lambda: counts.slot(21)[1] == 100, "the program goes on to its end")
    pid = counts.slot(2)[0]
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "it ends")
    done = ral_trace("--salvage", "-o", "salvaged.duckdb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "salvaged.duckdb") as trace:
        assert recorded(trace) == counts.by_pid() == {pid: 300 + 20 * 100}
        assert assert_every_ring_balances(trace) == (0, 0)
        assert any("collector died" in row["what"] for row in trace.rows("SELECT what FROM quality"))
    # Its memory is given back, and nothing is salvaged twice.
    assert not list(Path(os.environ["RAL_TRACE_DIR"]).glob("session-*"))
    assert not list(tmp_path.glob("ral-trace-*/records"))
    assert ral_trace("--salvage", "-o", "again.duckdb", cwd=tmp_path).returncode == 3


def test_sixty_four_threads_and_thousands_that_come_and_go(tmp_path: Path, counts: Counts) -> None:
    program = light("""
def together(numbers, times):
    threads = [threading.Thread(target=work, args=(number, times)) for number in numbers]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
together(range(64), 300)
for first in range(64, 64 + 2000, 50):
    together(range(first, first + 50), 3)
""")
    done = ral_trace("-o", "threads.duckdb", "--strict", "--", *program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "threads.duckdb") as trace:
        assert sum(recorded(trace).values()) == 64 * 300 + 2000 * 3
        rows = trace.rows("FROM ledger")
        # A thread that begins when another has ended may have its number.
        assert len(rows) == 64 + 2000
        assert all(row["written"] == row["received"] for row in rows)
        assert sorted(row["received"] for row in rows) == [3] * 2000 + [300] * 64
    assert recorded_counts(counts) == 64 * 300 + 2000 * 3


def recorded_counts(counts: Counts) -> int:
    return sum(counts.by_pid().values())


def test_a_program_that_forks_while_its_threads_are_traced(tmp_path: Path, counts: Counts) -> None:
    program = light("""
threads = [threading.Thread(target=work, args=(number, 1500)) for number in range(4)]
for thread in threads: thread.start()
for number in range(4, 24):
    child = os.fork()
    if child == 0:
        work(number, 20)
        os._exit(0)
    os.waitpid(child, 0)
for thread in threads: thread.join()
""")
    done = ral_trace("-o", "forks.duckdb", "--", *program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "forks.duckdb") as trace:
        assert recorded(trace) == counts.by_pid()
        assert sorted(recorded(trace).values()) == [20] * 20 + [6000]
        assert assert_every_ring_balances(trace) == (0, 0)


@pytest.mark.skipif(not ROOT, reason="needs a namespace of its own")
def test_a_pid_that_is_used_again_is_another_process(tmp_path: Path, counts: Counts) -> None:
    (tmp_path / "reuse.py").write_text(f"""
import os, subprocess, sys
{LIGHT!r}
met = 0
for attempt in range(200):
    open("/proc/sys/kernel/ns_last_pid", "w").write("3999")
    child = os.fork()
    if child == 0:
        if os.getpid() != 4000:
            os._exit(0)
        os.execv(sys.executable, [sys.executable, "-c", {LIGHT!r} + f"work({{met}}, {{met}} + 5)"])
    os.waitpid(child, 0)
    met += child == 4000
    if met == 3:
        sys.exit(0)
sys.exit(9)
""")
    words = [sys.executable, "-m", "ral_trace.tracer.cli", "-o", "reuse.duckdb", "--", sys.executable, "reuse.py"]
    unshared = ["unshare", "--pid", "--fork", "--mount-proc", *words]
    done = subprocess.run(unshared, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == 1 and "unshare" in done.stderr:
        pytest.skip("no namespace can be made here")
    assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "reuse.duckdb") as trace:
        rows = trace.rows("""
            SELECT p.pid, count(*) AS n FROM event e JOIN process p ON p.id = e.process
            WHERE e.name = 'work' GROUP BY p.id, p.pid ORDER BY n""")
        assert [(row["pid"], row["n"]) for row in rows] == [(4000, 5), (4000, 6), (4000, 7)]
        assert assert_every_ring_balances(trace) == (0, 0)
    assert [counts.slot(number) for number in range(3)] == [(4000, 5), (4000, 6), (4000, 7)]


def test_thirty_two_processes_in_64_mib_of_shared_memory(tmp_path: Path, counts: Counts) -> None:
    program = light("""
def busy(number):
    work(2 * number, 2000)
    threading.Thread(target=work, args=(2 * number + 1, 500)).start()
children = []
for number in range(32):
    child = os.fork()
    if child == 0:
        busy(number)
        sys.exit(0)
    children.append(child)
    if len(children) == 4:                               # no more at once than a small machine can run
        os.waitpid(children.pop(0), 0)
for child in children:
    os.waitpid(child, 0)
""")
    with tmpfs(tmp_path / "shm", "64m") as place:
        folder = place / "rendezvous"
        done = ral_trace("-o", "many.duckdb", "--", *program, cwd=tmp_path, RAL_TRACE_DIR=str(folder))
        assert done.returncode == 0, done.stderr
        assert [path.name for path in folder.iterdir()] == ["page"]
    with open_trace(tmp_path / "many.duckdb") as trace:
        assert len(counts.by_pid()) == 32
        assert set(counts.by_pid().values()) == {2500}
        dropped, lost = assert_every_ring_balances(trace)
        assert lost == 0
        written = trace.rows(
            "SELECT pid, sum(written) AS n FROM ledger l JOIN process p ON p.id = l.process GROUP BY ALL"
        )
        assert {row["pid"]: row["n"] for row in written} == counts.by_pid()
        assert sum(recorded(trace).values()) + dropped == 32 * 2500


@pytest.mark.parametrize("size", ["8k", "1536k", "1800k"])
def test_full_shared_memory_costs_events_and_nothing_else(tmp_path: Path, counts: Counts, size: str) -> None:
    """From no room for the names, to some for small rings."""
    program = light("""
threads = [threading.Thread(target=work, args=(number, 3000)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""")
    with tmpfs(tmp_path / "shm", size) as place:
        words = ["-o", "full.duckdb", "--", *program]
        done = ral_trace(*words, cwd=tmp_path, RAL_TRACE_DIR=str(place / "rendezvous"))
    assert recorded_counts(counts) == 8 * 3000
    if size == "8k":
        assert done.returncode != 0
        assert "room" in done.stderr
        return
    assert done.returncode in (0, 3), done.stderr
    if done.returncode == 3:
        assert "make room there" in done.stderr
        return
    with open_trace(tmp_path / "full.duckdb") as trace:
        dropped, lost = assert_every_ring_balances(trace)
        assert lost == 0
        assert sum(recorded(trace).values()) + dropped == 8 * 3000
        if dropped:
            assert any("dropped" in row["what"] for row in trace.rows("SELECT what FROM quality"))


MANY = "for slot in range(40): work(slot, 1000)"
"""40,000 events of 64 bytes: 2.5 MB."""


def test_a_full_disk_ends_the_recording_and_not_the_program(tmp_path: Path, counts: Counts) -> None:
    with tmpfs(tmp_path / "disk", "1m") as disk:
        done = ral_trace("-o", "full.duckdb", "--", *light(MANY), cwd=tmp_path, TMPDIR=str(disk))
        assert recorded_counts(counts) == 40_000
        assert done.returncode == 0, done.stderr
        with open_trace(tmp_path / "full.duckdb") as trace:
            assert_every_ring_balances(trace)
            rows = trace.rows("SELECT sum(written) AS written, sum(received) AS received FROM ledger")[0]
            # What the disk took is there; what it did not take was counted as far as it was written.
            assert sum(recorded(trace).values()) == rows["received"] > 5000
            assert rows["written"] <= 40_000
            assert any("disk was full" in row["what"] for row in trace.rows("SELECT what FROM quality"))


@pytest.mark.parametrize("events", [40_000, 300_000])
def test_an_output_without_room_keeps_everything_for_salvage(tmp_path: Path, counts: Counts, events: int) -> None:
    """Few events fail when they are written out, many as they are inserted."""
    with tmpfs(tmp_path / "disk", "256k") as disk:
        words = ["--buffer", "64MiB", "-o", disk / "out.duckdb", "--", *light(f"work(0, {events})")]
        done = ral_trace(*words, cwd=tmp_path, TMPDIR=str(tmp_path))
        assert done.returncode == 1, done.stderr
        assert "--salvage" in done.stderr
        assert recorded_counts(counts) == events
        done = ral_trace("--salvage", "-o", "elsewhere.duckdb", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    with open_trace(tmp_path / "elsewhere.duckdb") as trace:
        assert recorded(trace) == counts.by_pid()
        assert assert_every_ring_balances(trace) == (0, 0)


def test_read_only_folders_are_said_before_the_program_starts(tmp_path: Path, counts: Counts) -> None:
    with tmpfs(tmp_path / "fixed", "256k", ",ro") as fixed:
        done = ral_trace("-o", fixed / "out.duckdb", "--", *light("work(0, 10)"), cwd=tmp_path)
        assert done.returncode == 1
        assert str(fixed) in done.stderr
        assert recorded_counts(counts) == 0
        # For what is drained there is another place, or a word; never half a recording.
        done = ral_trace("-o", "out.duckdb", "--", *light("work(0, 10)"), cwd=tmp_path, TMPDIR=str(fixed))
        if done.returncode == 0:
            with open_trace(tmp_path / "out.duckdb") as trace:
                assert recorded(trace) == counts.by_pid()
        else:
            assert "TMPDIR" in done.stderr
            assert recorded_counts(counts) == 0


def test_a_page_that_is_cut_short_ends_nobody(tmp_path: Path, counts: Counts) -> None:
    program = light("""
for slot in range(200):
    work(slot, 10)
    time.sleep(0.02)
""")
    page = Path(os.environ["RAL_TRACE_DIR"]) / "page"
    recording = start("-o", "cut.duckdb", "--", *program, cwd=tmp_path)
    wait_for(lambda: counts.slot(20)[1] == 10, "the program works")
    os.truncate(page, 0)
    _, said = recording.communicate(timeout=60)
    assert recording.returncode == 0, said
    assert recorded_counts(counts) == 2000
    with open_trace(tmp_path / "cut.duckdb") as trace:
        assert recorded(trace) == counts.by_pid()
        assert assert_every_ring_balances(trace) == (0, 0)


def test_nothing_of_these_stays(tmp_path: Path, counts: Counts) -> None:
    """Of a program that was killed: no ring, no names, no file that it was drained into."""
    done = ral_trace("-o", "killed.duckdb", "--", *light(DEATHS["killed"]), cwd=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 128 + signal.SIGKILL
    assert [path.name for path in Path(os.environ["RAL_TRACE_DIR"]).iterdir()] == ["page"]
    assert not list(tmp_path.glob("ral-trace-*/"))
