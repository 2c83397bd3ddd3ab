"""`external_annotations` of a memory snapshot: record_function ranges that were open while it was recorded."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ral_trace.tracer.importers.rows import Rows
from ral_trace.tracer.importers.snapshot_device import Place
from ral_trace.tracer.importers.snapshot_fields import integer, shown
from ral_trace.tracer.importers.snapshot_times import MOST_US
from ral_trace.tracer.schema import FLAGS


def add_annotations(rows: Rows, annotations: Sequence[Any], places: Mapping[int, Place]) -> int:
    """Pairs begins with the last ends of their name on their device; returns how many ranges there are."""
    added = 0
    opened: dict[tuple[int, str], list[int]] = defaultdict(list)
    for said in annotations:
        name, stage = (said.get("name"), said.get("stage")) if isinstance(said, dict) else (None, None)
        device = integer(said, "device", 0, 2**31, missing=0) if isinstance(said, dict) else None
        time_us = integer(said, "time_us", -MOST_US, MOST_US) if isinstance(said, dict) else None
        if not isinstance(name, str) or device is None or device not in places or time_us is None:
            rows.bad("ranges that cannot be read: left out", shown(name))
        elif stage == "START":
            opened[device, name].append(time_us * 1000)
        elif stage == "END" and opened[device, name]:
            begin = opened[device, name].pop()
            _add(rows, places[device], name, begin, time_us * 1000 - begin)
            added += 1
        else:
            rows.bad("ends of ranges without their begin: left out", name)
    for (device, name), begins in opened.items():
        for begin in begins:
            _add(rows, places[device], name, begin, None, flags=FLAGS["UNFINISHED"])
            added += 1
    return added


def _add(rows: Rows, place: Place, name: str, ts_ns: int, dur_ns: int | None, **columns: int) -> None:
    rows.event("annotation", name, ts_ns, dur_ns, place.process, device=place.device, **columns)
