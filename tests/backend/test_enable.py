"""Claiming the name, in processes of their own."""

import json
import subprocess
import sys

import pytest


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAL_")}
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=clean | environment,
        timeout=120,
        check=False,
    )


def test_importing_changes_nothing_and_needs_no_torch() -> None:
    result = run(
        "import sys, ral_trace.backend as b; assert 'torch' not in sys.modules; assert not b.is_enabled();"
        "import torch; assert torch.accelerator.current_accelerator() is None; assert not hasattr(torch, 'ral')"
    )
    assert result.returncode == 0, result.stderr


def test_enabling_twice() -> None:
    result = run(
        "import ral_trace.backend as b; b.enable(); b.enable(); import torch;"
        "assert b.is_enabled() and torch.ral.device_count() == 2"
    )
    assert result.returncode == 0, result.stderr


def test_devices_from_the_environment() -> None:
    result = run(
        "import ral_trace.backend as b, torch; b.enable();"
        "print([torch.ral.get_device_properties(i)['vendor'] for i in range(torch.ral.device_count())])",
        RAL_DEVICES="sim:2,host:1",
    )
    assert result.stdout.strip() == "['sim', 'sim', 'host']", result.stderr


def test_a_device_list_that_cannot_be() -> None:
    result = run(
        "import ral_trace.backend as b\n"
        "try: b.enable()\n"
        "except b.BackendError as error: print(error)\n"
        "import torch; assert torch.accelerator.current_accelerator() is None",
        RAL_DEVICES="sim:many",
    )
    assert "no count from 1 to 16" in result.stdout, result.stderr


def test_another_owner_is_named() -> None:
    result = run(
        "import torch, types; torch.utils.rename_privateuse1_backend('other');"
        "torch._register_device_module('other', types.ModuleType('other_vendor'))\n"
        "import ral_trace.backend as b\n"
        "try: b.enable()\n"
        "except b.NameTaken as error: print(error)\n"
        "assert torch._C._get_privateuse1_backend_name() == 'other' and not hasattr(torch, 'ral')"
    )
    assert "already belongs to 'other' (torch.other is other_vendor)" in result.stdout, result.stderr


def test_programs_end_well_with_tensors_alive() -> None:
    """Not at once after a backward pass: torch's own thread may still be letting go of the graph, and who asks for the
    GIL of an interpreter that ends is ended by it, here with the whole program, whatever the device.
    """
    result = run(
        "import ral_trace.backend as b, torch, atexit, time; b.enable();"
        "keep = torch.ones(3, device='ral:1', requires_grad=True); (keep * 2).sum().backward(); time.sleep(0.5);"
        "atexit.register(lambda: print((keep + 1).sum().item()))"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "6.0"


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_ralctl(option: list[str]) -> None:
    for command, expected in (("list-devices", "ral:1"), ("plugin-status", "sim")):
        result = subprocess.run(
            [sys.executable, "-m", "ral_trace.backend.ralctl", command, *option],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert expected in result.stdout


def statuses(**environment: str) -> set[str]:
    result = run(
        "import sys; from ral_trace.backend import ralctl; sys.argv[1:] = ['list-devices', '--json']; ralctl.main()",
        **environment,
    )
    assert result.returncode == 0, result.stderr
    return {row["status"] for row in json.loads(result.stdout)}


def test_ralctl_says_why_programs_cannot_be_recorded() -> None:
    assert statuses(RAL_ENABLE="1") == {"online"}
    (status,) = statuses(RAL_TRACE_DIR="/proc/no/such/place")
    assert status.startswith("online, cannot be recorded: ")
    assert "/proc/no/such/place" in status


def test_ralctl_compares_torch_with_what_the_adapter_was_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from ral_trace.backend import ralctl

    monkeypatch.setattr("importlib.metadata.version", lambda name: {"torch": "2.99.0"}[name])
    assert ralctl._adapter_status() == "adapter is built for torch 2.13, installed is 2.99.0"


def test_ralctl_refuses_in_one_line() -> None:
    import os

    result = subprocess.run(
        [sys.executable, "-m", "ral_trace.backend.ralctl", "list-devices"],
        capture_output=True,
        text=True,
        env=os.environ | {"RAL_DEVICES": "warp:1"},
        timeout=120,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "names no known vendor" in result.stderr


def test_asking_for_the_device_in_vain_is_said() -> None:
    result = run("import torch", RAL_ENABLE="1", RAL_DEVICES="foo:1")
    assert result.returncode == 0
    assert result.stderr.startswith('ral: RAL_ENABLE=1, but there is no ral device: RAL_DEVICES="foo:1": "foo:1" ')
    assert result.stderr.count("\n") == 1


def test_a_second_enable_with_other_devices_is_said() -> None:
    result = run(
        "import ral_trace.backend as b, torch; b.enable('host:1'); b.enable(); b.enable('host:1'); b.enable('sim:2');"
        "print(torch.ral.device_count())"
    )
    assert result.stdout.strip() == "1"
    assert result.stderr.count("UserWarning") == 1
    assert "ral is enabled with 'host:1' in this process, 'sim:2' is ignored" in result.stderr
