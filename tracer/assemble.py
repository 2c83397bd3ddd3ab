"""Makes the trace of a recording: of one that has ended, of one that still runs, of one whose collector died."""

import signal
from collections import Counter
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

from ral_trace.tracer import _native
from ral_trace.tracer.errors import NothingRecorded, RalTraceError
from ral_trace.tracer.governor import ORDER as SHED_ORDER
from ral_trace.tracer.journal import Journal, RingRow
from ral_trace.tracer.live import LiveRows, ProcessNames
from ral_trace.tracer.recording import SAMPLE_S, ProcessView, Snapshot
from ral_trace.tracer.store import TraceBuilder

BATCH_ROWS = 200_000
SAMPLES_A_SECOND = round(1 / SAMPLE_S)
WALL_CLOCK_JUMP_NS = 10_000_000
"""Between two readings a second apart; a clock that is slewed moves half a millisecond in that time."""
ENDED_AT_ONCE = "ended without its exit handlers: os._exit (as forked workers do), a crash or a kill"
OVERWRITTEN = "events overwritten by later ones before the collector came; give their rings more room with --buffer"
FLOWN_OVER = "events that a flight recorder has overwritten since the program began, as it should"
DROPPED = "events dropped: a ring was full before the collector came; give it more room with --buffer"


class Assembly:
    """A trace in the making."""

    def __init__(self, snapshot: Snapshot, output: Path) -> None:
        self.builder = TraceBuilder(output)
        self.snapshot = snapshot
        self.journal = snapshot.journal
        self.rings = {view.number: _rings(snapshot.journal, view) for view in snapshot.processes}
        self.clock = _native.Calibration(snapshot.journal.clocks)
        self.names = {view.number: view.read_names() for view in snapshot.processes}
        self._rows = LiveRows(self.builder)
        try:
            self._spool = _native.SpoolReader(str(snapshot.spool))
        except RuntimeError as error:
            self.builder.close()
            raise RalTraceError(f"{error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.builder.close()

    def load(self) -> None:
        """Moves what the spool has into the trace."""
        for view in self.snapshot.processes:
            found = self.names[view.number]
            self._rows.add_names(ProcessNames(view.number, found.names, found.stacks))
        batch = _native.Batch()
        while self._spool.next(self.clock, BATCH_ROWS, self.snapshot.since_ticks, batch):
            self._rows.add(batch)

    def is_empty(self) -> bool:
        """Whether Python's garbage collections are all that happened."""
        query = "SELECT 1 FROM event WHERE kind <> 'python' LIMIT 1"
        return self.builder.connection.execute(query).fetchone() is None

    def finish(self) -> int:
        """Writes the trace. Returns how many events it holds.

        Raises RalTraceError when the output cannot be written.
        """
        _describe(self)
        threads = {
            (number, ring.tid): ring.thread_name
            for number, rings in self.rings.items()
            for ring in rings
            if ring.tid is not None
        }
        self._rows.finish(threads)
        if self.journal.begin.flight_ns is not None:
            _describe_flight(self, self.journal.begin.flight_ns)
        self.builder.info(**self.snapshot.facts)
        [(events,)] = self.builder.connection.execute("SELECT count(*) FROM event").fetchall()
        self.builder.finish()
        return int(events)

    def span_ns(self, begin_ticks: int, end_ticks: int) -> int:
        """A span of ticks in nanoseconds, at the rate of the whole recording."""
        zero = self.journal.clocks[0].ticks
        return self.clock.epoch_ns(zero + end_ticks - begin_ticks) - self.clock.epoch_ns(zero)


def _rings(journal: Journal, view: ProcessView) -> list[RingRow]:
    """The accounts of all threads of a process, and of those for whose rings there was no room."""
    without = view.unrecorded
    missed = [RingRow(None, "", without, 0, without, 0, 0)] if without else []
    return [*journal.rings[view.number], *view.rings, *missed]


def assemble(snapshot: Snapshot, output: Path, *, refuse_nothing: bool = False) -> int:
    """Writes the trace of `snapshot` to `output`. Returns how many events it holds.

    Raises RalTraceError when the output cannot be written; NothingRecorded, where that is to be refused.
    """
    with Assembly(snapshot, output) as assembly, assembly.builder.saying_where():
        assembly.load()
        if refuse_nothing and assembly.is_empty():
            raise NothingRecorded(f"{output}: nothing was recorded")
        return assembly.finish()


def _describe_flight(assembly: Assembly, asked_ns: int) -> None:
    """States the span that is complete: since the begin of the fullest ring, where something was overwritten."""
    builder, journal = assembly.builder, assembly.journal
    end_ns = assembly.clock.epoch_ns(journal.clocks[-1].ticks)
    first = {
        (process, tid): int(ts_ns)
        for process, tid, ts_ns in builder.connection.execute("""
            SELECT t.process, t.tid, min(e.ts_ns + e.dur_ns) FROM event e JOIN thread t ON t.id = e.thread GROUP BY ALL
            """).fetchall()
    }
    begins = [
        first.get((number, ring.tid), end_ns)
        for number, rings in assembly.rings.items()
        for ring in rings
        if ring.dropped and ring.tid is not None
    ]
    recorded_ns = end_ns - assembly.clock.epoch_ns(journal.clocks[0].ticks)
    held_ns = min([asked_ns, recorded_ns, *(end_ns - begin_ns for begin_ns in begins)])
    builder.info(flight_asked_ns=asked_ns, flight_held_ns=held_ns)
    if held_ns < min(asked_ns, recorded_ns):
        what = f"of the last {asked_ns / 1e9:g} s the rings held {held_ns / 1e9:.3f} s of every thread"
        builder.add("quality", what=f"{what}; give them more room with --buffer")


def _describe(assembly: Assembly) -> None:
    journal, builder = assembly.journal, assembly.builder
    error_ns = _clock_error_ns(assembly)
    source = builder.add(
        "source",
        format="live",
        producer=f"ral-trace {version('ral-trace')}",
        clock_zero="unix epoch",
        clock_offset_ns=0,
        clock_uncertainty_ns=error_ns,
    )
    for view in assembly.snapshot.processes:
        _describe_process(assembly, source, view)
    if failures := assembly.snapshot.attach_failures:
        what = "programs could not join: no room in shared memory for their rings"
        builder.add("quality", source=source, what=what, count=failures)
    for what, count in [*Counter(journal.notes).items(), *_clock_jumps(journal)]:
        builder.add("quality", source=source, what=what, count=count)
    begun, ended = (assembly.clock.epoch_ns(journal.clocks[at].ticks) for at in (0, -1))
    builder.info(
        command_line=journal.begin.command_line,
        clock=_native.CLOCK,
        created_ns=begun,
        duration_ns=ended - begun,
        clock_error_ns=error_ns,
    )


def _describe_process(assembly: Assembly, source: int, view: ProcessView) -> None:
    journal, builder = assembly.journal, assembly.builder
    gone = journal.gone.get(view.number)
    builder.add(
        "process",
        id=view.number,  # as the events have it
        source=source,
        pid=view.reader.pid,
        host=journal.begin.host,
        name=short_name(view.reader.command),
        command_line=" ".join(words_of(view.reader.command)),
        started_ns=assembly.clock.epoch_ns(view.reader.attached_ticks),
        ended_ns=None if gone is None else assembly.clock.epoch_ns(gone),
        ended_how=how_ended(journal, view),
    )
    columns = ["tid", "written", "received", "dropped", "lost", "shed"]
    rings = assembly.rings[view.number]
    values = ", ".join("unnest(?::BIGINT[])" for _ in columns)
    builder.connection.execute(
        f"INSERT INTO ledger (process, {', '.join(columns)}) SELECT ?, {values}",
        [view.number, *([getattr(ring, column) for ring in rings] for column in columns)],
    )
    _sample_counters(assembly, view)
    _warn(assembly, source, view)


def _sample_counters(assembly: Assembly, view: ProcessView) -> None:
    """Resident memory; CPU time as a share of one core; and what recording took of that, all between samples."""
    since_ticks = assembly.snapshot.since_ticks
    samples = [sample for sample in assembly.journal.samples[view.number] if sample.ticks >= since_ticks]
    if not samples:
        return

    def series(name: str, unit: str, values: list[tuple[int, float]]) -> None:
        number = assembly.builder.add("counter", process=view.number, series=name, unit=unit)
        assembly.builder.connection.execute(
            "INSERT INTO counter_value (counter, ts_ns, value) SELECT ?, unnest(?::BIGINT[]), unnest(?::DOUBLE[])",
            [number, [assembly.clock.epoch_ns(at) for at, _ in values], [value for _, value in values]],
        )

    series("host memory (RSS)", "bytes", [(sample.ticks, float(sample.rss_bytes)) for sample in samples])
    cpu = [
        (before.ticks, 100 * (after.cpu_ns - before.cpu_ns) / assembly.span_ns(before.ticks, after.ticks))
        for before, after in pairwise(samples)
        if after.ticks > before.ticks
    ]
    series("host CPU", "percent of one core", cpu)
    # The kernel counts CPU time in hundredths of a second: a share of less than a second of it would be noise.
    cost = [
        (before.ticks, 100 * assembly.span_ns(before.spent_ticks, after.spent_ticks) / (after.cpu_ns - before.cpu_ns))
        for before, after in pairwise(samples[::SAMPLES_A_SECOND])
        if after.cpu_ns > before.cpu_ns
    ]
    series("cost of recording", "percent of CPU time", cost)


def _warn(assembly: Assembly, source: int, view: ProcessView) -> None:
    journal, rings, names = assembly.journal, assembly.rings[view.number], assembly.names[view.number]
    name = short_name(view.reader.command)

    def warn(what: str, count: int | None = None) -> None:
        assembly.builder.add("quality", source=source, process=view.number, what=what, count=count, example=name)

    if dropped := sum(ring.dropped for ring in rings):
        overwritten = OVERWRITTEN if journal.begin.flight_ns is None else FLOWN_OVER
        warn(overwritten if journal.begin.overwrite else DROPPED, dropped)
    if lost := sum(ring.lost for ring in rings):
        warn("events lost: not committed when their writer died, or damaged", lost)
    if note := view.reader.note:
        warn(note)
    for count, what in [
        (names.refused, "names without room in the name table: their events have no name"),
        (names.cut, "names that were longer than 2,048 bytes: cut there"),
        (names.refused_stacks, "stacks without room in their table: their events have none, or a part"),
        (sum(ring.damaged for ring in rings), "rings were damaged, or cut short, and were read no further"),
    ]:
        if count:
            warn(what, count)
    begun = assembly.clock.epoch_ns(journal.clocks[0].ticks)
    for shed in journal.sheds[view.number]:
        seconds = (assembly.clock.epoch_ns(shed.ticks) - begun) / 1e9
        left_out = " and ".join(what for what, bits in SHED_ORDER if bits & shed.details)
        share = f"recording took an estimated {100 * shed.share:.2f} % of the program's CPU time"
        warn(f"{share}: from {seconds:.3f} s on left out: {left_out}")
    how = how_ended(journal, view)
    if how not in ("exited", "still running", ENDED_AT_ONCE):
        warn(f"the program did not end well ({how}): the trace holds what it had written by then")


def words_of(command: bytes) -> list[str]:
    """A program's command, as it wrote it itself: a short-lived process is gone before anybody could look."""
    return [word.decode(errors="replace") for word in command.split(b"\0") if word]


def short_name(command: bytes) -> str:
    """The module or the script where there is one, else the program."""
    words = words_of(command)
    # Options of Python end at the script or the module; what follows is the program's own.
    for position, word in enumerate(words[1:], start=1):
        if word == "-m" and position + 1 < len(words):
            return words[position + 1]
        if word.endswith(".py"):
            return Path(word).name
        if not word.startswith("-"):
            break
    return Path((words or ["unknown"])[0]).name


def how_ended(journal: Journal, view: ProcessView) -> str:
    """What the trace says of a process's end."""
    status = journal.exits.get(view.reader.pid)
    if status is not None and status < 0:
        known = {each.value: each.name for each in signal.Signals}
        return f"killed by {known.get(-status, f'signal {-status}')}"
    if status is not None:
        return "exited" if status == 0 else f"exited with {status}"
    if view.number not in journal.gone:
        return "still running"
    return "exited" if view.exited else ENDED_AT_ONCE


def _clock_error_ns(assembly: Assembly) -> int:
    """How far converted ticks and CLOCK_MONOTONIC came apart between any two readings, had only the first and the last
    been used: what a rate that is not constant would have cost.
    """
    clocks = assembly.journal.clocks
    if len(clocks) < 3:
        return 0
    ends = _native.Calibration([clocks[0], clocks[-1]])
    zero = ends.epoch_ns(clocks[0].ticks)
    first = clocks[0].monotonic_ns
    return max(abs(ends.epoch_ns(at.ticks) - zero - (at.monotonic_ns - first)) for at in clocks)


def _clock_jumps(journal: Journal) -> list[tuple[str, int]]:
    """Steps of the wall clock: the trace goes on in its old time."""
    offsets = [at.realtime_ns - at.monotonic_ns for at in journal.clocks]
    steps = [after - before for before, after in pairwise(offsets)]
    jumps = [step for step in steps if abs(step) >= WALL_CLOCK_JUMP_NS]
    if not jumps:
        return []
    seconds = ", ".join(f"{step / 1e9:+.3f} s" for step in jumps[:5])
    return [(f"the wall clock was set while recording ({seconds}): times go on as if it had not been", len(jumps))]
