"""What holds for every analysis, of any trace: it answers, with its columns, with numbers that can be, whatever the
order in which the events are stored."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ral_trace.analysis import ANALYSES, Analysis, Rows
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.schema import FLAGS, KINDS
from tests.analysis.cases import Case, hostile
from tests.shared import CASES, TRACES, needs_shared
from tests.synthetic import training

NAMES = ["aten::mm", "aten::item", "void k<float>(int)", "ncclDevKernel_AllReduce", "Memcpy HtoD (Pageable -> Device)",
         "step#1", "step#2", "Optimizer.step#SGD.step", "enumerate(DataLoader)#_Iter.__next__", None]  # fmt: skip
CATEGORIES = [None, "host_to_device", "device_to_host", "backward", "forward", "module", "dataloader", "step"]
ARGS = [None, {"kernel": "k<int>"}, {"route": "cpu", "reason": "native: no entry"}, {"waited_for": "k"},
        {"Input Dims": [[2, 3]], "dtype": "float"}]  # fmt: skip
REAL = ["kineto_h100_bert.json.gz", "kineto_mi250_minitoy.json.gz", "rpd_matmul.rpd", "cuda_memory_snapshot.pickle"]
NS = st.integers(-40, 60)
EVENT = st.fixed_dictionaries({
    "kind": st.sampled_from(KINDS),
    "name": st.sampled_from(NAMES),
    "category": st.sampled_from(CATEGORIES),
    "ts": NS,
    "dur": st.none() | st.integers(0, 50),
    "device": st.none() | st.integers(0, 2),
    "correlation": st.none() | st.integers(1, 4),
    "bytes": st.none() | st.integers(0, 1 << 40),
    "args": st.sampled_from(ARGS),
    "flags": st.sampled_from([0, 0, 0, 0, FLAGS["INVALID"], FLAGS["UNFINISHED"], FLAGS["FORCED"]]),
})  # fmt: skip
BLOCK = st.tuples(NS, st.integers(0, 40), st.integers(1, 1 << 30), st.integers(0, 2), st.booleans())
TRACE = st.tuples(st.lists(EVENT, max_size=14), st.lists(BLOCK, max_size=5), st.randoms(use_true_random=False))


def built(events: list[dict[str, Any]], blocks: list[tuple[int, int, int, int, bool]]) -> Case:
    """Two processes, the first with two devices, the second with one that has the same label as the first's first."""
    case = Case()
    case.process(pid=1)
    case.process(pid=2, rank=1)
    case.device(process=0, index=0)
    case.device(process=0, index=1, vendor="sim", memory_bytes=1 << 30)
    case.device(process=1, index=0)
    for event in events:
        kind, name, ts, dur = (event[key] for key in ("kind", "name", "ts", "dur"))
        more = {key: event[key] for key in ("category", "device", "correlation", "bytes", "args", "flags")}
        case.event(kind, name, ts, dur, **more)
    for number, (ts, life, size, device, freed) in enumerate(blocks):
        case.alloc("aten::empty", ts, size, number << 32, device)
        if freed:
            case.free(ts + life, size, number << 32, device)
    return case


def answers(trace: Trace) -> dict[str, Rows]:
    return {analysis.name: analysis.run(trace) for analysis in ANALYSES}


def check(analysis: Analysis, rows: Rows) -> None:
    """The columns are those that it states; numbers are those that can be."""
    names = [column.name for column in analysis.columns]
    for row in rows:
        assert list(row) == names, analysis.name
        for column in analysis.columns:
            value = row[column.name]
            if value is None:
                continue
            where = (analysis.name, column.name, value)
            if column.unit == "text":
                assert isinstance(value, str), where
            else:
                assert isinstance(value, (int, float)), where
                assert not isinstance(value, bool), where
                assert value == value, where
            if column.unit in ("count", "ns", "bytes", "percent", "ratio", "number", "bandwidth") and not column.signed:
                assert value >= 0, where
            if column.unit == "percent":
                assert value <= 100 + 1e-9, where
            if column.unit in ("count", "ns", "bytes", "time", "id"):
                assert isinstance(value, int), where
    json.dumps(rows, allow_nan=False)


@given(TRACE)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_trace_has_answers_that_can_be(found):
    events, blocks, random = found
    case = built(events, blocks)
    order = list(range(len(case.events)))
    random.shuffle(order)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        with case.open(Path(one)) as trace:
            first = answers(trace)
        with case.open(Path(two), order) as trace:
            second = answers(trace)
    for analysis in ANALYSES:
        check(analysis, first[analysis.name])
        assert first[analysis.name] == second[analysis.name], analysis.name


@needs_shared
@pytest.mark.parametrize("name", sorted(path.name for path in CASES.glob("*.json")))
def test_every_hard_input_has_answers_that_can_be(name: str):
    with open_trace(CASES / name) as trace:
        for analysis in ANALYSES:
            check(analysis, analysis.run(trace))


@needs_shared
@pytest.mark.parametrize(
    "name",
    ["kineto_h100_bert.json.gz", "kineto_mi250_minitoy.json.gz", "rpd_matmul.rpd", "cuda_memory_snapshot.pickle"],
)
def test_every_real_file_has_answers_that_can_be(name: str):
    with open_trace(TRACES / name) as trace:
        for analysis in ANALYSES:
            check(analysis, analysis.run(trace))


def test_hostile_names_have_answers(tmp_path: Path):
    with hostile().open(tmp_path) as trace:
        for analysis in ANALYSES:
            check(analysis, analysis.run(trace))


def test_one_device_of_several_is_asked_for(tmp_path: Path):
    event = {"kind": "kernel", "name": "k", "category": None, "ts": 0, "dur": 5, "correlation": None, "bytes": None,
             "args": None, "flags": 0}  # fmt: skip
    case = built([{**event, "device": device} for device in (0, 1, 2)], [])
    with case.open(tmp_path) as trace:
        for analysis in ANALYSES:
            if analysis.by_device:
                names = {row["device"] for row in analysis.run(trace, device="ral:1")}
                assert names <= {"ral:1", "host"}, analysis.name
                assert {row["device"] for row in analysis.run(trace, device="ral:0 (pid 2)")} <= {
                    "ral:0 (pid 2)",
                    "host",
                }


def test_no_answer_depends_on_what_was_asked_before(tmp_path: Path):
    """Nor on what those who asked did with their rows: what is remembered of a trace is not handed out."""
    with open_trace(training(tmp_path / "train.duckdb", launches=300, steps=6)) as trace:
        expected = {name: [dict(row) for row in rows] for name, rows in answers(trace).items()}
    with open_trace(tmp_path / "train.duckdb") as trace:
        for analysis in [*reversed(ANALYSES), *ANALYSES]:
            rows = analysis.run(trace)
            assert rows == expected[analysis.name], analysis.name
            for row in rows:
                row.update(dict.fromkeys(row, "spoiled"))
