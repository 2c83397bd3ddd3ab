"""What each block of memory is for, told from how it was used. All rules are here.

The first that holds:

- optimizer state: allocated inside `Optimizer.step#…`, and not freed there;
- gradient: allocated inside a backward op, and still there when the next `Optimizer.step#…` began, or freed in a
  `zero_grad`;
- parameter: there before training began, no result of an op that a backward pass went through, and still there at the
  end of all later steps, two at least; buffers look the same;
- input: filled by a copy from the host right after it was allocated, and gone two steps later at most;
- activation: allocated in the forward pass, still there when the next backward pass began, gone two steps later at
  most;
- temporary: freed in the phase that allocated it: before the next backward pass, before the optimiser's step, within
  it; where no backward pass follows, within the same step, or within the row that made it;
- unknown: all else: the evidence lacks.

Steps are the stated ones, else the optimiser's. Where uses of blocks were recorded (--with-access), what lives through
the steps and is used by the optimiser alone is its state, and what was there before the recording and is used by it and
by others is a parameter. Where a source has no ops but Python stacks (memory
snapshots), lines of torch/optim stand for the optimiser, Module._apply for parameters.
A category that the source itself states stands.

PyTorch's own profiler (torch/profiler/_memory_profiler.py, `Category`) needs shapes and stacks of every op for this,
and names what flows through autograd; the words are the same, its "autograd detail" is temporary here.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import SLASH, VALID
from ral_trace.analysis.intervals import Integers, Union, groups
from ral_trace.tracer.reading import Trace

CATEGORIES = ("parameter", "optimizer state", "gradient", "activation", "input", "temporary", "unknown")
PARAMETER, STATE, GRADIENT, ACTIVATION, INPUT, TEMPORARY, UNKNOWN = range(len(CATEGORIES))

AT_ONCE = 2
"""Step ends that an activation or an input may see: its own, and the next where the program still holds it."""
NEVER = 2**63 - 1
BEFORE = -(2**63) + 1

Flags = npt.NDArray[np.bool_]
Blocks = dict[str, npt.NDArray[np.generic]]

BLOCKS = f"""
SELECT a.id, d.process, coalesce(e.thread, -1) AS thread, coalesce(a.alloc_ns, {BEFORE}) AS alloc_ns,
       coalesce(a.free_ns, {NEVER}) AS free_ns, coalesce(s.by_optimizer, false) AS by_optimizer,
       coalesce(s.by_module, false) AS by_module, coalesce(a.requested_bytes, a.size_bytes, -1) AS bytes, a.device,
       coalesce(list_position({list(CATEGORIES)}, a.category) - 1, -1) AS stated
FROM allocation a JOIN device d ON d.id = a.device LEFT JOIN event e ON e.id = a.alloc_event
LEFT JOIN (
    SELECT id, list_bool_or([regexp_matches(f.file, '{SLASH}torch{SLASH}optim{SLASH}') FOR f IN frames])
               AS by_optimizer,
           list_bool_or([regexp_matches(f.file, '{SLASH}torch{SLASH}nn{SLASH}modules{SLASH}module[.]py$')
                         AND f."function" = '_apply' FOR f IN frames]) AS by_module
    FROM stack) s ON s.id = a.stack
ORDER BY d.process"""

SPANS = f"""
SELECT e.process, e.thread, e.ts_ns AS start_ns, e.ts_ns + e.dur_ns AS end_ns FROM event e
WHERE e.thread IS NOT NULL AND e.dur_ns >= 0 AND {VALID} AND {{condition}} ORDER BY e.process, e.thread"""
BACKWARD = "e.kind = 'op' AND (e.category = 'backward' OR e.name LIKE 'autograd::engine::evaluate_function: %')"
"""The engine's own row encloses the node's, and what the engine does around it, such as a bias' sum."""
OPTIMIZER = "e.kind = 'annotation' AND e.name LIKE 'Optimizer.step#%'"
ZERO_GRAD = "e.kind = 'annotation' AND e.name LIKE 'Optimizer.zero_grad#%'"
ROW = "e.kind IN ('op', 'annotation') AND coalesce(e.category, '') NOT IN ('step', 'dataloader')"

HOST_COPIES = """
SELECT l.thread, t.device, l.ts_ns, t.bytes FROM event t
JOIN event l ON l.process = t.process AND l.correlation = t.correlation AND l.kind = 'launch'
LEFT JOIN event p ON p.id = t.parent
WHERE t.kind = 'transfer' AND t.category = 'host_to_device' AND l.thread IS NOT NULL AND t.bytes IS NOT NULL
  AND (p.kind IS NULL OR p.kind <> 'fallback')
ORDER BY l.thread, t.device, l.ts_ns"""
"""Copies that the program asked for; those of fallbacks bring a result back."""

DIFFERENTIATED = f"""
SELECT a.id FROM allocation a JOIN event e ON e.id = a.alloc_event
JOIN (SELECT process, min(ts_ns) AS ts_ns FROM event e WHERE {BACKWARD} GROUP BY process) first
  ON first.process = e.process AND e.ts_ns < first.ts_ns
JOIN event p ON p.id = e.parent
WHERE (a.free_ns IS NULL OR a.free_ns > first.ts_ns)
  AND (p.id IN (SELECT from_event FROM flow WHERE kind = 'autograd')
       OR p.parent IN (SELECT from_event FROM flow WHERE kind = 'autograd'))"""
"""Blocks that an op allocated which the first backward pass went through: results, however long they live."""

BY_USE = f"""
SELECT allocation, bool_or(inside) AS inside, bool_or(NOT inside) AS outside FROM (
    SELECT x.allocation, o.ts_ns IS NOT NULL AND e.ts_ns < o.ts_ns + o.dur_ns AS inside
    FROM access x JOIN event e ON e.id = x.event
    JOIN (SELECT process, min(ts_ns) AS ts_ns FROM event e WHERE {OPTIMIZER} GROUP BY process) first
      ON first.process = e.process AND e.ts_ns >= first.ts_ns
    ASOF LEFT JOIN (SELECT thread, ts_ns, dur_ns FROM event e WHERE {OPTIMIZER} AND dur_ns >= 0) o
      ON o.thread = e.thread AND o.ts_ns <= e.ts_ns)
GROUP BY allocation"""
"""Of each block that was used since the optimiser's first step: whether inside such steps, and outside."""


@dataclass(frozen=True)
class Spans:
    """Spans of time of threads: sorted by process and thread."""

    process: Integers
    thread: Integers
    start_ns: Integers
    end_ns: Integers

    @classmethod
    def of(cls, trace: Trace, condition: str) -> "Spans":
        found = trace.sql(SPANS.format(condition=condition)).fetchnumpy()
        return cls(*(np.asarray(found[name], np.int64) for name in ("process", "thread", "start_ns", "end_ns")))

    def end_around(self, thread: Integers, times: Integers) -> Integers:
        """The end of the span (the union of those that overlap) of the thread in which each time lies; BEFORE: none."""
        ends = np.full(len(times), BEFORE)
        for number, rows in groups(self.thread):
            ours = np.flatnonzero(thread == number)
            union = Union.of(self.start_ns[rows], self.end_ns[rows])
            if not len(ours) or not len(union.start):
                continue
            place = np.searchsorted(union.start, times[ours], side="right") - 1
            within = (place >= 0) & (times[ours] < union.end[place])
            ends[ours[within]] = union.end[place[within]]
        return ends

    def begins(self, process: int) -> Integers:
        """When those of the process begin, in order."""
        return np.sort(self.start_ns[self.process == process])

    def within(self, process: int, times: Integers) -> Flags:
        """Whether each time lies in one of the process', on whatever thread."""
        of = self.process == process
        union = Union.of(self.start_ns[of], self.end_ns[of])
        if not len(union.start):
            return np.zeros(len(times), bool)
        place = np.searchsorted(union.start, times, side="right") - 1
        return np.asarray((place >= 0) & (times < union.end[place]))


def _next(begins: Integers, times: Integers) -> Integers:
    """The first of `begins` at or after each time; NEVER: there is none."""
    return np.append(begins, NEVER)[np.searchsorted(begins, times, side="left")]


def categories(trace: Trace, blocks: Blocks, step_ends: dict[int, Integers]) -> npt.NDArray[np.int64]:
    """The category of each block, an index of CATEGORIES. `blocks` are the rows of BLOCKS; `step_ends`: of each process
    that has steps, in order.
    """
    backward, optimizer, zero_grad = (Spans.of(trace, each) for each in (BACKWARD, OPTIMIZER, ZERO_GRAD))
    thread, alloc_ns, free_ns = (np.asarray(blocks[name], np.int64) for name in ("thread", "alloc_ns", "free_ns"))
    known = {
        "optimizer_end": optimizer.end_around(thread, alloc_ns),
        "in_backward": backward.end_around(thread, alloc_ns) > BEFORE,
        "from_host": _filled_from_host(trace, blocks),
        "state_by_use": _is_in(trace, blocks, f"SELECT allocation FROM ({BY_USE}) WHERE inside AND NOT outside"),
        "parameter_by_use": _is_in(trace, blocks, f"SELECT allocation FROM ({BY_USE}) WHERE inside AND outside"),
        "differentiated": _is_in(trace, blocks, DIFFERENTIATED),
        "row_end": np.full(len(thread), BEFORE),
    }
    if not len(backward.start_ns):
        known["row_end"] = Spans.of(trace, ROW).end_around(thread, alloc_ns)
    category = np.full(len(thread), UNKNOWN)
    for process, rows in groups(np.asarray(blocks["process"])):
        evidence = {name: column[rows] for name, column in {**blocks, **known}.items()}
        ends = step_ends.get(process, np.empty(0, np.int64))
        freed_in_zero_grad = zero_grad.within(process, free_ns[rows])
        category[rows] = _of_process(
            evidence, backward.begins(process), optimizer.begins(process), ends, freed_in_zero_grad
        )
    stated = np.asarray(blocks["stated"], np.int64)
    return np.where(stated >= 0, stated, category)


def _of_process(
    block: Blocks, backward: Integers, optimizer: Integers, step_ends: Integers, freed_in_zero_grad: Flags
) -> npt.NDArray[np.int64]:
    """The category of each block of one process. `backward`, `optimizer`: when their rows begin."""
    alloc_ns, free_ns = np.asarray(block["alloc_ns"], np.int64), np.asarray(block["free_ns"], np.int64)
    began, freed = alloc_ns > BEFORE, free_ns < NEVER
    ends_before = np.searchsorted(step_ends, alloc_ns, side="left")
    seen = np.searchsorted(step_ends, free_ns, side="left") - ends_before
    through_all = (seen >= 2) & (seen == len(step_ends) - ends_before)
    soon_gone = freed & (seen <= AT_ONCE) if len(step_ends) else freed
    trained = len(backward) + len(optimizer) > 0
    training = min([*backward[:1], *optimizer[:1], *([] if trained else step_ends[:1])], default=BEFORE)
    next_backward, next_optimizer = _next(backward, alloc_ns), _next(optimizer, alloc_ns)

    in_optimizer = np.asarray(block["optimizer_end"], np.int64)
    by_optimizer = np.asarray(block["by_optimizer"], bool) | (in_optimizer > BEFORE)
    in_backward = np.asarray(block["in_backward"], bool) & ~by_optimizer
    forward = began & ~in_backward & ~by_optimizer & (np.asarray(block["thread"], np.int64) >= 0)
    differentiated = np.asarray(block["differentiated"], bool)
    moved = np.asarray(block["by_module"], bool) & (~freed | through_all)
    kept = (next_optimizer < NEVER) & (free_ns > next_optimizer) if len(optimizer) else seen >= 1
    same_phase = np.where(next_backward < NEVER, free_ns <= next_backward, (seen == 0) & (len(step_ends) > 0))
    rules = [
        (np.asarray(block["state_by_use"], bool) & through_all, STATE),
        (np.asarray(block["parameter_by_use"], bool) & through_all & ~began, PARAMETER),
        (by_optimizer & freed & np.where(in_optimizer > BEFORE, free_ns <= in_optimizer, True), TEMPORARY),
        (by_optimizer, STATE),
        (in_backward & (freed_in_zero_grad | kept), GRADIENT),
        (in_backward & freed, TEMPORARY),
        (in_backward, UNKNOWN),
        (moved | (began & through_all & (alloc_ns < training) & ~differentiated), PARAMETER),
        (np.asarray(block["from_host"], bool) & soon_gone, INPUT),
        (forward & freed & same_phase, TEMPORARY),
        (forward & (next_backward < NEVER) & soon_gone, ACTIVATION),
        (forward & freed & (free_ns <= np.asarray(block["row_end"], np.int64)), TEMPORARY),
    ]
    return np.select([rule for rule, _ in rules], [category for _, category in rules], UNKNOWN)


def _filled_from_host(trace: Trace, blocks: Blocks) -> Flags:
    """Whether the next thing after a block was allocated, on its thread, is a copy from the host of just its size."""
    filled = np.zeros(len(blocks["id"]), bool)
    copies = trace.sql(HOST_COPIES).fetchnumpy()
    copy_device, copy_bytes = np.asarray(copies["device"]), np.asarray(copies["bytes"], np.int64)
    copy_ns = np.asarray(copies["ts_ns"], np.int64)
    thread, device = np.asarray(blocks["thread"]), np.asarray(blocks["device"])
    alloc_ns, size = np.asarray(blocks["alloc_ns"], np.int64), np.asarray(blocks["bytes"], np.int64)
    for number, rows in groups(np.asarray(copies["thread"])):
        on_thread = thread == number
        for of, part in groups(copy_device[rows]):
            ours = np.flatnonzero(on_thread & (device == of))
            ours = ours[np.argsort(alloc_ns[ours], kind="stable")]
            begins, sizes = copy_ns[rows][part], copy_bytes[rows][part]
            place = np.searchsorted(begins, alloc_ns[ours], side="left")
            following = np.append(begins, NEVER)[place]
            until = np.append(alloc_ns[ours][1:], NEVER)
            filled[ours] = (following < until) & (np.append(sizes, -1)[place] == size[ours])
    return filled


def _is_in(trace: Trace, blocks: Blocks, query: str) -> Flags:
    """Whether the query, which has one column, gives the block's id."""
    [found] = trace.sql(query).fetchnumpy().values()
    return np.isin(np.asarray(blocks["id"]), np.asarray(found))
