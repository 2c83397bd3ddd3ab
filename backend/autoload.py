"""What every `import torch` of the user runs (entry point group `torch.backends`).

It must be quick, silent and safe to run twice: an exception here would break `import torch` for the user. It makes
the process one that a recording can
find, and claims the device name only where RAL_ENABLE=1 says so, because torch.accelerator prefers PrivateUse1 to
CUDA from then on.
"""

import os
import sys

from ral_trace.tracer import watch

failure: str | None = None
"""Why something did not work in this process; said only where RAL_ENABLE=1 asked for the device. `ralctl list-devices`
asks a process of its own.
"""


def autoload() -> None:
    """Starts watching for recordings; enables the device under RAL_ENABLE=1. Never raises."""
    global failure
    asked = os.environ.get("RAL_ENABLE") == "1"
    try:
        failure = watch.start()
        if asked:
            from ral_trace.backend import enable

            enable()
    except Exception as error:  # noqa: BLE001 - the one place where this is right: `import torch` must not fail because of us
        failure = str(error)
        if asked:  # who asks for the device wants to know why there is none
            sys.stderr.write(f"ral: RAL_ENABLE=1, but there is no ral device: {failure}\n")
