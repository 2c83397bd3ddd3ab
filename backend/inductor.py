"""What torch.compile's Inductor finds when it looks for a code generator in `torch.ral`: a refusal in words.

It looks whenever it compiles anything, so nothing is refused before it has a graph on a `ral` device.
"""

from typing import Any

from ral_trace.backend.errors import NoCodeGenerator

NAMES = ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen")
"""The attributes of `torch.ral` that Inductor asks for."""


class NoCode:
    """Stands for each class that would generate code. Raises NoCodeGenerator when it is asked for some."""

    supports_caching = False

    def __init__(self, *_arguments: Any) -> None:
        self.create()

    @staticmethod
    def create(*_arguments: Any) -> Any:
        """In Inductor's words: begin the code of a graph."""
        raise NoCodeGenerator(
            "torch.compile's default backend, Inductor, generates no code for ral devices:"
            " compile with backend='aot_eager', which traces the graph and runs its operators on the device"
        )


def answer(name: str) -> type[NoCode]:
    """Of torch.ral.__getattr__: Inductor is loaded by the time it asks. Raises AttributeError for any other name."""
    if name not in NAMES:
        raise AttributeError(f"module 'torch.ral' has no attribute '{name}'")
    from torch._inductor.codegen.common import DeviceOpOverrides, register_device_op_overrides

    register_device_op_overrides("ral", DeviceOpOverrides())
    return NoCode
