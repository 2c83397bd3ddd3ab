"""Why the host waits for a device: what the ops and Python calls around the wait were doing."""

from dataclasses import dataclass

import numpy as np

from ral_trace.analysis.ancestors import BIT, PRINTER, PRINTS, UNKNOWN, ancestors, mask_of
from ral_trace.analysis.holds import Flags
from ral_trace.analysis.intervals import Integers
from ral_trace.analysis.remember import once, table
from ral_trace.analysis.waits import waits
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
