"""Questions that a trace answers, one file a question.

`ANALYSES` is the one list that the report, the dashboard, `--json` and the docs read.
"""

from ral_trace.analysis.across import ACROSS
from ral_trace.analysis.advice import ADVICE
from ral_trace.analysis.base import Analysis, Column, Rows
from ral_trace.analysis.bound import STEP_BOUNDS
from ral_trace.analysis.communication import COMMUNICATION, STRAGGLERS
from ral_trace.analysis.critical_path import CRITICAL_PATH, CRITICAL_PATH_PIECES
from ral_trace.analysis.delayed_frees import DELAYED_FREES
from ral_trace.analysis.fallback_heat import FALLBACK_HEAT, FALLBACK_STORMS
from ral_trace.analysis.fallback_tax import FALLBACK_LINES, FALLBACK_TAX
from ral_trace.analysis.fallbacks import FALLBACKS
from ral_trace.analysis.fusion import FUSION
from ral_trace.analysis.held_unused import HELD_UNUSED
from ral_trace.analysis.hotspots import ANNOTATIONS, HOTSPOTS, KERNELS, LINES, MODULES
from ral_trace.analysis.idle import IDLE_GAPS, STREAM_IDLE
from ral_trace.analysis.layout import LAYOUT_COPIES
from ral_trace.analysis.leaks import LEAKS
from ral_trace.analysis.lifetimes import LIFETIMES
from ral_trace.analysis.memory import MEMORY_BY_CATEGORY, MEMORY_CATEGORIES, MEMORY_CURVE, MEMORY_PEAK
from ral_trace.analysis.peak_holders import PEAK_HOLDERS
from ral_trace.analysis.queues import QUEUE_CURVE, QUEUES
from ral_trace.analysis.regions import FRAGMENTATION, FRAGMENTATION_OVER_TIME, REGION_MAP
from ral_trace.analysis.replay import ALLOCATOR_REPLAY
from ral_trace.analysis.round_trips import ROUND_TRIPS
from ral_trace.analysis.small_copies import SMALL_COPIES
from ral_trace.analysis.steps import STEP_TIMES, STEPS
from ral_trace.analysis.stream_order import STREAM_ORDER
from ral_trace.analysis.summary import DEVICES, SUMMARY
from ral_trace.analysis.syncs import LONGEST_SYNCS, SYNCS
from ral_trace.analysis.timeline import TIMELINE
from ral_trace.analysis.transfers import TRANSFERS
from ral_trace.analysis.trust import LEDGER, QUALITY, SOURCES
from ral_trace.analysis.utilisation import UTILISATION
from ral_trace.analysis.what_if import WHAT_IF

__all__ = ["ANALYSES", "Analysis", "Column", "Rows", "analysis"]

ANALYSES: list[Analysis] = [
    LEDGER,
    QUALITY,
    STREAM_ORDER,
    SOURCES,
    SUMMARY,
    DEVICES,
    ADVICE,
    TIMELINE,
    HOTSPOTS,
    KERNELS,
    MODULES,
    ANNOTATIONS,
    LINES,
    ACROSS,
    FUSION,
    CRITICAL_PATH,
    CRITICAL_PATH_PIECES,
    WHAT_IF,
    UTILISATION,
    IDLE_GAPS,
    STREAM_IDLE,
    QUEUES,
    QUEUE_CURVE,
    FALLBACKS,
    FALLBACK_TAX,
    FALLBACK_LINES,
    FALLBACK_HEAT,
    FALLBACK_STORMS,
    SYNCS,
    LONGEST_SYNCS,
    LAYOUT_COPIES,
    TRANSFERS,
    ROUND_TRIPS,
    SMALL_COPIES,
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
    STEP_TIMES,
    STEPS,
    STEP_BOUNDS,
    COMMUNICATION,
    STRAGGLERS,
]


def analysis(name: str) -> Analysis:
    """The analysis of that name."""
    return next(found for found in ANALYSES if found.name == name)
