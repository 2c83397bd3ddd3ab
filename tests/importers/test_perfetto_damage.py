"""Perfetto's form, cut off, damaged and forged: what was whole is kept, and the rest is said."""

import gzip
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from ral_trace.tracer.errors import InputRefused
from ral_trace.tracer.reading import open_trace
from tests.exporters.replay import packets as all_packets
from tests.importers.perfetto_recordings import (
    BEGIN,
    COUNTER,
    END,
    INSTANT,
    Recording,
    imported,
    ours,
    packed,
    quality,
    rows,
)


@pytest.mark.parametrize("squeeze", [bytes, gzip.compress])
def test_a_file_that_is_cut_off_keeps_what_was_whole(tmp_path: Path, squeeze: Callable[[bytes], bytes]) -> None:
    made = Recording().described()
    for n in range(2_000):
        made.event(INSTANT, n, name=f"{n} {random.Random(n).random()}")
    whole = squeeze(made.bytes())
    with open_trace(imported(tmp_path, whole[: len(whole) // 2])) as trace:
        [(events,)] = trace.sql("SELECT count(*) FROM event").fetchall()
        assert 700 < events < 1_300
        assert trace.sql("SELECT min(ts_ns), max(ts_ns) + 1 FROM event").fetchall() == [(0, events)]
        assert quality(trace) == {"the file is cut off: packets up to there are read": 1}


def test_compressed_packets_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    made = Recording().described()
    for n in range(2_000):
        made.event(INSTANT, n, name=f"{n} {random.Random(n).random()}")
    whole = packed(made)
    with open_trace(imported(tmp_path, whole)) as trace:
        assert trace.sql("SELECT count(*) FROM event").fetchall() == [(2_000,)]
        assert quality(trace) == {}
    with open_trace(imported(tmp_path, whole[: len(whole) // 2])) as trace:
        [(events,)] = trace.sql("SELECT count(*) FROM event").fetchall()
        assert 500 < events < 1_500
        assert "the file is cut off: packets up to there are read" in quality(trace)


def test_a_few_bytes_that_stand_for_gigabytes_do_not_fill_the_memory(tmp_path: Path) -> None:
    squeezed = zlib.compress(b"\x0a\xff\xff\xff\x3f" + bytes(1 << 28))
    bomb = pb.Trace(packet=[*Recording().described().packets, pb.TracePacket(compressed_packets=squeezed)])
    with open_trace(imported(tmp_path, bomb.SerializeToString())) as trace:
        assert quality(trace) == {"compressed packets that are damaged: read as far as they go": 1}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\x0a\x05\x52\x03", "no packet that can be read: the file is cut off"),
        (b"\x0a\x03\x52\x05\x01\x0a\x02\x52\x05", "no packet that can be read: packets that cannot be parsed"),
        (b"\n\n\n  just text, with an empty line first\n" * 10, "no format that is known"),
        (b"\n[1, 2, 3]", "no format that is known"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "no format that is known"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(InputRefused, match=says) as refused:
        imported(tmp_path, content)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "back.duckdb").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "3", '{"tracks": 3}', '{"tracks": [[]], "shift_ns": 0, "source": {},'
             ' "quality": [], "flows": []}',
             '{"tracks": [{"table": "process", "row": {"pid": "x", "rank": 1e400}, "above": 1}], "shift_ns": 0,'
             ' "source": {"rank": 99999999999}, "quality": [{"what": 3}], "flows": [["a", "b", 3]]}', "[" * 100_000],
)  # fmt: skip
def test_a_forged_description_of_the_tracks_does_no_harm(tmp_path: Path, text: str) -> None:
    made = Recording().described()
    attribute = pb.TraceAttributes.Attribute(key="ral_trace.places", string_value=text)
    made.packet(trace_attributes=pb.TraceAttributes(attribute=[attribute]))
    made.event(INSTANT, 1, name="x")
    assert rows(tmp_path, made, "SELECT name FROM event") == [("x",)]


ODD = [None, True, -1, 2**31, 2**62, 2**70, 1.5, float("nan"), "", "x\0y", "\ud800", [], {}, [1], {"a": 1}]


def with_odd_members(value: Any, chance: random.Random) -> Any:
    if chance.random() < 0.03:
        return chance.choice(ODD)
    if isinstance(value, dict):
        return {key: with_odd_members(member, chance) for key, member in value.items()}
    return [with_odd_members(member, chance) for member in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(25))
def test_any_description_of_the_tracks_does_no_harm(tmp_path: Path, content: dict[str, bytes], seed: int) -> None:
    packets = list(all_packets(content["plain"]))
    [stated] = [packet for packet in packets if packet.HasField("trace_attributes")]
    [attribute] = stated.trace_attributes.attribute
    forged = json.dumps(with_odd_members(json.loads(attribute.string_value), random.Random(seed)))
    attribute.string_value = forged
    with open_trace(imported(tmp_path, pb.Trace(packet=packets).SerializeToString())) as trace:
        [(events,)] = trace.sql("SELECT count(*) FROM event JOIN process ON process.id = event.process").fetchall()
        assert events > 200


def mutated(content: bytes, seed: int) -> bytes:
    """With bytes changed, cut out, doubled or cut off."""
    chance = random.Random(seed)
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 8, 40])):
        at = chance.randrange(len(data))
        span = chance.choice([1, 1, 4, 64])
        match chance.randrange(4):
            case 0:
                data[at : at + span] = chance.randbytes(span)
            case 1:
                del data[at : at + span]
            case 2:
                data[at:at] = data[at : at + span]
            case _:
                data[at] ^= 1 << chance.randrange(8)
    return bytes(data[: chance.randrange(1, len(data))] if chance.random() < 0.2 else data)


def check_mutated(folder: Path, content: bytes, seed: int) -> None:
    try:
        with open_trace(imported(folder, mutated(content, seed))) as trace:
            trace.sql("SELECT count(*) FROM event JOIN process ON process.id = event.process").fetchall()
    except InputRefused as refused:
        assert "\n" not in str(refused)  # noqa: PT017
        assert not (folder / "back.duckdb").exists()
    (folder / "back.duckdb").unlink(missing_ok=True)


def plain(content: bytes) -> bytes:
    return pb.Trace(packet=list(all_packets(content))).SerializeToString()


@pytest.mark.parametrize("seed", range(80))
def test_damage_is_said_in_words(tmp_path: Path, content: dict[str, bytes], seed: int) -> None:
    check_mutated(tmp_path, content["plain" if seed % 4 else "packed"], seed)


@pytest.mark.soak
def test_much_damage_is_said_in_words(tmp_path: Path, content: dict[str, bytes]) -> None:
    for seed in range(1_000, 6_000):
        check_mutated(tmp_path, content["plain" if seed % 4 else "packed"], seed)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    whole = ours(tmp_path_factory.mktemp("whole"))
    return {"packed": whole, "plain": plain(whole)}


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([0, BEGIN, END, INSTANT, COUNTER]),
        st.integers(0, 2**64 - 1),
        st.integers(0, 4),
        st.text(max_size=8),
        st.lists(st.integers(0, 3), max_size=2),
        st.integers(0, 130),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS, cut=st.integers(0, 40))
def test_any_packets_are_read_or_said(tmp_path: Path, events: list[Any], cut: int) -> None:
    made = Recording().described()
    for kind, ns, track, name, flows, clock in events:
        packet = made.event(kind, ns, track + 9, name=name, flow_ids=flows, sequence=1 + track % 2)
        packet.timestamp_clock_id = clock
        packet.interned_data.event_names.add(iid=track, name=name)
        packet.track_event.legacy_event.phase = clock
    whole = made.bytes()
    with open_trace(imported(tmp_path, whole[: len(whole) - cut])) as trace:
        [(found,)] = trace.sql("SELECT count(*) FROM event").fetchall()
        [(paired,)] = trace.sql(
            "SELECT count(*) FROM event WHERE kind = 'annotation' AND dur_ns IS NOT NULL"
        ).fetchall()
        assert found + paired <= len(events)
    (tmp_path / "back.duckdb").unlink()
