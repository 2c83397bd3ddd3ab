"""How long intervals hold, and what a device waits for after them: against definitions tried moment by moment."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ral_trace.analysis.holds import Work, aftermath, in_order, owned, per_owner, resumed
from ral_trace.analysis.waits import last_ended

intervals = st.lists(st.tuples(st.integers(-20, 30), st.integers(0, 12)), max_size=12)


def columns(found: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    begin = np.array([start for start, _ in found], dtype=np.int64)
    return begin, begin + np.array([length for _, length in found], dtype=np.int64)


def work(rows: list[tuple[int, int, int]], device: int = 0) -> Work:
    """Of (launched, start after the launch, duration)."""
    launched, late, length = (np.array([row[part] for row in rows], dtype=np.int64) for part in range(3))
    one = np.full(len(rows), device, dtype=np.int64)
    start = launched + late
    return Work(
        np.arange(len(rows)), one * 0, one, one, start, start + length, launched, np.zeros(len(rows), dtype=bool)
    )


@given(intervals)
def test_each_moment_belongs_to_what_began_last(found):
    begin, end = columns(found)
    order = in_order(begin, end)
    begin, end = begin[order], end[order]
    expected = [0] * len(begin)
    for moment in range(-20, 45):
        if open_now := [(begin[n], -end[n], n) for n in range(len(begin)) if begin[n] <= moment < end[n]]:
            expected[max(open_now)[2]] += 1
    start, stop, owner = owned(begin, end)
    assert (stop > start).all()
    assert per_owner(owner, stop - start, len(begin)).tolist() == expected


@given(intervals, st.integers(0, 30))
def test_the_time_after_a_hold_ends_with_the_next(found, later):
    begin, end = columns(found)
    order = in_order(begin, end)
    begin, end = begin[order], end[order]
    until = aftermath(begin, end, end + later)
    for number in range(len(begin)):
        limit = end[number] + later
        others = [n for n in range(len(begin)) if n != number]
        if any(begin[n] < end[number] < end[n] for n in others):
            limit = end[number]
        if any(end[n] == end[number] and n > number for n in others):
            limit = end[number]
        limit = min([limit, *(begin[n] for n in others if begin[n] >= end[number])])
        assert until[number] == limit


works = st.lists(st.tuples(st.integers(-20, 30), st.integers(-3, 9), st.integers(0, 12)), max_size=10)


@given(works, works, st.lists(st.integers(-25, 45), max_size=5))
def test_a_device_waits_for_the_host_until_its_next_work_starts_or_only_waits_for_another(ours, others, times):
    here, elsewhere = work(ours), work(others, 1)
    both = work([*ours, *others])
    found = resumed(here, both, np.array(times, dtype=np.int64))
    for moment, when in zip(times, found.tolist(), strict=True):
        mine = [(row[0], row[0] + max(row[1], 0)) for row in ours if row[0] >= moment]
        theirs = [row[0] + max(row[1], 0) for row in others if row[0] >= moment]
        if not mine:
            assert when == moment
            continue
        start = min(begin for _, begin in mine)
        launch = min(launched for launched, _ in mine)
        assert when == min(start, max(launch, min([start, *theirs])))
    assert len(elsewhere.id) == len(others)


@given(works, intervals)
def test_what_was_waited_for_is_the_last_that_ended_in_it_and_was_launched_before(rows, waits):
    done = work(rows)
    begin, end = columns(waits)
    copy = np.arange(len(waits), dtype=np.int64) % 3
    found = last_ended(done, begin, end, copy)
    for number in range(len(waits)):
        fits = [
            (done.end[n], n)
            for n in range(len(rows))
            if begin[number] < done.end[n] <= end[number] and done.launched[n] <= begin[number] and n != copy[number]
        ]
        assert found[number] == (max(fits)[1] if fits else -1)


def test_a_long_queue_of_another_thread_is_looked_through():
    rows = [(0, 5, 10)] + [(100 + number, 0, 1) for number in range(500)]
    found = last_ended(work(rows), np.array([2]), np.array([900]), np.array([-1]))
    assert found.tolist() == [0]
