"""Kernel manifests that change while a program runs: `torch.ral.reload_plugins()`, or `ralctl reload` from outside."""

import atexit
import logging
import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ral_trace.backend import manifest
from ral_trace.tracer import _native

_log = logging.getLogger(__name__)
_lock = threading.Lock()
_overrides: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Reloaded:
    """What became of one vendor's manifest: RELOADED, UNCHANGED, or REFUSED with the file, the entry and the reason."""

    vendor: str
    file: str
    status: str
    reason: str = ""


def install_all(vendors: Sequence[str], overrides: Sequence[Path]) -> None:
    """Give the router the manifests of these vendors, for the first time. `overrides` are read again at each reload.

    A bad manifest, or a bad entry of one, is refused with a warning, and the rest is used; PluginRefused is raised for
    a bad one among `overrides`.
    """
    global _overrides
    loaded = manifest.load_all(overrides)
    _overrides = tuple(overrides)
    for problem in loaded.problems.values():
        warnings.warn(f"kernel manifest: {problem}", stacklevel=4)
    for vendor in vendors:
        if vendor in loaded.manifests:
            manifest.install(vendor, loaded.manifests[vendor])
            for refusal in loaded.manifests[vendor].refusals:
                warnings.warn(f"kernel manifest: {refusal}", stacklevel=4)


def reload_plugins() -> list[Reloaded]:
    """Read the manifests of this process's vendors again, and use those that have changed, from the next launch on.

    One that is bad is refused as a whole: the one before stays in force, and the others are used. A kernel's library is
    opened once: new code needs a new file name.
    """
    with _lock:
        loaded = manifest.load_all(_overrides, strict=False)
        results = [
            Reloaded("", str(file), "REFUSED", str(problem)) for file, problem in sorted(loaded.problems.items())
        ]
        for vendor in _vendors():
            before = manifest.installed().get(vendor)
            if before is not None and before.file in loaded.problems:
                continue  # refused above, and no other may take its place
            if vendor in loaded.manifests:
                results.append(_take(vendor, before, loaded.manifests[vendor]))
        return results


def _vendors() -> list[str]:
    from ral_trace.backend import _adapter

    return _adapter.vendors()


def _take(vendor: str, before: manifest.Manifest | None, now: manifest.Manifest) -> Reloaded:
    if now == before:
        return Reloaded(vendor, str(now.file), "UNCHANGED")
    if now.refusals:
        return Reloaded(vendor, str(now.file), "REFUSED", "; ".join(map(str, now.refusals)))
    manifest.install(vendor, now)
    return Reloaded(vendor, str(now.file), "RELOADED")


# --- from outside ---


def publish() -> None:
    """Let `ralctl` see this process's devices and reach it: a file beside the page, a thread that waits on the page."""
    from ral_trace.backend import _adapter

    try:
        page = _native.Rendezvous.open()
        requests = os.eventfd(0)
        file = Path(page.folder) / f"devices-{os.getpid()}-{_native.process_started(os.getpid())}.json"
        _adapter.keep_device_file(str(file))
        _native.notify_reloads(requests)
    except RuntimeError as error:
        warnings.warn(f"ralctl does not see this process: {error}", stacklevel=4)
        return
    atexit.register(_remove, file, os.getpid())
    # It waits outside of the interpreter, and reads manifests with the interpreter's lock like any Python thread: no
    # launch waits for more than the exchange of a table.
    threading.Thread(target=_watch, args=(requests,), name="ral-reload", daemon=True).start()


def _remove(file: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child has no devices
        file.unlink(missing_ok=True)


def _watch(requests: int) -> None:
    while os.eventfd_read(requests):
        for result in reload_plugins():
            if result.status == "REFUSED":
                _log.warning("kernel manifest refused, the one before stays in force: %s", result.reason)
