"""Memory that waited for a garbage collection."""

from pathlib import Path

from ral_trace.analysis.delayed_frees import delayed_frees, waited
from ral_trace.tracer.reading import open_trace
from tests.analysis.cases import Case
from tests.shared import CASES, needs_shared


def collected() -> Case:
    """Two collections: the first frees three blocks of one site and one of another, the second two of the first."""
    case = Case()
    case.process()
    case.device(index=0)
    for number in range(5):
        case.alloc("cycle", number * 100, 64, number * 64)
    case.alloc("other", 450, 1000, 9000)
    case.alloc("cycle", 460, 64, 9999_000)
    case.free(470, 64, 9999_000)  # one that was freed at once
    case.event("python", "gc.collect", 500, 100, args={"generation": 2, "collected": 9})
    for number in range(3):
        case.free(510 + number, 64, number * 64)
    case.free(550, 1000, 9000)
    case.event("python", "gc.collect", 700, 100, args={"generation": 0, "collected": 2})
    for number in range(3, 5):
        case.free(710 + number, 64, number * 64)
    return case


def test_frees_inside_collections(tmp_path: Path):
    with collected().open(tmp_path) as trace:
        other, cycle = delayed_frees(trace)
        said = waited(delayed_frees(trace))
    assert cycle == {
        "device": "ral:0", "op": "cycle", "line": None, "evidence": "collection", "blocks": 5, "bytes": 320,
        "collections": 2, "most_bytes": 192, "held_ns": 411, "percent": 100 * 5 / 6,
    }  # fmt: skip
    assert (other["op"], other["blocks"], other["most_bytes"], other["percent"]) == ("other", 1, 1000, 100)
    assert said is not None
    assert "waited for a garbage collection" in said


def test_a_collection_of_another_thread_frees_nothing_of_this_one(tmp_path: Path):
    case = collected()
    case.process(pid=2)
    for event in case.events:
        if event["kind"] == "python":
            event.update(process=1, thread=1)
    with case.open(tmp_path) as trace:
        assert [row for row in delayed_frees(trace) if row["evidence"] == "collection"] == []


@needs_shared
def test_f7_is_hinted():
    with open_trace(CASES / "snap" / "cyclic_garbage_collected.pickle") as trace:
        [found] = delayed_frees(trace)
        said = waited([found])
    assert (found["evidence"], found["blocks"], found["collections"], found["most_bytes"]) == ("burst", 30, 3, 20 << 20)
    assert said is not None
    assert "delayed frees" in said
    assert "garbage collection breaks" in said
    with open_trace(CASES / "snap" / "leak_every_step.pickle") as trace:
        assert delayed_frees(trace) == []


def test_blocks_of_a_forward_pass_that_its_backward_pass_frees_are_no_burst(tmp_path: Path):
    case = Case()
    case.device(index=0)
    for step in range(5):
        for layer in range(6):
            case.alloc("aten::mm", step * 10_000 + layer * 100, 64, layer * 64)
        for layer in reversed(range(6)):
            case.free(step * 10_000 + 5000 - layer * 100, 64, layer * 64)
    with case.open(tmp_path) as trace:
        trace.connection.execute("CREATE TEMP TABLE source AS SELECT * REPLACE ('other' AS format) FROM trace.source")
        assert delayed_frees(trace) == []
