"""Vendors' plugins: where they lie, whether they may be trusted, and loading them. Imports no torch.

A plugin is a folder with plugin.json, kernel_manifest.json and a shared library or a Python class (docs/plugins.md).
The package's own lie in vendors/; then come /opt/flagos/plugins, ~/.config/ral/plugins and the folders of
RAL_PLUGIN_PATH, each of which is a plugin or holds plugins. The last of a name counts. Nothing is loaded before
`enable()`.
"""

import ctypes
import importlib.util
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ral_trace.backend.errors import BadManifest, PluginRefused

VENDORS = Path(__file__).parent / "vendors"
INCLUDE = Path(__file__).parent / "include"
"""Where ral_plugin.h lies."""
SYSTEM_FOLDER = Path("/opt/flagos/plugins")
PLUGIN_FILE = "plugin.json"
MANIFEST_FILE = "kernel_manifest.json"
BUILT_IN = "host"
"""The one vendor that is no plugin."""
LOADED = "LOADED"

NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_FIELDS: dict[str, type] = {
    "name": str,
    "version": str,
    "publisher": str,
    "library": str,
    "python": str,
    "sources": list,
    "build": list,
    "dependencies": list,
}


@dataclass(frozen=True)
class Plugin:
    """What a plugin.json says; `library` is a path, whether or not it is there yet."""

    name: str
    version: str
    folder: Path
    publisher: str = ""
    library: Path | None = None
    python: str | None = None
    sources: tuple[str, ...] = ()
    build: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Status:
    """What became of a plugin: LOADED, or a code and the reason in words. `missing` are the dependencies not there."""

    name: str
    status: str
    reason: str = ""
    version: str | None = None
    folder: str | None = None
    dependencies: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """All that lies in the folders: plugins by name, and what is no plugin although it looks like one."""

    plugins: dict[str, Plugin]
    refused: tuple[Status, ...]


class Core(Protocol):
    """The functions of `_core` and `_adapter` that loading needs; each has vendors of its own."""

    def load_plugin(self, library: str, name: str) -> tuple[str, str]: ...
    def add_vendor(self, name: str, version: str, devices: list[dict[str, Any]], arenas: list[int]) -> str: ...
    def described_fault(self, device: dict[str, Any]) -> str: ...
    def vendors(self) -> list[str]: ...


# --- where they lie ---


def user_folder() -> Path:
    """Where `ralctl install` puts plugins."""
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "ral" / "plugins"


def search_path() -> list[Path]:
    """Folders that are plugins or hold plugins, in order: the last of a name counts."""
    listed = filter(None, os.environ.get("RAL_PLUGIN_PATH", "").split(os.pathsep))
    return [VENDORS, SYSTEM_FOLDER, user_folder(), *map(Path, listed)]


def folders_with(file_name: str) -> list[Path]:
    """Each folder on the search path, and each directly in one, that has such a file. Hidden ones are skipped."""
    found = []
    for folder in search_path():
        inner = sorted(path.parent for path in folder.glob(f"*/{file_name}") if not path.parent.name.startswith("."))
        found += [path for path in (folder, *inner) if (path / file_name).is_file()]
    return found


def discover() -> Found:
    """All plugins, read and checked; none is loaded. One that is refused hides no other of its name."""
    plugins: dict[str, Plugin] = {}
    refused = []
    for folder in folders_with(PLUGIN_FILE):
        try:
            plugin = read(folder)
        except PluginRefused as error:
            refused.append(Status(folder.name, error.status, str(error), folder=str(folder)))
        else:
            plugins[plugin.name] = plugin
    return Found(plugins, tuple(refused))


# --- one of them ---


def read(folder: Path) -> Plugin:
    """Read and check a folder's plugin.json. Raises PluginRefused: UNSAFE_OWNER, BAD_MANIFEST."""
    file = folder / PLUGIN_FILE
    check_owner(folder)
    content = read_json(file)
    if not isinstance(content, dict):
        raise BadManifest(f"{file}: must be an object with name, version and library or python")
    for key, value in content.items():
        if key not in _FIELDS:
            raise BadManifest(f"{file}: knows no '{key}'; there are {', '.join(_FIELDS)}")
        items = value if isinstance(value, list) else [value]
        if not isinstance(value, _FIELDS[key]) or not all(isinstance(item, str) and item for item in items):
            kind = "a text" if _FIELDS[key] is str else "a list of texts"
            raise BadManifest(f"{file}: {key} must be {kind}")
    name = content.get("name", "")
    if not NAME.match(name) or name == BUILT_IN:
        raise BadManifest(f"{file}: name must be a lower-case letter, then letters, digits or _, and not '{BUILT_IN}'")
    if "version" not in content or not ("library" in content or "python" in content):
        raise BadManifest(f"{file}: must have a version, and a library or a python class")
    return Plugin(
        name=name,
        version=content["version"],
        folder=folder,
        publisher=content.get("publisher", ""),
        library=_inside(folder, content["library"]) if "library" in content else None,
        python=content.get("python"),
        sources=tuple(content.get("sources", ())),
        build=tuple(content.get("build", ())),
        dependencies=tuple(content.get("dependencies", ())),
    )


def _inside(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise BadManifest(f"{folder / PLUGIN_FILE}: '{name}' lies outside of the plugin's folder")
    return path


def read_json(file: Path) -> Any:
    """The content of a file whose owner may be trusted. Raises PluginRefused: UNSAFE_OWNER, BAD_MANIFEST."""
    check_owner(file)
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadManifest(f"{file}: cannot be read as JSON ({error}); correct the file or take it away") from None


def check_owner(path: Path) -> None:
    """What will run here must be ours or root's, and nobody else's to write. Raises PluginRefused: UNSAFE_OWNER.

    What lies in the package is as trusted as the package's own code, whatever the umask of the one who installed it.
    """
    if path.resolve().is_relative_to(VENDORS.resolve()):
        return
    try:
        status = path.stat()
    except OSError as error:
        raise BadManifest(f"{path}: cannot be read ({error.strerror}); correct the path") from None
    if status.st_uid not in (0, os.geteuid()):
        raise PluginRefused("UNSAFE_OWNER", f"{path}: belongs to another user (uid {status.st_uid}); copy it")
    if status.st_mode & 0o022:
        raise PluginRefused("UNSAFE_OWNER", f"{path}: may be written by others; make it yours alone (chmod go-w)")


def missing_dependencies(plugin: Plugin) -> tuple[str, ...]:
    """Which of its shared libraries (names with .so) and Python packages are not there. Opens the libraries."""
    return tuple(name for name in plugin.dependencies if not _is_there(name))


def _is_there(dependency: str) -> bool:
    if ".so" not in dependency:
        return importlib.util.find_spec(dependency.partition(".")[0]) is not None
    try:
        ctypes.CDLL(dependency)
    except OSError:
        return False
    return True


# --- loading ---


def load(core: Core, plugin: Plugin) -> Status:
    """Load one plugin into this process: its code runs, and may end the process. Never raises for the plugin's faults.

    `core` is `_core` in a probe and `_adapter` in a program.
    """
    missing = missing_dependencies(plugin)
    try:
        if missing:
            raise PluginRefused("MISSING_DEPS", f"needs {', '.join(missing)}; install what is missing")
        _check_manifest(plugin)
        if plugin.library is not None:
            _load_library(core, plugin.library, plugin.name)
        if plugin.python is not None:
            from ral_trace.backend import python_backend

            python_backend.load_from(plugin)
            python_backend.activate(core, plugin.name)
    except PluginRefused as error:
        return status_of(plugin, error.status, str(error), missing)
    return status_of(plugin, LOADED, "", missing)


def status_of(plugin: Plugin, status: str, reason: str, missing: Sequence[str] = ()) -> Status:
    """The status of a plugin whose plugin.json is good."""
    return Status(plugin.name, status, reason, plugin.version, str(plugin.folder), plugin.dependencies, tuple(missing))


def _load_library(core: Core, library: Path, name: str) -> None:
    if not library.is_file():
        raise PluginRefused("NO_LIBRARY", f"there is no {library}; build it (ralctl install does, where it can)")
    check_owner(library)
    status, reason = core.load_plugin(str(library.resolve()), name)
    if status != LOADED:
        raise PluginRefused(status, f"{library}: {reason}")


def _check_manifest(plugin: Plugin) -> None:
    """As far as it goes without torch. A plugin may have none: then all its operators go on along the chain."""
    file = plugin.folder / MANIFEST_FILE
    if not file.exists():
        return
    content = read_json(file)
    vendor = content.get("vendor") if isinstance(content, dict) else None
    if vendor != plugin.name or not isinstance(content.get("kernels"), list):
        raise BadManifest(f'{file}: must be {{"vendor": "{plugin.name}", "kernels": [ENTRIES]}}')


def load_named(core: Core, devices: str) -> Found:
    """Load the vendors that a list of devices names ("host:1,sim:2"). Gives what else lies in the folders.

    Raises PluginRefused for one that is there and cannot be loaded. One that is nowhere is left to whoever reads the
    list, who knows the vendors there are.
    """
    from ral_trace.backend import python_backend

    found = discover()
    refused = {status.name: status for status in found.refused}
    for name in dict.fromkeys(item.partition(":")[0].strip() for item in devices.split(",")):
        if name in core.vendors():
            continue
        if name in python_backend.registered():
            status: Status | None = python_backend.try_activate(core, name)
        elif name in found.plugins:
            status = load(core, found.plugins[name])
        else:
            status = refused.get(name)
        if status is not None and status.status != LOADED:
            raise PluginRefused(status.status, f"vendor '{name}': {status.status}: {status.reason}")
    return found
