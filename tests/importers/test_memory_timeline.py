"""Memory timelines of torch.profiler become counters: the right values, and files that are cut off or lie."""

import gzip
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import import_files, memory_timeline
from ral_trace.tracer.importers.opening import Head
from ral_trace.tracer.reading import Trace, open_trace

START_NS = 1_763_324_225_770_003_000
PLOT = [[START_NS // 1000 + n for n in (0, 5, 9)],
        [[0, 100, 0, 0, 7, 0, 0, 0, 0], [0, 100, 0, 0, 9, 0, 50, 0, 0], [0, 100, 0, 0, 0, 0, 50, 0, 3]]]  # fmt: skip
LAST_VALUES = """
    SELECT series, arg_max(value, ts_ns) FROM counter_value JOIN counter ON counter.id = counter GROUP BY 1"""
RAW = [
    [-1, 1, 100, 0],
    [START_NS, 2, 7, 3],
    [START_NS + 5, 3, -7, 3],
    [START_NS + 5, 3, 7, 5],
    [START_NS + 9, 4, -7, 5],
]


@contextmanager
def imported(content: bytes, folder: Path) -> Iterator[Trace]:
    path, out = folder / "timeline.json", folder / "out.duckdb"
    path.write_bytes(content)
    out.unlink(missing_ok=True)
    import_files([path], out)
    with open_trace(out) as trace:
        yield trace


def series(trace: Trace) -> dict[str, list[tuple[int, float | None]]]:
    found: dict[str, list[tuple[int, float | None]]] = {}
    for name, unit, ts_ns, value in trace.sql(
        "SELECT series, unit, ts_ns, value FROM counter_value JOIN counter ON counter.id = counter ORDER BY ts_ns"
    ).fetchall():
        assert unit == "bytes"
        found.setdefault(name.removeprefix("memory: "), []).append((ts_ns - START_NS, value))
    return found


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lambda data: b"\xef\xbb\xbf\n " + data])
def test_the_plot_form(tmp_path: Path, pack: Any) -> None:
    with imported(pack(json.dumps(PLOT).encode()), tmp_path) as trace:
        found = series(trace)
        assert trace.sql("SELECT clock_zero, format FROM source").fetchall() == [
            ("unix epoch", "torch.profiler memory timeline")
        ]
    assert found["parameter"] == [(0, 100)]
    assert found["temporary"] == [(0, 7), (5_000, 9), (9_000, 0)]
    assert found["gradient"] == [(0, 0), (5_000, 50)]
    assert found["unknown"] == [(0, 0), (9_000, 3)]


def test_the_raw_form(tmp_path: Path) -> None:
    with imported(json.dumps(RAW).encode(), tmp_path) as trace:
        found = series(trace)
    assert found["parameter"] == [(0, 100)]
    assert found["temporary"] == [(0, 7), (5, 0)]
    assert found["gradient"] == [(0, 0), (5, 7), (9, 0)]


def test_a_plot_of_four_moments_is_not_taken_for_an_event(tmp_path: Path) -> None:
    plot = [[START_NS // 1000 + n for n in range(4)], [[0] + [n] * 8 for n in range(4)]]
    with imported(json.dumps(plot, separators=(",", ":")).encode(), tmp_path) as trace:
        assert series(trace)["input"] == [(1000 * n, n) for n in range(4)]


def test_pytorch_writes_what_is_read(tmp_path: Path) -> None:
    """Both forms as torch's own exporter writes them, of a small run on the CPU."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(64, 64)
    settings = {"profile_memory": True, "record_shapes": True, "with_stack": True}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **settings) as profile:
        model(torch.ones(8, 64)).sum().backward()
    plot, raw = tmp_path / "plot.json", tmp_path / "raw.json.gz"
    profile.export_memory_timeline(str(plot), device="cpu")
    profile.export_memory_timeline(str(raw), device="cpu")
    _, sizes = json.loads(plot.read_bytes())
    with imported(plot.read_bytes(), tmp_path) as trace:
        ends = dict(trace.sql(LAST_VALUES).fetchall())
    assert sorted(ends.values()) == sorted(sizes[-1][1:])
    assert ends["memory: parameter"] == sizes[-1][1] > 0
    with imported(raw.read_bytes(), tmp_path) as trace:
        again = dict(trace.sql(LAST_VALUES).fetchall())
    assert again == ends


def test_long_files_are_read_block_by_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_timeline, "BLOCK", 70)
    events = [[START_NS + n, 2, n + 1, n % 8] for n in range(2_000)]
    with imported(json.dumps(events).encode(), tmp_path) as trace:
        assert sum(values[-1][1] or 0 for values in series(trace).values()) == sum(range(2_001))


def test_no_events_are_said(tmp_path: Path) -> None:
    for empty in (b"[[], []]", b"[[],[]]"):
        with imported(empty, tmp_path) as trace:
            assert trace.sql("SELECT count(*) FROM counter_value").fetchall() == [(0,)]
            assert [what for (what,) in trace.sql("SELECT what FROM quality").fetchall()] == [
                "no memory events: the profiler recorded none of this device"
            ]


def test_events_that_are_wrong_cost_only_themselves(tmp_path: Path) -> None:
    wrong = [
        [START_NS, 2],
        [START_NS, 9, 5, 1],
        [START_NS, 2, 5, 99],
        [START_NS, 2, 2**62 - 1, 0],
        [START_NS, 2, 2**62 - 1, 0],
        [2**61, 2, 5, 0],
        [-(2**61), 2, 5, 0],
    ]
    with imported(json.dumps([*RAW, *wrong]).encode(), tmp_path) as trace:
        assert series(trace)["gradient"][-1] == (9, 0)
        [(count,)] = trace.sql("SELECT sum(count) FROM quality").fetchall()
        assert count == 7


def test_a_level_below_nothing_is_a_gap(tmp_path: Path) -> None:
    with imported(json.dumps([[START_NS, 2, 5, 0], [START_NS + 1, 4, -9, 0]]).encode(), tmp_path) as trace:
        assert series(trace)["parameter"] == [(0, 5), (1, None)]


@pytest.mark.parametrize(
    "content",
    [
        b"[[1, 2], [[0, 1, 2, 3, 4, 5, 6, 7, 8]]]", b"[[1], [[0, 1]]]", b"[[1, 2, 3", b"[[1,2,3,4],", b"[[1,2,3,4]",
        b"[[1, 2, 3, 4], [5, 6, 7, NaN]]", b'[[1, 2, 3, 4], ["x"]]', b"[[1, 2, 3, 4.5]]", b"[[1, 2, 3, 1e400]]",
        b"[[1,,2]]", b"[[1,2,]]", b"[[1,2,3,4] [5,6,7,8]]", b"[[" + b"9" * 100_000 + b"]]", b"[[1]" + b"[" * 100_000,
        b"[[1, 2, 3, 4], [[" * 1000, b"[[1,2],3]", b"[[1,2,3,4],\xff]", b"[[9999999999999999999,1,2,3]]",
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(InputRefused) as refused, imported(content, tmp_path):
        pass
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out.duckdb").exists()


@pytest.mark.parametrize("document", [PLOT, RAW])
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, document: Any) -> None:
    data = json.dumps(document).encode()
    for kept in range(1, len(data) - 1, 17):
        with pytest.raises(InputRefused), imported(data[:kept], tmp_path):
            pass


def test_damaged_files_are_refused_or_read(tmp_path: Path) -> None:
    generator = random.Random(5)
    for _ in range(20):
        data = bytearray(json.dumps(generator.choice([PLOT, RAW])).encode())
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(len(data))] = generator.choice(b"[],-0159 x.\xff")
        with suppress(InputRefused), imported(bytes(data), tmp_path) as trace:
            assert trace.sql("SELECT count(*) FROM counter_value WHERE value < 0").fetchall() == [(0,)]


def test_it_knows_its_files() -> None:
    for known in (b"[[1, 2], [[0", b" [ [ -1, 1, 100, 0], ", b"[[], []]", b"\xef\xbb\xbf[[1,"):
        assert memory_timeline.sniff(Head(Path("x"), known)) > 0
    for other in (b"[{", b"[1, 2]", b'[["a"]]', b"{}", b"", b"[[[1]]]", b"\x80\x04]"):
        assert memory_timeline.sniff(Head(Path("x"), other)) == 0
