"""Assertions about a trace: what holds, what does not and why, and what a trace cannot say."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ral_trace.analysis.check import BadExpression, Outcome, assertions_of, check, read
from ral_trace.analysis.metrics import METRICS
from ral_trace.tracer.cli import main
from ral_trace.tracer.reading import Trace, open_trace
from tests.analysis.cases import INVALID, Case, fallback, hostile
from tests.shared import CASES, TRACES, needs_shared

MIB = 1 << 20


def training() -> Case:
    """Three steps of 100, 200 and 300 us with 1, 2 and 3 syncs; a fallback with one copy; ral:0 and ral:1."""
    case = Case()
    case.process()
    devices = [case.device(index=0), case.device(index=1, vendor="sim")]
    case.alloc("aten::empty", 0, 3 * MIB, 1 << 30, devices[0])
    case.alloc("aten::empty", 0, 5 * MIB, 1 << 40, devices[1])
    for step in range(3):
        begin = 1_000_000 * step + 10
        case.step(step, begin, 100_000 * (step + 1))
        case.event("op", "aten::add.Tensor", begin + 1, 50)
        case.event("op", "aten::item", begin + 100, 2_000 * (step + 1))
        for number in range(step + 1):
            sync = {"device": devices[1], "args": {"waited_for": "aten::mm"}}
            case.event("sync", "aten::_local_scalar_dense", begin + 200 + 10 * number, 5, **sync)
        case.event("kernel", "aten::mm", begin + 300, 1_000, device=devices[1], correlation=step + 1)
        case.event("launch", "aten::mm", begin + 250, 20, device=devices[1], correlation=step + 1)
    fallback(case, 60_000, 10_000, device=devices[1], correlation=9, copies=[(61_000, 100, 4096)])
    return case


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trace]:
    with training().open(tmp_path_factory.mktemp("check")) as opened:
        yield opened


def one(trace: Trace, text: str, **options: bool | int) -> Outcome:
    [found] = check(trace, [text], **options)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    "text",
    [
        "fallbacks == 1",
        "fallbacks[ral:0] == 0",
        "fallbacks[ral:1] == 1",
        # The fallback's copy forced one more.
        "syncs == 7",
        "forced_syncs == 1",
        "syncs_per_step <= 3",
        "syncs_per_step.min == 2",
        "syncs_per_step.sum == 7",
        "syncs_per_step.count == 3",
        'syncs_per_step("aten::_local_scalar_dense").median == 2',
        "syncs / steps < 2.34",
        "step_ns <= 300us",
        "step_ns.median == 200us",
        "step_ns.mean == 0.2 ms",
        "step_ns.p99 == 300_000",
        'count("aten::item") == 3',
        'count("aten::add") == 3',
        'count("aten::add.Tensor") == 3',
        'count("aten::*") == 6',
        'count("aten::ad") == 0',
        'count("aten.*") == 0',
        'op_ns("aten::item").sum == 12us',
        'op_ns("aten::item") > 1us',
        "peak_bytes < 6MiB",
        "peak_bytes[ral:0] == 3MiB",
        "peak_bytes.max == 5MiB",
        "transferred_bytes == 4KiB",
        "transferred_bytes_per_step.max == 4KiB",
        "device_to_host_bytes == transferred_bytes",
        "host_to_device_bytes == 0",
        "kernel_ns.sum == 3us",
        "busy_ns[ral:1] == 3100ns",
        "busy_percent < 1%",
        "1 == fallbacks",
        "300us >= step_ns",
        "steps == 3",
        "50% * step_ns.max == 150us",
        "step_ns.max - step_ns.min == 2 * step_ns.min",
        "peak_bytes[ral:0] / peak_bytes[ral:1] == 0.6",
    ],
)
def test_what_holds(trace: Trace, text: str) -> None:
    assert one(trace, text).holds is True, one(trace, text)


@pytest.mark.parametrize(
    "text",
    ["fallbacks == 0", "fallbacks != 1", "syncs_per_step <= 2", "step_ns < 300us", "step_ns != 200us",
     "syncs_per_step > 2", "peak_bytes < 5MiB", 'count("aten::item") == 0', "0.2 ms > step_ns",
     "step_ns.median <= 199999.9ns", "fallbacks == 1.5"],
)  # fmt: skip
def test_what_does_not_hold(trace: Trace, text: str) -> None:
    assert one(trace, text).holds is False, one(trace, text)


def test_the_fallbacks_are_shown(trace: Trace) -> None:
    assert one(trace, "fallbacks == 0") == Outcome(
        "fallbacks == 0", False, "1", ("1 × aten::cumsum on ral:1 (native: no entry)",)
    )


def test_the_steps_and_what_was_in_the_worst_of_them_are_shown(trace: Trace) -> None:
    found = one(trace, "syncs_per_step <= 1")
    assert found.said == "3 at worst, of 3: it does not hold for 3"
    assert found.rows == (
        "step 2: 3",
        "step 1: 2",
        # One was forced by the fallback's copy.
        "step 0: 2",
        "3 × aten::_local_scalar_dense on ral:1 in step 2, waited for aten::mm",
    )


def test_the_slowest_events_are_shown(trace: Trace) -> None:
    found = one(trace, 'op_ns("aten::item") < 3us')
    assert found.rows == ("aten::item: 6.00 µs in step 2", "aten::item: 4.00 µs in step 1")


def test_first_steps_may_be_left_out(trace: Trace) -> None:
    assert one(trace, "syncs_per_step.min == 2", skip_steps=1).holds
    assert one(trace, "step_ns.count == 2", skip_steps=1).holds
    found = one(trace, "step_ns < 1s", skip_steps=3)
    assert (found.holds, found.said) == (None, "cannot be known: there is no step to look at")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fallbacks[ral:7] == 0", "the trace has no device ral:7; it has: ral:0, ral:1"),
        ("dropped == 0", "it has no ledger: it is no live recording"),
        ('op_ns("aten::typo") < 1s', "there is no op to look at"),
        ('op_ns("aten::typo").max < 1s', "there is no op to take the max of"),
        ("step_ns / 2 < 1s", "there are 3 values, one for each step; choose one with"),
        ("step_ns < op_ns", "there are several values on both sides"),
        ("syncs / forced_syncs[ral:0] < 1", "it divides by 0"),
    ],
)
def test_what_the_trace_cannot_say_is_no_pass(trace: Trace, text: str, why: str) -> None:
    found = one(trace, text)
    assert found.holds is None
    assert found.said.startswith(f"cannot be known: {why}")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("fallback == 0", "did you mean fallbacks?"),
        ("xyzzy == 0", "see: ral-trace check --list"),
        ("step_ns.middle < 1s", "there is no statistic 'middle'"),
        ("step_ns < 2GiB", "compares ns with bytes"),
        ("peak_bytes + step_ns.max < 1", "cannot be added"),
        ("step_ns.max * step_ns.max < 1", "is no quantity"),
        ('step_ns("aten::mm") < 1s', "takes no name"),
        ("steps[ral:1] == 3", "is no metric of a device"),
        ("count == 0", "needs a name"),
        ("baseline.syncs == 0", "there is no baseline"),
    ],
)
def test_what_no_trace_could_say_is_refused(text: str, cause: str) -> None:
    with pytest.raises(BadExpression, match=cause):
        read([text])


def test_without_devices_nothing_of_them_is_known(tmp_path: Path) -> None:
    case = Case()
    case.event("op", "aten::mm", 0, 10)
    with case.open(tmp_path) as trace:
        assert one(trace, 'count("aten::mm") == 1').holds
        assert one(trace, "fallbacks == 0").said == (
            "cannot be known: fallbacks are recorded on ral devices only, and the trace has none"
        )
        assert one(trace, "syncs == 0").said == "cannot be known: nothing of a device was recorded"
        assert one(trace, "step_ns < 1s").said.startswith("cannot be known: no steps in this trace")
        assert one(trace, "peak_bytes < 1GiB").said == "cannot be known: no allocation was recorded"


def test_missing_events_make_counts_unknown(tmp_path: Path) -> None:
    case = training()
    case.ledgers.append({"process": 0, "written": 30, "received": 27, "dropped": 3, "lost": 0, "shed": 0})
    with case.open(tmp_path) as trace:
        found = one(trace, "fallbacks == 1")
        assert (found.holds, found.said[:44]) == (None, "cannot be known: 3 events are missing from t")
        assert one(trace, "fallbacks == 1", allow_missing=True).holds
        assert one(trace, "dropped == 3").holds


def test_unknown_and_impossible_durations_are_no_pass(tmp_path: Path) -> None:
    case = training()
    case.event("op", "aten::unfinished", 5, None)
    case.event("op", "aten::impossible", 6, 70, flags=INVALID)
    case.step(3, 5_000_000, None)
    with case.open(tmp_path) as trace:
        assert one(trace, "op_ns < 1s").said == "cannot be known: 2 events have no duration that can be"
        assert one(trace, "op_ns.max == 6us", allow_missing=True).holds
        assert one(trace, "step_ns < 1s").said == "cannot be known: 1 steps have no end that was seen"
        assert one(trace, 'op_ns("aten::item") < 1s').holds


def test_the_baseline_in_assertions(tmp_path: Path, trace: Trace) -> None:
    with training().open(tmp_path) as baseline:
        text = "step_ns.median <= 1.05 * baseline.step_ns.median"
        assert check(trace, [text, "syncs < baseline.syncs"], baseline=baseline)[0].holds is True
        assert check(trace, ["syncs < baseline.syncs"], baseline=baseline)[0].holds is False


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_of_traces_with_and_without_anything(metric: object, tmp_path: Path) -> None:
    name = metric.name + ('("*")' if metric.named else "") + ".max"  # type: ignore[attr-defined]
    for number, case in enumerate((Case(), hostile())):
        (tmp_path / str(number)).mkdir()
        with case.open(tmp_path / str(number)) as trace:
            for text in (f"{name} >= 0", f"{name} < 0"):
                found = one(trace, text, allow_missing=True)
                assert found.holds in (None, text.endswith(">= 0"))
                assert not [row for row in found.rows if "\x1b" in row or "\u202e" in row]


def test_files_of_assertions() -> None:
    text = '# of CI\n\nfallbacks == 0  # none\n  count("a#b") == 0\r\n#'
    assert assertions_of(text) == ["fallbacks == 0", 'count("a#b") == 0']


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["check", *map(str, words)])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command")
    training().open(folder).close()
    return folder / "case.duckdb"


def test_the_exit_codes(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, path, "--assert", "fallbacks == 1")[:2] == (0, "ok      fallbacks == 1  (1)\n")
    code, out, err = run(capsys, path, "--assert", "fallbacks == 0", "--assert", "steps == 3")
    assert code == 6
    assert out.splitlines()[1] == "          1 × aten::cumsum on ral:1 (native: no entry)"
    assert err == f"ral-trace: {path}: 1 of 2 failed: fallbacks == 0\n"
    assert run(capsys, path, "--assert", "dropped == 0")[0] == 6
    code, _, err = run(capsys, path, "--assert", "fallbacks = 0")
    assert code == 2
    assert err.splitlines()[:2] == ["fallbacks = 0", "          ^ write == to compare"]
    assert run(capsys, path)[0] == 2
    assert run(capsys, tmp_path / "nowhere.duckdb", "--assert", "steps == 3")[0] == 4
    assert run(capsys, path, "--assert-file", tmp_path / "nowhere")[0] == 2
    assert run(capsys, path, "--assert", "steps == 3", "--tolerance", "x")[0] == 2


def test_a_bad_expression_is_said_before_any_trace_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, tmp_path / "nowhere.duckdb", "--assert", "fallbacks = 0")[0] == 2


def test_assertions_from_a_file(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ci.txt").write_text("steps == 3 # all\nfallbacks == 0\n")
    code, out, _ = run(capsys, path, "--assert-file", tmp_path / "ci.txt")
    assert code == 6
    assert [line[:7] for line in out.splitlines() if not line.startswith(" ")] == ["ok     ", "FAILED "]


def test_against_a_baseline(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = training()
    fallback(case, 2_100_000, 10_000, device=1, correlation=10, copies=[])
    case.open(tmp_path).close()
    code, out, _ = run(capsys, tmp_path / "case.duckdb", "--baseline", path)
    assert code == 6
    assert "more fallback: aten::cumsum on ral:1 (1 → 2)" in out
    code, out, _ = run(
        capsys, path, "--baseline", tmp_path / "case.duckdb", "--assert", "fallbacks < baseline.fallbacks"
    )
    assert code == 0, out


def test_the_list_has_every_metric(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--list")
    assert code == 0
    assert {line.split()[0] for line in out.split("\n\n")[0].splitlines()} == {metric.name for metric in METRICS}


@needs_shared
def test_files_of_other_tools() -> None:
    with open_trace(TRACES / "kineto_h100_bert.json.gz") as trace:
        assert one(trace, "fallbacks == 0").holds is None
        assert one(trace, 'syncs("cudaDeviceSynchronize") == 2').holds
    # E7: five kernels of one launch.
    with open_trace(CASES / "cuda_graph_one_correlation.json") as trace:
        assert one(trace, "kernels == 5").holds
        assert one(trace, "launches == 1").holds
        assert one(trace, "launch_ns.sum == 5us").holds
    with open_trace(CASES / "stream_sync_row.json") as trace:
        assert one(trace, "busy_ns == 150us").holds
        assert one(trace, "kernels == 2").holds
