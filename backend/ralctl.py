"""`ralctl`: what devices there are and what each can do."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ral_trace.backend import DEFAULT_DEVICES
from ral_trace.backend.errors import BackendError
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


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """The `ral` devices of this machine and their vendors."""


@cli.command("list-devices")
@click.option("--json", "as_json", is_flag=True, help="Rows as JSON.")
def list_devices(as_json: bool) -> None:
    """The devices that RAL_DEVICES names (default: host:1,sim:1)."""
    _show(["DEVICE ID", "TYPE", "NAME", "VENDOR", "STATUS"], _device_rows(), as_json)


@cli.command("plugin-status")
@click.option("--json", "as_json", is_flag=True, help="Rows as JSON.")
def plugin_status(as_json: bool) -> None:
    """The vendors, and how many kernels each one's manifest brings."""
    _show(["PLUGIN NAME", "VERSION", "STATUS", "KERNELS", "REFUSED"], _plugin_rows(), as_json)


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
    from ral_trace.backend import core

    try:
        devices = core.list_devices(os.environ.get("RAL_DEVICES") or DEFAULT_DEVICES)
    except core.BadDeviceList as error:
        raise BackendError(str(error)) from None
    status = _adapter_status()
    if status == _ONLINE:
        status = _import_status()
    return [
        {
            "device_id": f"ral:{device['index']}",
            "type": "ral",
            "name": device["name"],
            "vendor": device["vendor"],
            "status": status,
        }
        for device in devices
    ]


def _adapter_status() -> str:
    """Whether the adapter fits the torch that is installed. Imports neither."""
    import importlib.metadata
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


def _plugin_rows() -> list[dict[str, Any]]:
    from importlib.metadata import version

    from ral_trace.backend import core

    status = _adapter_status()
    manifests = _manifests() if status == _ONLINE else {}
    rows = []
    for vendor in core.list_vendors():
        manifest = manifests.get(vendor["vendor"])
        rows.append(
            {
                "plugin_name": vendor["vendor"],
                "version": version("ral-trace"),
                "status": "LOADED" if manifest is not None else status,
                "kernels": None if manifest is None else len(manifest.entries),
                "refused": None if manifest is None else [str(refusal) for refusal in manifest.refusals],
            }
        )
    return rows


def _manifests() -> dict[str, Any]:
    from ral_trace.backend import manifest

    return manifest.load_all()


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
        return "\n".join(str(each) for each in value) or "0"
    return "?" if value is None else str(value)


if __name__ == "__main__":
    main()
