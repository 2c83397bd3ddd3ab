"""What is different between two recordings."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ral_trace.analysis.compare import COLUMNS, Comparison, compare
from ral_trace.analysis.compare_command import compare as command
from ral_trace.analysis.compare_words import regressions, said
from ral_trace.tracer.cli import main
from ral_trace.tracer.errors import InputRefused, UsageError
from ral_trace.tracer.reading import open_trace
from tests.analysis.cases import Case, fallback, hostile
from tests.shared import CASES, TRACES, needs_shared

STEP_NS = 1_000_000


def program(
    steps: int = 12,
    step_ns: int = STEP_NS,
    kernel_ns: int = 200_000,
    falls_back: bool = False,
    syncs: int = 1,
    copied: int = 4096,
    peak: int = 1 << 20,
    index: int = 1,
) -> Case:
    """Steps that all are the same: in module Net.head an op with its kernel, then a copy, then syncs."""
    case = Case()
    case.process()
    device = case.device(index=index, vendor="sim")
    case.alloc("aten::empty.memory_format", 0, peak, 4096, device)
    for step in range(steps):
        begin = 10 + step * 2 * step_ns
        case.step(step, begin, step_ns)
        case.event("annotation", "Net", begin + 10, 400_000, category="module")
        case.event("annotation", "Net.head", begin + 20, 300_000, category="module")
        case.event("op", "aten::mm", begin + 30, 1000)
        case.event("launch", "aten::mm", begin + 40, 900, device=device, correlation=10 * step + 1)
        case.event("kernel", "aten::mm", begin + 350_000, kernel_ns, device=device, correlation=10 * step + 1)
        more = {"device": device, "bytes": copied, "category": "host_to_device"}
        case.event("launch", "aten::copy_", begin + 500_000, 100, device=device, correlation=10 * step + 2)
        case.event("transfer", "aten::copy_", begin + 500_010, 50, correlation=10 * step + 2, **more)
        if falls_back and step == 0:
            fallback(case, begin + 600_000, 5_000, device=device, correlation=10 * step + 3, copies=[])
        for number in range(syncs):
            case.event("sync", "aten::item", begin + 900_000 + 10 * number, 5, device=device)
    return case


def compared(folder: Path, base: Case, new: Case) -> Comparison:
    for name, case in (("base", base), ("new", new)):
        (folder / name).mkdir()
        case.open(folder / name).close()
    with open_trace(folder / "base/case.duckdb", other=folder / "new/case.duckdb") as trace:
        return compare(trace)


def changes(found: Comparison) -> list[tuple[object, ...]]:
    return [(row["status"], row["what"], row["device"], row["name"], row["module"]) for row in found.changes]


def test_the_same_program_shows_no_difference(tmp_path: Path) -> None:
    found = compared(tmp_path, program(12), program(30))
    assert found.verdict == "same"
    assert (found.base_steps.warm_up, len(found.base_steps.numbers), len(found.new_steps.numbers)) == (1, 11, 29)
    assert found.changes == []
    assert regressions(found, 0.05) == []
    assert said(found) == (
        "No difference in time that these data can show: steps took 1.00 ms and 1.00 ms (95% confidence: +0.0 % to "
        "+0.0 %). What the program does is the same, as far as was recorded."
    )


def test_slower_steps_with_their_bounds(tmp_path: Path) -> None:
    found = compared(tmp_path, program(), program(step_ns=1_100_000))
    assert found.verdict == "slower"
    assert found.time is not None
    assert (found.time.base, found.time.new, found.time.low) == (1_000_000, 1_100_000, 100_000)
    assert said(found).startswith(
        "The new one is slower: a step took 1.10 ms in place of 1.00 ms, +10.0 % (95% confidence: +10.0 % to +10.0 %)."
    )
    assert len(regressions(found, 0.05)) == 1
    assert regressions(found, 0.10) == []
    (tmp_path / "back").mkdir()
    assert compared(tmp_path / "back", program(step_ns=1_100_000), program()).verdict == "faster"


def test_what_the_program_does_else(tmp_path: Path) -> None:
    new = program(kernel_ns=300_000, falls_back=True, syncs=3, copied=8192, peak=3 << 20)
    found = compared(tmp_path, program(), new)
    assert found.verdict == "same"
    assert changes(found) == [
        ("new", "fallback", "ral:1", "aten::cumsum", None),
        ("more", "sync", "ral:1", "aten::item", None),
        ("larger", "memory", "ral:1", "peak", None),
        ("larger", "transfer", "ral:1", "host_to_device", None),
        ("slower", "kernel", "ral:1", "aten::mm", "Net.head"),
    ]
    by_what = {row["what"]: row for row in found.changes}
    # The fallback is in the warm-up.
    assert (by_what["fallback"]["base_count"], by_what["fallback"]["new_count"]) == (0, 0)
    assert (by_what["fallback"]["base_total"], by_what["fallback"]["new_total"]) == (0, 1)
    assert "new fallback: aten::cumsum on ral:1 (0 → 1 in all)" in said(found)
    assert (by_what["sync"]["base_count"], by_what["sync"]["new_count"]) == (1, 3)
    assert (by_what["transfer"]["base_bytes"], by_what["transfer"]["new_bytes"]) == (4096, 8192)
    assert (by_what["kernel"]["base_ns"], by_what["kernel"]["new_ns"]) == (200_000, 300_000)
    assert (by_what["kernel"]["low_ns"], by_what["kernel"]["high_ns"]) == (100_000, 100_000)
    assert (by_what["memory"]["base_bytes"], by_what["memory"]["new_bytes"]) == (1 << 20, 3 << 20)
    assert [text.split(":")[0] for text in regressions(found, 0.05)] == [
        "new fallback", "more sync", "larger memory", "larger copies"
    ]  # fmt: skip


def test_what_is_gone(tmp_path: Path) -> None:
    found = compared(tmp_path, program(syncs=1), program(syncs=0))
    assert changes(found) == [("gone", "sync", "ral:1", "aten::item", None)]
    assert regressions(found, 0.05) == []


def test_noise_is_no_change_of_an_op(tmp_path: Path) -> None:
    """Kernels of both vary by a third around the same time, and every third step only copies."""
    generator = np.random.default_rng(3)
    cases = []
    for _ in range(2):
        case = program(steps=31)
        for row in case.events:
            if row["kind"] == "kernel":
                row["dur_ns"] = int(generator.integers(150_000, 250_000))
        step = [row for row in case.events if row["kind"] == "sync"]
        for number in generator.permutation(len(step))[:10].tolist():
            case.events.remove(step[number])
        cases.append(case)
    assert compared(tmp_path, *cases).changes == []


def test_too_few_steps_say_so_and_whole_recordings_are_compared(tmp_path: Path) -> None:
    found = compared(tmp_path, program(8), program(9, syncs=2))
    assert found.verdict == "unknown"
    assert found.time is None
    assert said(found).startswith("Too few steps to compare times: 7 and 8 steady ones, and 8 each are needed.")
    assert ("more", "sync", "ral:1", "aten::item", None) in changes(found)
    [row] = [row for row in found.changes if row["what"] == "sync"]
    assert (row["base_count"], row["new_count"], row["low_ns"]) == (8, 18, None)


def test_another_device_of_the_same_type_is_matched(tmp_path: Path) -> None:
    found = compared(tmp_path, program(index=0), program(index=3))
    assert found.changes == []
    assert found.notes == ["ral:3 of the new one is compared with ral:0 of the base, and told under that name"]


def test_recordings_that_lost_events_say_so(tmp_path: Path) -> None:
    new = program()
    new.ledgers.append({"process": 0, "written": 10, "received": 6, "dropped": 3, "lost": 1, "shed": 0})
    assert compared(tmp_path, program(), new).notes == [
        "case.duckdb: 4 events are missing from it, so that counts may be too low"
    ]


def test_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    base, new = program(), program(syncs=2, kernel_ns=250_000)
    (tmp_path / "a").mkdir()
    expected = compared(tmp_path / "a", base, new)
    paths = []
    for name, case in (("b", base), ("c", new)):
        (tmp_path / name).mkdir()
        case.open(tmp_path / name, order=list(range(len(case.events)))[::-1]).close()
        paths.append(tmp_path / name / "case.duckdb")
    with open_trace(paths[0], other=paths[1]) as trace:
        assert compare(trace).changes == expected.changes


def test_empty_and_hostile_traces(tmp_path: Path) -> None:
    found = compared(tmp_path, Case(), hostile())
    assert found.verdict == "unknown"
    assert {row["status"] for row in found.changes} == {"new"}
    text = CliRunner().invoke(command, [str(tmp_path / "base/case.duckdb"), str(tmp_path / "new/case.duckdb")]).output
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_command_as_json(tmp_path: Path) -> None:
    compared(tmp_path, program(), program(syncs=3))
    words = [str(tmp_path / "base/case.duckdb"), str(tmp_path / "new/case.duckdb"), "--json"]
    done = CliRunner().invoke(command, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["verdict"] == "same"
    assert found["step"]["base_ns"] == STEP_NS
    assert [column["name"] for column in found["columns"]] == [column.name for column in COLUMNS]
    assert [list(row) for row in found["changes"]] == [[column.name for column in COLUMNS]]


@pytest.mark.parametrize(("tolerance", "code"), [("5%", 6), ("50%", 0)])
def test_a_regression_is_exit_code_6(
    tmp_path: Path, tolerance: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    compared(tmp_path, program(), program(step_ns=1_200_000))
    words = ["compare", str(tmp_path / "base/case.duckdb"), str(tmp_path / "new/case.duckdb"), "--fail-on-regression"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--tolerance", tolerance])
    assert ended.value.code == code
    said_to_people = capsys.readouterr()
    assert "The new one is slower" in said_to_people.out
    assert ("is worse than" in said_to_people.err) == (code == 6)


def test_a_trace_is_not_compared_with_itself(tmp_path: Path) -> None:
    compared(tmp_path, program(2), program(2))
    path = tmp_path / "base/case.duckdb"
    with pytest.raises(UsageError, match="itself"):
        open_trace(path, other=path)
    with open_trace(path) as alone, pytest.raises(UsageError, match="open alone"):
        compare(alone)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    compared(tmp_path, program(2), program(2))
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    for other in (bad, tmp_path / "nowhere.duckdb"):
        with pytest.raises(InputRefused, match=other.name):
            open_trace(tmp_path / "base/case.duckdb", other=other)


@needs_shared
def test_files_of_other_tools_on_both_sides() -> None:
    """Two GPUs' traces of the same BERT: other kernels, the same ops."""
    with open_trace(TRACES / "kineto_h100_bert.json.gz", other=TRACES / "kineto_mi300_bert.json.gz") as trace:
        assert trace.other().path.name == "kineto_mi300_bert.json.gz"
        found = compare(trace)
    assert found.verdict == "unknown"
    assert ("new", "sync", None, "hipDeviceSynchronize", None) in changes(found)
    assert ("gone", "sync", None, "cudaDeviceSynchronize", None) in changes(found)
    assert not [row for row in found.changes if row["what"] == "op" and row["status"] in ("new", "gone")]


@needs_shared
def test_a_file_without_steps_and_one_without_devices() -> None:
    with open_trace(CASES / "no_profiler_step.json", other=CASES / "cpu_only.json") as trace:
        assert compare(trace).verdict == "unknown"
