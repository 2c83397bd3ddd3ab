"""What is around rows of the host: the ops that called them, and the nearest line of the program."""

from dataclasses import dataclass

import numpy as np

from ral_trace.analysis.base import LIBRARY
from ral_trace.analysis.holds import Flags
from ral_trace.analysis.intervals import Integers
from ral_trace.analysis.remember import table
from ral_trace.tracer.reading import Trace

UNKNOWN = -1
"""In place of an id: none, or not known."""

OPS = {
    "index": "index index_put index_put_ _index_put_impl_ _unsafe_index _unsafe_index_put",
    "select": "masked_select",
    "nonzero": "nonzero nonzero_numpy argwhere",
    "shape": "_unique _unique2 unique_dim unique_consecutive unique_dim_consecutive repeat_interleave bincount",
    "branch": "is_nonzero equal allclose",
    "item": "item _local_scalar_dense",
    "copy": "to _to_copy copy_ _copy_from",
    "layout": "contiguous reshape",
}
"""Names of ATen ops, without overload, that say something. Each has a bit of a mask, in this order."""
BIT = {name: 1 << number for number, name in enumerate(OPS)}
PRINTS = 1 << len(OPS)

PYTHON_LINE = r"^(.*)\((\d+)\): (.*)$"
"""How torch.profiler names a call of a Python function."""

LINE_OF_CALL = f"""line_of_call AS (
    SELECT id, regexp_extract(name, '{PYTHON_LINE}', ['file', 'line', 'function']) AS call,
           call['file'] || ':' || call['line'] || ' ' || call['function'] AS line
    FROM event WHERE kind = 'python' AND id IN (SELECT python FROM {{each}}))"""
"""CTE: the line of the program that the nearest Python call (Ancestors.python) is at, of the rows of a table `each`."""

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
    front = np.unique(parent[parent != UNKNOWN])
    if not len(front):
        return front, np.zeros(1, dtype=np.int64)
    rows = trace.sql("SELECT id, parent FROM event WHERE parent IS NOT NULL").fetchnumpy()
    ids, parents = np.asarray(rows["id"]), np.asarray(rows["parent"])
    order = np.argsort(ids, kind="stable")
    ids, parents = ids[order], parents[order]
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
