"""docs/checking.md: its files are written, its commands are run, its lists are what there is."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from ral_trace.analysis.check_command import check_command, listing
from ral_trace.analysis.compare_command import compare

TEXT = (Path(__file__).resolve().parents[2] / "docs/checking.md").read_text()


def test_the_page_works_from_top_to_bottom(tmp_path: Path) -> None:
    for name, content in re.findall(r"^`([\w./]+)`\n\n```\w+\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(content)
    commands = "\n".join(re.findall(r"^```sh\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
    assert commands.count("ral-trace check") == 4
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as rendezvous:
        environment = {**os.environ, "RAL_TRACE_DIR": f"{rendezvous}/rendezvous"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        done = subprocess.run(
            ["bash", "-euc", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = re.search(r"^```text\n(FAILED.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert shown is not None
    said = (done.stdout + done.stderr).splitlines()
    assert [line for line in shown[1].splitlines() if line not in said] == []
    assert "ok      forced_syncs == 0  (0)" in said
    assert not [line for line in said if line.startswith("UNKNOWN")]
    assert "2 passed" in done.stdout
    assert not list((tmp_path / "failed-traces").iterdir())
    found = json.loads((tmp_path / "difference.json").read_text())
    assert set(re.findall(r"`(\w+)`", TEXT.partition("`--json` prints one object")[2].partition("##")[0])) >= set(found)
    assert (found["step"]["base_steps"], found["step"]["new_steps"]) == (19, 24)


def test_every_metric_is_on_the_page() -> None:
    assert f"```text\n{listing()}\n```" in TEXT, "paste what ral-trace check --list prints"


def test_every_option_is_on_the_page() -> None:
    for command in (check_command, compare):
        options = {name for parameter in command.params for name in parameter.opts if name.startswith("--")}
        assert options <= set(re.findall(r"--[a-z]+(?:-[a-z]+)*", TEXT))
