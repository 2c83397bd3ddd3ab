"""What `import torch` does once ral-trace is installed: nothing that anybody sees, until they ask."""

import json
import os
import subprocess
import sys

STATE = """
import json, torch
def state():
    return {
        "name": torch._C._get_privateuse1_backend_name(),
        "accelerator": str(torch.accelerator.current_accelerator()),
        "available": torch.accelerator.is_available(),
        "count": torch.accelerator.device_count(),
        "module": hasattr(torch, "ral"),
    }
"""


def run(program: str, said: str = "", **environment: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", STATE + program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == bool(said)
    result: dict[str, object] = json.loads(done.stdout)
    return result


def test_nothing_changes_without_being_asked() -> None:
    plain = run("print(json.dumps(state()))", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    loaded = run("import sys; assert 'ral_trace.tracer._native' in sys.modules; print(json.dumps(state()))")
    assert loaded == plain
    assert plain["name"] == "privateuseone"


def test_import_torch_loads_little_of_ours() -> None:
    program = (
        "import sys; print(json.dumps({name: name in sys.modules for name in ('duckdb', 'click', 'rich', 'numpy')}))"
    )
    plain = run(program, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert run(program) == plain
    assert plain["duckdb"] is False


def test_ral_enable_claims_the_device_at_import() -> None:
    state = run("print(json.dumps(state()))", RAL_ENABLE="1")
    assert state == {"name": "ral", "accelerator": "ral", "available": True, "count": 2, "module": True}


def test_enable_claims_it_later_and_twice_is_fine() -> None:
    state = run("from ral_trace.backend import enable; enable(); enable(); print(json.dumps(state()))")
    assert state["name"] == "ral"


OTHER_VENDOR = """
import types
torch.utils.rename_privateuse1_backend("otherchip")
module = types.ModuleType("torch.otherchip")
module.is_available = lambda: True
module.device_count = lambda: 3
module.current_device = lambda: 1
torch._register_device_module("otherchip", module)
"""


def test_another_vendors_backend_goes_on_working_and_ours_says_who_owns_the_name() -> None:
    program = (
        OTHER_VENDOR
        + """
from ral_trace.backend import NameTaken, enable
try:
    enable()
    said = "nothing"
except NameTaken as error:
    said = str(error)
import os
import ral_trace.backend.autoload
os.environ["RAL_ENABLE"] = "1"
# As `import torch` would: it goes on, and keeps the reason for `ralctl list-devices`.
ral_trace.backend.autoload.autoload()
print(json.dumps({
    "said": said,
    "kept": ral_trace.backend.autoload.failure,
    "name": torch._C._get_privateuse1_backend_name(),
    "device": str(torch.device("otherchip:1")),
    "theirs": torch.otherchip.device_count(),
    "ours": hasattr(torch, "ral"),
}))
"""
    )
    state = run(
        program, said="ral: RAL_ENABLE=1, but there is no ral device: torch's PrivateUse1 device already belongs"
    )
    assert "otherchip" in str(state.pop("said"))
    assert "otherchip" in str(state.pop("kept"))
    assert state == {"name": "otherchip", "device": "otherchip:1", "theirs": 3, "ours": False}


def test_a_broken_rendezvous_does_not_break_import_torch() -> None:
    program = "import ral_trace.backend.autoload as a; print(json.dumps({'kept': a.failure}))"
    state = run(program, RAL_TRACE_DIR="/proc/no/such/place")
    assert "/proc/no/such/place" in str(state["kept"])


def test_another_torch_version_is_never_given_our_libraries() -> None:
    program = """
import types, sys
from ral_trace.tracer import watch
sys.modules["torch"] = types.SimpleNamespace(__version__="2.99.0")
hooks, note = watch.hooks_library()
print(json.dumps({"hooks": hooks, "note": note}))
"""
    state = run(program)
    assert state["hooks"] == ""
    assert "2.99.0" in str(state["note"])
