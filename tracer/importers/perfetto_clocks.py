"""Perfetto's clocks: which a packet's time is of, and what it is in the trace's own nanoseconds.

https://perfetto.dev/docs/concepts/clock-sync
"""

from bisect import bisect_right
from typing import Any

REALTIME, BOOTTIME = 1, 6
SEQUENCE_CLOCKS = range(64, 128)
"""Their ids mean something within one packet sequence only."""


class Clocks:
    """What the clock snapshots of a whole trace say. Times are integer nanoseconds."""

    def __init__(self) -> None:
        self.trace_clock = BOOTTIME
        self._snapshots: list[dict[int, int]] = []
        self._known: dict[int, tuple[list[int], list[int]]] = {}

    def learn(self, snapshot: Any) -> None:
        """Takes note of a ClockSnapshot."""
        if snapshot.HasField("primary_trace_clock"):
            self.trace_clock = snapshot.primary_trace_clock
        self._snapshots.append(readings(snapshot))

    def settle(self) -> None:
        """To be called when all snapshots are known."""
        if self._snapshots and not any(self.trace_clock in snapshot for snapshot in self._snapshots):
            shared = [clock for clock in self._snapshots[0] if clock not in SEQUENCE_CLOCKS]
            self.trace_clock = shared[0] if shared else self.trace_clock
        pairs: dict[int, list[tuple[int, int]]] = {}
        for snapshot in self._snapshots:
            if self.trace_clock in snapshot:
                for clock, ns in snapshot.items():
                    if clock not in SEQUENCE_CLOCKS:
                        pairs.setdefault(clock, []).append((ns, snapshot[self.trace_clock]))
        for clock, found in pairs.items():
            found.sort()
            self._known[clock] = ([ns for ns, _ in found], [ns for _, ns in found])

    @property
    def unix_offset_ns(self) -> int | None:
        """What to add to the trace's time so that it counts from 1970; None: not known."""
        for snapshot in self._snapshots:
            if REALTIME in snapshot and self.trace_clock in snapshot:
                return snapshot[REALTIME] - snapshot[self.trace_clock]
        return None

    def to_trace(self, clock: int, ns: int) -> int | None:
        """A clock's time as the trace's, by the last snapshot before it. None: no snapshot ties the two."""
        if clock == self.trace_clock:
            return ns
        known = self._known.get(clock)
        if known is None:
            return None
        own, trace = known
        at = max(bisect_right(own, ns) - 1, 0)
        return ns - own[at] + trace[at]


class SequenceClocks:
    """The clocks that one packet sequence has for itself: 64 to 127, perhaps counting from packet to packet."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._own: dict[int, tuple[int, bool, int, int]] = {}
        self._now: dict[int, int] = {}

    def learn(self, snapshot: Any) -> None:
        """Takes note of a ClockSnapshot on this sequence."""
        read = readings(snapshot)
        trace_ns = next(
            (found for clock, ns in read.items() if (found := self._clocks.to_trace(clock, ns)) is not None), None
        )
        for clock in snapshot.clocks:
            if clock.clock_id in SEQUENCE_CLOCKS:
                ns = read[clock.clock_id]
                self._now[clock.clock_id] = ns
                if trace_ns is not None:
                    self._own[clock.clock_id] = (clock.unit_multiplier_ns or 1, clock.is_incremental, ns, trace_ns)

    def to_trace(self, clock: int, value: int) -> int | None:
        """A packet's timestamp as the trace's time; to be called once for each packet, in their order."""
        if clock not in SEQUENCE_CLOCKS:
            return self._clocks.to_trace(clock, value)
        own = self._own.get(clock)
        if own is None:
            return None
        multiplier, incremental, begun_ns, trace_ns = own
        ns = value * multiplier
        if incremental:
            ns = self._now[clock] = self._now[clock] + ns
        return ns - begun_ns + trace_ns


def readings(snapshot: Any) -> dict[int, int]:
    """Nanoseconds of each clock of a ClockSnapshot."""
    return {clock.clock_id: clock.timestamp * (clock.unit_multiplier_ns or 1) for clock in snapshot.clocks}
