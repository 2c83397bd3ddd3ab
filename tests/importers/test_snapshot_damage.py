"""Snapshots that lie: a wrong entry costs at most itself, and a damaged file is refused or right."""

import pickle
import random
import struct
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer import _native
from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import open_trace
from tests.importers.snapshots import (
    BASE,
    CASES,
    EPOCH_US,
    alloc,
    curve,
    history,
    imported,
    imported_value,
    kinds,
    said,
    segment,
)
from tests.shared import TRACES, needs_shared

WRONG: list[Any] = [
    None,
    True,
    -1,
    2.5,
    "x",
    [],
    {},
    (),
    2**63,
    2**64,
    -(2**63),
    2**100,
    float("inf"),
    float("nan"),
    b"\xff",
    "\ud800\0" * 9,
]


@pytest.mark.parametrize("key", ["action", "addr", "size", "stream", "time_us", "frames"])
def test_a_wrong_field_costs_at_most_its_event(tmp_path: Path, key: str) -> None:
    events = [alloc(BASE + 512 * n, 512, time_us=n) for n in range(len(WRONG) + 2)]
    for event, wrong in zip(events[1:-1], WRONG, strict=True):
        event[key] = wrong
    with imported_value(history(events, segments=[segment(BASE, 1 << 20)]), tmp_path) as trace:
        found = trace.sql("SELECT address, size_bytes FROM allocation").fetchall()
        assert {(events[0]["addr"], 512), (events[-1]["addr"], 512)} <= set(found)
        assert len(found) <= len(events)


@pytest.mark.parametrize("key", ["device", "address", "total_size", "blocks", "frames", "stream"])
def test_a_wrong_segment_costs_at_most_itself(tmp_path: Path, key: str) -> None:
    segments = [segment(BASE + 8192 * n, 4096) for n in range(len(WRONG) + 1)]
    for one, wrong in zip(segments[1:], WRONG, strict=True):
        one[key] = wrong
    with imported_value(history([alloc(BASE, 512)], segments=segments), tmp_path) as trace:
        assert (BASE, 4096) in trace.sql("SELECT address, size_bytes FROM region").fetchall()
        assert curve(trace)[-1] == 512


def test_wrong_blocks_frames_and_facts_cost_at_most_themselves(tmp_path: Path) -> None:
    block = {"address": BASE, "size": 512, "requested_size": 512, "state": "active_allocated", "frames": []}
    blocks = [part for wrong in WRONG for part in ({**block, key: wrong} for key in block)]
    frames = [{"name": wrong, "filename": wrong, "line": wrong, "fx_node_name": wrong} for wrong in WRONG]
    value = history(
        [alloc(1, 1, frames=[*frames, *WRONG])],
        segments=[segment(BASE, 1 << 20, [*blocks, *WRONG])],
        allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": b"x", "OTHER_ALLOC_CONF": "a:b"},
        external_annotations=[*WRONG, *({"name": wrong, "stage": wrong} for wrong in WRONG)],
        ral_trace={"processes": WRONG, "devices": [*WRONG, *({"position": 0, "index": wrong} for wrong in WRONG)]},
    )  # fmt: skip
    with imported_value(value, tmp_path) as trace:
        assert trace.sql("SELECT size_bytes FROM allocation WHERE address = 1").fetchall() == [(1,)]
        assert min(curve(trace)) > 0


@pytest.mark.parametrize("key", ["action", "addr", "size", "name"])
@pytest.mark.parametrize(
    "instructions",
    [
        b"]q\x01" + b"".join(b"0]q%c(h%ch%ce" % (n, n - 1, n - 1) for n in range(2, 42)),  # 2**40 elements
        b"]" * 100_000 + b"a" * 99_999,
    ],
)
def test_a_value_that_is_endless_as_text_is_named_by_its_type(tmp_path: Path, key: str, instructions: bytes) -> None:
    def named(name: str) -> bytes:
        return b"X" + struct.pack("<I", len(name)) + name.encode()

    plain = {"action": named("alloc"), "addr": b"K\x01", "size": b"K\x01", "name": named("range")}
    entry = b"}(" + b"".join(named(name) + value for name, value in (plain | {key: instructions}).items()) + b"u"
    lists = {"segments": b"]", "device_traces": b"]]" + entry + b"aa", "external_annotations": b"]" + entry + b"a"}
    path = tmp_path / "endless.pickle"
    path.write_bytes(b"\x80\x02}(" + b"".join(named(name) + value for name, value in lists.items()) + b"u.")
    if key == "name":
        import_files([path], tmp_path / "out.duckdb")
    else:
        with pytest.raises(InputRefused, match="nothing that could be read"):
            import_files([path], tmp_path / "out.duckdb")


def test_sums_stay_within_64_bits(tmp_path: Path) -> None:
    with imported_value(history([alloc(n, 2**60) for n in range(1, 9)]), tmp_path) as trace:
        assert max(curve(trace)) == 2**62
        assert said(trace, "events without an address or a size that can be") == 4


def test_the_highest_addresses_are_kept(tmp_path: Path) -> None:
    with imported_value(history([alloc(2**64 - 512, 512)]), tmp_path) as trace:
        assert trace.sql("SELECT address FROM allocation").fetchall() == [(2**64 - 512,)]


def test_text_that_is_not_utf_8_is_replaced(tmp_path: Path) -> None:
    data = pickle.dumps(history([alloc(1, 1, frames=[{"name": "bad_name", "filename": "x", "line": 1}])]))
    path = tmp_path / "bad.pickle"
    path.write_bytes(data.replace(b"bad_name", b"bad\xff\xfeame"))
    with imported(path, tmp_path) as trace:
        assert trace.sql("SELECT frames[1].function FROM stack").fetchall() == [("bad\ufffd\ufffdame",)]
        assert said(trace, "texts that are not UTF-8") == 1


def test_bytes_behind_the_end_are_said(tmp_path: Path) -> None:
    path = tmp_path / "long.pickle"
    path.write_bytes((CASES / "leak_every_step.pickle").read_bytes() + b"more")
    with imported(path, tmp_path) as trace:
        assert said(trace, "bytes behind the end") == 4


REAL = TRACES / "cuda_memory_snapshot.pickle"


@needs_shared
def test_a_real_snapshot_says_what_a_plain_replay_says(tmp_path: Path) -> None:
    value = pickle.loads(REAL.read_bytes())
    [entries] = value["device_traces"]
    counts = Counter(entry["action"] for entry in entries)
    live: dict[int, int] = {}
    level = peak = 0
    for entry in entries:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry["size"]
            level += entry["size"]
        elif entry["action"] == "free_completed":
            level -= live.pop(entry["addr"])
        peak = max(peak, level)
    assert (sum(counts.values()), peak, level, len(live)) == (23_105, 1_783_664_516, 1_011_485_828, 397)
    with imported(REAL, tmp_path) as trace:
        assert kinds(trace) == {
            "alloc": counts["alloc"], "free": counts["free_completed"], "region": counts["segment_alloc"],
            "annotation": len(value["external_annotations"]) // 2,
        }  # fmt: skip
        levels = curve(trace)
        assert (max(levels), levels[-1]) == (peak, level)
        left = trace.sql("SELECT address, size_bytes FROM allocation WHERE free_ns IS NULL").fetchall()
        assert dict(left) == live
        assert trace.sql("SELECT count(*), sum(size_bytes) FROM region WHERE closed_ns IS NULL").fetchall() == [
            (len(value["segments"]), sum(segment["total_size"] for segment in value["segments"]))
        ]
        assert trace.sql("SELECT count(*) FROM allocation WHERE before_trace OR stack IS NULL").fetchall() == [(0,)]
        [(first, last)] = trace.sql(
            "SELECT min(ts_ns), max(ts_ns) FROM event WHERE kind IN ('alloc', 'free', 'region')"
        ).fetchall()
        assert (first, last // 1000) == (entries[0]["time_us"] * 1000, entries[-1]["time_us"])
        stacks = {tuple((f["filename"], f["line"], f["name"]) for f in entry["frames"]) for entry in entries} - {()}
        found = trace.sql("SELECT frames FROM stack").fetchall()
        assert {tuple((f["file"], f["line"], f["function"]) for f in frames) for (frames,) in found} == stacks


def try_to_read(data: bytes, path: Path, out: Path) -> None:
    """It is refused in one line, or what it gives adds up."""
    path.write_bytes(data)
    out.unlink(missing_ok=True)
    refused = None
    try:
        import_files([path], out)
    except InputRefused as error:
        refused = str(error)
    if refused is not None:
        assert "\n" not in refused
        return
    with open_trace(out) as trace:
        assert trace.sql("SELECT count(*) FROM memory_curve WHERE allocated_bytes < 0").fetchall() == [(0,)]
        assert trace.sql("SELECT count(*) FROM reserved_curve WHERE reserved_bytes < 0").fetchall() == [(0,)]
        assert trace.sql("SELECT count(*) FROM allocation WHERE free_ns < alloc_ns").fetchall() == [(0,)]


def mutated(data: bytes, generator: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(changed))
        how = generator.randrange(4)
        if how == 0:
            changed[at] = generator.randrange(256)
        elif how == 1:
            del changed[at : at + generator.randint(1, 9)]
        elif how == 2:
            changed[at:at] = generator.randbytes(generator.randint(1, 9))
        else:
            changed[at : at + 8] = changed[(other := generator.randrange(len(changed))) : other + 8]
    return bytes(changed) if generator.random() < 0.9 else bytes(changed[: generator.randrange(1, len(changed) + 1)])


def rich_snapshot() -> bytes:
    frames = [{"name": "f", "filename": "f.py", "line": 3}]
    events = [alloc(BASE + 512 * n, 512, time_us=EPOCH_US + n, frames=frames) for n in range(4)]
    events += [
        alloc(BASE, 512, "free_requested", time_us=EPOCH_US + 5),
        alloc(BASE, 512, "free_completed", time_us=EPOCH_US + 6),
    ]
    events += [
        alloc(4096, 8192, "segment_map", time_us=EPOCH_US + 7),
        alloc(8192, 4096, "segment_unmap", time_us=EPOCH_US + 8),
    ]
    blocks = [{"address": BASE, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": frames}]
    ranges = [{"name": "r", "stage": stage, "device": 0, "time_us": EPOCH_US} for stage in ("START", "END")]
    return pickle.dumps(history(events, [], segments=[segment(BASE, 8192, blocks)], external_annotations=ranges))


def test_damaged_files_are_refused_or_right(tmp_path: Path) -> None:
    generator = random.Random(7)
    files = [rich_snapshot(), *(path.read_bytes() for path in CASES.glob("*e.pickle"))]
    for _ in range(20):
        try_to_read(mutated(generator.choice(files), generator), tmp_path / "x.pickle", tmp_path / "x.duckdb")


@pytest.mark.soak
def test_many_damaged_files_are_refused_or_right(tmp_path: Path) -> None:
    files = [rich_snapshot(), *(path.read_bytes() for path in CASES.glob("*.pickle") if path.stat().st_size)]
    for seed in range(5_000):
        generator = random.Random(seed)
        try_to_read(mutated(generator.choice(files), generator), tmp_path / "x.pickle", tmp_path / "x.duckdb")


def test_random_instructions_never_break_the_reader() -> None:
    generator = random.Random(3)
    codes = b"().0122NRKMJ\x8a\x8bILGFXT\x8cUVCB}])dlt\x85\x86\x87aesuqrhjgp\x94\x80\x95bc\x93S" + bytes(range(8))
    for _ in range(20_000):
        data = bytes(generator.choices(codes, k=generator.randrange(60)))
        with suppress(ValueError):
            _native.read_plain_pickle(data)


@needs_shared
def test_a_snapshot_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    data = REAL.read_bytes()
    for kept in (1, 2, 12, 1000, len(data) // 2, len(data) - 1):
        path = tmp_path / "cut.pickle"
        path.write_bytes(data[:kept])
        with pytest.raises(InputRefused):
            import_files([path], tmp_path / "out.duckdb")
