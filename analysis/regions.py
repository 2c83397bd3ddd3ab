"""How a device's regions of memory are filled, at any time: a map of the blocks, and how fragmented the rest is."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ral_trace.analysis.base import DEVICE, LINE, NAMED_DEVICE, OP, WANTED, Analysis, Column, Need, Row, Rows
from ral_trace.analysis.block_category import BEFORE, NEVER
from ral_trace.analysis.block_use import find_peaks, find_uses
from ral_trace.analysis.intervals import Integers, Union, groups
from ral_trace.analysis.memory import CATEGORY
from ral_trace.analysis.peak_holders import SITE_LINE
from ral_trace.tracer.reading import Trace

SOME_REGIONS = Need("EXISTS (FROM region)", "no region of device memory was recorded")
ROOM = 2**61
"""Bytes that all regions of a device may have together here; what is beyond is no memory of this world."""

MAP = f"""
    wanted AS (
        SELECT d.device, d.shown, d.position, coalesce($2::BIGINT, p.at_ns) AS at_ns
        FROM named_device d LEFT JOIN device_peak p ON p.device = d.device WHERE {WANTED}),
    open AS (
        SELECT w.device, w.at_ns, r.id AS region, r.handle, r.address, r.size_bytes FROM region r
        JOIN wanted w ON w.device = r.device
        WHERE (r.opened_ns IS NULL OR r.opened_ns <= w.at_ns) AND (r.closed_ns IS NULL OR r.closed_ns > w.at_ns)),
    block AS (
        SELECT o.region, p.offset_bytes, p.length_bytes, a.id AS allocation, a.requested_bytes, a.op, l.line,
               u.category, a.alloc_ns
        FROM open o JOIN allocation_piece p ON p.region = o.region JOIN allocation a ON a.id = p.allocation
        JOIN block_use u ON u.allocation = a.id LEFT JOIN line_of l ON l.stack = a.stack
        WHERE (a.alloc_ns IS NULL OR a.alloc_ns <= o.at_ns) AND (a.free_ns IS NULL OR a.free_ns > o.at_ns)),
    edge AS (
        SELECT region, offset_bytes, offset_bytes + length_bytes AS end_bytes FROM block
        UNION ALL
        SELECT region, size_bytes, size_bytes FROM open),
    gap AS (
        SELECT region, coalesce(max(end_bytes) OVER (
                   PARTITION BY region ORDER BY offset_bytes, end_bytes
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS offset_bytes, offset_bytes AS end_bytes
        FROM edge),
    filled AS (
        SELECT region, offset_bytes, length_bytes, 'block' AS state, allocation, requested_bytes, op, line, category,
               alloc_ns
        FROM block
        UNION ALL
        SELECT region, offset_bytes, end_bytes - offset_bytes, 'free', NULL, NULL, NULL, NULL, NULL, NULL
        FROM gap WHERE end_bytes > offset_bytes)"""


def region_map(trace: Trace, *, device: str | None = None, at_ns: int | None = None, limit: int | None = 500) -> Rows:
    """What lies in each region at a time (each device's peak, where none is given): blocks and the free runs between
    them, in the order of their addresses. Of more than `limit` pieces the largest are given.
    """
    find_peaks(trace)
    find_uses(trace)
    return trace.rows(
        f"""
        WITH {NAMED_DEVICE}, {LINE}, {MAP}
        SELECT w.shown AS device, o.at_ns, o.region, o.handle, o.size_bytes AS region_bytes, f.offset_bytes,
               f.length_bytes, f.state, f.allocation, f.requested_bytes, f.op, f.line, f.category, f.alloc_ns
        FROM filled f JOIN open o ON o.region = f.region JOIN wanted w ON w.device = o.device
        QUALIFY $3::BIGINT IS NULL OR row_number() OVER (ORDER BY f.length_bytes DESC, f.region, f.offset_bytes) <= $3
        ORDER BY w.position, o.address, o.region, f.offset_bytes, f.allocation""",
        [device, at_ns, limit],
    )


REGION_MAP = Analysis(
    "region_map",
    "Map of the regions",
    "What lies where in each region of device memory at the device's peak (or any other time): blocks with the op that "
    "allocated them, and the free runs between them. The largest pieces, in the order of their addresses.",
    (
        DEVICE,
        Column("at_ns", "time", "the moment that is shown"),
        Column("region", "id", "region.id"),
        Column("handle", "id", "the vendor's handle of the region"),
        Column("region_bytes", "bytes", "the region's length", "region size"),
        Column("offset_bytes", "bytes", "from the region's first byte", "offset"),
        Column("length_bytes", "bytes", "length of the piece or of the free run", "length"),
        Column("state", "text", "block, or free"),
        Column("allocation", "id", "allocation.id of the block; none: it is free"),
        Column("requested_bytes", "bytes", "what was asked for; none: not known, or free", "asked for"),
        OP,
        SITE_LINE,
        CATEGORY,
        Column("alloc_ns", "time", "when it was allocated; none: before the recording, or free", "since"),
    ),
    region_map,
    chapter="memory",
    shown="",
    needs=(SOME_REGIONS,),
)


@dataclass(frozen=True)
class _Device:
    """A device's regions, laid out one after the other with a byte between them, and the pieces that lie in them."""

    opened_ns: Integers
    closed_ns: Integers
    begin: Integers
    end: Integers
    piece_begin: Integers
    piece_end: Integers
    alloc_ns: Integers
    free_ns: Integers
    slack: Integers

    @classmethod
    def of(cls, region: dict[str, npt.NDArray[np.generic]], piece: dict[str, npt.NDArray[np.generic]]) -> "_Device":
        size = np.minimum(np.asarray(region["size_bytes"], np.int64), ROOM // max(len(region["id"]), 1))
        end = np.cumsum(size + 1) - 1
        begin = end - size
        order = np.argsort(np.asarray(region["id"]))
        place = order[np.searchsorted(np.asarray(region["id"])[order], np.asarray(piece["region"]))]
        offset = np.clip(np.asarray(piece["offset_bytes"], np.int64), 0, size[place])
        length = np.clip(np.asarray(piece["length_bytes"], np.int64), 0, size[place] - offset)
        return cls(
            np.asarray(region["opened_ns"], np.int64), np.asarray(region["closed_ns"], np.int64), begin, end,
            begin[place] + offset, begin[place] + offset + length, np.asarray(piece["alloc_ns"], np.int64),
            np.asarray(piece["free_ns"], np.int64), np.asarray(piece["slack"], np.int64),
        )  # fmt: skip

    def at(self, moment: int) -> Row:
        """What is reserved, used and free at a moment."""
        there = (self.opened_ns <= moment) & (self.closed_ns > moment)
        live = (self.alloc_ns <= moment) & (self.free_ns > moment)
        regions = Union.of(self.begin[there], self.end[there])
        used = Union.of(self.piece_begin[live], self.piece_end[live]).common(regions)
        free = regions.minus(used)
        runs = free.end - free.start
        free_bytes, largest = int(runs.sum()), int(runs.max(initial=0))
        return {
            "ts_ns": moment,
            "regions": int(there.sum()),
            "reserved_bytes": regions.total_ns,
            "used_bytes": used.total_ns,
            "free_bytes": free_bytes,
            "free_runs": len(runs),
            "largest_free_bytes": largest,
            "fragmentation_percent": 100 * (1 - largest / free_bytes) if free_bytes else None,
            "rounding_bytes": int(self.slack[live].sum()),
        }


REGIONS = f"""
SELECT r.device, r.id, greatest(coalesce(r.size_bytes, 0), 0) AS size_bytes,
       coalesce(r.opened_ns, {BEFORE}) AS opened_ns,
       coalesce(r.closed_ns, {NEVER}) AS closed_ns
FROM region r ORDER BY r.device, r.address, r.id"""
PIECES = f"""
SELECT a.device, p.region, p.offset_bytes, p.length_bytes, coalesce(a.alloc_ns, {BEFORE}) AS alloc_ns,
       coalesce(a.free_ns, {NEVER}) AS free_ns,
       if(row_number() OVER (PARTITION BY a.id ORDER BY p.region) = 1,
          greatest(coalesce(a.size_bytes - a.requested_bytes, 0), 0), 0) AS slack
FROM allocation_piece p JOIN allocation a ON a.id = p.allocation
JOIN region r ON r.id = p.region AND r.device = a.device
WHERE p.offset_bytes IS NOT NULL AND p.length_bytes IS NOT NULL ORDER BY a.device"""


def fragmentation(trace: Trace, *, device: str | None = None) -> Rows:
    """A row a device: how its regions are filled at its peak."""
    return _fragmentation(trace, device, 0)


def fragmentation_over_time(trace: Trace, *, device: str | None = None, moments: int = 64) -> Rows:
    """How each device's regions are filled at so many moments, equally far apart, and at its peak."""
    return _fragmentation(trace, device, moments)


def _fragmentation(trace: Trace, device: str | None, moments: int) -> Rows:
    find_peaks(trace)
    regions, pieces = trace.sql(REGIONS).fetchnumpy(), trace.sql(PIECES).fetchnumpy()
    regions_of = dict(groups(np.asarray(regions["device"])))
    pieces_of = dict(groups(np.asarray(pieces["device"])))
    rows = Rows()
    wanted = trace.rows(
        f"""WITH {NAMED_DEVICE} SELECT d.device, d.shown, p.at_ns FROM named_device d
            JOIN device_peak p ON p.device = d.device WHERE {WANTED} ORDER BY d.position""",
        [device],
    )
    for row in wanted:
        if row["device"] not in regions_of:
            continue
        part = pieces_of.get(row["device"], slice(0, 0))
        region = {name: column[regions_of[row["device"]]] for name, column in regions.items()}
        found = _Device.of(region, {name: column[part] for name, column in pieces.items()})
        for moment in _moments(found, row["at_ns"], moments):
            rows.append({"device": row["shown"], **found.at(moment)})
    return rows


def _moments(device: _Device, peak_ns: int, count: int) -> list[int]:
    """The peak, and so many moments from the first known change of the device's memory to the last."""
    times = np.concatenate([device.opened_ns, device.closed_ns, device.alloc_ns, device.free_ns])
    times = times[(times > BEFORE) & (times < NEVER)]
    if not count or not len(times):
        return [peak_ns]
    first, last = int(times.min()), int(times.max())
    return sorted({peak_ns, *(first + (last - first) * number // max(count - 1, 1) for number in range(count))})


FILLED = (
    DEVICE,
    Column("ts_ns", "time", "when", "at"),
    Column("regions", "count", "regions that are open"),
    Column("reserved_bytes", "bytes", "their length", "reserved"),
    Column("used_bytes", "bytes", "in blocks that lie in them", "used"),
    Column("free_bytes", "bytes", "the rest", "free"),
    Column("free_runs", "count", "pieces that the free memory is in"),
    Column(
        "largest_free_bytes", "bytes", "the longest free run: no larger request can be served from it", "largest free"
    ),
    Column(
        "fragmentation_percent",
        "percent",
        "share of the free memory that is not in its longest run; none: nothing is free",
        "fragmentation",
    ),
    Column("rounding_bytes", "bytes", "of the used memory, beyond what was asked for; where that is known", "rounding"),
)

FRAGMENTATION = Analysis(
    "fragmentation",
    "Fragmentation at the peak",
    "How each device's regions are filled at its peak. Fragmentation is outside of blocks: free memory that is not in "
    "one run; rounding is inside: what blocks take beyond what was asked for.",
    FILLED,
    fragmentation,
    chapter="memory",
    detail=True,
    shown="device reserved_bytes used_bytes free_bytes largest_free_bytes fragmentation_percent rounding_bytes "
    "free_runs regions ts_ns",
    needs=(SOME_REGIONS,),
)

FRAGMENTATION_OVER_TIME = Analysis(
    "fragmentation_over_time",
    "Fragmentation over time",
    "The same at 64 moments, equally far apart, and at the peak.",
    FILLED,
    fragmentation_over_time,
    chapter="memory",
    needs=(SOME_REGIONS,),
)
