"""Where the events of a scanned file happened: processes and threads. Decided once a group (see `trace_events`)."""

import enum
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.importers.trace_events import Group, Scan, integer, parsed


@dataclass(frozen=True)
class Meaning:
    """What the rows of a role are by default."""

    about: str
    kind: str
    depth: int
    """Of rows with the same times, the one with the least depth encloses the others."""
    category: str | None = None
    on_device: bool = False
    plain: bool = False
    """All its rows have this kind and category."""


class Role(enum.Enum):
    """What the events of a group are."""

    SPAN = Meaning("the recorder's own, left out where it is the recording itself", "annotation", 0)
    PYTHON = Meaning("calls of Python functions", "python", 1, plain=True)
    ANNOTATION = Meaning("what the program annotated", "annotation", 2, plain=True)
    DEVICE_ANNOTATION = Meaning("the same as seen by a device", "annotation", 2, on_device=True, plain=True)
    OTHER = Meaning("of an unknown category: kernels where they say their stream", "annotation", 2)
    OP = Meaning("operators", "op", 3, "forward")
    OLD_OP = Meaning("operators of the first era, which wrote its steps as such", "op", 3, "forward")
    CALL = Meaning("calls of a runtime or driver", "call", 4)
    CALL_OR_KERNEL = Meaning("the same, but kernels where they say their stream", "call", 4)
    OVERHEAD = Meaning("what the profiler itself took", "annotation", 5, "overhead")
    KERNEL = Meaning("work of a device", "kernel", 6, on_device=True, plain=True)
    COPY = Meaning("copies", "transfer", 6, on_device=True)
    SET = Meaning("memory set", "transfer", 6, "memset", on_device=True, plain=True)
    WAIT = Meaning("waits of a stream", "wait", 6, on_device=True, plain=True)
    INSTANT = Meaning("points", "instant", 7)


@dataclass
class Places:
    """What `add_places` found."""

    roles: dict[int, Role] = field(default_factory=dict)
    """By group, of those with events."""
    process: dict[int, int] = field(default_factory=dict)
    """By group, of arrows, counters and metadata too."""
    thread: dict[int, int] = field(default_factory=dict)
    """By group; none: events of a process or a device."""
    main: int | None = None
    """The process that devices belong to."""
    program: str | None = None


@dataclass(frozen=True)
class Names:
    """What metadata events say: names by pid, and by pid and tid."""

    process: dict[str | None, str]
    thread: dict[tuple[str | None, str | None], str]


def names_of(scan: Scan) -> Names:
    """Reads the metadata events (phase M); the last of each wins, as in viewers."""
    names = Names({}, {})
    if not any(group.ph == "M" for group in scan.groups):
        return names
    wanted = [label.group.ph == "M" and label.name in ("process_name", "thread_name") for label in scan.labels()]
    for row in scan.table.numbers_of(wanted):
        number, what, _, args = scan.table.row(row)
        group = scan.groups[number]
        stated = parsed(args) if args else None
        name = _as_text(stated.get("name")) if isinstance(stated, dict) else None
        if name is not None and what == "process_name":
            names.process[group.pid] = name
        elif name is not None:
            names.thread[group.pid, group.tid] = name
    return names


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def add_places(
    rows: Rows,
    scan: Scan,
    role_of: Callable[[Group], Role | None],
    *,
    one_process: bool,
    main_facts: dict[str, Any],
) -> Places:
    """Gives each group its role, process and thread.

    `one_process`: only pids that have ops or calls are processes, and all else belongs to the greatest of these.
    """
    places, names = Places(), names_of(scan)
    places.roles = {group.number: role for group in scan.groups if (role := role_of(group)) is not None}
    pids = _process_pids(scan.groups, places.roles) if one_process else Counter()
    main = pids.most_common(1)[0][0] if pids else None
    for group in scan.groups:
        role = places.roles.get(group.number)
        if role is None and group.ph not in "CstfM":
            continue
        pid = group.pid if not one_process or group.pid in pids else main
        facts = main_facts if pid == main or not one_process else {"rank": main_facts.get("rank")}
        process = places.process[group.number] = _process(rows, pid, names, facts)
        if not (role is not None and role.value.on_device) and group.ph not in "CM":
            thread = _thread(rows, process, group, pid, names)
            if thread is not None:
                places.thread[group.number] = thread
    places.main = _process(rows, main, names, main_facts) if one_process and main is not None else None
    if places.main is None and places.process:
        places.main = next(iter(places.process.values()))
    places.program = names.process.get(main) if one_process else None
    return places


def _process_pids(groups: Iterable[Group], roles: dict[int, Role]) -> Counter[str]:
    """Pids of real processes, with their numbers of rows."""
    for wanted in ({Role.OP, Role.OLD_OP, Role.CALL}, {Role.PYTHON, Role.ANNOTATION, Role.INSTANT}):
        found: Counter[str] = Counter()
        for group in groups:
            if roles.get(group.number) in wanted and integer(group.pid) is not None and group.pid is not None:
                found[group.pid] += group.rows
        if found:
            return found
    return Counter()


def _process(rows: Rows, pid: str | None, names: Names, facts: dict[str, Any]) -> int:
    number, name = integer(pid), names.process.get(pid)
    if number is None and pid:
        name = f"{name} ({pid})" if name else pid
    return rows.process(pid, pid=number, name=name, **facts)


def _thread(rows: Rows, process: int, group: Group, pid: str | None, names: Names) -> int | None:
    if not group.tid:
        return None
    number, name = integer(group.tid), names.thread.get((group.pid, group.tid))
    if number is None:
        name = f"{name} ({group.tid})" if name else group.tid
    return rows.thread(process, (None if group.pid == pid else group.pid, group.tid), tid=number, name=name)


def stage_places(rows: Rows, scan: Scan, places: Places) -> None:
    """The temporary table `place` (grp, process, thread), for SQL over what `stage` made."""
    scan.staged.add("place")
    rows.builder.connection.execute(
        """CREATE OR REPLACE TEMP TABLE place AS SELECT unnest(?::BIGINT[]) AS grp, unnest(?::INTEGER[]) AS process,
           unnest(?::INTEGER[]) AS thread""",
        [[*places.process], [*places.process.values()], [places.thread.get(group) for group in places.process]],
    )


STREAM_NUMBER = re.compile(r"(\d+)\s*$")


def stream_number(stream: int | None, tid: str | None) -> int | None:
    """The number of a stream: what args say, else what the track is called: 7, "stream 7". Negative: none."""
    if stream is None:
        found = STREAM_NUMBER.search(tid or "")
        stream = integer(found[1]) if found else None
    return None if stream is None or stream < 0 else stream
