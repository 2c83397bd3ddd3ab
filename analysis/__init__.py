"""Questions that a trace answers, one file a question.

`ANALYSES` is the one list that the report, the dashboard, `--json` and the docs read.
"""

from ral_trace.analysis.across import ACROSS
from ral_trace.analysis.base import Analysis, Column, Rows
from ral_trace.analysis.fallbacks import FALLBACKS
from ral_trace.analysis.fusion import FUSION
from ral_trace.analysis.hotspots import ANNOTATIONS, HOTSPOTS, KERNELS, LINES, MODULES
from ral_trace.analysis.memory import GROWTH, LIFETIMES, MEMORY_CURVE, MEMORY_PEAK, PEAK_HOLDERS
from ral_trace.analysis.round_trips import ROUND_TRIPS
from ral_trace.analysis.small_copies import SMALL_COPIES
from ral_trace.analysis.steps import STEPS
from ral_trace.analysis.stream_order import STREAM_ORDER
from ral_trace.analysis.summary import DEVICES, LEDGER, QUALITY, SUMMARY
from ral_trace.analysis.timeline import TIMELINE
from ral_trace.analysis.transfers import TRANSFERS

__all__ = ["ANALYSES", "Analysis", "Column", "Rows", "analysis"]

ANALYSES: list[Analysis] = [
    LEDGER,
    QUALITY,
    STREAM_ORDER,
    SUMMARY,
    DEVICES,
    TIMELINE,
    FUSION,
    HOTSPOTS,
    KERNELS,
    MODULES,
    ANNOTATIONS,
    LINES,
    ACROSS,
    FALLBACKS,
    TRANSFERS,
    ROUND_TRIPS,
    SMALL_COPIES,
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
