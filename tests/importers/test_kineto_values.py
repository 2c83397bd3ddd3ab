"""Numbers, times, ids and names of Kineto's files, however wrong or large: exact, or unknown and counted."""

import json
from pathlib import Path

import pytest

from ral_trace.tracer.importers import importer_of, kineto
from ral_trace.tracer.importers.rows import BYTES_BEYOND
from tests.importers.kineto_events import US, case, on_device, slice_of
from tests.importers.reading_back import CASES, busy_ns, by_name, imported_events, imported_text, warnings


@pytest.mark.parametrize(
    "word", ["ralTrace", "rocprofiler-sdk-tool", "CANN", "HostToDevice", "Ascend Hardware", "torch_to_npu",
             "AscendCL@x", '"ralTrace": {'],
)  # fmt: skip
def test_words_of_other_formats_are_names_as_any_others(tmp_path: Path, word: str) -> None:
    path = tmp_path / "given.json"
    named = {"args": {"name": word, word: word}}
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [slice_of(word, "cpu_op", 1, 1, **named)]}))
    assert importer_of(path) is kineto


def test_numbers_that_cannot_be(tmp_path: Path) -> None:
    far = 2**63 // 1000
    events = [
        slice_of("late", "cpu_op", far, 1), slice_of("long", "cpu_op", 1, far), slice_of("ok", "cpu_op", 2, 1),
        {**on_device("copy", 3, 1, bytes=-(2**62)), "cat": "gpu_memcpy"},
        {**on_device("copy", 5, 1, bytes=2**61), "cat": "gpu_memcpy"},
    ]  # fmt: skip
    with imported_events(events, tmp_path) as trace:
        rows = trace.rows("SELECT name, end_ns, bytes FROM events ORDER BY ts_ns")
        assert [(row["name"], row["end_ns"], row["bytes"]) for row in rows] == [
            ("long", None, None), ("ok", 3 * US, None), ("copy", 4 * US, None), ("copy", 6 * US, None)]  # fmt: skip
        unfinished = "events whose end was never seen: kept, but out of all sums"
        assert warnings(trace) == {"events without a time: left out": 1, unfinished: 1, BYTES_BEYOND: 2}


def test_negative_durations_are_kept_out_of_sums(tmp_path: Path) -> None:
    with case("neg_dur", tmp_path) as trace:
        assert busy_ns(trace) == 20 * US
        rows = trace.rows("SELECT name, dur_ns FROM events WHERE NOT valid")
        assert sorted((row["name"], row["dur_ns"]) for row in rows) == [
            ("end_zero", None), ("gemm", None), ("unfinished", None),
        ]  # fmt: skip
        assert warnings(trace)["events with a negative duration: kept without it, and out of all sums"] == 3
        [span] = trace.rows("SELECT max(end_ns) - min(ts_ns) AS ns FROM events WHERE valid")
        assert span["ns"] == 100 * US
        [device] = trace.rows("FROM device")
        assert (device["name"], device["vendor"]) == ("NVIDIA H100 80GB HBM3", "NVIDIA")
        assert device["memory_bytes"] == 85029158912


def test_epoch_times_are_exact(tmp_path: Path) -> None:
    with case("epoch_precision", tmp_path) as trace:
        starts = by_name(trace, "ts_ns", "dur_ns")
        base = 1774670741777420_000
        assert starts == {"k0": (base + 27, 20), "k1": (base + 47, 20), "k2": (base + 67, 20)}
        assert busy_ns(trace) == 60
        assert trace.rows("SELECT clock_zero FROM source") == [{"clock_zero": "unix epoch"}]


def test_times_are_microseconds_whatever_the_display_unit(tmp_path: Path) -> None:
    with case("unit_ns_but_us", tmp_path) as trace:
        assert busy_ns(trace) == 1750


def test_huge_integers_keep_their_digits(tmp_path: Path) -> None:
    with case("huge_int_args", tmp_path) as trace:
        [row] = trace.rows("SELECT args->>'Comms Id' AS a, args->>'Python id' AS b, args->>'neg' AS c FROM event")
        assert row == {"a": "10159970886766084423", "b": "18446744073709551615", "c": "-9223372036854775809"}


def test_what_is_no_number_is_unknown(tmp_path: Path) -> None:
    with case("inf_bandwidth", tmp_path) as trace:
        [copy, kernel] = trace.rows("SELECT *, args->>'memory bandwidth (GB/s)' AS bandwidth FROM events ORDER BY id")
        assert (copy["kind"], copy["category"], copy["bytes"], copy["stream_number"]) == (
            "transfer",
            "host_to_device",
            200,
            7,
        )
        assert copy["bandwidth"] is None
        assert (kernel["kind"], kernel["dur_ns"], kernel["stream_number"]) == ("kernel", 9 * US, 7)


def test_backslashes_that_are_not_escaped_cost_nothing(tmp_path: Path) -> None:
    with case("unescaped_backslash", tmp_path) as trace:
        assert list(by_name(trace, "id")) == [r"torch\cuda\__init__.py(219): _lazy_init", "aten::add"]


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("control_char", ["torch/_inductor/config.py(0): \x1b[31m\ufffd z", "tab\there\nnewline"]),
        ("escapes", ["lone\ufffdsurrogate", "nul\ufffdbyte", "矩阵乘法 🚀 \u202egnp.exe", ""]),
    ],
)
def test_names_of_any_text(name: str, names: list[str], tmp_path: Path) -> None:
    with case(name, tmp_path) as trace:
        found = list(by_name(trace, "id"))
        if name == "escapes":
            assert found == names
        else:
            assert found[1] == names[1]
            assert found[0].startswith("torch/_inductor/config.py(0): ")
            assert "\0" not in found[0]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    with case("bad_utf8", tmp_path) as trace:
        assert by_name(trace, "kind")["ok"] == "kernel"
        assert warnings(trace) == {"bytes that are not UTF-8: shown as U+FFFD": 3}


def test_names_that_are_code_stay_text(tmp_path: Path) -> None:
    document = json.loads((CASES / "xss_names.json").read_text())
    with case("xss_names", tmp_path) as trace:
        wanted = [event["name"] for event in document["traceEvents"] if event["ph"] == "X"]
        assert [row["name"] for row in trace.rows("SELECT name FROM event ORDER BY id")] == wanted
        [(frame,)] = trace.sql("SELECT frames[1].function FROM stack ORDER BY id LIMIT 1").fetchall()
        assert "window.__xss" in frame


def test_an_empty_last_event_is_no_event(tmp_path: Path) -> None:
    with case("last_event_empty", tmp_path) as trace:
        assert list(by_name(trace, "id")) == ["a"]
        assert warnings(trace) == {}


def test_big_ids_stay_apart(tmp_path: Path) -> None:
    with case("big_ids", tmp_path) as trace:
        threads = {row["name"]: row["tid"] for row in trace.rows("FROM thread WHERE name IS NOT NULL")}
        assert threads == {"MainThread": 140589156634432, "SomeOtherThread": 140588800255680}
        assert [row["pid"] for row in trace.rows("SELECT pid FROM process ORDER BY pid")] == [-1, 0, 1, 7168000000]
        assert trace.rows("SELECT count(DISTINCT thread) AS n FROM event") == [{"n": 5}]


def test_ids_beyond_64_bits_are_names(tmp_path: Path) -> None:
    events = [slice_of("a", "cpu_op", 1, 1, tid=2**63), slice_of("b", "cpu_op", 1, 1, tid=2**63 + 1)]
    with imported_events(events, tmp_path) as trace:
        threads = trace.rows("SELECT tid, name FROM thread ORDER BY name")
        assert threads == [{"tid": None, "name": str(2**63)}, {"tid": None, "name": str(2**63 + 1)}]


def test_ids_that_are_text(tmp_path: Path) -> None:
    with case("string_ids", tmp_path) as trace:
        rows = by_name(trace, "kind", "pid", "tid", "stream_number", "step")
        assert rows["cudaLaunchKernel"] == ("launch", 29463, 3239786240, None, 0)
        assert rows["k"] == ("kernel", 29463, None, 7, 0)
        assert rows["ProfilerStep#0"][0] == "annotation"
        assert trace.rows("SELECT step, dur_ns FROM steps") == [{"step": 0, "dur_ns": 100 * US}]


def test_times_at_the_edge_fit_with_their_ends(tmp_path: Path) -> None:
    far = 2**61
    texts = {
        "below": (far - 1, far - 1),
        "early": (1 - far, 0),
        "late": (far, 5),
        "before": (-far, 5),
        "long": (0, far),
    }
    events = ",".join(
        f'{{"ph":"X","cat":"cpu_op","name":"{name}","pid":1,"tid":1,"ts":{us(ts)},"dur":{us(dur)}}}'
        for name, (ts, dur) in texts.items()
    )
    slices = ",".join(
        f'{{"ph":"{ph}","cat":"cpu_op","name":"pair","pid":1,"tid":2,"ts":{us(ts)}}}'
        for ph, ts in [("B", 1 - far), ("E", far - 1)]
    )
    for base in (0, far - 1):
        text = f'{{"schemaVersion":1,"baseTimeNanoseconds":{base},"traceEvents":[{events},{slices}]}}'
        with imported_text(text, tmp_path) as trace:
            assert by_name(trace, "ts_ns", "end_ns", "dur_ns") == {
                "below": (base + far - 1, base + 2 * far - 2, far - 1), "early": (base + 1 - far, base + 1 - far, 0),
                "long": (base, None, None), "pair": (base + 1 - far, base + far - 1, 2 * far - 2),
            }  # fmt: skip
            assert warnings(trace)["events without a time: left out"] == 2


def us(ns: int) -> str:
    """Exactly."""
    return f"{'-' if ns < 0 else ''}{abs(ns) // 1000}.{abs(ns) % 1000:03}"


def test_sizes_that_cannot_be_are_unknown(tmp_path: Path) -> None:
    huge, least = 2**61, 1 - 2**63
    events = [
        {**on_device("Memcpy HtoD", n, 1, bytes=size), "cat": "gpu_memcpy"}
        for n, size in enumerate([huge - 1, huge, -1, least, 0])
    ]
    for n, size in enumerate([2**62, 2**62, 2**62, least, 2**60, 2**60, 2**60, 2**60, 512, -512]):
        args = {"Addr": 4096 * n, "Bytes": size, "Device Type": 1, "Device Id": 0}
        events.append({**slice_of("[memory]", "cpu_instant_event", 10 + n, 0, args=args), "ph": "i"})
    with imported_events(events, tmp_path) as trace:
        copies = trace.rows("SELECT bytes FROM event WHERE kind = 'transfer' ORDER BY id")
        assert [row["bytes"] for row in copies] == [huge - 1, None, None, None, 0]
        assert trace.rows("SELECT max(allocated_bytes) AS most FROM memory_curve") == [{"most": 3 * 2**60}]
        said = warnings(trace)
        assert said[BYTES_BEYOND] == 7
        assert said["allocations and frees of more bytes than there can be: not among the blocks"] == 3
