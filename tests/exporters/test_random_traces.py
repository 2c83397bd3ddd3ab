"""Any trace that can be built comes out whole, and back: JSON and Parquet exactly, a .pftrace with what it draws."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ral_trace.tracer.exporters import export
from ral_trace.tracer.exporters.drawn import SLICE_KINDS
from ral_trace.tracer.exporters.drawn_tracks import LINKS
from ral_trace.tracer.forms import MARK
from ral_trace.tracer.importers import import_files
from ral_trace.tracer.reading import Trace, open_trace
from ral_trace.tracer.schema import FLAGS, KINDS, TABLES
from ral_trace.tracer.store import TraceBuilder
from tests.exporters.expected import bandwidths, queue_depths
from tests.exporters.replay import Replay, replay

NAME = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NS = st.integers(0, 60)
EVENT = st.fixed_dictionaries({
    "kind": st.sampled_from(KINDS),
    "name": st.none() | NAME,
    "category": st.none() | NAME | st.sampled_from(LINKS),
    "ts_ns": NS,
    "dur_ns": st.none() | NS,
    "where": st.tuples(st.integers(0, 2), st.booleans(), st.booleans(), st.booleans()),
    "correlation": st.none() | st.integers(1, 4) | st.just(2**62),
    "bytes": st.none() | st.integers(0, 2**62),
    "args": st.none() | st.dictionaries(NAME | st.just("reason"), NAME | st.integers(), max_size=2),
    "flags": st.sampled_from([0, 0, 0, FLAGS["INVALID"], FLAGS["UNFINISHED"]]),
})  # fmt: skip
VALUE = st.tuples(st.integers(0, 2), NS, st.floats() | st.none())
PLACE = st.fixed_dictionaries({
    "pid": st.none() | st.integers(1, 3) | st.just(2**40),
    "tid": st.none() | st.integers(1, 2) | st.just(2**63 - 1),
    "name": st.none() | NAME,
    "number": st.none() | st.integers(0, 1),
})  # fmt: skip


def built(path: Path, places: list[dict[str, Any]], events: list[dict[str, Any]], rest: dict[str, Any]) -> Path:
    """A trace of three processes, each with one thread, one device and one stream."""
    with TraceBuilder(path) as builder:
        source = builder.add("source", format="test", program=rest["program"], clock_zero="file")
        found = []
        for place in places:
            process = builder.add("process", source=source, pid=place["pid"], name=place["name"])
            thread = builder.add("thread", process=process, tid=place["tid"], name=place["name"])
            device = builder.add("device", process=process, type="npu", index=place["number"], name=place["name"])
            found.append((process, thread, device, builder.add("stream", device=device, number=place["number"])))
            builder.add("counter", process=process, device=device, series=place["name"], unit="%")
        for event in events:
            which, *has = event["where"]
            process, *others = found[which]
            placed = [other if there else None for other, there in zip(others, has, strict=True)]
            columns = {**event, "process": process, **dict(zip(("thread", "device", "stream"), placed, strict=True))}
            del columns["where"]
            columns["args"] = None if event["args"] is None else json.dumps(event["args"])
            builder.add("event", **columns)
        for origin, target in rest["flows"]:
            if origin < len(events) and target < len(events):
                builder.add("flow", kind="source's own", from_event=origin, to_event=target)
        for counter, ts_ns, value in rest["values"]:
            builder.add("counter_value", counter=counter, ts_ns=ts_ns, value=value)
        builder.add("stack", frames=[{"file": rest["program"], "line": 1, "function": None}])
        return builder.finish()


def check_json(original: Path, out: Path) -> None:
    back = import_files([out], out.with_name("back.duckdb"))
    with open_trace(original, other=back) as trace:
        for table in TABLES:
            one, two = f"FROM trace.{table.name}", f"FROM other.{table.name}"
            assert trace.sql(f"({one} EXCEPT ALL {two}) UNION ALL ({two} EXCEPT ALL {one})").fetchall() == []


def check_parquet(original: Path, trace: Trace, out: Path) -> None:
    back = import_files([export(trace, out)], out.with_name("back-from-parquet.duckdb"))
    with open_trace(original, other=back) as both:
        for table in TABLES:
            one, two = f"FROM trace.{table.name}", f"FROM other.{table.name}"
            assert both.sql(f"({one} EXCEPT ALL {two}) UNION ALL ({two} EXCEPT ALL {one})").fetchall() == []


DRAWN = f"""
    SELECT kind::VARCHAR, coalesce(nullif(name, ''), kind::VARCHAR), ts_ns,
           CASE WHEN kind IN ('instant', 'error') THEN nullif(dur_ns, 0) ELSE dur_ns END, bytes, correlation,
           thread IS NULL OR kind IN ('kernel', 'transfer') AND stream IS NOT NULL AS off_thread,
           stream IS NULL AS off_stream
    FROM event WHERE (flags & {FLAGS["INVALID"]}) = 0 AND kind IN {SLICE_KINDS} ORDER BY ALL"""
"""All of an event that a timeline can say."""


def check_pftrace_comes_back(trace: Trace, file: Path) -> None:
    with open_trace(import_files([file], file.with_name("back-from-pftrace.duckdb"))) as back:
        assert back.sql(DRAWN).fetchall() == trace.sql(DRAWN).fetchall()
        values = (
            "SELECT ts_ns, value FROM counter_value v JOIN counter c ON c.id = counter WHERE unit = '%' ORDER BY ALL"
        )
        finite = values.replace("WHERE", "WHERE isfinite(value) AND")
        assert back.sql(values).fetchall() == trace.sql(finite).fetchall()


def track_of(row: dict[str, Any]) -> str:
    """The kind of place where a row is to be drawn."""
    on_stream = row["stream"] is not None
    if row["kind"] in ("kernel", "transfer") and on_stream:
        return "stream"
    if row["thread"] is not None:
        return "thread"
    if on_stream:
        return {"wait": "waits", "annotation": "annotations"}.get(row["kind"], "stream")
    return "device" if row["device"] is not None else "process"


def kind_of(played: Replay, uuid: int) -> str:
    """The kind of place that a track is, by what is written in it."""
    track = played.root(uuid)
    if track.HasField("process") or (not track.parent_uuid and not track.HasField("thread")):
        return "process"
    if track.HasField("thread"):
        return "thread"
    above = played.tracks[track.parent_uuid]
    if above.HasField("process") or not above.parent_uuid:
        return "device" if track.name.startswith("npu:") else "thread"
    return track.name.rpartition(" · ")[2] if " · " in track.name else "stream"


def check_pftrace(trace: Trace, out: Path) -> None:
    played = replay(out.read_bytes())
    shown = [one for one in played.slices if one.category != MARK]
    rows = trace.rows(f"SELECT * FROM event WHERE (flags & {FLAGS['INVALID']}) = 0 AND kind IN {SLICE_KINDS}")
    by_event = {one.args["event"]: one for one in shown}
    assert len(by_event) == len(shown) == len(rows)
    for row in rows:
        one = by_event[row["id"]]
        assert (one.ts_ns, one.name, one.category) == (row["ts_ns"], row["name"] or row["kind"], row["kind"])
        point = row["kind"] in ("instant", "error") and not row["dur_ns"]
        assert one.dur_ns == (None if point else row["dur_ns"])
        assert one.args.get("bytes") == row["bytes"]
        assert kind_of(played, one.track) == track_of(row)
    drawn = set(by_event)
    arrows = trace.sql("""
        SELECT from_event, to_event FROM flow WHERE from_event <> to_event UNION ALL
        SELECT op.id, l.id FROM event l JOIN event op ON op.id = l.parent WHERE l.kind = 'launch' AND op.kind = 'op'
    """).fetchall()
    ends = [sorted([origin.args["event"], target.args["event"]]) for origin, target in played.arrows()]
    assert sorted(ends) == sorted(sorted(arrow) for arrow in arrows if drawn.issuperset(arrow))
    values = trace.sql("SELECT ts_ns, value FROM counter_value WHERE isfinite(value)").fetchall()
    named = {uuid: played.tracks[uuid] for uuid in played.counters}
    own = [value for uuid, track in named.items() if track.counter.unit_name == "%" for value in played.counters[uuid]]
    assert sorted(own) == sorted(values)
    depths = [
        played.counters[uuid] for uuid, track in named.items() if track.counter.unit == 2 and "queue" in track.name
    ]
    assert sorted(depths) == queue_depths(trace)
    rates = [played.counters[uuid] for uuid, track in named.items() if track.counter.unit_name == "bytes/s"]
    assert sorted(rates) == sorted(curve for link in LINKS for curve in bandwidths(trace, link))


GIVEN = given(
    places=st.lists(PLACE, min_size=3, max_size=3),
    events=st.lists(EVENT, max_size=25),
    rest=st.fixed_dictionaries({
        "program": NAME,
        "flows": st.lists(st.tuples(st.integers(0, 24), st.integers(0, 24)), max_size=8),
        "values": st.lists(VALUE, max_size=8),
    }),
)  # fmt: skip
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
"""An example takes half a second, so that to make a failing one smaller takes minutes."""


def check(places: list[dict[str, Any]], events: list[dict[str, Any]], rest: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        original = built(Path(folder) / "run.duckdb", places, events, rest)
        with open_trace(original) as trace:
            timeline = export(trace, Path(folder) / "run.pftrace")
            check_pftrace(trace, timeline)
            if events:
                check_pftrace_comes_back(trace, timeline)
            check_parquet(original, trace, Path(folder) / "run")
            out = export(trace, Path(folder) / "run.json")
        check_json(original, out)


@settings(max_examples=8, deadline=None, suppress_health_check=SLOW, phases=PHASES)
@GIVEN
def test_any_trace_comes_out_whole(
    places: list[dict[str, Any]], events: list[dict[str, Any]], rest: dict[str, Any]
) -> None:
    check(places, events, rest)


@pytest.mark.soak
@settings(max_examples=1_000, deadline=None, suppress_health_check=SLOW, phases=PHASES)
@GIVEN
def test_any_of_many_traces_comes_out_whole(
    places: list[dict[str, Any]], events: list[dict[str, Any]], rest: dict[str, Any]
) -> None:
    check(places, events, rest)
