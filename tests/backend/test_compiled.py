"""The compiled tier: right values, the cache, and why a call is not compiled."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ral_trace.backend import _adapter, compiled
from ral_trace.tracer import open_trace
from tests.backend import plugin_kit as kit

SECONDS = 900
"""A compiler on a machine that has much else to do."""

PRELUDE = """
import json, os, sys
import torch
from ral_trace.backend import enable
enable("sim:1")
torch.manual_seed(0)
x, y = torch.rand(6, 7) * 1.8 - 0.9, torch.rand(7, 6).t().clamp(0.05, 0.95)
answers = {}
def same(name, ours, cpu):
    answers[name] = torch.allclose(ours.cpu(), cpu, rtol=1e-5, atol=1e-6, equal_nan=True)
def rows():
    return {row["op"]: row for row in torch.ral.dispatch_records()}
"""

# With a compiler for two operators, then without one.
COMPILING = (
    PRELUDE
    + """
same("erfinv", torch.erfinv(x.to("ral")), x.erfinv())
on_device = y.to("ral")
same("logit_", on_device.logit_(0.1), y.logit(0.1))
same("logit_ itself", on_device, y.logit(0.1))
os.environ["CXX"] = "/nonexistent"
same("another value", y.to("ral").logit_(0.2), y.logit(0.2))
same("again", y.to("ral").logit_(0.1), y.logit(0.1))
x.to("ral").exponential_()
same("nonzero", torch.nonzero(x.to("ral") > 0), torch.nonzero(x > 0))
same("qr", torch.linalg.qr(x.to("ral")).R.abs(), torch.linalg.qr(x).R.abs())
same("a number", torch.xlogy((9 * y).long().to("ral"), 0.1), torch.xlogy((9 * y).long(), 0.1))
print(json.dumps([answers, rows()]))
"""
)

# Another program, which could not compile.
CACHED = (
    PRELUDE
    + """
from ral_trace.tracer import trace
os.environ["CXX"] = "/nonexistent"
on_device = x.to("ral")
with trace(sys.argv[1]):
    same("erfinv", torch.erfinv(on_device), x.erfinv())
torch.ral.set_compiled(False)
same("off", torch.erfinv(on_device), x.erfinv())
print(json.dumps([answers, rows()]))
"""
)


class Programs:
    """The two programs, each run once, with one cache."""

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        self.trace = folder / "trace.duckdb"
        self.environment = kit.clean_environment(
            folder, XDG_CACHE_HOME=str(self.cache), RAL_COMPILED="1", RAL_TRACE_DIR=str(folder / "rendezvous")
        )
        self.first = self.run(COMPILING)
        self.second = self.run(CACHED, str(self.trace))

    def run(self, program: str, *words: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answers, rows = json.loads(done.stdout)
        return answers, rows, done.stderr


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("compiled"))


def test_off_by_default() -> None:
    assert not _adapter.compiled_on()
    torch.erfinv(torch.rand(2, 2, 2, 2, device="ral:1"))
    (row,) = [row for row in torch.ral.dispatch_records() if row["op"] == "aten::erfinv" and row["rank"] == 4]
    assert (row["route"], row["compiled"], row["compile_ns"]) == ("cpu", 0, 0)
    assert "compiled" not in row["reasons"]


def test_values_are_the_cpus(programs: Programs) -> None:
    """Also in place, with strides, and for a value that no kernel was made for."""
    answers, _, _ = programs.first
    assert len(answers) == 8
    assert all(answers.values()), answers


def test_records_say_what_was_compiled(programs: Programs) -> None:
    _, rows, _ = programs.first
    erfinv, logit = rows["aten::erfinv"], rows["aten::logit_"]
    assert (erfinv["route"], erfinv["compiled"], erfinv["fallbacks"], erfinv["bytes_copied"]) == ("compiled", 1, 0, 0)
    assert erfinv["compile_ns"] > 0
    assert (logit["compiled"], logit["fallbacks"]) == (2, 1)


def test_a_compilation_is_said_in_one_line(programs: Programs) -> None:
    lines = [line for line in programs.first[2].splitlines() if "was compiled in" in line]
    assert [line.split()[0] for line in lines] == ["aten::erfinv", "aten::logit_"]
    assert all(str(programs.cache) in line for line in lines)
    assert "was compiled in" not in programs.second[2]


def test_refusals_have_their_reasons(programs: Programs) -> None:
    _, rows, _ = programs.first
    chain = "native: no entry; reference: the memory is not the host's; compiled: "
    assert rows["aten::exponential_"]["reasons"] == chain + "it draws random numbers"
    assert rows["aten::nonzero"]["reasons"] == chain + "what comes out depends on the data"
    assert rows["aten::linalg_qr"]["reasons"].startswith(chain + "no decomposition (aten::linalg_qr")
    assert rows["aten::xlogy.Tensor"]["reasons"] == chain + "a number that decides the result's type"
    assert rows["aten::logit_"]["reasons"].startswith(chain + "the compiler failed: ")


def test_another_process_takes_it_from_the_cache(programs: Programs) -> None:
    answers, rows, _ = programs.second
    assert all(answers.values()), answers
    row = rows["aten::erfinv"]
    assert (row["compiled"], row["compile_ns"], row["fallbacks"]) == (1, 0, 1)  # switched off for the second call


def test_the_cache_is_the_users_alone(programs: Programs) -> None:
    folder = programs.cache / "ral" / "compiled" / torch.__version__
    kinds = sorted(path.suffix for path in folder.iterdir() if path.suffix)
    assert kinds == [".json"] * 4 + [".so"] * 2  # two refusals are kept too
    for path in (folder, *folder.iterdir()):
        assert path.stat().st_mode & 0o077 == 0, path
    described = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    assert {one["job"]["op"] for one in described} == {
        "aten::erfinv",
        "aten::logit_",
        "aten::linalg_qr",
        "aten::xlogy.Tensor",
    }
    assert all(one["seconds"] > 0 for one in described)


def test_a_trace_shows_the_route(programs: Programs) -> None:
    with open_trace(programs.trace) as trace:
        (launch,) = trace.rows("SELECT args, correlation FROM event WHERE kind = 'launch' AND name = 'aten::erfinv'")
        assert json.loads(launch["args"])["route"] == "compiled"
        its_own = f"correlation = {launch['correlation']}"
        (kernel,) = trace.rows(f"SELECT args FROM event WHERE kind = 'kernel' AND {its_own}")
        assert json.loads(kernel["args"]) == {"kernel": "compiled:aten::erfinv", "vendor": "sim"}


# --- the cache, with a compiler that only writes a text ---


class Compiler:
    def __init__(self) -> None:
        self.calls = 0
        self.refused = ""

    def __call__(self, job: str, library: Path) -> tuple[str, str]:
        self.calls += 1
        if self.refused:
            return self.refused, ""
        library.write_text(job)
        return "", compiled._digest(library)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    fake = Compiler()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiled, "_compile", fake)
    return fake


ARGUMENTS: list[dict[str, Any]] = [{"tensor": {"dtype": "torch.float32", "sizes": [2], "strides": [1]}}]


def test_what_is_cached_is_not_compiled(compiler: Compiler) -> None:
    library, refused, spent_ns = compiled.library_for("aten::erfinv", ARGUMENTS)
    assert (Path(library).exists(), refused, spent_ns > 0) == (True, "", True)
    assert compiled.library_for("aten::erfinv", ARGUMENTS) == (library, "", 0)
    assert compiler.calls == 1
    assert compiled.library_for("aten::erfinv", [*ARGUMENTS, {"value": 1.0}])[0] not in ("", library)


@pytest.mark.parametrize("content", ["", "{}", "[]", "{", '{"refused": ""}'])
def test_a_broken_description_is_compiled_again(compiler: Compiler, content: str) -> None:
    library, _, _ = compiled.library_for("aten::erfinv", ARGUMENTS)
    Path(library).with_suffix(".json").write_text(content)
    assert compiled.library_for("aten::erfinv", ARGUMENTS)[0] == library
    assert compiler.calls == 2


def test_a_broken_library_is_compiled_again(compiler: Compiler) -> None:
    library, _, _ = compiled.library_for("aten::erfinv", ARGUMENTS)
    whole = Path(library).read_text()
    Path(library).write_text(whole[:-1])
    assert compiled.library_for("aten::erfinv", ARGUMENTS)[0] == library
    assert Path(library).read_text() == whole
    Path(library).unlink()
    assert compiled.library_for("aten::erfinv", ARGUMENTS)[0] == library
    assert compiler.calls == 3


def test_a_refusal_is_kept(compiler: Compiler) -> None:
    compiler.refused = "no decomposition"
    for _ in range(2):
        assert compiled.library_for("aten::mm", ARGUMENTS)[:2] == ("", "no decomposition")
    assert compiler.calls == 1


def test_a_cache_that_others_may_write_is_refused(compiler: Compiler) -> None:
    library, _, _ = compiled.library_for("aten::erfinv", ARGUMENTS)
    Path(library).chmod(0o722)
    assert "may be written by others" in compiled.library_for("aten::erfinv", ARGUMENTS)[1]
    Path(library).chmod(0o700)
    Path(library).parent.chmod(0o777)
    assert "may be written by others" in compiled.library_for("aten::erfinv", ARGUMENTS)[1]
    assert compiler.calls == 1


def test_an_argument_without_a_form_is_refused(compiler: Compiler) -> None:
    assert compiled.library_for("aten::foo", [{"value": 1j}])[1].startswith("an argument that is no number")
    assert compiler.calls == 0


def test_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAL_COMPILED", "yes")
    with pytest.raises(compiled.BackendError, match='RAL_COMPILED="yes": must be 1'):
        compiled.compiled_from_environment()
