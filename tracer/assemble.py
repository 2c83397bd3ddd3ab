"""Makes the trace of a recording: of one that has ended, of one that still runs, of one whose collector died."""

import signal
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from ral_trace.tracer import _native, live
from ral_trace.tracer.journal import Journal, RingRow
from ral_trace.tracer.recording import ProcessView, Snapshot
from ral_trace.tracer.store import TraceBuilder

BATCH_ROWS = 200_000
WALL_CLOCK_JUMP_NS = 10_000_000
"""Between two readings a second apart; a clock that is slewed moves half a millisecond in that time."""
ENDED_AT_ONCE = "ended without its exit handlers: os._exit (as forked workers do), a crash or a kill"
OVERWRITTEN = "events overwritten by later ones before the collector came; give their rings more room with --buffer"
DROPPED = "events dropped: a ring was full before the collector came; give it more room with --buffer"


@dataclass
class Assembly:
    """One snapshot on its way into a trace. `since_ticks`: leave out what had ended before."""

    builder: TraceBuilder
    snapshot: Snapshot
    since_ticks: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    """process.id by number: those of which nothing is left have no row."""

    def __post_init__(self) -> None:
        clocks = self.journal.clocks
        # One reading alone has no rate; the same twice has none either, and then all times are the zero.
        self.clock = _native.Calibration(clocks)
        self.names = {view.number: _native.NameList.read(str(view.names)) for view in self.snapshot.processes}

    @property
    def journal(self) -> Journal:
        return self.snapshot.journal

    def rings(self, view: ProcessView) -> list[RingRow]:
        """The accounts of all threads of a process, and of those for whose rings there was no room."""
        without = view.unrecorded
        missed = [RingRow(None, "", without, 0, without, 0, 0)] if without else []
        return [*self.journal.rings[view.number], *view.rings, *missed]


def assemble(snapshot: Snapshot, output: Path, *, since_ticks: int = 0, facts: dict[str, object] | None = None) -> int:
    """Writes the trace of `snapshot` to `output`. Returns how many events it holds.

    Raises RalTraceError when the output cannot be written.
    """
    with TraceBuilder(output) as builder:
        assembly = Assembly(builder, snapshot, since_ticks)
        live.prepare(builder.connection)
        _load_records(assembly)
        _describe(assembly)
        live.transform(builder, [_names_of(assembly, view) for view in snapshot.processes])
        builder.info(**(facts or {}))
        [(events,)] = builder.connection.execute("SELECT count(*) FROM event").fetchall()
        builder.finish()
        return int(events)


def _load_records(assembly: Assembly) -> None:
    reader = _native.SpoolReader(str(assembly.snapshot.spool))
    batch = _native.Batch()
    while reader.next(assembly.clock, BATCH_ROWS, assembly.since_ticks, batch):
        live.append(assembly.builder.connection, batch)


def _names_of(assembly: Assembly, view: ProcessView) -> live.ProcessNames:
    found = assembly.names[view.number]
    threads = [(ring.tid, ring.thread_name) for ring in assembly.rings(view) if ring.tid is not None]
    return live.ProcessNames(view.number, found.names, found.stacks, threads)


def _describe(assembly: Assembly) -> None:
    journal, builder = assembly.journal, assembly.builder
    source = builder.add(
        "source",
        format="live",
        producer=f"ral-trace {version('ral-trace')}",
        clock_zero="unix epoch",
        clock_offset_ns=0,
        clock_uncertainty_ns=_clock_error_ns(assembly),
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
        clock_error_ns=_clock_error_ns(assembly),
    )


def _describe_process(assembly: Assembly, source: int, view: ProcessView) -> None:
    journal, builder = assembly.journal, assembly.builder
    gone = journal.gone.get(view.number)
    row = builder.add(
        "process",
        source=source,
        pid=view.reader.pid,
        host=journal.begin.host,
        name=short_name(words_of(view)),
        command_line=" ".join(words_of(view)),
        started_ns=assembly.clock.epoch_ns(view.reader.attached_ticks),
        ended_ns=None if gone is None else assembly.clock.epoch_ns(gone),
        ended_how=how_ended(journal, view),
    )
    for ring in assembly.rings(view):
        builder.add(
            "ledger",
            process=row,
            tid=ring.tid,
            written=ring.written,
            received=ring.received,
            dropped=ring.dropped,
            lost=ring.lost,
            shed=ring.shed,
        )
    _sample_counters(assembly, view, row)
    _warn(assembly, source, view, row)


def _sample_counters(assembly: Assembly, view: ProcessView, row: int) -> None:
    """Resident memory, and CPU time as a share of one core, between one sample and the next."""
    samples = [sample for sample in assembly.journal.samples[view.number] if sample.ticks >= assembly.since_ticks]
    at = [assembly.clock.epoch_ns(sample.ticks) for sample in samples]
    builder = assembly.builder
    if not samples:
        return
    memory = builder.add("counter", process=row, series="host memory (RSS)", unit="bytes")
    builder.add_rows(
        "counter_value",
        [
            {"counter": memory, "ts_ns": ts_ns, "value": float(sample.rss_bytes)}
            for ts_ns, sample in zip(at, samples, strict=True)
        ],
    )
    cpu = builder.add("counter", process=row, series="host CPU", unit="percent of one core")
    builder.add_rows(
        "counter_value",
        [
            {"counter": cpu, "ts_ns": at[i], "value": 100 * (after.cpu_ns - before.cpu_ns) / (at[i + 1] - at[i])}
            for i, (before, after) in enumerate(zip(samples, samples[1:], strict=False))
            if at[i + 1] > at[i]
        ],
    )


def _warn(assembly: Assembly, source: int, view: ProcessView, row: int) -> None:
    journal, rings, names = assembly.journal, assembly.rings(view), assembly.names[view.number]
    name = short_name(words_of(view))

    def warn(what: str, count: int | None = None) -> None:
        assembly.builder.add("quality", source=source, process=row, what=what, count=count, example=name)

    if dropped := sum(ring.dropped for ring in rings):
        warn(OVERWRITTEN if journal.begin.overwrite else DROPPED, dropped)
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
    how = how_ended(journal, view)
    if how not in ("exited", "still running", ENDED_AT_ONCE):
        warn(f"the program did not end well ({how}): the trace holds what it had written by then")


def words_of(view: ProcessView) -> list[str]:
    """A program's command, as it wrote it itself: a short-lived process is gone before anybody could look."""
    return [word.decode(errors="replace") for word in view.reader.command.split(b"\0") if word]


def short_name(words: list[str]) -> str:
    """The module or the script where there is one, else the program."""
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
        return f"killed by {signal.Signals(-status).name}"
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
    steps = [after - before for before, after in zip(offsets, offsets[1:], strict=False)]
    jumps = [step for step in steps if abs(step) >= WALL_CLOCK_JUMP_NS]
    if not jumps:
        return []
    seconds = ", ".join(f"{step / 1e9:+.3f} s" for step in jumps[:5])
    return [(f"the wall clock was set while recording ({seconds}): times go on as if it had not been", len(jumps))]
