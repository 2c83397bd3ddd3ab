"""Questions that a trace answers, one file a question.

`ANALYSES` is the one list that the report, the dashboard, `--json` and the docs read.
"""

from ral_trace.analysis.base import Analysis, Column, Rows
from ral_trace.analysis.delayed_frees import DELAYED_FREES
from ral_trace.analysis.fallbacks import FALLBACKS
from ral_trace.analysis.held_unused import HELD_UNUSED
from ral_trace.analysis.hotspots import HOTSPOTS, KERNELS
from ral_trace.analysis.leaks import LEAKS
from ral_trace.analysis.lifetimes import LIFETIMES
from ral_trace.analysis.memory import MEMORY_BY_CATEGORY, MEMORY_CATEGORIES, MEMORY_CURVE, MEMORY_PEAK
from ral_trace.analysis.peak_holders import PEAK_HOLDERS
from ral_trace.analysis.regions import FRAGMENTATION, FRAGMENTATION_OVER_TIME, REGION_MAP
from ral_trace.analysis.replay import ALLOCATOR_REPLAY
from ral_trace.analysis.steps import STEPS
from ral_trace.analysis.summary import DEVICES, LEDGER, QUALITY, SUMMARY
from ral_trace.analysis.timeline import TIMELINE

__all__ = ["ANALYSES", "Analysis", "Column", "Rows", "analysis"]

ANALYSES: list[Analysis] = [
    LEDGER,
    QUALITY,
    SUMMARY,
    DEVICES,
    TIMELINE,
    HOTSPOTS,
    KERNELS,
    FALLBACKS,
    MEMORY_CURVE,
    MEMORY_PEAK,
    MEMORY_CATEGORIES,
    MEMORY_BY_CATEGORY,
    PEAK_HOLDERS,
    LIFETIMES,
    LEAKS,
    DELAYED_FREES,
    HELD_UNUSED,
    FRAGMENTATION,
    FRAGMENTATION_OVER_TIME,
    REGION_MAP,
    ALLOCATOR_REPLAY,
    STEPS,
]


def analysis(name: str) -> Analysis:
    """The analysis of that name."""
    return next(found for found in ANALYSES if found.name == name)
