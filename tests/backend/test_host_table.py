"""What plugins may call, fed with right and wrong handles, addresses and sizes, under the sanitizers."""

import json
import subprocess
from pathlib import Path

import pytest

from ral_trace.backend import plugins
from tests.backend import plugin_kit as kit

CORE = Path(__file__).resolve().parents[2] / "backend/native/core"


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("fuzz") / "fuzz_host_table"
    sources = [str(path) for path in sorted(CORE.glob("*.cpp")) if "pybind11" not in path.read_text()]
    words = ["g++", "-std=c++17", "-O1", "-g1", "-pthread", "-Wall", "-Wextra", "-Werror"]
    words += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{CORE}", f"-I{plugins.INCLUDE}"]
    subprocess.run(
        [*words, str(Path(__file__).with_name("fuzz_host_table.cpp")), *sources, "-o", str(program)], check=True
    )
    return program


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_never_a_crash_always_a_code(fuzzer: Path, seed: int) -> None:
    done = subprocess.run([str(fuzzer), str(seed)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "ok\n"


PROGRAM = """
import ctypes, json, os, torch
import ral_trace.backend as b
b.enable("host:1,mychip:1")
chip = ctypes.CDLL(os.environ["RAL_PLUGIN_PATH"] + "/libmychip.so")
chip.last_error.restype = ctypes.c_char_p
u64 = ctypes.c_uint64
def said(code): return code, chip.last_error().decode()
def take(device, size):
    buffer, address = u64(), u64()
    code = chip.take(device, u64(size), ctypes.byref(buffer), ctypes.byref(address))
    return buffer, address.value, code
"""


def answers(tmp_path: Path, program: str, *flags: str) -> list[list[object]]:
    folder = kit.write_plugin(tmp_path / "mychip")
    kit.build(folder, *flags)
    done = kit.python(PROGRAM + program, kit.clean_environment(tmp_path, RAL_PLUGIN_PATH=str(folder)))
    assert done.returncode == 0, done.stderr
    rows: list[list[object]] = json.loads(done.stdout)
    return rows


def test_refusals_say_what_where_and_by_how_much(tmp_path: Path) -> None:
    rows = answers(
        tmp_path,
        "a, address, _ = take(1, 1000); b, other, _ = take(1, 1000); x = torch.ones(8, device='ral:0')\n"
        "rows = [said(chip.check(1, u64(address), u64(1000))), said(chip.check(1, u64(4096), u64(4096)))]\n"
        "rows += [said(chip.check(1, u64(address + 900), u64(200))), said(chip.check(1, u64(x.data_ptr()), u64(4)))]\n"
        "rows += [said(chip.move(a, u64(0), b, u64(500), u64(501))), said(chip.give(b)), said(chip.give(b))]\n"
        "rows += [said(chip.check(1, u64(other), u64(1))), said(take(0, 10)[2])]\n"
        "print(json.dumps(rows + [[0, hex(address + 900), hex(x.data_ptr()), hex(b.value), hex(other)]]))",
    )
    inside, pointer, buffer, free = rows.pop()[1:]
    assert rows == [
        [0, ""],
        [23, "RAL_ERROR_INVALID_POINTER: 0x1000 (4096 bytes) is not mapped on ral:1"],
        [24, f"RAL_ERROR_OUT_OF_BOUNDS: {inside} (200 bytes) ends 100 bytes beyond its block of 1000 bytes on ral:1"],
        [26, f"RAL_ERROR_WRONG_DEVICE: {pointer} (4 bytes) is memory of ral:0, not of ral:1"],
        [
            24,
            f"RAL_ERROR_OUT_OF_BOUNDS: buffer {buffer} from 500 (501 bytes) ends 1 bytes beyond its block of 1000 bytes"
            " on ral:1",
        ],
        [0, ""],
        [25, f"RAL_ERROR_USE_AFTER_FREE: buffer {buffer} was freed"],
        [25, f"RAL_ERROR_USE_AFTER_FREE: {free} (1 bytes) lies in free memory of ral:1"],
        [26, "RAL_ERROR_WRONG_DEVICE: ral:0 is host's, not mychip's"],
    ]


def test_a_plugins_own_memory_is_what_tensors_lie_in(tmp_path: Path) -> None:
    rows = answers(
        tmp_path,
        "number = ctypes.c_int32(); chip.plug(ctypes.byref(number))\n"
        "x = torch.ones(1000, device='ral:1'); y = torch.ones(1000, device='ral:2')\n"
        "rows = [chip.inside(0, u64(x.data_ptr())), chip.inside(1, u64(y.data_ptr())), (x + 1)[0].item(),"
        " chip.taken(0)]\n"
        "del x; torch.ral.empty_cache()\n"
        "print(json.dumps([*rows, chip.taken(0), chip.taken(1)]))",
        "-DREGIONS",
    )
    assert rows == [1, 1, 2, 1, 0, 1]
