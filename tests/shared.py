"""Where the shared hard inputs, and real files of other tools, lie: beside the checkout.

Tests that need them skip where they are absent.
"""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
CASES = SHARED / "cases"
TRACES = SHARED / "traces"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the shared files are not here")
