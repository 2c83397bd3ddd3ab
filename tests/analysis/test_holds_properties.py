"""What fallbacks and waits cost, on random traces, against their definitions tried nanosecond by nanosecond."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ral_trace.analysis.fallback_tax import PARTS, fallback_tax
from ral_trace.analysis.syncs import longest_syncs
from ral_trace.tracer.schema import FLAGS
from tests.analysis.cases import Case

SPAN = 140


@dataclass(frozen=True)
class Fall:
    """A fallback with at most one copy of its own, and the wait that it forces."""

    begin: int
    end: int
    copy: tuple[int, int, int] | None  # launch, start, end
    wait: tuple[int, int] | None


@st.composite
def fallen(draw) -> Fall:
    begin, length = draw(st.integers(0, 90)), draw(st.integers(1, 30))
    end = begin + length
    copy = wait = None
    if draw(st.booleans()):
        launch = draw(st.integers(begin, end - 1))
        start = launch + draw(st.integers(0, 15))
        copy = launch, start, start + draw(st.integers(1, 12))
    if draw(st.booleans()):
        wait_begin = draw(st.integers(begin, end - 1))
        wait = wait_begin, draw(st.integers(wait_begin, end))
    return Fall(begin, end, copy, wait)


KERNEL = st.tuples(st.integers(0, 100), st.integers(0, 15), st.integers(1, 20))
TRACE = st.tuples(st.lists(fallen(), min_size=1, max_size=4), st.lists(KERNEL, max_size=6))


def built(falls: list[Fall], kernels: list[tuple[int, int, int]]) -> Case:
    """One device. Every fallback's copy and wait state it as their parent, so that overlaps leave no doubt."""
    case = Case()
    case.device()
    for number, fall in enumerate(falls):
        found = case.event("fallback", f"op{number}", fall.begin, fall.end - fall.begin, device=0)
        if fall.copy:
            launch, start, end = fall.copy
            at = {"device": 0, "correlation": 100 + number, "parent": found}
            case.event("transfer", "copy", start, end - start, **at)
            case.event("launch", "copy", launch, 1, **at)
        if fall.wait:
            begin, end = fall.wait
            case.event("sync", "wait", begin, end - begin, device=0, flags=FLAGS["FORCED"], parent=found)
    for number, (launch, late, length) in enumerate(kernels):
        at = {"device": 0, "correlation": 200 + number}
        case.event("kernel", f"k{number}", launch + late, length, **at)
        case.event("launch", f"k{number}", launch, 1, parent=-1, **at)
    return case


def covers(interval: tuple[int, int], moment: int) -> bool:
    return interval[0] <= moment < interval[1]


def pending(falls: list[Fall], kernels: list[tuple[int, int, int]], fall: Fall) -> int:
    """The end of the last other work that was launched before the wait and ended in it; else the wait's begin.

    Other fallbacks' copies are such work.
    """
    assert fall.wait is not None
    begin, end = fall.wait
    ends = [(launch, launch + late + length) for launch, late, length in kernels]
    ends += [(f.copy[0], f.copy[2]) for f in falls if f.copy and f is not own_copy(falls, fall)]
    return max([done for launched, done in ends if launched <= begin and begin < done <= end], default=begin)


def own_copy(falls: list[Fall], fall: Fall) -> Fall | None:
    """A wait's own copy is that of its fallback, if it was launched before."""
    return fall if fall.copy and fall.wait and fall.copy[0] <= fall.wait[0] else None


def expected(falls: list[Fall], kernels: list[tuple[int, int, int]]) -> list[dict[str, int]]:
    ran = [(launch + late, launch + late + length) for launch, late, length in kernels]
    copies = [(fall.copy[1], fall.copy[2]) for fall in falls if fall.copy]
    waits = [fall.wait for fall in falls if fall.wait]
    due = [(fall.wait[0], pending(falls, kernels, fall)) for fall in falls if fall.wait]
    found = [dict.fromkeys((*PARTS, "overlapped_ns"), 0) for _ in falls]
    order = sorted(range(len(falls)), key=lambda n: (falls[n].begin, -falls[n].end, n))
    for moment in range(SPAN):
        owner = next((n for n in reversed(order) if covers((falls[n].begin, falls[n].end), moment)), None)
        if owner is None:
            continue
        copying = any(covers(copy, moment) for copy in copies)
        waiting = any(covers(wait, moment) for wait in waits)
        found[owner]["copies_ns" if copying else "waits_ns" if waiting else "compute_ns"] += 1
        found[owner]["overlapped_ns"] += any(covers(other, moment) for other in [*ran, *due])
    for place, number in enumerate(order):
        fall, later = falls[number], [falls[n] for n in order[place + 1 :]]
        others = [falls[n] for n in order if n != number]
        if any(other.begin < fall.end < other.end for other in others) or any(o.end == fall.end for o in later):
            continue
        limit = min([other.begin for other in others if other.begin >= fall.end], default=SPAN)
        launched = [(launch, launch + late) for launch, late, _ in kernels]
        launched += [(f.copy[0], f.copy[1]) for f in falls if f.copy]
        resumes = min([start for launch, start in launched if launch >= fall.end], default=fall.end)
        for moment in range(fall.end, min(limit, resumes)):
            found[number]["lost_ns"] += not any(covers(each, moment) for each in [*ran, *copies])
        found[number]["lost_ns"] = min(found[number]["lost_ns"], found[number]["overlapped_ns"])
        for moment in range(fall.end, min(limit, fall.copy[2] if fall.copy else 0)):
            if any(covers(copy, moment) for copy in copies):
                found[number]["copies_ns"] += 1
                found[number]["overlapped_ns"] += any(covers(each, moment) for each in ran)
    return found


@given(TRACE)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_tax_is_what_its_definition_says(found):
    falls, kernels = found
    case = built(falls, kernels)
    with tempfile.TemporaryDirectory() as folder, case.open(Path(folder)) as trace:
        rows = {row["name"]: row for row in fallback_tax(trace)}
        waits = longest_syncs(trace)
    parts = expected(falls, kernels)
    for number, part in enumerate(parts):
        row = rows[f"op{number}"]
        assert {name: row[name] for name in part} == part
        assert row["tax_ns"] == sum(part[name] for name in PARTS)
        assert 0 <= row["gain_ns"] == row["tax_ns"] - row["overlapped_ns"]
    union = {moment for fall in falls for moment in range(fall.begin, fall.end)}
    # Each moment counts once, so that all together is the time in fallbacks, and what comes after.
    within = sum(row["compute_ns"] + row["waits_ns"] for row in rows.values())
    assert within <= len(union) <= sum(row["tax_ns"] for row in rows.values())
    # A wait never costs more than it lasted.
    assert all(0 <= row["idle_ns"] <= row["dur_ns"] and 0 <= row["pending_ns"] <= row["dur_ns"] for row in waits)
