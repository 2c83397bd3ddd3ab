"""The scanner of Chrome's JSON from Python, and both importers on it against texts that nobody would write."""

import gzip
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ral_trace.tracer import _native
from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import open_trace
from tests.importers.reading_back import CASES
from tests.shared import TRACES, needs_shared

DATABASE = duckdb.connect()
Rows = list[dict[str, Any]]


def scan(text: bytes, piece: int = 1 << 20, **options: Any) -> tuple[Rows, _native.TraceJsonScanner]:
    """The rows of a text that is fed in pieces."""
    scanner = _native.TraceJsonScanner(**options)
    for at in range(0, len(text), piece):
        scanner.feed(text[at : at + piece])
    scanner.finish()
    groups = scanner.groups()
    wanted = ["name", "dur_ns", "id", "bp", "args", *(column for _, column, _ in options.get("fields", []))]
    DATABASE.register("batch", scanner.table.raw([True] * len(groups), wanted))
    found = DATABASE.sql("FROM batch ORDER BY n")
    names = found.columns
    rows = [dict.fromkeys(wanted) | dict(zip(names, row, strict=True)) for row in found.fetchall()]
    for row in rows:
        row["track"], row["ph"], row["cat"], row["pid"], row["tid"] = groups[row.pop("grp")][:5]
    return rows, scanner


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def clean(value: Any) -> Any:
    """What a value is once NUL characters are gone, of which DuckDB's JSON functions make an end of text."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, list):
        return [clean(one) for one in value]
    if isinstance(value, dict):
        return {clean(key): clean(one) for key, one in value.items()}
    return value


@settings(max_examples=80, deadline=None)
@given(
    name=st.text(), args=st.dictionaries(st.text(), JSON, max_size=6), number=st.integers(1 - 2**61, 2**61 - 1),
    ascii=st.booleans(), indent=st.sampled_from([None, 1]), piece=st.integers(1, 50),
)  # fmt: skip
def test_any_event_is_read_as_it_was_written(
    name: str, args: dict[str, Any], number: int, ascii: bool, indent: int | None, piece: int
) -> None:
    whole, part = divmod(abs(number), 1000)
    ts = f"{'-' if number < 0 else ''}{whole}.{part:03}"
    event = {"ph": "X", "name": name, "cat": name, "pid": number, "tid": name, "ts": "TS", "args": args}
    text = json.dumps({"before": args, "traceEvents": [event, {}], "after": name}, ensure_ascii=ascii, indent=indent)
    for shape in (text.replace('"TS"', ts), text.replace('"TS"', f'"{ts}"')):
        rows, scanner = scan(shape.encode("utf-8", "surrogatepass"), piece)
        [row] = rows
        assert (row["name"], row["cat"], row["tid"], row["pid"]) == (clean(name), clean(name), clean(name), str(number))
        assert row["ts_ns"] == number
        assert (json.loads(row["args"]) if row["args"] else {}) == clean(args)
        assert {key: json.loads(value) for key, value in scanner.metadata()} == {
            "before": clean(args),
            "after": clean(name),
        }
        assert not scanner.cut_off


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        ('{"a": NaN, "b": -Infinity, "c": inf, "d": -nan(ind)}', '{"a":null,"b":null,"c":null,"d":null}'),
        ('{"e": 1.#INF}', '{"e":null}'),
        ('{"a": 1, "b": 2, "a": 3}', '{"b":2,"a":3}'),
        ('{"a": {"x": 1, "x": 2}}', '{"a":{"x":2}}'),
        ('{"a": 01, "b": .5, "c": 0x1F, "d": +1, "e": True}', '{"a":"01","b":".5","c":"0x1F","d":"+1","e":"True"}'),
        ('{"a": 1e400, "b": 123456789012345678901234567890}', '{"a":1e400,"b":123456789012345678901234567890}'),
        ('{"a": "C:\\dir\\new", "b": "\\u00zz"}', '{"a":"C:\\\\dir\\new","b":"\\\\u00zz"}'),
        ('{"a": [1, 2,], "b": {"c": 3,},}', '{"a":[1,2],"b":{"c":3}}'),
        ('{"a": "\\ud83d\\ude80", "b": "\\ud83d", "c": "\\u0000"}', '{"a":"🚀","b":"\ufffd","c":"\ufffd"}'),
        ('"text"', '"text"'),
        ("{}", None),
        ("null", None),
    ],
)  # fmt: skip
def test_what_is_repaired_in_args(args: str, wanted: str | None) -> None:
    rows, _ = scan(f'[{{"ph":"X","args":{args}}}]'.encode())
    assert [row["args"] for row in rows] == [wanted]
    assert wanted is None or json.loads(wanted) is not None


def test_members_with_columns_leave_args() -> None:
    fields = [("External id", "external", "int"), ("external id", "external", "int"), ("Addr", "address", "uint"),
              ("stack", "stack", "text")]  # fmt: skip
    events = [
        {"ph": "X", "args": {"External id": 5, "Addr": 2**64 - 1, "stack": "a;b", "keep": 1, "Ev Idx": 9}},
        {"ph": "X", "args": {"external id": "0x10", "Addr": -1, "stack": 7}},
        {"ph": "X", "args": {"External id": 1.5, "Addr": None}},
        {"ph": "C", "args": {"External id": 5, "Ev Idx": 1}},
    ]
    rows, _ = scan(json.dumps(events).encode(), fields=fields, leave_out=["Ev Idx"])
    assert [(row["external"], row["address"], row["stack"], row["args"]) for row in rows] == [
        (5, 2**64 - 1, "a;b", '{"keep":1}'),
        (16, None, None, '{"Addr":-1,"stack":7}'),
        (None, None, None, '{"External id":1.5}'),
        (5, None, None, '{"External id":5,"Ev Idx":1}'),
    ]  # fmt: skip


@pytest.mark.parametrize(("exponent", "ts_ns"), [(0, 5), (3, 5_250), (6, 5_250_000), (9, 5_250_000_000)])
def test_units_of_time(exponent: int, ts_ns: int) -> None:
    rows, _ = scan(b'[{"ph":"X","ts":5.25}]', nanoseconds_exponent=exponent)
    assert [row["ts_ns"] for row in rows] == [ts_ns]


@pytest.mark.parametrize(
    ("text", "names", "malformed"),
    [
        (b'[{"ph":"X" "name":"bad"},{"ph":"X","name":"good"}]', ["good"], 1),
        (b'[{"ph":"X","name":"a"},{"ph":"X","name":unquoted text},\n {"name":"b","ph":"X"}]', ["a", "b"], 1),
        (b'[{"ph":"X","name":"a},{"ph":"X","name":"swallowed"},{"ph":"X","name":"b"}]', ["b"], 1),
        (b'[{"ph":"X","name":"a","args":{"l":[{"x" 1}]}},{"ph":"X","name":"b"}]', ["b"], 1),
        (b'{"traceEvents":[{"ph":"X","name":"a"},{"ph" "X"}],"traceName":"x"}', ["a"], 1),
        (b'{"traceEvents":[{"ph":"X","name":"a"},{"ph" "X"}]}', ["a"], 1),
    ],
)
def test_an_event_that_is_not_json_costs_itself_only(text: bytes, names: list[str], malformed: int) -> None:
    rows, scanner = scan(text)
    assert [row["name"] for row in rows] == names
    assert [(what, count) for what, count, _ in scanner.faults()] == [("events that are not JSON: left out", malformed)]
    assert not scanner.cut_off


@pytest.mark.parametrize("most_text", [0, 1 << 20, 1 << 30])
def test_long_texts_are_the_same_whether_they_stay_in_memory_or_not(most_text: int, tmp_path: Path) -> None:
    """With four rows in a few megabytes, and rows without args in between."""
    texts = [None if n % 3 == 1 else {"n": n, "text": chr(97 + n % 26) * (n % 7 << 18)} for n in range(40)]
    events = [{"ph": "i", "ts": n, **({"args": args} if args else {})} for n, args in enumerate(texts)]
    rows, _ = scan(json.dumps(events).encode(), most_text=most_text, spill_folder=str(tmp_path))
    assert [row["args"] and json.loads(row["args"]) for row in rows] == texts
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_an_error_of_the_disk(tmp_path: Path) -> None:
    events = [{"ph": "i", "args": {"text": "x" * (10 << 20)}} for _ in range(4)]
    with pytest.raises(FileNotFoundError):
        scan(json.dumps(events).encode(), most_text=0, spill_folder=str(tmp_path / "gone"))


def test_many_members_beside_the_events_take_no_square_of_their_number() -> None:
    count = 160_000
    members = b",".join(b'"m%d":%d' % (n % (count - 1), n) for n in range(count))
    _, scanner = scan(b'{"traceEvents":[{"ph":"i"}],' + members + b"}")
    found = scanner.metadata()
    assert len(found) == count - 1
    assert found[0] == ("m0", str(count - 1))
    assert found[-1] == (f"m{count - 2}", str(count - 2))


def test_more_groups_than_there_can_be_are_refused_as_what_they_are() -> None:
    events = b",".join(b'{"ph":"i","cat":"c%d"}' % n for n in range(100_001))
    with pytest.raises(_native.NotATrace, match="100,000 combinations of phase, category, process and thread"):
        scan(b"[" + events + b"]")


def test_the_last_list_of_events_counts() -> None:
    _, scanner = scan(b'{"traceEvents":[{"ph":"X"},{"ph":"X"}],"traceEvents":[{"ph":"i"}]}')
    assert (scanner.table.first_row, scanner.table.rows, len(scanner.groups())) == (2, 3, 2)


@pytest.mark.parametrize("text", [b"", b" \n", b"5", b"\x80\x04}", b"not JSON", b'"[]"', b"{]", b'{"a":}'])
def test_what_is_no_trace_is_said(text: bytes) -> None:
    with pytest.raises(_native.NotATrace):
        scan(text)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A text with a few changes of the kinds that crashes, editors and other tools make."""
    text = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(text) or 1)
        change = chance.randrange(7)
        if change == 0:
            text[at : at + 1] = bytes([chance.randrange(256)])
        elif change == 1:
            del text[at : at + chance.randint(1, 60)]
        elif change == 2:
            text[at:at] = chance.choice(
                [b"NaN", b'"', b"\\", b"{", b"]", b"}", b",", b"\0", b"\xff", b"1e999", b"[[[[", b"-"]
            )
        elif change == 3:
            text[at:at] = text[max(0, at - 400) : at]
        elif change == 4 and chance.random() < 0.3:
            del text[at:]
        elif change == 5:
            text = bytearray(text.replace(b'"dur":', chance.choice([b'"dur":-', b'"dur":"x",', b'"dur":null,"d":']), 3))
        else:
            text = bytearray(
                text.replace(b'"pid":', chance.choice([b'"pid":"p",', b'"pid":[1],', b'"pid":9e9,"q":']), 2)
            )
    return bytes(text)


def check_import(data: bytes, folder: Path) -> bool:
    """Imports a text: it is refused in one line, or becomes a trace that hangs together. Whether it became one."""
    path, out = folder / "mutated.json", folder / "mutated.duckdb"
    path.write_bytes(data)
    out.unlink(missing_ok=True)
    try:
        import_files([path], out)
    except InputRefused as refused:
        said = str(refused)
    else:
        said = ""
    if said:
        assert "\n" not in said
        assert not out.exists()
        return False
    with open_trace(out) as trace:
        [odd] = trace.rows("""
            SELECT count(*) FILTER (ts_ns IS NULL) AS timeless, count(*) FILTER (dur_ns < 0) AS negative,
                   count(*) FILTER (parent = id) AS own_parents,
                   count(*) FILTER (device IS NOT NULL AND kind = 'op') AS lost,
                   count(*) FILTER (parent NOT IN (SELECT id FROM event)) AS orphans FROM event""")
        assert not any(odd.values()), odd
    return True


def samples(*names: str) -> list[bytes]:
    """Small hard inputs, and the beginnings of real files where they are here."""
    found = [(CASES / f"{name}.json").read_bytes() for name in names]
    for name in ("kineto_mi250_minitoy.json.gz", "kineto_h100_bert.json.gz"):
        if TRACES.exists():
            found.append(gzip.decompress((TRACES / name).read_bytes())[:60_000])
    return found


MUTATED = (
    "neg_dur",
    "counters",
    "flow_dup_ids",
    "overlap_BE_touching",
    "privateuse1",
    "string_ids",
    "xss_names",
    "escapes",
)


@pytest.mark.parametrize("seed", range(12))
def test_mutated_files_are_refused_or_become_sound_traces(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    files = samples(*MUTATED)
    became = [check_import(mutated(chance.choice(files), chance), tmp_path) for _ in range(3)]
    assert len(became) == 3


@pytest.mark.parametrize("seed", range(3))
def test_mutated_texts_mean_the_same_wherever_they_are_cut(seed: int) -> None:
    chance = random.Random(seed)
    files = samples(*MUTATED)
    for _ in range(100):
        text = mutated(chance.choice(files), chance)
        assert outcome(text, 1 << 20) == outcome(text, chance.randint(1, 3000))


def outcome(text: bytes, piece: int) -> Any:
    """All that a scan says."""
    try:
        rows, scanner = scan(text, piece)
    except _native.NotATrace as refused:
        return str(refused).split(" at ")[0]
    return rows, scanner.metadata(), scanner.faults(), scanner.cut_off


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 150))
def test_thousands_of_mutated_files(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    files = samples(*MUTATED)
    for _ in range(100):
        check_import(mutated(chance.choice(files), chance), tmp_path)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.fixed_dictionaries({}, optional={
    "ph": st.sampled_from("XBEbeSFnstfiICMPNDO") | JSON,
    "cat": st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "Trace"]) | JSON,
    "name": JSON, "pid": st.integers(0, 2) | JSON, "tid": st.integers(0, 2) | JSON, "ts": st.integers(0, 50) | JSON,
    "dur": st.integers(-5, 20) | JSON, "id": st.integers(0, 2) | JSON, "bp": JSON,
    "args": st.dictionaries(st.sampled_from(["correlation", "External id", "device", "stream", "bytes", "name"]),
                            st.integers(0, 5) | JSON) | JSON,
}), max_size=12))  # fmt: skip
def test_events_with_members_of_any_type(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    check_import(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode("utf-8", "surrogatepass"), tmp_path)


@needs_shared
@pytest.mark.parametrize(
    "make", [lambda data: data[: len(data) * 2 // 3], lambda data: data[:100] + b"\0" * 4096 + data[4196:]]
)
def test_broken_gzip_files(make: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "broken.json.gz"
    path.write_bytes(make((TRACES / "kineto_mi250_minitoy.json.gz").read_bytes()))
    try:
        import_files([path], tmp_path / "out.duckdb")
    except InputRefused as refused:
        said = str(refused)
    else:
        with open_trace(tmp_path / "out.duckdb") as trace:
            said = str(trace.rows("SELECT what FROM quality"))
    assert "damaged" in said or "cut off" in said


@pytest.mark.parametrize("piece", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"])
def test_the_place_of_a_fault_is_the_same_however_the_text_is_cut(begin: bytes, piece: int) -> None:
    good = b'{"ph": "X", "name": "a",\n "ts": 1},\n'
    text = begin + b'{"traceEvents": [\n' + good * 20 + b'  {"ph": x y},\n' + good + b'{"ph": "i"}]}'
    _, scanner = scan(text, piece)
    assert scanner.faults() == [("events that are not JSON: left out", 1, "line 42, column 12")]


@pytest.mark.parametrize("value", ['"%s"', '["%s", {"a": 1}]', '{"a": {"b": ["%s", "]},"]}}'])
@pytest.mark.parametrize("where", ['{%s, "traceEvents": [#]}', '{"a": 1, %s , "traceEvents": [#]}',
                                   '{"traceEvents": [#],\n %s}', '{"traceEvents": [#], %s, "b": [2]}'])  # fmt: skip
@pytest.mark.parametrize("piece", [1 << 16, 1 << 20])
def test_members_that_are_too_long_cost_themselves_wherever_they_are(where: str, value: str, piece: int) -> None:
    long = f'"stackFrames": {value % ("x" * (12 << 20))}'
    event = '{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2}'
    rows, scanner = scan((where.replace("#", event) % long).encode(), piece)
    assert [(row["name"], row["ts_ns"], row["dur_ns"]) for row in rows] == [("a", 1000, 2000)]
    assert [(what, count) for what, count, _ in scanner.faults()] == [
        ("members of the file longer than 4 MiB: left out", 1)
    ]
    assert not scanner.cut_off


def test_a_zip_that_nobody_can_unpack_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trace.json", "[]")
    data = bytearray(path.read_bytes())
    data[8] = data[data.find(b"PK\1\2") + 10] = 99  # the method of compression, in both headers
    path.write_bytes(data)
    with pytest.raises(InputRefused, match=r"odd\.zip: .* made in an unknown way \(That compression"):
        import_files([path], tmp_path / "out.duckdb")
