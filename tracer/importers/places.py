"""Where the events of a scanned file happened: processes, threads, devices and streams.

Decided once a group (see `trace_events`), and put into the temporary tables `place` (by group) and `spot` (by group,
device and stream), which queries join.
"""

import enum
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.importers.trace_events import Group, Scan, integer

MEANING = ("kind", "category", "depth", "on_device", "plain")


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
    """By group."""
    main: int | None = None
    """The process that devices belong to."""
    program: str | None = None

    def has(self, *roles: Role) -> bool:
        """Whether the file has rows of one of these."""
        return any(role in roles for role in self.roles.values())


@dataclass(frozen=True)
class Names:
    """What metadata events say: names by pid, and by pid and tid."""

    process: dict[str | None, str]
    thread: dict[tuple[str | None, str | None], str]


def names_of(rows: Rows, groups: Iterable[Group]) -> Names:
    """Reads the metadata events (phase M); the last of each wins, as in viewers."""
    by_number = {group.number: group for group in groups if group.ph == "M"}
    names = Names({}, {})
    if not by_number:
        return names
    found = rows.builder.connection.execute(
        """SELECT grp, name, args->>'$.name' FROM (
               SELECT grp, name, n, CASE WHEN json_type(args) = 'OBJECT' THEN args END AS args FROM raw_row
               WHERE grp IN (SELECT unnest(?::BIGINT[])) AND name IN ('process_name', 'thread_name')
                 AND args IS NOT NULL)
           ORDER BY n""",
        [list(by_number)],
    )
    for number, what, name in found.fetchall():
        group = by_number[number]
        if name is not None and what == "process_name":
            names.process[group.pid] = name
        elif name is not None:
            names.thread[group.pid, group.tid] = name
    return names


def add_places(
    rows: Rows,
    scan: Scan,
    role_of: Callable[[Group], Role | None],
    *,
    one_process: bool,
    main_facts: dict[str, Any],
) -> Places:
    """Gives each group its role, process and thread, in the temporary table `place`.

    `one_process`: only pids that have ops or calls are processes, and all else belongs to the greatest of these.
    """
    places, names = Places(), names_of(rows, scan.groups)
    places.roles = {group.number: role for group in scan.groups if (role := role_of(group)) is not None}
    pids = _process_pids(scan.groups, places.roles) if one_process else Counter()
    main = pids.most_common(1)[0][0] if pids else None
    placed: list[tuple[int, Role, int, int | None]] = []
    for group in scan.groups:
        role = places.roles.get(group.number)
        if role is None and group.ph not in "CstfM":
            continue
        pid = group.pid if not one_process or group.pid in pids else main
        facts = main_facts if pid == main or not one_process else {"rank": main_facts.get("rank")}
        process = _process(rows, pid, names, facts)
        thread = None
        if not (role is not None and role.value.on_device) and group.ph not in "CM":
            thread = _thread(rows, process, group, pid, names)
        placed.append((group.number, role or Role.INSTANT, process, thread))
    places.main = _process(rows, main, names, main_facts) if one_process and main is not None else None
    if places.main is None and placed:
        places.main = placed[0][2]
    places.program = names.process.get(main) if one_process else None
    _add_place_table(rows, placed)
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


def _add_place_table(rows: Rows, placed: list[tuple[int, Role, int, int | None]]) -> None:
    connection = rows.builder.connection
    connection.execute("""
        CREATE OR REPLACE TEMP TABLE place (grp BIGINT, role VARCHAR, kind VARCHAR, category VARCHAR, depth BIGINT,
                                            on_device BOOLEAN, plain BOOLEAN, process INTEGER, thread INTEGER)""")
    if placed:
        columns: list[list[Any]] = [
            [number for number, *_ in placed],
            [role.name for _, role, *_ in placed],
            *([getattr(role.value, name) for _, role, *_ in placed] for name in MEANING),
            [process for *_, process, _ in placed],
            [thread for *_, thread in placed],
        ]
        types = ["BIGINT", "VARCHAR", "VARCHAR", "VARCHAR", "BIGINT", "BOOLEAN", "BOOLEAN", "INTEGER", "INTEGER"]
        connection.execute("INSERT INTO place SELECT " + ", ".join(f"unnest(?::{kind}[])" for kind in types), columns)


STREAM_NUMBER = re.compile(r"(\d+)\s*$")


def stream_number(stream: int | None, tid: str | None) -> int | None:
    """The number of a stream: what args say, else what the track is called: 7, "stream 7". Negative: none."""
    if stream is None:
        found = STREAM_NUMBER.search(tid or "")
        stream = integer(found[1]) if found else None
    return None if stream is None or stream < 0 else stream
