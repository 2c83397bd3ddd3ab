"""Devices that come and go while a program runs, in processes of their own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backend import plugin_kit as kit

PROGRAM = """
import ctypes, json, os, sys, torch
import ral_trace.backend as b
b.enable("host:1,mychip:1")
chip = ctypes.CDLL(os.environ["RAL_PLUGIN_PATH"] + "/libmychip.so")
chip.last_error.restype = ctypes.c_char_p
def plug():
    number = ctypes.c_int32(-1)
    return chip.plug(ctypes.byref(number)), number.value
def words(f):
    try: return f()
    except RuntimeError as error: return str(error).splitlines()[0]
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    folder = kit.write_plugin(tmp_path / "mychip")
    kit.build(folder)
    return kit.clean_environment(tmp_path, RAL_PLUGIN_PATH=str(folder), RAL_TRACE_DIR=str(tmp_path / "rendezvous"))


def said(program: str, environment: dict[str, str]) -> list[object]:
    done = kit.python(PROGRAM + program, environment)
    assert done.returncode == 0, done.stderr
    answer: list[object] = json.loads(done.stdout)
    return answer


def test_a_device_that_is_announced_works(environment: dict[str, str]) -> None:
    assert said(
        "before = torch.ral.device_count(); code, number = plug()\n"
        "x = torch.ones(3, device=f'ral:{number}', requires_grad=True); (x * 2).sum().backward()\n"
        "print(json.dumps([before, code, number, torch.ral.device_count(), x.grad.tolist()]), flush=True)\n"
        # A program that ends right after backward() may abort in torch: a thread of autograd asks for the interpreter.
        "os._exit(0)",
        environment,
    ) == [2, 0, 2, 3, [2, 2, 2]]


def test_using_a_withdrawn_device_is_a_clear_error(environment: dict[str, str]) -> None:
    answer = said(
        "plug(); x = torch.ones(3, device='ral:1'); y = torch.ones(3, device='ral:2')\n"
        "code = chip.unplug(1, b'the chip became too hot')\n"
        "texts = [words(lambda: x + 1), words(lambda: x.cpu()), words(lambda: torch.ones(1, device='ral:1')),\n"
        "         words(lambda: torch.ral.set_device(1))]\n"
        "del x; torch.ral.empty_cache(); torch.ral.manual_seed_all(3)\n"
        "print(json.dumps([code, texts, (y + 1).tolist(), torch.ral.device_count(), chip.unplug(1, b''),\n"
        "                  chip.last_error().decode()]))",
        environment,
    )
    assert answer[0] == 0
    assert len(set(answer[1])) == 1, answer[1]  # type: ignore[call-overload]
    assert "ral:1 (mychip) was withdrawn: the chip became too hot" in answer[1][0]  # type: ignore[index]
    # Numbers are stable: the count goes on reaching ral:2.
    assert answer[2:4] == [[2, 2, 2], 3]
    assert answer[4] == kit.status("RAL_ERROR_NO_DEVICE")
    assert "ral:1 is no device of mychip that is online" in answer[5]  # type: ignore[operator]


def test_another_vendors_device_cannot_be_withdrawn(environment: dict[str, str]) -> None:
    answer = said("print(json.dumps([chip.unplug(0, b'mine now'), torch.ral.device_count()]))", environment)
    assert answer == [kit.status("RAL_ERROR_NO_DEVICE"), 2]


def test_slots_are_given_again_once_nobody_needs_them(environment: dict[str, str]) -> None:
    answer = said(
        "came = [plug() for _ in range(14)]; full = plug(); why = chip.last_error().decode()\n"
        "kept = torch.ones(3, device='ral:5')\n"
        "chip.unplug(5, b'gone'); taken = plug(); del kept; again = plug()\n"
        "z = torch.ones(2, device='ral:5') + 1\n"
        "print(json.dumps([came[-1], full, why, taken[0], again, z.tolist()]))",
        environment,
    )
    assert answer[0] == [0, 15]
    assert answer[1] == [kit.status("RAL_ERROR_NO_SLOT"), -1]
    assert answer[3] == kit.status("RAL_ERROR_NO_SLOT")
    assert "all 16 device slots are taken" in answer[2]  # type: ignore[operator]
    assert answer[4] == [0, 5]
    assert answer[5] == [2, 2]


@pytest.fixture
def running(environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    program = PROGRAM + "plug(); plug(); chip.unplug(2, b'pulled out'); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()
        process.wait(60)


def test_list_devices_shows_what_came_and_went_in_running_programs(
    running: "subprocess.Popen[str]", environment: dict[str, str], tmp_path: Path
) -> None:
    (file,) = (tmp_path / "rendezvous").glob("devices-*.json")
    assert file.stat().st_mode & 0o777 == 0o600
    rows = json.loads(kit.ralctl(["list-devices", "--json"], environment | {"RAL_DEVICES": "host:1"}).stdout)
    assert [(row["device_id"], row["status"]) for row in rows[1:]] == [
        ("ral:2", f"withdrawn in process {running.pid}: pulled out"),
        ("ral:3", f"online in process {running.pid}"),
    ]


def test_nothing_is_left_of_programs_that_ended(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "rendezvous"
    said("plug(); print('[]')", environment)
    assert not list(folder.glob("devices-*"))
    done = kit.python(PROGRAM + "plug(); os.kill(os.getpid(), 9)", environment)
    assert done.returncode == -9
    assert len(list(folder.glob("devices-*"))) == 1
    rows = json.loads(kit.ralctl(["list-devices", "--json"], environment | {"RAL_DEVICES": "host:1"}).stdout)
    assert len(rows) == 1
    assert not list(folder.glob("devices-*"))
