"""`ral-trace import` as people type it."""

import gzip
import json
import os
from pathlib import Path

from ral_trace.tracer import open_trace
from tests.integration.programs import ral_trace
from tests.synthetic import training

EVENTS = [
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 7,
        "tid": 7,
        "ts": 10,
        "dur": 5,
        "args": {"External id": 1},
    },
    {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 7, "ts": 20, "dur": -3, "args": {}},
]


def kineto(path: Path, rank: int, world_size: int = 2) -> Path:
    """A trace of torch.profiler with one good and one bad event."""
    info = {"backend": "nccl", "rank": rank, "world_size": world_size}
    path.write_bytes(gzip.compress(json.dumps({"distributedInfo": info, "traceEvents": EVENTS}).encode()))
    return path


def test_a_file_becomes_a_trace_and_its_faults_are_said(tmp_path: Path) -> None:
    kineto(tmp_path / "any name", 0, 1)
    done = ral_trace("import", "any name", "-o", "run.duckdb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "run.duckdb: 2 events of 1 file" in done.stderr
    assert "negative duration" in done.stderr
    with open_trace(tmp_path / "run.duckdb") as trace:
        assert trace.rows("SELECT kind, name, ts_ns, dur_ns FROM events WHERE valid") == [
            {"kind": "op", "name": "aten::mm", "ts_ns": 10_000, "dur_ns": 5_000}
        ]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_ending_of_the_output_decides_its_format(tmp_path: Path) -> None:
    kineto(tmp_path / "in", 0, 1)
    done = ral_trace("import", "in", "-o", "run.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "run.json: 2 events" in done.stderr
    with open_trace(tmp_path / "run.json") as trace:
        assert trace.sql("SELECT count(*) FROM event").fetchall() == [(2,)]


def test_one_bad_file_of_several_costs_the_others_nothing(tmp_path: Path) -> None:
    kineto(tmp_path / "a", 0)
    kineto(tmp_path / "b", 1)
    (tmp_path / "c").write_bytes(b"")
    (tmp_path / "d").write_bytes(b"no trace at all")
    done = ral_trace("import", "a", "b", "c", "d", "e", "-o", "run.duckdb", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    for said in ("c: the file is empty", "d: is of no format that is known here", "e: there is no such file"):
        assert said in done.stderr
    with open_trace(tmp_path / "run.duckdb") as trace:
        assert trace.sql("SELECT rank FROM source ORDER BY id").fetchall() == [(0,), (1,)]


def test_bad_files_alone_are_refused_in_one_line_and_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"\x00\x01\x02")
    done = ral_trace("import", "bad", "-o", "run.duckdb", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1, done.stderr
    assert "bad: is of no format that is known here" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_a_folder_gives_all_that_is_known_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    kineto(folder / "one", 0)
    kineto(folder / "two", 1)
    (folder / "notes.txt").write_text("not a trace")
    done = ral_trace("import", "log", "-o", "run.duckdb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 events of 2 files" in done.stderr
    assert "files in a folder that are of no known format (1, such as notes.txt)" in done.stderr


def test_a_file_is_a_trace_for_every_command(tmp_path: Path) -> None:
    kineto(tmp_path / "in.json.gz", 0, 1)
    done = ral_trace("query", "in.json.gz", "SELECT name FROM event ORDER BY ts_ns", cwd=tmp_path)
    assert done.stdout.split() == ["name", "aten::mm", "aten::add"]
    assert ral_trace("--report", "in.json.gz", cwd=tmp_path).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["in.json.gz"]


def test_a_trace_of_ours_is_not_imported_with_others(tmp_path: Path) -> None:
    training(tmp_path / "run.duckdb", launches=20)
    assert ral_trace("export", "run.duckdb", "-o", "run.json", cwd=tmp_path).returncode == 0
    kineto(tmp_path / "in", 0)
    done = ral_trace("import", "run.json", "in", "-o", "both.duckdb", cwd=tmp_path)
    assert done.returncode == 4
    assert "holds a whole trace, which cannot be merged with others" in done.stderr
    assert not (tmp_path / "both.duckdb").exists()


def test_an_input_is_never_replaced(tmp_path: Path) -> None:
    given = kineto(tmp_path / "in.json", 0, 1).read_bytes()
    (tmp_path / "link.json").symlink_to("in.json")
    for words in (["import", "in.json", "-o", "in.json"], ["import", "in.json", "-o", "link.json"],
                  ["export", "in.json", "-o", "./in.json"]):  # fmt: skip
        done = ral_trace(*words, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert "is what is read, and would be replaced" in done.stderr
        assert (tmp_path / "in.json").read_bytes() == given


def test_a_file_that_is_given_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    kineto(tmp_path / "folder" / "a", 0, 1)
    (tmp_path / "link").symlink_to("folder/a")
    done = ral_trace("import", "folder/a", "link", "folder", "-o", "run.duckdb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "run.duckdb: 2 events of 1 file" in done.stderr
    assert "files that were given more than once: read once (2, such as link)" in done.stderr


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for words in (["import", "pipe", "-o", "run.duckdb"], ["--report", "pipe"], ["query", "pipe", "SELECT 1"],
                  ["import", "/dev/zero", "-o", "run.duckdb"]):  # fmt: skip
        done = ral_trace(*words, cwd=tmp_path)
        assert done.returncode == 4, done.stderr
        assert "is a pipe or a device; write what it gives to a file" in done.stderr


def test_a_name_that_cannot_be_and_a_trace_are_refused(tmp_path: Path) -> None:
    for words in (["import", "n" * 300, "-o", "run.duckdb"], ["--report", "n" * 300]):
        done = ral_trace(*words, cwd=tmp_path)
        assert done.returncode == 4, done.stderr
        assert "cannot be read (File name too long)" in done.stderr
        assert done.stderr.count("\n") == 1
    kineto(tmp_path / "in", 0, 1)
    assert ral_trace("import", "in", "-o", "a.duckdb", cwd=tmp_path).returncode == 0
    done = ral_trace("import", "a.duckdb", "-o", "b.duckdb", cwd=tmp_path)
    assert done.returncode == 4
    assert "a.duckdb: is a trace already; read it with" in done.stderr


def test_names_of_files_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    name = "n\n\x1b[31mred"
    (tmp_path / name).write_bytes(b"no trace")
    done = ral_trace("import", name, "-o", "run.duckdb", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr.startswith("ral-trace: n\\x0a\\x1b[31mred: is of no format")
    assert done.stderr.count("\n") == 1
    kineto(tmp_path / "in", 0, 1)
    done = ral_trace("import", "in", name, "-o", f"{name}.duckdb", cwd=tmp_path)
    assert done.returncode == 4
    assert "n\\x0a\\x1b[31mred.duckdb: 2 events" in done.stderr
    assert "\x1b" not in done.stderr


def test_folders_in_folders_end_somewhere(tmp_path: Path) -> None:
    """Links that lead round in circles are not followed."""
    deep = tmp_path / "in" / "/".join("d" * 40)
    deep.mkdir(parents=True)
    for name in "xyz":
        (tmp_path / "in" / name).symlink_to(".")
    kineto(tmp_path / "in" / "a", 0, 1)
    kineto(tmp_path / "in" / "d" / "d" / "b", 0, 1)
    kineto(deep / "c", 0, 1)
    done = ral_trace("import", "in", "-o", "run.duckdb", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "run.duckdb: 6 events of 3 files" in done.stderr
    assert "links in a folder: not followed (3, such as x)" in done.stderr
