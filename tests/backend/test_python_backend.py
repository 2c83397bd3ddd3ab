"""Vendors in Python: what a class must have, and several of them at once. Programs are processes of their own."""

import json
from pathlib import Path
from typing import Any

import pytest

from ral_trace.backend import BackendError, python_backend, register_backend
from tests.backend import plugin_kit as kit


class Good:
    vendor_id = "mychip"
    version = "1.0"

    def init_runtime(self) -> None: ...

    def dispatch(self, op_name: str, tensors: list[Any], params: dict[str, Any]) -> Any: ...


BAD_CLASSES = [
    ({"vendor_id": 7}, "attribute vendor_id, a text"),
    ({"version": ""}, "attribute version, a text"),
    ({"dispatch": None}, r"has no method dispatch\(\)"),
    ({"dispatch": lambda self, op_name: None}, r"cannot be called with \(op_name, tensors, params\)"),
    ({"init_runtime": lambda self, must: None}, r"init_runtime\(\) that cannot be called with \(nothing\)"),
    ({"allocate": lambda self, nbytes: 0}, r"both allocate\(\) and deallocate\(\)"),
    ({"describe": lambda self: {}}, r"describe\(\) that cannot be called"),
]


@pytest.mark.parametrize(("change", "reason"), BAD_CLASSES)
def test_a_class_that_is_refused(change: dict[str, Any], reason: str) -> None:
    cls = type("Bad", (Good,), change)
    with pytest.raises(BackendError, match=reason) as error:
        register_backend("badchip")(cls)
    assert "register_backend('badchip'): Bad " in str(error.value)
    assert "badchip" not in python_backend.registered()


@pytest.mark.parametrize("name", ["", "host", "My Chip", "7up", 7])
def test_a_name_that_is_refused(name: Any) -> None:
    with pytest.raises(BackendError, match="the name must be"):
        register_backend(name)


def test_it_is_too_late_once_there_are_devices() -> None:
    with pytest.raises(BackendError, match="register before enable"):
        register_backend("latechip")(Good)


def test_what_is_no_class_is_refused() -> None:
    with pytest.raises(BackendError, match="is no class"):
        register_backend("badchip")(Good())  # type: ignore[type-var]


CLASSES = """
import ctypes, json, torch
from ral_trace.backend import enable, register_backend

class Base:
    version = "1.0"
    def init_runtime(self):
        self.seen = []
    def dispatch(self, op_name, tensors, params):
        self.seen.append(op_name)
        return self.operators[op_name](tensors, params) if op_name in self.operators else None

@register_backend("plus_one")
class PlusOne(Base):
    vendor_id = "one"
    operators = {
        "aten::add": lambda t, p: torch.add(t[0], t[1], alpha=p["alpha"]) + 1,
        "aten::relu": lambda t, p: t[0],
        "aten::topk": lambda t, p: torch.topk(t[0], p["k"], p["dim"], p["largest"], p["sorted"]),
        "aten::cat": lambda t, p: torch.cat(t[0], p["dim"]),
        "aten::mul": lambda t, p: 1 / 0,
        "aten::sub": lambda t, p: "a text",
    }

@register_backend("plus_two")
class PlusTwo(Base):
    vendor_id = "two"
    operators = {"aten::add": lambda t, p: torch.add(t[0], t[1], alpha=p["alpha"]) + 2}
    def device_count(self):
        return 2
    def describe(self, index):
        return {"name": f"two {index}", "memory_bytes": 64 << 20, "dtypes": ["float32", torch.int64]}
    def allocate(self, nbytes):
        self.memory = getattr(self, "memory", []) + [(ctypes.c_char * (nbytes + 4096))()]
        return (ctypes.addressof(self.memory[-1]) + 4095) // 4096 * 4096
    def deallocate(self, address): ...
"""


def answers(tmp_path: Path, program: str, devices: str = "plus_one:1,plus_two:2,host:1") -> Any:
    done = kit.python(CLASSES + f"enable({devices!r})\n" + program, kit.clean_environment(tmp_path))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_backends_at_once_on_two_devices(tmp_path: Path) -> None:
    said = answers(
        tmp_path,
        "x = torch.arange(3.0)\nprint(json.dumps([(x.to(f'ral:{i}') + x.to(f'ral:{i}')).tolist() for i in range(4)]))",
    )
    assert said == [[1, 3, 5], [2, 4, 6], [2, 4, 6], [0, 2, 4]]


def test_what_is_not_mine_goes_on_along_the_chain(tmp_path: Path) -> None:
    said = answers(
        tmp_path,
        "from ral_trace.backend import python_backend\n"
        "x = torch.tensor([1.0, 4.0], device='ral:0')\n"
        "print(json.dumps([x.sqrt().tolist(), python_backend.active()['plus_one'].seen]))",
    )
    assert said[0] == [1, 2]
    assert "aten::sqrt" in said[1]


def test_in_place_and_out_variants_are_the_same_operator(tmp_path: Path) -> None:
    said = answers(
        tmp_path,
        "x = torch.ones(2, device='ral:0'); x += 1\n"
        "out = torch.empty(0, device='ral:0'); torch.add(x, x, alpha=2, out=out)\n"
        "base = torch.zeros(2, 2, device='ral:0'); base[:, 0].add_(5)\n"
        "print(json.dumps([x.tolist(), out.tolist(), base.tolist()]))",
    )
    assert said == [[3, 3], [10, 10], [[6, 0], [6, 0]]]


def test_results_are_new_even_where_a_class_hands_back_its_input(tmp_path: Path) -> None:
    said = answers(
        tmp_path,
        "x = torch.ones(2, device='ral:0'); y = torch.relu(x); y.zero_()\n"
        "v, i = torch.topk(torch.tensor([1.0, 3.0, 2.0], device='ral:0'), 2)\n"
        "c = torch.cat([x, x])\n"
        "print(json.dumps([x.tolist(), v.tolist(), i.tolist(), c.tolist()]))",
    )
    assert said == [[1, 1], [3, 2], [1, 2], [1, 1, 1, 1]]


def test_gradients_flow_through_a_backend(tmp_path: Path) -> None:
    said = answers(
        tmp_path,
        "x = torch.ones(2, device='ral:1', requires_grad=True); ((x + x) * x).sum().backward()\n"
        "print(json.dumps(x.grad.tolist()), flush=True); __import__('os')._exit(0)",  # see test_hotplug
    )
    # The class's y = x + x + 2 is 4, and z = y · x. What autograd knows is dz/dx = y by the product and x twice by the
    # sum: 4, 1 and 1. It adds these three with two additions on the device, and the class makes each 2 more.
    assert said == [10, 10]


def test_errors_of_a_class_carry_its_name(tmp_path: Path) -> None:
    said = answers(
        tmp_path,
        "x = torch.ones(2, device='ral:0'); words = []\n"
        "for f in (lambda: x * 2, lambda: x - x):\n"
        "    try: f()\n"
        "    except RuntimeError as error: words.append(str(error))\n"
        "print(json.dumps(words))",
    )
    assert "on ral:0: backend 'plus_one' raised ZeroDivisionError: division by zero" in said[0]
    assert "must return a Tensor, not str" in said[1]


def test_memory_that_a_class_allocates(tmp_path: Path) -> None:
    said = answers(
        tmp_path,
        "from ral_trace.backend import python_backend\n"
        "x = torch.ones(1000, device='ral:1')\n"
        "arena = python_backend.active()['plus_two'].memory[0]\n"
        "begin = ctypes.addressof(arena)\n"
        "print(json.dumps([begin <= x.data_ptr() < begin + len(arena), torch.ral.get_device_name(2)]))",
    )
    assert said == [True, "two 1"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("PlusOne.init_runtime = lambda self: 1 / 0", "INIT_FAILED: plus_one: init_runtime() raised ZeroDivisionError"),
        ("PlusOne.device_count = lambda self: 0", "device_count() gives 0"),
        ("PlusOne.describe = lambda self, i: {'colour': 1}", "describe() must give a dict of"),
        ("PlusOne.describe = lambda self, i: {'alignment': 3}", "device 0: alignment is 3"),
        ("PlusOne.describe = lambda self, i: {'dtypes': ['float33']}", "there is no 'float33'"),
        ("PlusOne.describe = lambda self, i: {'memory_bytes': -1}", "memory_bytes cannot be -1"),
        ("PlusTwo.allocate = lambda self, n: 17", "allocate() gives 17"),
    ],
)
def test_a_backend_that_cannot_start(tmp_path: Path, change: str, reason: str) -> None:
    program = CLASSES + change + "\ntry: enable('plus_one:1,plus_two:1')\nexcept Exception as error: print(error)"
    done = kit.python(program, kit.clean_environment(tmp_path))
    assert reason in done.stdout, done.stderr


def test_a_plugin_folder_with_a_python_class(tmp_path: Path) -> None:
    folder = tmp_path / "pychip"
    folder.mkdir()
    (folder / "plugin.json").write_text('{"name": "pychip", "version": "3", "python": "chip:Chip"}')
    (folder / "chip.py").write_text(
        "class Chip:\n"
        "    vendor_id = 'py'\n    version = '3'\n"
        "    def init_runtime(self): ...\n"
        "    def dispatch(self, op_name, tensors, params):\n"
        "        return tensors[0] * 0 + 42 if op_name == 'aten::neg' else None\n"
    )
    environment = kit.clean_environment(tmp_path, RAL_PLUGIN_PATH=str(folder), RAL_DEVICES="pychip:1")
    done = kit.python(
        "import torch, ral_trace.backend as b; b.enable(); print((-torch.ones(2, device='ral:0')).tolist())",
        environment,
    )
    assert done.stdout.strip() == "[42.0, 42.0]", done.stderr
    (folder / "chip.py").write_text("import no_such_module_at_all")
    rows = json.loads(kit.ralctl(["plugin-status", "--json"], environment).stdout)
    (row,) = [row for row in rows if row["plugin_name"] == "pychip"]
    assert row["status"] == "MISSING_DEPS"
    assert "no_such_module_at_all" in row["reason"]


def test_a_plugin_with_a_library_and_a_class(tmp_path: Path) -> None:
    """The library has the devices, the class some operators."""
    folder = kit.write_plugin(tmp_path / "mychip", python="chip:Chip")
    kit.build(folder)
    (folder / "chip.py").write_text(
        "class Chip:\n"
        "    vendor_id = 'both'\n    version = '1'\n"
        "    def init_runtime(self): ...\n"
        "    def dispatch(self, op_name, tensors, params):\n"
        "        return tensors[0] * 0 + 42 if op_name == 'aten::neg' else None\n"
    )
    environment = kit.clean_environment(tmp_path, RAL_PLUGIN_PATH=str(folder), RAL_DEVICES="mychip:1")
    done = kit.python(
        "import torch, ral_trace.backend as b; b.enable(); x = torch.ones(2, device='ral:0')\n"
        "print(torch.ral.get_device_name(0), (-x).tolist(), (x + x).tolist())",
        environment,
    )
    assert done.stdout.strip() == "My Chip 1000 [42.0, 42.0] [2.0, 2.0]", done.stderr
