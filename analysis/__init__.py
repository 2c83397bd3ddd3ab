"""Questions that a trace answers, one file a question.

`ANALYSES` is the one list that the report, the dashboard, `--json` and the docs read.
"""

from ral_trace.analysis.base import Analysis, Column, Rows
from ral_trace.analysis.critical_path import CRITICAL_PATH, CRITICAL_PATH_PIECES
from ral_trace.analysis.fallbacks import FALLBACKS
from ral_trace.analysis.hotspots import HOTSPOTS, KERNELS
from ral_trace.analysis.memory import GROWTH, LIFETIMES, MEMORY_CURVE, MEMORY_PEAK, PEAK_HOLDERS
from ral_trace.analysis.steps import STEPS
from ral_trace.analysis.summary import DEVICES, LEDGER, QUALITY, SUMMARY
from ral_trace.analysis.timeline import TIMELINE
from ral_trace.analysis.what_if import WHAT_IF

__all__ = ["ANALYSES", "Analysis", "Column", "Rows", "analysis"]

ANALYSES: list[Analysis] = [
    LEDGER,
    QUALITY,
    SUMMARY,
    DEVICES,
    WHAT_IF,
    TIMELINE,
    CRITICAL_PATH,
    CRITICAL_PATH_PIECES,
    HOTSPOTS,
    KERNELS,
    FALLBACKS,
    MEMORY_CURVE,
    MEMORY_PEAK,
    PEAK_HOLDERS,
    LIFETIMES,
    GROWTH,
    STEPS,
]


def analysis(name: str) -> Analysis:
    """The analysis of that name."""
    return next(found for found in ANALYSES if found.name == name)
