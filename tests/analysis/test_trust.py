"""What is missing from a trace, and which numbers that changes."""

from pathlib import Path

import pytest

from ral_trace.analysis.trust import bearing, ledger, quality, sources, warnings
from tests.analysis.cases import INVALID, Case


@pytest.fixture
def two_processes(tmp_path: Path):
    case = Case()
    case.process(pid=10, ended_how="exited")
    case.process(pid=11, ended_how="killed by SIGKILL")
    case.event("op", "aten::mm", 0, 10)
    case.event("op", "aten::mm", 20, 400, flags=INVALID)
    case.ledgers.append({"process": 0, "written": 12, "received": 9, "dropped": 1, "lost": 2, "shed": 3})
    case.quality.append({"process": 1, "source": 0, "what": "something", "count": 4, "example": "x"})
    case.quality.append({"process": 0, "source": 0, "what": "events dropped: the ring was full", "count": 1})
    with case.open(tmp_path) as trace:
        yield trace


def test_the_ledger_balances_and_is_absent_where_nothing_was_counted(two_processes):
    first, second = ledger(two_processes)
    assert first["written"] == first["received"] + first["dropped"] + first["lost"]
    assert (second["written"], second["dropped"], second["ended_how"]) == (None, None, "killed by SIGKILL")


def test_a_remark_says_whom_it_concerns_and_what_it_changes(two_processes):
    found = {row["what"]: row for row in quality(two_processes)}
    assert len(found) == 3
    plain = {"source": "train.py", "pid": 11, "what": "something", "count": 4, "example": "x"}
    assert found["something"] == {**plain, "reading": None, "chapters": None}
    impossible = next(row for what, row in found.items() if "times that cannot be" in what)
    assert (impossible["pid"], impossible["count"], impossible["reading"]) == (
        10,
        1,
        "events whose times cannot be are in no sum of times",
    )


def test_warnings_stand_where_they_change_numbers(two_processes):
    found = warnings(quality(two_processes))
    assert found["memory"] == ["events are missing: counts and sums are lower bounds"]
    assert set(found["time"]) == {
        "events are missing: counts and sums are lower bounds",
        "events whose times cannot be are in no sum of times",
    }
    assert found["trust"] == []


@pytest.mark.parametrize(
    ("what", "chapters"),
    [
        ("the file is cut off: what follows is missing", {"memory", "time"}),
        ("51 kernels overlap on one in-order stream", {"time", "devices"}),
        ("frees of a block that was already free: left out", {"memory"}),
        ("ranks of 128 that no file is about", {"ranks"}),
        ("launches without a kernel, copy or fallback", {"devices", "waits"}),
    ],
)
def test_each_kind_of_remark_bears_on_its_chapters(what: str, chapters: set[str]):
    found = bearing(what)
    assert found is not None
    assert chapters <= set(found.chapters)


def test_sources_count_their_processes_and_events(two_processes):
    [row] = sources(two_processes)
    assert (row["source"], row["format"], row["processes"], row["events"]) == ("train.py", "live", 2, 2)
    assert (row["clock_zero"], row["clock_offset_ns"]) == ("unix epoch", None)
