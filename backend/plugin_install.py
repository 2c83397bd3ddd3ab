"""`ralctl install FOLDER`: a vendor's folder is built, tried in another process, and put where programs find it."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

from ral_trace.backend import plugin_probe, plugins
from ral_trace.backend.errors import PluginRefused
from ral_trace.backend.plugins import Plugin, Status

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def install(folder: Path, *, force: bool = False, seconds: float = plugin_probe.PROBE_SECONDS) -> Status:
    """Install a plugin for this user; the folder itself is not changed. The status of what is installed is LOADED.

    Raises PluginRefused where it cannot be built or loaded, or (without `force`) would take the place of another
    vendor's: then nothing has changed.
    """
    plugin = plugins.read(folder.resolve())
    if not force:
        _check_place(plugin)
    root = plugins.user_folder()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    plugins.check_owner(root)
    staging = root / f".{plugin.name}.{os.getpid()}"
    try:
        shutil.copytree(plugin.folder, staging)
        _close_to_others(staging)
        staged = plugins.read(staging)
        _build(staged)
        status = plugin_probe.status(staged, seconds)
        if status.status != plugins.LOADED:
            raise PluginRefused(status.status, f"{folder}: {status.status}: {status.reason}; nothing is installed")
        _replace(staging, root / plugin.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return plugins.status_of(plugins.read(root / plugin.name), plugins.LOADED, "")


def _check_place(plugin: Plugin) -> None:
    """An update comes from the publisher of what is there."""
    there = plugins.discover().plugins.get(plugin.name)
    if there is None or there.folder.resolve() == plugin.folder:
        return
    package = there.folder.is_relative_to(plugins.VENDORS)
    if package or there.publisher != plugin.publisher:
        owner = "comes with ral-trace" if package else f"is there already, from {there.publisher or 'somebody else'}"
        raise PluginRefused(
            "NAME_TAKEN",
            f"plugin '{plugin.name}' {owner} ({there.folder}); take another name, or --force to replace it",
        )


def _close_to_others(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o022)


def _build(plugin: Plugin) -> None:
    if plugin.library is None or not plugin.sources or _is_up_to_date(plugin):
        return
    command = plugin.build or _compile_command(plugin)
    environment = os.environ | {"RAL_INCLUDE": str(plugins.INCLUDE)}
    try:
        done = subprocess.run(
            command, cwd=plugin.folder, env=environment, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise PluginRefused("BUILD_FAILED", f"{command[0]} cannot be run: {error.strerror}; install it") from None
    if done.returncode != 0 or not plugin.library.is_file():
        said = (done.stderr or done.stdout).strip() or f"it makes no {plugin.library.name}"
        raise PluginRefused("BUILD_FAILED", f"`{' '.join(command)}` failed: {said}")


def _sources(plugin: Plugin) -> list[Path]:
    return sorted({path for pattern in plugin.sources for path in plugin.folder.glob(pattern)})


def _is_up_to_date(plugin: Plugin) -> bool:
    if plugin.library is None or not plugin.library.is_file():
        return False
    built = plugin.library.stat().st_mtime_ns
    return all(path.stat().st_mtime_ns <= built for path in _sources(plugin))


def _compile_command(plugin: Plugin) -> tuple[str, ...]:
    """Where plugin.json has no build: all of its C, or all of its C++, in one go."""
    assert plugin.library is not None
    files = [path for path in _sources(plugin) if path.suffix in (".c", ".cc", ".cpp")]
    compiler = ("cc", "-std=c11") if all(path.suffix == ".c" for path in files) else ("c++", "-std=c++17")
    names = [str(path.relative_to(plugin.folder)) for path in files]
    flags = ("-O2", "-shared", "-fPIC", f"-I{plugins.INCLUDE}")
    return (*compiler, *flags, *names, "-o", str(plugin.library.relative_to(plugin.folder)))


def _replace(staging: Path, target: Path) -> None:
    """In one step: a program that starts meanwhile finds the old one or the new one."""
    if not target.exists():
        staging.rename(target)
        return
    exchange = ctypes.CDLL(None, use_errno=True).renameat2
    if exchange(_AT_FDCWD, os.fsencode(staging), _AT_FDCWD, os.fsencode(target), _RENAME_EXCHANGE) != 0:
        error = os.strerror(ctypes.get_errno())
        raise PluginRefused("BUILD_FAILED", f"{target}: cannot be replaced ({error}); remove it first")
