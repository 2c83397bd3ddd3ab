"""The report in the terminal and as JSON, and the command."""

import io
import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from rich.console import Console

from ral_trace.analysis import ANALYSES
from ral_trace.analysis.base import CHAPTERS, UNITS
from ral_trace.analysis.command import html_path, report
from ral_trace.analysis.report import html, terminal
from ral_trace.analysis.report import json as report_json
from ral_trace.analysis.report.sections import Report, collect
from ral_trace.tracer.errors import InputRefused, NothingRecorded, RalTraceError, UsageError
from ral_trace.tracer.reading import open_trace
from tests.analysis.cases import Case, hostile
from tests.synthetic import training

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training(tmp_path_factory.mktemp("report") / "train.duckdb", launches=600, steps=20)


@pytest.fixture(scope="module")
def found(path: Path) -> Report:
    with open_trace(path) as trace:
        return collect(trace)


def printed(found: Report, width: int) -> str:
    out = io.StringIO()
    terminal.render(found, Console(file=out, width=width, color_system=None))
    return out.getvalue()


def test_every_row_has_the_documented_columns(found: Report):
    assert list(found.sections) == [found.name for found in ANALYSES]
    for section in found.sections.values():
        columns = [column.name for column in section.analysis.columns]
        assert all(list(row) == columns for row in section.rows), section.analysis.name
        assert {column.unit for column in section.analysis.columns} <= set(UNITS)
        assert set(section.analysis.shown.split()) <= set(columns)
        assert section.analysis.chapter in CHAPTERS
        assert not (section.rows and section.missing)


def test_nothing_is_negative(found: Report):
    for section in found.sections.values():
        for row in section.rows:
            assert not [column for column, value in row.items() if isinstance(value, (int, float)) and value < 0]


@pytest.mark.parametrize("width", [40, 60, 100, 160])
def test_the_terminal_report_fits(found: Report, width: int):
    assert max(cell_len(line) for line in printed(found, width).splitlines()) <= width


def test_the_terminal_report_begins_with_the_ledger(found: Report):
    lines = printed(found, 100).splitlines()
    written = found.rows("ledger")[0]["written"]
    assert (
        lines[0] == f"train.py (pid 4242): {written:,} written = {written - 7:,} received + 7 dropped + 0 lost · exited"
    )
    assert lines[1] == "! events dropped: the ring was full (7)"


def test_the_terminal_report_shows_what_the_analyses_say(found: Report):
    text = printed(found, 160)
    assert "aten::cumsum on ral:1" in text
    for title in (
        "Devices",
        "Hotspots",
        "Fallbacks",
        "Peak memory",
        "Held at the peak",
        "Lifetimes of blocks",
        "Growth and leaks",
        "Steps",
    ):
        assert f"\n{title}\n" in text
    assert "… 12 more" in text  # of 20 steps


def test_long_names_keep_both_ends():
    assert terminal.shortened("void gemm_kernel<bfloat16, 64>", 11) == "void…, 64>"
    assert terminal.shortened("aten::mm", 8) == "aten::mm"
    wide = terminal.shortened("核" * 20, 10)  # two cells each
    assert cell_len(wide) <= 10
    assert "…" in wide


def test_advice_is_told_uncut(found: Report):
    text = " ".join(printed(found, 60).split())
    rows = found.rows("advice")
    assert rows
    assert all(" ".join(row["evidence"].split()) in text for row in rows)


def test_the_short_report_names_the_details_that_it_leaves_out(found: Report):
    out = io.StringIO()
    terminal.render(found, Console(file=out, width=100, color_system=None), whole=False)
    text = out.getvalue()
    assert "\nWhat bounds each step\n" not in text
    assert "allocator_replay" in text.split("More with --all, or --only NAME: ")[1]
    assert len(text) < len(printed(found, 100))


@pytest.fixture(scope="module")
def untrusted(tmp_path_factory: pytest.TempPathFactory) -> Report:
    with hostile().open(tmp_path_factory.mktemp("hostile")) as trace:
        return collect(trace)


def test_the_terminal_shows_names_verbatim(untrusted: Report):
    text = printed(untrusted, 200)
    assert "[red]not red[/red]" in text
    assert "\\x1b[31mescape\\x1b[0m\\x0d\\x0a" in text
    assert not {char for char in text if ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or char in "\u202e\u2028"} - {
        "\n"
    }


def test_json_is_ascii_and_complete(untrusted: Report):
    text = report_json.render(untrusted)
    assert text.isascii()
    assert "\x1b" not in text
    document = json.loads(text)
    assert document["schema_version"] == report_json.SCHEMA_VERSION
    assert list(document["analyses"]) == [found.name for found in ANALYSES]
    assert "[red]not red[/red]" in {row["name"] for row in document["analyses"]["hotspots"]["rows"]}
    for name, found in document["analyses"].items():
        assert found["rows"] == untrusted.rows(name)


def test_json_in_a_script_cannot_end_it():
    text = str(html.script_json({"name": "</script><!--<script>&amp;\u2028"}))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"name": "</script><!--<script>&amp;\u2028"}


def test_the_documentation_of_json_is_current():
    assert (ROOT / "docs" / "report-json.md").read_text() == report_json.describe()


def test_the_command_prints_tables(path: Path):
    result = CliRunner().invoke(report, [str(path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.output.startswith("train.py (pid 4242): ")


def test_the_command_prints_json_of_one_device(path: Path):
    result = CliRunner().invoke(report, [str(path), "--json", "--device", "ral:1"], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert document["device"] == "ral:1"
    assert {row["device"] for row in document["analyses"]["hotspots"]["rows"]} == {"ral:1"}


def test_an_unknown_device_is_refused_with_those_that_there_are(path: Path):
    with pytest.raises(UsageError, match=r"ral:9.*ral:0, ral:1"):
        CliRunner().invoke(report, [str(path), "--device", "ral:9"], catch_exceptions=False)


def test_html_is_private_and_beside_the_trace(path: Path, found: Report):
    result = CliRunner().invoke(report, [str(path), "--html"], catch_exceptions=False)
    page = path.with_suffix(".html")
    assert result.output.endswith(f"HTML report: {page}\n")
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert page.stat().st_size < 6_000_000
    assert [entry.name for entry in path.parent.iterdir() if entry.name.startswith(".")] == []


def test_html_goes_where_it_is_told(path: Path, tmp_path: Path):
    target = tmp_path / "out.html"
    result = CliRunner().invoke(report, [str(path), "--html", str(target), "--json"], catch_exceptions=False)
    json.loads(result.stdout)
    assert target.exists()
    with pytest.raises(RalTraceError, match="could not be written"):
        CliRunner().invoke(report, [str(path), "--html", str(tmp_path / "none" / "out.html")], catch_exceptions=False)


def test_html_never_overwrites_a_trace():
    assert html_path(Path("a/run.json.gz"), "") == Path("a/run.html")
    with pytest.raises(UsageError, match=r"run\.duckdb --html"):
        html_path(Path("run.duckdb"), "run.duckdb")


def test_without_a_trace_the_newest_is_read(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(path.parent)
    assert "train.duckdb" in CliRunner().invoke(report, [], catch_exceptions=False).output
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NothingRecorded):
        CliRunner().invoke(report, [], catch_exceptions=False)


def test_a_trace_without_anything_has_a_report(tmp_path: Path):
    with Case().open(tmp_path) as trace:
        empty = collect(trace)
    assert "0 events" in printed(empty, 60)
    assert json.loads(report_json.render(empty))["analyses"]["devices"]["rows"] == []
    assert "<b>Kernels</b>: no kernel was recorded" in html.render(empty)
    assert "no kernel was recorded" in printed(empty, 200)


def test_a_program_without_devices_has_host_ops(tmp_path: Path):
    case = Case()
    case.event("op", "aten::mm", 0, 100)
    with case.open(tmp_path) as trace:
        found = collect(trace)
    text = printed(found, 80)
    assert "host name total self" in " ".join(text.split())
    assert "1 event over 100 ns" in text
    assert "aten::mm" in html.render(found)


def test_a_damaged_trace_is_refused_in_words(path: Path, tmp_path: Path):
    damaged = tmp_path / "damaged.duckdb"
    whole = path.read_bytes()
    said = []
    for place in range(12288 + 4096, len(whole), len(whole) // 12):
        flipped = bytes(255 - byte for byte in whole[place : place + 64])
        damaged.write_bytes(whole[:place] + flipped + whole[place + 64 :])
        result = CliRunner().invoke(report, [str(damaged)])
        assert result.exception is None or isinstance(result.exception, InputRefused)
        said += [str(result.exception)] if result.exception else []
    assert said
    assert all(text.startswith(f"{damaged}: ") for text in said)


def test_a_leak_is_named_with_its_evidence(tmp_path: Path):
    case = Case()
    case.device(index=0)
    for step in range(10):
        case.step(step, step * 1000, 900)
        case.alloc("aten::clone", step * 1000 + 10, 64, 10_000 + step * 64)
    with case.open(tmp_path) as trace:
        found = collect(trace)
    said = "Looks like a leak: memory from aten::clone on ral:0 grew in 9 of 9 steps, by 64 B a step."
    assert said in printed(found, 120)
    assert said in html.render(found)


def test_a_report_of_many_devices_stays_small(tmp_path: Path):
    case = Case()
    for index in range(64):
        case.device(index=index)
        for number in range(40):
            case.event("kernel", f"aten::op{number}", number * 10, 5, device=index)
            case.alloc(f"aten::op{number}", number * 10, 64, number * 64, index)
    with case.open(tmp_path) as trace:
        assert len(html.render(collect(trace))) < 6_000_000


def test_the_list_names_every_analysis():
    listed = CliRunner().invoke(report, ["--list"], catch_exceptions=False).output
    assert all(f"  {found.name}: " in listed for found in ANALYSES)
    as_json = json.loads(CliRunner().invoke(report, ["--list", "--json"], catch_exceptions=False).stdout)
    assert [found["name"] for found in as_json] == [found.name for found in ANALYSES]


def test_only_what_is_asked_for_is_answered(path: Path):
    result = CliRunner().invoke(report, [str(path), "--json", "--only", "steps"], catch_exceptions=False)
    assert list(json.loads(result.stdout)["analyses"]) == ["ledger", "quality", "summary", "steps"]
    with pytest.raises(UsageError, match=r"stpes.*did you mean steps"):
        CliRunner().invoke(report, [str(path), "--only", "stpes"], catch_exceptions=False)


def test_details_are_left_to_those_who_ask(path: Path):
    short = CliRunner().invoke(report, [str(path)], catch_exceptions=False).output
    whole = CliRunner().invoke(report, [str(path), "--all"], catch_exceptions=False).output
    assert "\nSources\n" not in short
    assert "\nSources\n" in whole


def test_a_warning_stands_at_the_numbers_that_it_changes(found: Report):
    text = printed(found, 100)
    lower_bounds = "! events are missing: counts and sums are lower bounds"
    assert text.index("Where the time goes") < text.index(lower_bounds) < text.index("Hotspots")
    assert html.render(found).count("counts and sums are lower bounds") == len(
        {chapter for chapter in found.chapters() if found.warnings[chapter]}
    )
