"""Outputs are private, appear whole or not at all, and errors are one line."""

import itertools
import os
import stat
from pathlib import Path

import pytest

from ral_trace.tracer.cli import main
from ral_trace.tracer.errors import RalTraceError, UsageError
from ral_trace.tracer.exporters import (
    Window,
    collapsed,
    export,
    exporter_for,
    otlp,
    own_json,
    parquet,
    perfetto,
    snapshot,
    speedscope,
    table,
)
from ral_trace.tracer.reading import open_trace
from ral_trace.tracer.store import TraceBuilder
from tests.exporters.replay import replay
from tests.synthetic import training

NAMES = ["run.pftrace", "run.json", "run.json.gz", "run.otlp.json", "run.otlp.jsonl", "run"]
OTHERS = ["run.speedscope.json", "run.pickle", "run.collapsed", "run.folded", "run.csv", "run.tsv"]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_ending_chooses() -> None:
    assert [exporter_for(Path(name)) for name in NAMES] == [perfetto, own_json, own_json, otlp, otlp, parquet]
    assert [exporter_for(Path(name)) for name in OTHERS] == [speedscope, snapshot, collapsed, collapsed, table, table]
    with pytest.raises(UsageError, match=r"no exporter writes '\.txt'; choose one of: \.pftrace, \.speedscope\.json"):
        exporter_for(Path("run.txt"))


@pytest.mark.parametrize("name", NAMES + OTHERS)
def test_outputs_are_private_and_nothing_else_is_left(tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    with open_trace(training(tmp_path / "run.duckdb", launches=100)) as trace:
        out = export(trace, tmp_path / "out" / name)
    assert list(out.parent.iterdir()) == [out]
    assert mode(out) == (0o700 if out.is_dir() else 0o600)
    assert all(mode(path) == 0o600 for path in out.rglob("*.parquet"))


@pytest.mark.parametrize("how", ["symlink", "hard link", "open to all"])
@pytest.mark.parametrize("name", ["run.pftrace", "run.otlp.json.gz", "run.csv"])
def test_what_lies_under_the_temporary_name_is_not_written_to(tmp_path: Path, name: str, how: str) -> None:
    """It may be an attacker's, or what a killed export of the same process number left."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    victim.chmod(0o666)
    partial = tmp_path / f".partial-{os.getpid()}-{name}"
    if how == "symlink":
        partial.symlink_to(victim)
    elif how == "hard link":
        partial.hardlink_to(victim)
    else:
        partial.touch()
        partial.chmod(0o666)
    with open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace:
        out = export(trace, tmp_path / name)
    assert victim.read_text() == "kept"
    assert (mode(out), out.is_symlink(), out.stat().st_nlink) == (0o600, False, 1)
    assert not list(tmp_path.glob(".partial*"))


def test_a_link_under_the_temporary_name_of_a_folder_leads_nowhere(tmp_path: Path) -> None:
    kept = tmp_path / "victim" / "kept"
    kept.parent.mkdir()
    kept.touch()
    (tmp_path / f".partial-{os.getpid()}-run").symlink_to(kept.parent)
    with (
        open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace,
        pytest.raises(RalTraceError, match="could not be written"),
    ):
        export(trace, tmp_path / "run")
    assert list(kept.parent.iterdir()) == [kept]


@pytest.mark.parametrize("name", NAMES + OTHERS)
def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, name: str) -> None:
    with open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace:
        out = tmp_path / "missing" / name
        with pytest.raises(RalTraceError) as refused:
            export(trace, out)
    assert str(refused.value).startswith(f"{out}: could not be written (")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["run.pftrace", "run"])
def test_a_folder_in_the_way_stays(tmp_path: Path, name: str) -> None:
    kept = tmp_path / name / "kept"
    kept.mkdir(parents=True)
    with (
        open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace,
        pytest.raises(UsageError, match="there is a folder of that name"),
    ):
        export(trace, tmp_path / name)
    assert kept.exists()
    assert not list(tmp_path.glob(".partial*"))


def test_a_file_is_replaced(tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    out.write_text("old")
    with open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace:
        export(trace, out)
    assert out.read_bytes().startswith(b'{"ralTrace":')


def parts(tmp_path: Path, name: str, window: Window) -> set[tuple[str, str | None]]:
    """Kinds and devices of the rows in a part of a trace of two devices, by way of our JSON."""
    with open_trace(training(tmp_path / "run.duckdb", launches=300)) as trace:
        out = export(trace, tmp_path / name, window)
    with open_trace(out) as part:
        return set(part.sql("SELECT DISTINCT kind::VARCHAR, device_label FROM events").fetchall())


def test_a_device_keeps_its_rows_and_the_host_rows_that_led_to_them(tmp_path: Path) -> None:
    found = parts(tmp_path, "part.json", Window(devices=("ral:0",)))
    assert {device for _, device in found} == {"ral:0", None}
    assert {kind for kind, device in found if device is None} == {"op", "annotation"}
    with open_trace(tmp_path / "run.duckdb") as trace, open_trace(tmp_path / "part.json") as part:
        query = "SELECT id FROM events WHERE device_label = 'ral:0' ORDER BY id"
        assert part.sql(query).fetchall() == trace.sql(query).fetchall()
        ops = trace.sql("""
            SELECT DISTINCT parent FROM events WHERE kind = 'launch' AND device_label = 'ral:0'
            AND parent IN (SELECT id FROM event WHERE kind = 'op') ORDER BY 1""").fetchall()
        assert part.sql("SELECT id FROM event WHERE kind = 'op' ORDER BY id").fetchall() == ops
        assert part.sql("SELECT DISTINCT device FROM allocation").fetchall() == [(0,)]
        [(what, left)] = part.sql("SELECT what, count FROM quality WHERE process IS NULL").fetchall()
        assert what == "only a part of the recording was exported, of ral:0: rows that were left out"
        whole, kept = (each.sql("SELECT count(*) FROM event").fetchall()[0][0] for each in (trace, part))
        assert left == whole - kept > 0


def test_a_launch_that_does_not_say_its_device_is_found_by_its_correlation(tmp_path: Path) -> None:
    """As in the traces of other tools."""
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        process = builder.add("process", source=builder.add("source", format="kineto"), pid=5)
        thread = builder.add("thread", process=process, tid=1)
        devices = [builder.add("device", process=process, type="cuda", index=n) for n in (0, 1)]
        host = {"process": process, "thread": thread, "flags": 0}
        for n, device in enumerate(devices):
            at = 100 * n
            builder.add("event", kind="op", name=f"op {n}", ts_ns=at, dur_ns=50, **host)
            builder.add("event", kind="launch", name=f"launch {n}", ts_ns=at + 10, dur_ns=5, correlation=n, **host)
            placed = {"process": process, "device": device, "correlation": n, "flags": 0}
            builder.add("event", kind="kernel", name=f"kernel {n}", ts_ns=at + 20, dur_ns=5, **placed)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        out = export(trace, tmp_path / "part.json", Window(devices=("cuda:1",)))
    with open_trace(out) as part:
        assert part.sql("SELECT name FROM event ORDER BY ts_ns").fetchall() == [("op 1",), ("launch 1",), ("kernel 1",)]


@pytest.mark.parametrize("devices", [("ral:0", "ral:1"), ("ral",)])
def test_several_devices(tmp_path: Path, devices: tuple[str, ...]) -> None:
    assert {device for _, device in parts(tmp_path, "part.json", Window(devices=devices))} == {"ral:0", "ral:1", None}


def test_kinds(tmp_path: Path) -> None:
    found = parts(tmp_path, "part.json", Window(devices=("ral:1",), kinds=("kernel", "transfer")))
    assert found == {("kernel", "ral:1"), ("transfer", "ral:1")}
    with open_trace(tmp_path / "part.json") as part:
        assert part.sql("SELECT 1 FROM allocation UNION ALL SELECT 1 FROM flow").fetchall() == []


def test_only_counters_of_the_chosen_are_drawn(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb", launches=300)) as trace:
        window = Window(devices=("ral:1",), kinds=("kernel", "alloc"))
        played = replay(export(trace, tmp_path / "run.pftrace", window).read_bytes())
    names = {(played.tracks[uuid].name, played.parent(uuid).name) for uuid in played.counters}
    device = "ral:1 · sim · Sim accelerator"
    assert names == {("allocated bytes", device), ("queue depth of stream 0 · compute", device)}
    assert {one.category for one in played.slices} == {"kernel"}


def test_an_unknown_device_or_kind_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb", launches=20)) as trace:
        with pytest.raises(UsageError, match="there is no device cuda:0 in it; its devices: ral:0, ral:1"):
            export(trace, tmp_path / "part.json", Window(devices=("cuda:0",)))
        with pytest.raises(UsageError, match="there is no kind of event 'kernels'; choose from: op, launch, kernel"):
            export(trace, tmp_path / "part.json", Window(kinds=("kernels",)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.duckdb"]


def test_the_command_line_says_which_part(tmp_path: Path) -> None:
    training(tmp_path / "run.duckdb", launches=100)
    words = ["export", str(tmp_path / "run.duckdb"), "-o", str(tmp_path / "out.json"), "--from", "1ms", "--to", "3ms"]
    words += ["--device", "ral:0", "--device", "ral:1", "--kind", "kernel,transfer", "--kind", "sync"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    with open_trace(tmp_path / "out.json") as part:
        assert {kind for (kind,) in part.sql("SELECT DISTINCT kind::VARCHAR FROM event").fetchall()} <= {
            "kernel", "transfer", "sync",
        }  # fmt: skip
        [(what,)] = part.sql("SELECT what FROM quality WHERE process IS NULL").fetchall()
    assert "from 1000000 ns after its first event to 3000000 ns" in what
    assert what.endswith("of ral:0, ral:1, of the kinds kernel, transfer, sync: rows that were left out")
    with pytest.raises(SystemExit) as ended:
        main([*words, "--kind", "kernel,"])
    assert ended.value.code == 2


def test_times_at_the_limits_of_64_bits_can_be_drawn(tmp_path: Path) -> None:
    """A clock below zero is moved up, so that what is farthest from it has no place: it is drawn at the very end."""
    most = 2**63 - 1
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        process = builder.add("process", source=builder.add("source", format="kineto"), pid=5, started_ns=-most)
        place = {"process": process, "device": builder.add("device", process=process, type="cuda", index=0)}
        counter = builder.add("counter", series="power", unit="W", **place)
        for kind, at, duration in itertools.product(("op", "fallback", "transfer"), (-most, 0, most), (0, 5, most)):
            row = {"category": "host_to_device", "bytes": 7, "flags": 0, **place}
            builder.add("event", kind=kind, name=f"{at} + {duration}", ts_ns=at, dur_ns=duration, **row)
        for at in (-most, most):
            builder.add("counter_value", counter=counter, ts_ns=at, value=1.5)
        builder.finish()
    with open_trace(tmp_path / "run.duckdb") as trace:
        for name in (*NAMES, *OTHERS[:4]):
            export(trace, tmp_path / name)
        played = replay(export(trace, tmp_path / "run.pftrace").read_bytes())
    starts = [one.ts_ns for one in played.slices if one.category != "mark"]
    assert sorted(starts) == [0] * 9 + [most] * 18
