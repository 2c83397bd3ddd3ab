"""Our JSON gives back the trace that was exported, table by table; a broken file is refused in one line."""

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ral_trace.analysis import ANALYSES, Analysis
from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.exporters import Window, export
from ral_trace.tracer.importers import import_files, own_json
from ral_trace.tracer.importers.opening import Head
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.schema import SCHEMA_VERSION, TABLES
from ral_trace.tracer.store import TraceBuilder
from tests.awkward import awkward
from tests.synthetic import training

STATED = b'"schema_version":%d' % SCHEMA_VERSION
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


def differences(first: Path, second: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Rows that are in one trace only, by table."""
    found = {}
    with open_trace(first, other=second) as trace:
        for table in TABLES:
            one, two = f"FROM trace.{table.name}", f"FROM other.{table.name}"
            found[table.name] = trace.sql(f"({one} EXCEPT ALL {two}) UNION ALL ({two} EXCEPT ALL {one})").fetchall()
    return {name: rows for name, rows in found.items() if rows}


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Trace, Trace]]:
    """A trace, and the same opened from its JSON."""
    original = training(tmp_path_factory.mktemp("twins") / "run.duckdb")
    with open_trace(original) as one, open_trace(as_json(original, ".json.gz")) as two:
        yield one, two


def as_json(duckdb_file: Path, ending: str = ".json") -> Path:
    with open_trace(duckdb_file) as trace:
        return export(trace, duckdb_file.with_suffix(ending))


@pytest.mark.parametrize("make", [training, awkward])
@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_every_table_comes_back(tmp_path: Path, make: Callable[[Path], Path], ending: str) -> None:
    original = make(tmp_path / "run.duckdb")
    back = import_files([as_json(original, ending)], tmp_path / "back.duckdb")
    assert differences(original, back) == {}


@pytest.mark.parametrize("question", ANALYSES, ids=lambda question: question.name)
def test_every_analysis_answers_the_same(twins: tuple[Trace, Trace], question: Analysis) -> None:
    one, two = (question.run(trace) for trace in twins)
    assert one == two


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(TEXT, max_size=6), value=st.floats(), number=st.integers(-(2**63), 2**63 - 1))
def test_any_text_and_number_comes_back(tmp_path: Path, names: list[str], value: float, number: int) -> None:
    with TraceBuilder(tmp_path / "run.duckdb") as builder:
        source = builder.add("source", format="live")
        process = builder.add("process", source=source, pid=number, name="".join(names))
        for name in names:
            args = json.dumps({name: name, "n": number}, ensure_ascii=False)
            builder.add(
                "event", kind="op", name=name, ts_ns=5, dur_ns=1, process=process, bytes=number, args=args, flags=0
            )
            builder.add("stack", frames=[{"file": name, "line": 1, "function": name}])
        counter = builder.add("counter", process=process, series="".join(names))
        builder.add("counter_value", counter=counter, ts_ns=number, value=value)
        original = builder.finish()
    back = import_files([as_json(original)], tmp_path / "back.duckdb")
    assert differences(original, back) == {}


def test_a_file_that_another_tool_laid_out_anew_is_read_too(tmp_path: Path) -> None:
    original = awkward(tmp_path / "run.duckdb")
    document = json.loads(as_json(original).read_text())
    again = tmp_path / "again.json"
    again.write_text(json.dumps(dict(reversed(document.items())), indent=1))
    again.write_text(json.dumps(document, indent=1))
    assert differences(original, import_files([again], tmp_path / "back.duckdb")) == {}


def test_a_window_is_a_trace_that_says_what_it_is(tmp_path: Path) -> None:
    with open_trace(training(tmp_path / "run.duckdb")) as trace:
        out = export(trace, tmp_path / "part.json", Window(3_000_000, 6_000_000))
        [(all_events,)] = trace.sql("SELECT count(*) FROM event").fetchall()
    with open_trace(out) as part:
        [(events,)] = part.sql("SELECT count(*) FROM event").fetchall()
        assert 0 < events < all_events
        [(what, left_out)] = part.sql("SELECT what, count FROM quality WHERE process IS NULL").fetchall()
        assert what.startswith("only a part of the recording was exported, from 3000000 ns after its first event")
        assert left_out == all_events - events
        assert part.sql("SELECT count(*) FROM flow WHERE from_event NOT IN (SELECT id FROM event)").fetchall() == [(0,)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return as_json(training(tmp_path_factory.mktemp("whole") / "run.duckdb", launches=50)).read_bytes()


def refusal(tmp_path: Path, content: bytes, name: str = "broken.json") -> str:
    """What the import of a file with `content` says: one line that names the file, the cause and the remedy."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputRefused) as refused:
        import_files([path], tmp_path / "back.duckdb")
    assert not (tmp_path / "back.duckdb").exists()
    said = str(refused.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    assert "; " in said
    return said.removeprefix(f"{path}: ")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_that_is_cut_off_is_refused(tmp_path: Path, whole: bytes, data: st.DataObject) -> None:
    kept = data.draw(st.integers(1, len(whole) - 2))
    said = refusal(tmp_path, whole[:kept])
    assert "cut off" in said or "damaged" in said or "format" in said


@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_compressed_file_that_is_cut_off_is_refused(tmp_path: Path, whole: bytes, kept: float) -> None:
    packed = gzip.compress(whole)
    assert "cut off" in refusal(tmp_path, packed[: int(len(packed) * kept)], "broken.json.gz")


def test_a_compressed_file_with_wrong_bytes_is_refused(tmp_path: Path, whole: bytes) -> None:
    packed = bytearray(gzip.compress(whole))
    packed[len(packed) // 2] ^= 0xFF
    refusal(tmp_path, bytes(packed), "broken.json.gz")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"dur_ns":', b'"dur_ns":"x', "damaged"),
        (b'"kind":"op"', b'"kind":"no such kind"', "table event"),
        (b'"ts_ns":17', b'"ts_ns":"soon","x":17', "table event"),
        (b'"event":[', b'"no_such_table":[', "no table no_such_table"),
        (b'"format":1', b'"format":99', "has format 99"),
        (STATED, b'"schema_version":77', "schema version 77"),
        (b'"flow":[\n{', b'"flow":[\n{]', "table flow"),
        (b'"flow":[\n{', b'"flow":[\n\xff{', "table flow"),
        (b'"pid":4242', b'"pid":99999999999999999999999', "table process"),
        (b'"tables":{', b'"tables":{\n\n', "cut off"),
    ],
)
def test_a_file_with_a_wrong_part_is_refused(tmp_path: Path, whole: bytes, old: bytes, new: bytes, says: str) -> None:
    assert old in whole
    assert says in refusal(tmp_path, whole.replace(old, new, 1))


@pytest.mark.parametrize(
    "document",
    [
        {"ralTrace": 3},
        {"ralTrace": {"format": 1, "schema_version": SCHEMA_VERSION}},
        {"ralTrace": {"format": 1, "schema_version": SCHEMA_VERSION, "tables": []}},
        {"ralTrace": {"format": 1, "schema_version": SCHEMA_VERSION, "tables": {"event": 3}}},
        {"ralTrace": {"format": 1, "schema_version": SCHEMA_VERSION, "tables": {"event": [1, 2]}}},
        {"ralTrace": {"format": 1, "schema_version": SCHEMA_VERSION, "tables": {"event": []}}},
        {"ralTrace": {"format": 1, "schema_version": SCHEMA_VERSION, "tables": {"process": [{"id": [1]}]}}},
        ["ralTrace", "ralTrace"],
    ],
)
def test_a_document_of_another_shape_is_refused(tmp_path: Path, document: Any) -> None:
    refusal(tmp_path, json.dumps(document).encode().replace(b'["ralTrace", ', b'["ralTrace", "\\"ralTrace\\"", '))


@pytest.mark.parametrize(
    "content",
    [
        b'{"ralTrace":' + b"[" * 200_000,
        b'{"ralTrace":\x00\x01',
        b'{"ralTrace":{"format":1,' + STATED + b'},"tables":{\n',
        b'{"ralTrace":{"format":1,' + STATED + b',"tables":{\n',
        b'{"ralTrace":{"format":NaN,' + STATED + b',"tables":{\n"event":[\n]}},\n]}\n',
        b"not JSON",
        b"\x1f\x8b not gzip",
        b"[]",
    ],
)
def test_what_is_not_ours_is_refused(tmp_path: Path, content: bytes) -> None:
    refusal(tmp_path, content)


def test_a_lone_surrogate_is_refused(tmp_path: Path, whole: bytes) -> None:
    refusal(tmp_path, whole.replace(b'"name":"python"', b'"name":"\\ud800"', 1))


def test_a_whole_trace_is_not_merged_with_others(tmp_path: Path, whole: bytes) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        path.write_bytes(whole)
    with pytest.raises(InputRefused, match="cannot be merged"):
        import_files(paths, tmp_path / "back.duckdb")


def sniffed(data: bytes) -> float:
    return own_json.sniff(Head(Path("file"), data))


def test_it_knows_its_files(whole: bytes) -> None:
    assert sniffed(whole[:65536]) == 1
    assert sniffed(b' {\n  "ralTrace" : {') == 1
    assert 0 < sniffed(b'{"traceEvents":[],"ralTrace":{') < 1
    assert sniffed(b'{"traceEvents":[]}') == 0
