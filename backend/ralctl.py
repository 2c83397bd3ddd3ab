"""`ralctl`: what devices there are and what each can do."""

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ral_trace.backend import DEFAULT_DEVICES, plugin_install, plugin_probe, plugins
from ral_trace.backend.errors import BackendError
from ral_trace.tracer import _native
from ral_trace.tracer.errors import RalTraceError

# What `import torch` leaves in a program that has not asked for the device. The answer is the last line: other
# backends may print.
_PROBE = """
import json, torch
import ral_trace.backend.autoload as autoload
print()
print(json.dumps(autoload.failure))
"""
_PROBE_SECONDS = 120
_ONLINE = "online"


_json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """The `ral` devices of this machine and their vendors."""


@cli.command("list-devices")
@_json_option
def list_devices(as_json: bool) -> None:
    """The devices that RAL_DEVICES names (default: host:1,sim:1), and those that came or went in running programs."""
    _show(["DEVICE ID", "TYPE", "NAME", "VENDOR", "STATUS"], [*_device_rows(), *_changed_device_rows()], as_json)


@cli.command("plugin-status")
@_json_option
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=plugin_probe.PROBE_SECONDS, help="Seconds for each plugin."
)
def plugin_status(as_json: bool, timeout: float) -> None:
    """The plugins on this machine, each loaded in a process of its own, and what that came to."""
    rows = _plugin_rows(timeout)
    _show(["PLUGIN NAME", "VERSION", "STATUS", "DEPENDENCIES"], rows, as_json)
    if not as_json:
        for row in rows:
            for line in filter(None, [row["reason"], *(row["refused"] or [])]):
                click.echo(f"{row['plugin_name']}: {line}")


@cli.command("install")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Also in the place of another vendor's plugin of this name.")
@_json_option
def install(folder: Path, force: bool, as_json: bool) -> None:
    """Build a plugin's FOLDER where that is needed, try it, and copy it to where your programs find it."""
    installed = _plugin_row(plugin_install.install(folder, force=force))
    if as_json:
        click.echo(json.dumps(installed, indent=2))
    else:
        click.echo(f"{installed['plugin_name']} {installed['version']} is installed in {installed['folder']}")


@cli.command("reload")
@_json_option
def reload(as_json: bool) -> None:
    """Ask running programs with `ral` devices to read the kernel manifests again."""
    page = _open_page()
    processes = sorted({process for process, _ in _published(page)})
    page.request_reload()
    if as_json:
        click.echo(json.dumps({"processes": processes}, indent=2))
    else:
        asked = ", ".join(map(str, processes)) if processes else "none is running"
        click.echo(f"asked {len(processes)} program(s) to read their kernel manifests again: {asked}")


@cli.command("include-dir")
def include_dir() -> None:
    """Where ral_plugin.h lies, for a compiler's -I."""
    click.echo(plugins.INCLUDE)


def main() -> None:
    """Entry point: errors are one line, and their class says the exit code."""
    try:
        cli.main(standalone_mode=False)
    except RalTraceError as error:
        click.echo(f"ralctl: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)


def _device_rows() -> list[dict[str, Any]]:
    devices = plugin_probe.devices(os.environ.get("RAL_DEVICES") or DEFAULT_DEVICES)
    status = _adapter_status()
    if status == _ONLINE:
        status = _import_status()
    return [_device_row(device, status) for device in devices]


def _device_row(device: dict[str, Any], status: str) -> dict[str, Any]:
    return {
        "device_id": f"ral:{device['index']}",
        "type": "ral",
        "name": device["name"],
        "vendor": device["vendor"],
        "status": status,
    }


def _open_page() -> _native.Rendezvous:
    try:
        return _native.Rendezvous.open()
    except RuntimeError as error:
        raise BackendError(f"running programs cannot be reached: {error}") from None


def _published(page: _native.Rendezvous) -> list[tuple[int, list[dict[str, Any]]]]:
    """(pid, devices) of each living program that has devices."""
    found = []
    for file in sorted(Path(page.folder).glob("devices-*-*.json")):
        pid, started = (int(part) for part in file.stem.split("-")[1:])
        if _native.process_started(pid) == started:
            with contextlib.suppress(FileNotFoundError):  # it may end just now
                found.append((pid, json.loads(file.read_text(encoding="utf-8"))))
        else:
            file.unlink(missing_ok=True)
    return found


def _changed_device_rows() -> list[dict[str, Any]]:
    """Devices that came or went while a program ran. None where programs cannot be reached: other rows say why."""
    try:
        published = _published(_open_page())
    except BackendError:
        return []
    rows = []
    for pid, devices in published:
        for device in devices:
            if device["withdrawn"] is not None:
                rows.append(_device_row(device, f"withdrawn in process {pid}: {device['withdrawn']}"))
            elif device["announced"]:
                rows.append(_device_row(device, f"{_ONLINE} in process {pid}"))
    return rows


def _adapter_status() -> str:
    """Whether the adapter fits the torch that is installed. Imports neither."""
    import importlib.util

    from ral_trace.tracer.watch import TORCH_VERSION

    try:
        installed = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "torch is not installed"
    if importlib.util.find_spec("ral_trace.backend._adapter") is None:
        return "adapter not built"
    if not installed.startswith(f"{TORCH_VERSION}."):
        return f"adapter is built for torch {TORCH_VERSION}, installed is {installed}"
    return _ONLINE


def _import_status() -> str:
    """What a program finds that imports torch: tried in a process of its own, which may fail without harm."""
    environment = {name: value for name, value in os.environ.items() if name != "RAL_ENABLE"}
    try:
        probe = subprocess.run(
            [sys.executable, "-P", "-c", _PROBE],
            capture_output=True,
            text=True,
            env=environment,
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"`import torch` takes more than {_PROBE_SECONDS} s"
    if probe.returncode != 0:
        said = probe.stderr.strip().splitlines()
        return f"`import torch` fails: {said[-1] if said else f'exit code {probe.returncode}'}"
    failure = json.loads(probe.stdout.splitlines()[-1])
    return _ONLINE if failure is None else f"{_ONLINE}, cannot be recorded: {failure}"


def _plugin_rows(seconds: float) -> list[dict[str, Any]]:
    found = plugins.discover()
    built_in = plugins.Status(plugins.BUILT_IN, plugins.LOADED, version=importlib.metadata.version("ral-trace"))
    probed = [plugin_probe.status(plugin, seconds) for _, plugin in sorted(found.plugins.items())]
    manifests = _manifests() if _adapter_status() == _ONLINE else {}
    return [
        _plugin_row(status) | _kernels(manifests.get(status.name)) for status in (built_in, *probed, *found.refused)
    ]


def _manifests() -> dict[str, Any]:
    from ral_trace.backend import manifest

    return manifest.load_all().manifests


def _kernels(manifest: Any) -> dict[str, Any]:
    """How many kernels a manifest brings, and the entries that are refused; None where that is not known."""
    if manifest is None:
        return {"kernels": None, "refused": None}
    return {"kernels": len(manifest.entries), "refused": [str(refusal) for refusal in manifest.refusals]}


def _plugin_row(status: plugins.Status) -> dict[str, Any]:
    return {
        "plugin_name": status.name,
        "version": status.version,
        "status": status.status,
        "dependencies": [f"{name} (missing)" if name in status.missing else name for name in status.dependencies],
        "reason": status.reason,
        "folder": status.folder,
    }


def _show(headings: Sequence[str], rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading)
    for row in rows:
        table.add_row(*(_text(row[heading.lower().replace(" ", "_")]) for heading in headings))
    Console().print(table)


def _text(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(str(each) for each in value) or "-"
    return "?" if value is None else str(value)


if __name__ == "__main__":
    main()
