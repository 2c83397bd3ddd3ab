"""Runs of small kernels that could be one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import DEVICE, NAMED_DEVICE, SOME_KERNELS, SOME_LAUNCHES, WANTED, Analysis, Column, Rows
from ral_trace.analysis.callers import NONE, Integers
from ral_trace.analysis.intervals import numbered
from ral_trace.analysis.origins import lines_of
from ral_trace.analysis.remember import answered
from ral_trace.analysis.work import Booleans, Work, on_devices
from ral_trace.tracer.reading import Trace

HEAD, POINT, NORM, FOREACH, OTHER = range(5)
"""What an op is to its neighbours: multiplications and convolutions can take what follows into their last step;
elementwise ops and norms can be one kernel; a fused optimiser takes all its parameters at once.
"""
CLASSES = [
    (FOREACH, r"_foreach_\w+|_fused_\w+"),
    (HEAD, r"addmm|mm|bmm|baddbmm|linear|matmul|convolution|conv\dd|_convolution|cudnn_convolution|miopen_convolution"),
    (NORM, r"(native_|cudnn_|miopen_)?(layer_norm|batch_norm|group_norm|rms_norm)|_fused_rms_norm"),
    (POINT, r"add|sub|rsub|mul|div|neg|abs|exp|expm1|log|log1p|sqrt|rsqrt|reciprocal|pow|square|clamp|clamp_min|"
            r"clamp_max|relu|relu6|gelu|silu|elu|leaky_relu|hardtanh|hardswish|sigmoid|tanh|softplus|erf|sin|cos|"
            r"where|masked_fill|maximum|minimum|addcmul|addcdiv|lerp|native_dropout|dropout|eq|ne|lt|le|gt|ge|"
            r"logical_\w+|bitwise_\w+|threshold|threshold_backward|gelu_backward|silu_backward|sigmoid_backward|"
            r"tanh_backward|native_dropout_backward"),
]  # fmt: skip
OP = re.compile(r"aten::(\w+?)_?(\.\w+)?")

LEAST_TIMES = 3
"""A run that is not repeated is no pattern."""
LEAST_KERNELS = {"few": 2, "any": 8}
"""Of a run of a known pattern, and of any small kernels."""
MOST_GAPS = 10
"""Launch costs between two kernels of a run: after more the host did something else."""
LEAST_GAIN = 0.1
"""Of a launch's cost, for each launch less: kernels that follow each other at once gain nothing."""
FACTOR = np.uint64(0x9E3779B97F4A7C15)
MOST_SHOWN = 12
"""Names of a run that are shown."""


@dataclass(frozen=True)
class _Kernels:
    """The kernels by device, stream and start; `gap` is to the one before, where that is a neighbour, else NONE."""

    row: Integers
    place: npt.NDArray[np.int32]
    name: Integers
    ns: Integers
    sort: Integers
    gap: Integers
    small: Booleans
    cost: Integers
    """What launching a kernel of the device costs the host: the median; 0: not known."""


@answered
def fusion(trace: Trace, *, device: str | None = None, limit: int | None = 200) -> Rows:
    """A row for each device and sequence of ops, the largest gain first."""
    work = on_devices(trace, "op")
    kernels = _kernels(work)
    if kernels is None:
        return Rows()
    linked = kernels.gap != NONE
    after = np.roll(kernels.sort, 1)
    fits = (kernels.sort == FOREACH) & (after == FOREACH)
    fits |= np.isin(kernels.sort, (POINT, NORM)) & np.isin(after, (HEAD, POINT, NORM))
    small = linked & kernels.small
    rows = _runs(trace, work, kernels, small & fits, LEAST_KERNELS["few"])
    rows += _runs(trace, work, kernels, small & np.roll(kernels.small, 1), LEAST_KERNELS["any"])
    named = trace.sql(
        f"WITH {NAMED_DEVICE} SELECT device, shown FROM named_device d WHERE {WANTED}", [device]
    ).fetchall()
    shown = dict(named)
    rows = Rows({**row, "device": shown[row["device"]]} for row in rows if row["device"] in shown)
    rows.sort(key=lambda row: (-row["gain_ns"], row["device"], row["pattern"], row["ops"]))
    return Rows(rows[:limit])


def _kernels(work: Work) -> _Kernels | None:
    """None: there are too few, or it is not known what launching them costs."""
    order = np.lexsort((work.start, work.stream, work.place))
    order = order[(work.stream[order] != NONE) & (work.ns[order] != NONE)]
    if len(order) < LEAST_KERNELS["few"]:
        return None
    place, stream, kernel = work.place[order], work.stream[order], work.kernel[order]
    cost = _median_by(place, work.launch[order], kernel & (work.launch[order] != NONE))
    gap = np.full(len(order), NONE, np.int64)
    gap[1:] = work.start[order[1:]] - work.end[order[:-1]]
    linked = np.zeros(len(order), bool)
    linked[1:] = (stream[1:] == stream[:-1]) & (place[1:] == place[:-1]) & kernel[1:] & kernel[:-1]
    linked &= (gap >= 0) & (gap <= MOST_GAPS * cost)
    gap[~linked] = NONE
    key = place.astype(np.int64) * (len(work.names) + 1) + work.name[order] + 1
    usual_ns, usual_gap = _median_by(key, work.ns[order], kernel), _median_by(key, gap, linked)
    small = kernel & (usual_ns < np.maximum(cost, usual_gap))
    sorts = np.array([*(_sort(name) for name in work.names), OTHER])
    return _Kernels(order, place, work.name[order], work.ns[order], sorts[work.name[order]], gap, small, cost)


def _sort(name: str | None) -> int:
    found = OP.fullmatch(name or "")
    matching = [sort for sort, pattern in CLASSES if found and re.fullmatch(pattern, found[1])]
    return matching[0] if matching else OTHER


def _median_by(key: npt.NDArray[np.integer], value: Integers, of: Booleans) -> Integers:
    """For each row the median (the lower of two) of the values of its key, of the rows `of`; 0: there are none."""
    keys, number = numbered(key.astype(np.int64))
    some = np.flatnonzero(of)
    some = some[np.lexsort((value[some], number[some]))]
    count = np.bincount(number[some], minlength=len(keys))
    first = np.cumsum(count) - count
    median = np.zeros(len(keys), np.int64)
    there = count > 0
    median[there] = value[some][(first + (count - 1) // 2)[there]]
    return np.asarray(median[number])


def _runs(trace: Trace, work: Work, kernels: _Kernels, continues: Booleans, least: int) -> Rows:
    """The repeated runs, in which each kernel but the first `continues` the one before it."""
    first = np.flatnonzero(~continues)
    length = np.diff(np.append(first, len(continues)))
    if not (length >= least).any():
        return Rows()
    inside = np.arange(len(continues)) - np.repeat(first, length)
    with np.errstate(over="ignore"):
        code = (kernels.name + 2).astype(np.uint64) * FACTOR ** inside.astype(np.uint64)
        digest = (
            np.add.reduceat(code, first) + kernels.place[first].astype(np.uint64) * FACTOR + length.astype(np.uint64)
        )
    gain = np.where(continues, np.minimum(kernels.gap, kernels.cost), 0)
    gap = np.where(continues, kernels.gap, 0)
    sums = {"total_ns": kernels.ns, "gap_ns": gap, "gain_ns": gain}
    by_run = {name: np.add.reduceat(column, first) for name, column in sums.items()}
    long = np.flatnonzero(length >= least)
    _, example, number, times = np.unique(digest[long], return_index=True, return_inverse=True, return_counts=True)
    order, ends = np.argsort(number, kind="stable"), np.cumsum(times)
    rows = Rows()
    for one in np.flatnonzero(times >= LEAST_TIMES).tolist():
        some = long[order[ends[one] - times[one] : ends[one]]]
        begin = int(first[long[example[one]]])
        part = slice(begin, begin + int(length[long[example[one]]]))
        names = [work.names[name] for name in kernels.name[part].tolist()]
        rows.append({
            "device": int(kernels.place[begin]),
            "pattern": _pattern(names, kernels.sort[part].tolist(), least),
            "ops": _shown(names),
            "line": None,
            "count": len(some),
            "kernels": len(names),
            "launches_saved": len(some) * (len(names) - 1),
            **{name: int(column[some].sum()) for name, column in by_run.items()},
            "launch_ns": int(kernels.cost[begin]),
            "caller": int(work.caller[kernels.row[begin]]),
        })  # fmt: skip
    rows = Rows(row for row in rows if row["gain_ns"] >= LEAST_GAIN * row["launches_saved"] * row["launch_ns"] > 0)
    for row, line in zip(rows, lines_of(trace, np.array([row.pop("caller") for row in rows], np.int64)), strict=True):
        row["line"] = line
    return rows


def _pattern(names: Sequence[str | None], sorts: list[int], least: int) -> str:
    """What the run is."""
    if least == LEAST_KERNELS["any"]:
        return "launch-bound run"
    if sorts[0] == FOREACH:
        return "optimizer"
    if sorts[0] == HEAD:
        head = "convolution" if "conv" in (names[0] or "") else "matrix multiplication"
        return " + ".join([head, *dict.fromkeys("norm" if sort == NORM else "elementwise" for sort in sorts[1:])])
    return "norm chain" if NORM in sorts else "elementwise chain"


def _shown(names: Sequence[str | None]) -> str:
    """The names in order, repeated ones counted."""
    parts = []
    for name, same in groupby(names):
        times = len(list(same))
        parts.append(f"{name} × {times}" if times > 1 else str(name))
    left = len(parts) - MOST_SHOWN
    return " → ".join(parts[:MOST_SHOWN]) + (f" → {left} more" if left > 0 else "")


FUSION = Analysis(
    "fusion",
    "Small kernels worth fusing",
    "Sequences of ops whose kernels run one after the other on a stream and take less than launching one costs the "
    "host (the median), or than the gap before them: a known pattern (a matrix multiplication or a convolution and "
    "what follows it, elementwise chains, norms, an optimizer's steps), or any such run of "
    f"{LEAST_KERNELS['any']} kernels and more, which a graph or torch.compile would launch at once; such runs hold the "
    f"patterns in them. Seen at least {LEAST_TIMES} times. The gain is the gaps that would go, each at most what a "
    "launch costs; that less memory would be read and written is not in it.",
    (
        DEVICE,
        Column("pattern", "text", "what kind of sequence it is"),
        Column("ops", "text", "the ops, in order"),
        Column("line", "text", "line of the program that launched the first kernel of one of them; none: no stack was "
               "recorded"),
        Column("count", "count", "how often it ran"),
        Column("kernels", "count", "kernels of one run"),
        Column("launches_saved", "count", "launches less, if each run were one kernel"),
        Column("total_ns", "ns", "sum of the durations of the kernels"),
        Column("gap_ns", "ns", "sum of the gaps between the kernels of a run", "gaps"),
        Column("gain_ns", "ns", "of these gaps, each up to launch_ns: what could be gained; "
               "below a tenth of that the run is left out", "gain"),
        Column("launch_ns", "ns", "what launching a kernel of the device costs the host: the median", "a launch"),
    ),
    fusion,
    chapter="advice",
    detail=True,
    shown="device pattern gain_ns count launches_saved ops total_ns gap_ns line kernels launch_ns",
    needs=(SOME_KERNELS, SOME_LAUNCHES),
)  # fmt: skip
