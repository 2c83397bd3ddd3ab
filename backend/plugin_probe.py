"""Loads plugins in a process of its own, so that one that crashes or hangs is reported and harms nobody.

`python -P -m ral_trace.backend.plugin_probe FD status FOLDER` or `... FD devices LIST` writes its answer to that file
descriptor as JSON: standard output belongs to the plugin.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ral_trace.backend import _core, plugins
from ral_trace.backend.errors import BackendError, PluginRefused

PROBE_SECONDS = 60.0
"""A plugin whose loading takes longer is stopped and reported as TIMEOUT."""


def status(plugin: plugins.Plugin, seconds: float = PROBE_SECONDS) -> plugins.Status:
    """What loading a plugin comes to."""
    try:
        answer = _ask(["status", str(plugin.folder)], seconds)
    except PluginRefused as error:
        return plugins.status_of(plugin, error.status, str(error))
    answer["dependencies"] = tuple(answer["dependencies"])
    answer["missing"] = tuple(answer["missing"])
    return plugins.Status(**answer)


def devices(listed: str, seconds: float = PROBE_SECONDS) -> list[dict[str, Any]]:
    """The devices that a list names. Raises BackendError where it cannot be, PluginRefused where a plugin cannot."""
    answer = _ask(["devices", listed], seconds)
    if "error" in answer:
        raise BackendError(answer["error"])
    rows: list[dict[str, Any]] = answer["devices"]
    return rows


def _ask(words: Sequence[str], seconds: float) -> Any:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, encoding="utf-8") as answer:
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", __spec__.name, str(write_end), *words],
                pass_fds=[write_end],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PluginRefused("TIMEOUT", f"loading it takes more than {seconds:g} s") from None
        finally:
            os.close(write_end)
        text = answer.read()
    if done.returncode != 0 or not text:
        raise PluginRefused("CRASHED", f"loading it {_ending(done)}")
    return json.loads(text)


def _ending(done: "subprocess.CompletedProcess[str]") -> str:
    if done.returncode < 0:
        return f"was ended by {signal.Signals(-done.returncode).name}"
    said = done.stderr.strip().splitlines()
    return f"ended the process with exit code {done.returncode}" + (f": {said[-1]}" if said else "")


def _answer(kind: str, argument: str) -> dict[str, Any]:
    if kind == "status":
        return asdict(plugins.load(_core, plugins.read(Path(argument))))
    try:
        plugins.load_named(_core, argument)
        return {"devices": _core.list_devices(argument)}
    except (BackendError, _core.BadDeviceList) as error:
        return {"error": str(error)}


def main() -> None:
    """Of the child."""
    descriptor, kind, argument = sys.argv[1:]
    text = json.dumps(_answer(kind, argument))
    with os.fdopen(int(descriptor), "w", encoding="utf-8") as out:
        out.write(text)
    sys.stderr.flush()
    # Whatever a plugin left behind that would crash or hang at exit: the answer is given.
    os._exit(0)


if __name__ == "__main__":
    main()
