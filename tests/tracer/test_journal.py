"""What a collector noted: whatever was cut off or damaged, the whole lines count."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ral_trace.tracer import journal
from ral_trace.tracer.journal import Begin, HostSample, JournalWriter, RingRow

BEGIN = Begin(5, "ral-trace -- python x.py", "host", "boot", 3, 4096, overwrite=False)
RING = RingRow(7, "main", 10, 8, 1, 1, 0, number=2)


def written(path: Path) -> journal.Journal:
    """One line of every kind."""
    writer = JournalWriter(path, BEGIN)
    writer.clock()
    assert writer.process("11-22") == 0
    assert writer.process("33-44") == 1
    writer.sample(0, HostSample(1000, 1 << 20, 500, 5))
    writer.ring(1, RING)
    writer.shed(0, journal.Shed(1500, 2, 0.5))
    writer.gone(1, 2000)
    writer.exit(33, -9)
    writer.note("the disk was full")
    writer.clock()
    writer.close()
    return writer.journal


def as_text(found: journal.Journal | None) -> str:
    assert found is not None
    clocks = [(at.ticks, at.monotonic_ns, at.realtime_ns) for at in found.clocks]
    rest = {name: value for name, value in vars(found).items() if name not in ("begin", "clocks")}
    return f"{asdict(found.begin)} {clocks} {[(name, value) for name, value in rest.items() if value]}"


def test_what_was_written_is_read(tmp_path: Path) -> None:
    right = written(tmp_path / "one")
    assert as_text(journal.read(tmp_path / "one")) == as_text(right)
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600


def test_a_journal_is_made_once_and_by_nobody_else(tmp_path: Path) -> None:
    written(tmp_path / "journal")
    with pytest.raises(FileExistsError):
        JournalWriter(tmp_path / "journal", BEGIN)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="link"):
        JournalWriter(tmp_path / "link", BEGIN)
    assert not (tmp_path / "elsewhere").exists()


def test_cut_anywhere_the_whole_lines_count(tmp_path: Path) -> None:
    written(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    ends = [0] + [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
    for cut in range(len(content) + 1):
        # A line without its end is whole when nothing but the end is missing.
        whole = sum(1 for end in ends[1:] if end - 1 <= cut)
        (tmp_path / "cut").write_bytes(content[:cut])
        (tmp_path / "right").write_bytes(content[: ends[whole]])
        found = journal.read(tmp_path / "cut")
        if whole == 0:
            assert found is None
        else:
            assert as_text(found) == as_text(journal.read(tmp_path / "right"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["clock", "process", "gone", "ticks", "exit", "status", "ring", "of", "sample", "shed", "note"]
LINES = st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3).map(lambda line: json.dumps(line).encode())
ROWS = st.sampled_from(["ring", "sample", "shed"]).flatmap(
    lambda key: st.dictionaries(st.sampled_from([*asdict(RING), "ticks", "details", "share", "rss_bytes"]), JSON).map(
        lambda row: json.dumps({key: row, "of": 0}).encode()
    )
)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINES | ROWS | st.binary(max_size=40), max_size=8))
def test_damaged_lines_are_left_out_and_the_others_count(lines: list[bytes]) -> None:
    good = [b'{"process": "11-22"}', b'{"note": "the last line"}']
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        first = json.dumps({"begin": asdict(BEGIN)}).encode()
        path.write_bytes(b"\n".join([first, good[0], *lines, good[1]]) + b"\n")
        found = journal.read(path)
    assert found is not None
    assert found.begin == BEGIN
    assert found.processes[0] == "11-22"
    assert found.notes[-1] == "the last line"


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()) | LINES)
def test_without_its_first_line_there_is_no_journal(first: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        path.write_bytes(first + b'\n{"process": "11-22"}\n')
        assert journal.read(path) is None
