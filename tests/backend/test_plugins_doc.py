"""docs/plugins.md: its files are written, its commands are run."""

import os
import re
import subprocess
import sys
from pathlib import Path

from ral_trace.backend import plugins
from tests.backend import plugin_kit as kit

TEXT = (Path(__file__).resolve().parents[2] / "docs/plugins.md").read_text()


def test_the_page_works_from_top_to_bottom(tmp_path: Path) -> None:
    files = re.findall(r"^`([\w./]+)`\n\n```\w+\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in files] == [
        "mychip/plugin.json",
        "mychip/mychip.c",
        "mychip/kernel_manifest.json",
        "pychip.py",
    ]
    for name, content in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    source = str(tmp_path / "mychip/mychip.c")
    strict = ["gcc", "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", f"-I{plugins.INCLUDE}"]
    subprocess.run([*strict, source], check=True)
    commands = "\n".join(re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
    assert commands.count("ralctl") == 4
    environment = kit.clean_environment(tmp_path, RAL_TRACE_DIR=str(tmp_path / "rendezvous"))
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "mychip 1.0 is installed in" in done.stdout
    assert re.search(r"^mychip\s+1\.0\s+LOADED\s+libm\.so\.6", done.stdout, re.MULTILINE)
    assert re.search(r"^ral:0\s+ral\s+My Chip 1000\s+mychip\s+online", done.stdout, re.MULTILINE)
    assert "tensor([-1., -1., -1.], device='ral:0')" in done.stdout
    assert "tensor([2., 2., 2.], device='ral:0')" in done.stdout


def test_every_status_is_on_the_page() -> None:
    core = Path(__file__).resolve().parents[2] / "backend"
    source = "".join(path.read_text() for path in [*core.glob("*.py"), *core.glob("native/core/*.cpp")])
    used = set(re.findall(r'Plugin(?:Refused|Error)\(\s*"([A-Z_]+)"', source))
    of_install = {"NAME_TAKEN", "BUILD_FAILED"}
    of_copies = {"COPY_FAILED"}
    assert used - of_install - of_copies <= set(re.findall(r"[A-Z_]+", TEXT))
    assert "LOADED" in TEXT
