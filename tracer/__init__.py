"""Carries events: from the rings of traced programs, or from another tool's file, into a trace. Needs no torch.

Every `import torch` of the user comes through here (backend/autoload.py): what reads traces, and DuckDB with it, is
loaded at its first use.
"""

from typing import TYPE_CHECKING, Any

from ral_trace.tracer.annotations import annotate, step, traced
from ral_trace.tracer.capture import trace
from ral_trace.tracer.errors import RalTraceError

if TYPE_CHECKING:
    from ral_trace.tracer.reading import Trace, open_trace

__all__ = ["RalTraceError", "Trace", "annotate", "open_trace", "step", "trace", "traced"]


def __getattr__(name: str) -> Any:
    if name in ("Trace", "open_trace"):
        from ral_trace.tracer import reading

        return getattr(reading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
