"""Why the host waits for a device: what the ops and Python calls around the wait were doing."""

from dataclasses import dataclass

import numpy as np

from ral_trace.analysis.base import LIBRARY
from ral_trace.analysis.holds import Flags
from ral_trace.analysis.intervals import Integers
from ral_trace.analysis.remember import once, table
from ral_trace.analysis.waits import UNKNOWN, waits
from ral_trace.tracer.reading import Trace
from ral_trace.tracer.schema import FLAGS


@dataclass(frozen=True)
class Reason:
    """Why a program waits, and what it could do instead. `hidden`: the line does not look like a wait."""

    name: str
    remedy: str
    hidden: bool = True


REASONS = [
    Reason("fallback", "implement the op on the device, or keep its inputs on the host"),
    Reason("print", "do not print tensors of a device in the loop, or print what is on the host already"),
    Reason("boolean index", "use torch.where or multiply by the mask: the shape then does not depend on the data"),
    Reason("masked_select", "use torch.where or multiply by the mask: the shape then does not depend on the data"),
    Reason("nonzero", "use a mask, or torch.nonzero_static with a fixed size"),
    Reason("shape of data", "give the size (output_size, minlength), or work it out on the host"),
    Reason("branch", "do not branch on a tensor in the loop: use torch.where, or check every N steps"),
    Reason("item", "keep it on the device (detach()), and read it every N steps or after the loop"),
    Reason("copy to host", "copy with non_blocking=True into pinned memory, and read it later, or every N steps"),
    Reason("copy to device", "pin the host's memory (pin_memory=True) and copy with non_blocking=True"),
    Reason("unpinned copy", "pin the host's memory: non_blocking=True does nothing without (pin_memory=True)"),
    Reason("copy", "copy with non_blocking=True, from and to pinned memory"),
    Reason("synchronize", "leave it out: what reads a result waits for it by itself", hidden=False),
    Reason("event", "let the stream wait (Stream.wait_event), not the host", hidden=False),
    Reason("stream", "let the stream wait (Stream.wait_stream), not the host", hidden=False),
    Reason("other", "see whether the host must wait here", hidden=False),
]
"""The first that fits is the reason."""

FALLBACK, PRINT, INDEX, SELECT, NONZERO, SHAPE, BRANCH, ITEM = range(8)
TO_HOST, TO_DEVICE, UNPINNED, COPY, ALL, EVENT, STREAM, OTHER = range(8, 16)

OPS = {
    "index": "index index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put",
    "select": "masked_select",
    "nonzero": "nonzero nonzero_numpy argwhere",
    "shape": "_unique _unique2 unique_dim unique_consecutive unique_dim_consecutive repeat_interleave bincount",
    "branch": "is_nonzero equal allclose",
    "item": "item _local_scalar_dense",
    "copy": "to _to_copy copy_ _copy_from",
}
"""Names of ATen ops, without overload, that say something. Each has a bit of a mask, in this order."""
BIT = {name: 1 << number for number, name in enumerate(OPS)}
PRINTS = 1 << len(OPS)

PYTHON_LINE = r"^(.*)\((\d+)\): (.*)$"
"""How torch.profiler names a call of a Python function."""

PRINTER = "torch/_tensor_str.py"


def mask_of(row: str) -> str:
    """SQL: the bits of what a host row is."""
    cases = " ".join(
        f"WHEN regexp_matches({row}.name, '^aten::({'|'.join(names.split())})([.]|$)') THEN {BIT[what]}"
        for what, names in OPS.items()
    )
    return f"""CASE
        WHEN {row}.kind IN ('op', 'launch', 'fallback', 'sync') AND starts_with({row}.name, 'aten::')
            THEN CASE {cases} ELSE 0 END
        WHEN {row}.kind = 'python' AND contains({row}.name, '{PRINTER}') THEN {PRINTS} ELSE 0 END"""


DOUBLINGS = 12
"""Chains of parents are followed for 2**12 levels."""


@dataclass(frozen=True)
class Ancestors:
    """Of rows: what all the ops around them are (a mask), and the nearest Python call of the program (event.id)."""

    mask: Integers
    python: Integers


def ancestors(trace: Trace, parent: Integers) -> Ancestors:
    """What is around rows with these parents (event.id, or UNKNOWN), those included."""
    nodes, up = _chains(trace, parent)
    mask, is_op, python = _described(trace, nodes)
    at = _position(nodes, parent)
    # Ops count up to the first that is called by something else; what prints counts however far up it is.
    ops = np.where(mask == PRINTS, 0, mask)
    prints = np.where(mask == PRINTS, PRINTS, 0)
    within = np.where(is_op & is_op[up], up, len(nodes))
    ops = _accumulated(ops, within)
    prints = _accumulated(prints, up)
    for _ in range(DOUBLINGS):
        python = np.where(python == UNKNOWN, python[up], python)
        up = up[up]
    return Ancestors((ops | prints)[at], python[at])


def _chains(trace: Trace, parent: Integers) -> tuple[Integers, Integers]:
    """All rows that are around, by id, and where the parent of each is; the last place stands for none."""
    rows = trace.sql("SELECT id, parent FROM event WHERE parent IS NOT NULL").fetchnumpy()
    ids, parents = np.asarray(rows["id"]), np.asarray(rows["parent"])
    order = np.argsort(ids, kind="stable")
    ids, parents = ids[order], parents[order]
    front = np.unique(parent[parent != UNKNOWN])
    nodes = front
    while len(front):
        place = np.searchsorted(ids, front)
        place = place[(place < len(ids)) & (ids[np.minimum(place, len(ids) - 1)] == front)]
        front = np.setdiff1d(parents[place], nodes)
        nodes = np.union1d(nodes, front)
    place = np.minimum(np.searchsorted(ids, nodes), len(ids) - 1)
    known = ids[place] == nodes if len(ids) else np.zeros(len(nodes), dtype=bool)
    above = np.where(known, parents[place], UNKNOWN) if len(ids) else np.full(len(nodes), UNKNOWN)
    return nodes, np.append(_position(nodes, above), len(nodes))


def _position(nodes: Integers, wanted: Integers) -> Integers:
    """Where rows are among the nodes; len(nodes) for those that are not."""
    if not len(nodes):
        return np.zeros(len(wanted), dtype=np.int64)
    place = np.minimum(np.searchsorted(nodes, wanted), len(nodes) - 1)
    return np.where(nodes[place] == wanted, place, len(nodes))


def _described(trace: Trace, nodes: Integers) -> tuple[Integers, Flags, Integers]:
    """For each node, and for none: its mask, whether it is an op, its own id if it is a Python call of the program."""
    mask = np.zeros(len(nodes) + 1, dtype=np.int64)
    is_op = np.zeros(len(nodes) + 1, dtype=bool)
    python = np.full(len(nodes) + 1, UNKNOWN, dtype=np.int64)
    with table(trace, {"id": nodes}) as wanted:
        rows = trace.sql(f"""
            SELECT id, {mask_of("event")} AS mask, kind IN ('op', 'launch', 'fallback') AS is_op,
                   kind = 'python' AND regexp_matches(name, '{PYTHON_LINE}')
                       AND NOT regexp_matches(name, '{LIBRARY}') AS is_line
            FROM event WHERE id IN (FROM {wanted})""").fetchnumpy()
    at = _position(nodes, np.asarray(rows["id"]))
    mask[at], is_op[at] = np.asarray(rows["mask"]), np.asarray(rows["is_op"])
    python[at] = np.where(np.asarray(rows["is_line"]), np.asarray(rows["id"]), UNKNOWN)
    return mask, is_op, python


def _accumulated(mask: Integers, up: Integers) -> Integers:
    """The bits of each node and of all above it, by doubling the way that is looked up."""
    for _ in range(DOUBLINGS):
        mask = mask | mask[up]
        up = up[up]
    return mask


@once
def reasons(trace: Trace) -> dict[str, Integers]:
    """Columns, a row a wait in the order of `waits`: the number of its reason, and `python` as in Ancestors."""
    found = waits(trace)
    with table(trace, {"id": found.id, "copy": found.copy}) as each:
        said = trace.sql(f"""
            SELECT coalesce(e.parent, {UNKNOWN}) AS parent, {mask_of("e")} AS mask,
                   (coalesce(e.flags, 0) & {FLAGS["FORCED"]}) <> 0 AS forced, s.id IS NOT NULL AS prints,
                   CASE c.category WHEN 'device_to_host' THEN {TO_HOST} WHEN 'host_to_device' THEN {TO_DEVICE}
                                   ELSE {COPY} END AS copy,
                   CASE WHEN e.kind = 'launch' OR (c.id IS NOT NULL AND starts_with(e.name, 'aten::')) THEN {COPY}
                        WHEN contains(e.name, 'Event') THEN {EVENT} WHEN contains(e.name, 'Stream') THEN {STREAM}
                        WHEN regexp_matches(e.name, '[Ss]ynchronize') THEN {ALL} ELSE {OTHER} END AS call
            FROM {each} w JOIN event e ON e.id = w.id LEFT JOIN event c ON c.id = w.copy
            LEFT JOIN (FROM stack WHERE len(list_filter(frames, lambda f: contains(f.file, '{PRINTER}'))) > 0) s
              ON s.id = e.stack
            ORDER BY w.id""").fetchnumpy()
    around = ancestors(trace, np.asarray(said["parent"]))
    mask = around.mask | np.asarray(said["mask"])

    def has(*names: str) -> Flags:
        bits = sum(BIT[name] for name in names)
        return np.asarray((mask & bits) == bits, dtype=bool)

    copy, call = np.asarray(said["copy"]), np.asarray(said["call"])
    copies = has("copy") | (call == COPY)
    reason = np.select(
        [
            found.fallback != UNKNOWN,
            ((mask & PRINTS) != 0) | np.asarray(said["prints"]),
            has("index", "nonzero"),
            has("select"),
            has("nonzero"),
            has("shape"),
            has("branch"),
            has("item"),
            copies & np.asarray(said["forced"]),
            copies,
        ],
        [FALLBACK, PRINT, INDEX, SELECT, NONZERO, SHAPE, BRANCH, ITEM, UNPINNED, copy],
        call,
    )
    return {"reason": reason.astype(np.int64), "python": around.python}
