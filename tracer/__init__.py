"""Carries events: from the rings of traced programs, or from another tool's file, into a trace.

`import torch` is not needed here.
"""

from ral_trace.tracer.annotations import annotate, step
from ral_trace.tracer.capture import trace
from ral_trace.tracer.errors import RalTraceError
from ral_trace.tracer.trace import Trace, open_trace

__all__ = ["RalTraceError", "Trace", "annotate", "open_trace", "step", "trace"]
