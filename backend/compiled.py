"""The compiled tier: libraries that Inductor makes of operators' decompositions, and their cache on disk.

A call that neither a native kernel nor the reference takes would go to the CPU, with copies. Where this is switched on,
its operator is compiled once for arguments that look like these, and runs on the device's memory where that lies. The
first such call of a machine waits for a compiler (`compile_op.py`, a process of its own); each later process takes the
library from the cache. Part of `torch.ral`.
"""

import fcntl
import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ral_trace.backend import _adapter
from ral_trace.backend.errors import BackendError, PluginRefused
from ral_trace.backend.plugins import check_owner

LONGEST_COMPILE_S = 900

_log = logging.getLogger(__name__)


class _Refused(BackendError):
    """There is no compiled kernel for a call; the text is one reason in the chain of a fallback."""


def set_compiled(on: bool = True) -> None:
    """Whether calls may be compiled before they fall back to the CPU, from the next launch on; off at first.

    Also the environment's RAL_COMPILED=1. The first call of each kind waits for a compiler, some seconds.
    """
    _adapter.set_compiled(on)


def compiled_from_environment() -> None:
    """Take RAL_COMPILED, where it is set. Raises BackendError where it is neither 0 nor 1."""
    text = os.environ.get("RAL_COMPILED") or "0"
    if text not in ("0", "1"):
        raise BackendError(f'RAL_COMPILED="{text}": must be 1 (compile before falling back) or 0')
    _adapter.set_compiler(library_for)
    _adapter.set_compiled(text == "1")


def cache_folder() -> Path:
    """Where compiled libraries lie, one folder for each version of torch."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "ral" / "compiled" / torch.__version__


def library_for(
    op: str, arguments: list[dict[str, Any]], results: Sequence[dict[str, Any]] = ()
) -> tuple[str, str, int]:
    """The library that runs `op` on such arguments, or "" and why there is none; then the nanoseconds that it took.

    The router calls this, and says which `results` the program gets. 0 ns: it was in the cache.
    """
    try:
        job = {
            "op": op,
            "arguments": arguments,
            "results": list(results),
            "torch": torch.__version__,
            "cpu": _processor(),
        }
        return _library(job)
    except (_Refused, PluginRefused) as error:
        return "", str(error), 0


def _processor() -> str:
    """What compiled code may use: it is made for the machine that it runs on."""
    info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    flags = next((line for line in info if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {hashlib.sha256(flags.encode()).hexdigest()[:16]}"


def _library(job: dict[str, Any]) -> tuple[str, str, int]:
    try:
        text = json.dumps(job, sort_keys=True)
    except TypeError:
        raise _Refused("an argument that is no number, text or list of these") from None
    name = hashlib.sha256(text.encode()).hexdigest()[:32]
    with _locked(cache_folder()) as folder:
        library, description = folder / f"{name}.so", folder / f"{name}.json"
        known = _cached(library, description)
        if known is not None:
            return (str(library), "", 0) if not known["refused"] else ("", known["refused"], 0)
        start = time.monotonic_ns()
        refused, digest = _compile(text, library)
        spent_ns = time.monotonic_ns() - start
        content = {"seconds": round(spent_ns / 1e9, 3), "sha256": digest, "refused": refused, "job": job}
        _write(description, json.dumps(content, indent=1))
        if refused:
            return "", refused, spent_ns
        _log.warning("%s was compiled in %.1f s, for all later programs: %s", job["op"], spent_ns / 1e9, library)
        return str(library), "", spent_ns


@contextmanager
def _locked(folder: Path) -> Iterator[Path]:
    """The folder, made where it is not there; nobody else compiles meanwhile. Refuses one that others may write."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owner(folder)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _Refused(f"{folder}: cannot hold the cache ({error.strerror}); set XDG_CACHE_HOME") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(descriptor)


def _cached(library: Path, description: Path) -> dict[str, Any] | None:
    """What is known of a job, or None where it is not whole: then it is compiled again."""
    if not description.exists():
        return None
    check_owner(description)
    try:
        known = json.loads(description.read_text(encoding="utf-8"))
        refused, digest = known["refused"], known["sha256"]
    except (ValueError, KeyError, TypeError):
        return None
    if refused:
        return {"refused": refused}
    if not library.exists():
        return None
    check_owner(library)
    return {"refused": ""} if _digest(library) == digest else None


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _compile(job: str, library: Path) -> tuple[str, str]:
    """Why there is no library, or its digest. Raises _Refused where the compiler itself failed, which may pass."""
    with tempfile.TemporaryDirectory(prefix=".compiling-", dir=library.parent) as folder:
        # Not the device in there, nor a recording: the compiler is no part of the program.
        environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONWARNINGS": "ignore"}
        command = [sys.executable, "-m", "ral_trace.backend.compile_op", folder]
        try:
            done = subprocess.run(
                command,
                input=job,
                capture_output=True,
                text=True,
                env=environment,
                timeout=LONGEST_COMPILE_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _Refused(f"the compiler did not end well ({type(error).__name__})") from None
        answer = done.stdout.strip().splitlines()[-1:] or [""]
        if done.returncode == 0 and answer[0].startswith("refused: "):
            return answer[0].removeprefix("refused: "), ""
        made = Path(folder) / "kernel.so"
        if done.returncode != 0 or not made.is_file():
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise _Refused(f"the compiler failed: {last[:200]}")
        made.chmod(0o700)
        digest = _digest(made)
        made.replace(library)
        return "", digest


def _write(file: Path, text: str) -> None:
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(0o600)
    fresh.replace(file)
