"""`ralctl install` and `ralctl reload`, by the real command."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ral_trace.backend import plugins
from tests.backend import plugin_kit as kit


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return kit.clean_environment(tmp_path, RAL_TRACE_DIR=str(tmp_path / "rendezvous"))


def installed(tmp_path: Path) -> Path:
    return tmp_path / "config/ral/plugins"


ADD = "import torch, ral_trace.backend as b; b.enable(); x = torch.ones(2, device='ral:0'); print((x + x).tolist())"


def test_a_folder_is_built_tried_and_installed(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = kit.write_plugin(tmp_path / "source")
    kit.write_manifest(folder)
    (folder / "plugin.c").write_text((folder / "plugin.c").read_text().replace("b[n] + 0", "b[n] + 40"))
    done = kit.ralctl(["install", str(folder)], environment)
    assert done.returncode == 0, done.stderr
    assert not (folder / "libmychip.so").exists()
    assert (installed(tmp_path) / "mychip/libmychip.so").exists()
    assert [path.name for path in installed(tmp_path).iterdir()] == ["mychip"]
    shutil.rmtree(folder)
    rows = json.loads(kit.ralctl(["plugin-status", "--json"], environment).stdout)
    assert {row["plugin_name"]: row["status"] for row in rows}["mychip"] == "LOADED"
    ran = kit.python(ADD, environment | {"RAL_DEVICES": "mychip:1"})
    assert ran.stdout.strip() == "[42.0, 42.0]", ran.stderr


def test_a_vendors_copy_of_sim_builds_and_installs(tmp_path: Path, environment: dict[str, str]) -> None:
    """What the package's own plugin folder holds is all that it takes: under a name of one's own."""
    folder = tmp_path / "mysim"
    folder.mkdir()
    for path in (plugins.VENDORS / "sim").iterdir():
        if path.suffix in (".h", ".json", ".cpp") or path.name == "Makefile":
            text = path.read_text().replace('"sim"', '"mysim"').replace("libral_sim.so", "libmysim.so")
            (folder / path.name).write_text(text)
    done = kit.ralctl(["install", str(folder), "--json"], environment | {"CXXFLAGS": "-O0"})
    assert done.returncode == 0, done.stderr
    ran = kit.python(ADD, environment | {"RAL_DEVICES": "mysim:1"})
    assert ran.stdout.strip() == "[2.0, 2.0]", ran.stderr


def test_what_cannot_be_loaded_is_not_installed(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = kit.write_plugin(tmp_path / "source")
    (folder / "plugin.c").write_text(
        (folder / "plugin.c").read_text().replace("#ifndef INIT", "#define INIT return 5;\n#ifndef INIT")
    )
    done = kit.ralctl(["install", str(folder)], environment)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "INIT_FAILED" in done.stderr
    (folder / "plugin.c").write_text("this is no C")
    done = kit.ralctl(["install", str(folder)], environment)
    assert done.returncode == 1
    assert "error: " in done.stderr
    assert list(installed(tmp_path).iterdir()) == []


def test_another_vendors_plugin_is_not_overwritten(tmp_path: Path, environment: dict[str, str]) -> None:
    first = kit.write_plugin(tmp_path / "first", publisher="First Chips")
    second = kit.write_plugin(tmp_path / "second", publisher="Second Chips", version="9")
    assert kit.ralctl(["install", str(first)], environment).returncode == 0
    refused = kit.ralctl(["install", str(second)], environment)
    assert refused.returncode == 1
    assert "is there already, from First Chips" in refused.stderr
    assert json.loads((installed(tmp_path) / "mychip/plugin.json").read_text())["publisher"] == "First Chips"
    # An update by the same publisher needs no force.
    kit.write_plugin(tmp_path / "first", publisher="First Chips", version="2.6")
    assert kit.ralctl(["install", str(first)], environment).returncode == 0
    assert json.loads((installed(tmp_path) / "mychip/plugin.json").read_text())["version"] == "2.6"
    assert kit.ralctl(["install", str(second), "--force"], environment).returncode == 0
    assert json.loads((installed(tmp_path) / "mychip/plugin.json").read_text())["publisher"] == "Second Chips"
    assert [path.name for path in installed(tmp_path).iterdir()] == ["mychip"]


def test_the_packages_own_are_not_overwritten(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = kit.write_plugin(tmp_path / "source", name="sim")
    refused = kit.ralctl(["install", str(folder)], environment)
    assert refused.returncode == 1
    assert "comes with ral-trace" in refused.stderr


def test_what_others_could_write_is_not_installed(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = kit.write_plugin(tmp_path / "source")
    folder.chmod(0o777)
    refused = kit.ralctl(["install", str(folder)], environment)
    assert refused.returncode == 1
    assert "may be written by others" in refused.stderr


# --- reload ---

RUNNING = """
import sys, torch, ral_trace.backend as b
b.enable("mychip:1")
x = torch.ones(2, device="ral:0")
print((x + x).tolist(), flush=True)
for line in sys.stdin:
    if line.strip() == "here":
        print([(each.vendor, each.status, each.reason) for each in torch.ral.reload_plugins()], flush=True)
    else:
        for _ in range(2000):  # the request comes by a thread of its own
            if (x + x)[0].item() == float(line):
                break
            __import__("time").sleep(0.01)
        print((x + x).tolist(), flush=True)
"""


def test_reload_reaches_a_running_program(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = kit.write_plugin(tmp_path / "mychip")
    kit.build(folder)
    text = (folder / "plugin.c").read_text()
    (folder / "plugin.c").write_text(text.replace("b[n] + 0", "b[n] + 40"))
    kit.build(folder, name="mychip2")
    kit.write_manifest(folder)
    environment = environment | {"RAL_PLUGIN_PATH": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", RUNNING], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(line: str) -> str:
            process.stdin.write(line + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return process.stdout.readline().strip()  # type: ignore[union-attr]

        assert process.stdout.readline().strip() == "[2.0, 2.0]"
        kit.write_manifest(folder, kernel_path="libmychip2.so:my_add")
        done = kit.ralctl(["reload", "--json"], environment)
        assert json.loads(done.stdout) == {"processes": [process.pid]}, done.stderr
        assert ask("42") == "[42.0, 42.0]"
        # A bad one is refused as a whole, and the one before stays in force.
        kit.write_manifest(folder, kernel_path="libnone.so:my_add")
        said = ask("here")
        assert "'REFUSED'" in said
        assert f"{folder / 'kernel_manifest.json'}: entry aten::add refused: there is no library" in said
        assert ask("42") == "[42.0, 42.0]"
        (folder / "kernel_manifest.json").write_text("{")
        assert "cannot be read as JSON" in ask("here")
        assert ask("42") == "[42.0, 42.0]"
        kit.write_manifest(folder)
        assert "('mychip', 'RELOADED', '')" in ask("here")
        assert "('mychip', 'UNCHANGED', '')" in ask("here")
        assert ask("2") == "[2.0, 2.0]"
        process.stdin.close()
        assert process.wait(60) == 0
