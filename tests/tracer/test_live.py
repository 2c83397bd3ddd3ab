"""Hand-made records through `live.transform`: which rows of the trace they become."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ral_trace.tracer import _native, live
from ral_trace.tracer.schema import FLAGS, KINDS
from ral_trace.tracer.store import TraceBuilder

TID = 4242
NO_DEVICE = -1
NAMES = {
    1: "aten::add.Tensor",
    2: "aten::add.out",
    3: "native",
    4: "add_f32",
    5: "sim",
    6: "no entry; dtype",
    7: json.dumps({"type": "ral", "vendor": "sim", "name": 'Simulated "Chip"'}),
    8: "compute",
    9: "bad <&'\" name",
    10: "not JSON",
}
COLUMNS = "process tid kind ts_ns dur_ns correlation bytes arg0 arg1 name device stream flags".split()  # noqa: SIM905


class Made:
    """A trace that grows from hand-made records."""

    def __init__(self, folder: Path) -> None:
        self.builder = TraceBuilder(folder / "made.duckdb")
        live.prepare(self.builder.connection)
        source = self.builder.add("source", format="live")
        self.builder.add("process", source=source, pid=77)

    def record(self, kind: str | int, **values: int) -> None:
        number = KINDS.index(kind) if isinstance(kind, str) else kind
        row = {"process": 0, "tid": TID, "kind": number, "ts_ns": 1000, "dur_ns": 50, "correlation": 0, "bytes": -1}
        row |= {"arg0": 0, "arg1": 0, "name": 0, "device": NO_DEVICE, "stream": 0, "flags": 0} | values
        self.builder.connection.execute(
            f"INSERT INTO record VALUES ({', '.join('?' * len(COLUMNS))})", [row[column] for column in COLUMNS]
        )

    def transform(self, names: dict[int, str] = NAMES) -> None:
        live.transform(self.builder, [live.ProcessNames(0, list(names.items()), [(TID, "python")])])

    def rows(self, query: str) -> list[dict[str, Any]]:
        cursor = self.builder.connection.execute(query)
        columns = [column[0] for column in cursor.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]

    def event(self) -> dict[str, Any]:
        found = self.rows("FROM event")
        assert len(found) == 1
        return found[0]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    making = Made(tmp_path)
    with making.builder:
        yield making


def test_an_op(made: Made) -> None:
    made.record("op", name=1, flags=FLAGS["BACKWARD"])
    made.transform()
    event = made.event()
    assert (event["kind"], event["category"], event["name"]) == ("op", "backward", "aten::add.Tensor")
    assert (event["ts_ns"], event["dur_ns"], event["process"], event["thread"]) == (1000, 50, 0, 0)
    for unknown in ("device", "stream", "correlation", "bytes", "args", "stack", "step"):
        assert event[unknown] is None
    assert made.rows("SELECT tid, name FROM thread") == [{"tid": TID, "name": "python"}]
    assert made.rows("FROM device") == []


@pytest.mark.parametrize(
    ("kind", "arguments", "args"),
    [
        ("launch", (2, 3), {"routed": "aten::add.out", "route": "native"}),
        ("kernel", (4, 5), {"kernel": "add_f32", "vendor": "sim"}),
        ("fallback", (2, 6), {"routed": "aten::add.out", "reason": "no entry; dtype"}),
        ("sync", (1, 0), {"waited_for": "aten::add.Tensor"}),
        ("sync", (0, 0), None),
        ("instant", (2, 3), None),
    ],
)
def test_what_args_hold(made: Made, kind: str, arguments: tuple[int, int], args: dict[str, str] | None) -> None:
    made.record(kind, name=1, arg0=arguments[0], arg1=arguments[1], device=1, correlation=9, bytes=64)
    made.transform()
    event = made.event()
    assert (json.loads(event["args"]) if event["args"] else None) == args
    assert (event["correlation"], event["bytes"]) == (9, 64)
    # Device rows happen on a device's stream, not on the thread that wrote them down.
    assert (event["thread"] is None) == (kind == "kernel")


@pytest.mark.parametrize("direction", range(4))
def test_a_transfer_says_where_to(made: Made, direction: int) -> None:
    made.record("transfer", device=0, arg0=1, arg1=direction, bytes=8, name=1)
    made.record("transfer", device=1, arg0=2**64 - 1, arg1=direction, bytes=8, name=1)
    made.transform()
    first, second = made.rows("FROM event ORDER BY id")
    assert first["category"] == second["category"] == _native.DIRECTIONS[direction]
    assert json.loads(first["args"]) == {"other_device": "ral:1"}
    assert second["args"] is None
    assert first["thread"] is None


def test_unknown_names_are_null(made: Made) -> None:
    made.record("annotation", name=0)
    made.record("annotation", name=60000)
    made.transform()
    assert [row["name"] for row in made.rows("FROM event")] == [None, None]


def test_hostile_names_stay_text(made: Made) -> None:
    made.record("launch", name=9, arg0=9, arg1=9, device=0)
    made.transform()
    event = made.event()
    assert event["name"] == NAMES[9]
    assert json.loads(event["args"]) == {"routed": NAMES[9], "route": NAMES[9]}


def test_devices_and_streams_describe_themselves(made: Made) -> None:
    made.record(_native.KIND_DEVICE, device=1, name=7, bytes=1 << 30)
    made.record(_native.KIND_STREAM, device=1, stream=2, name=8, bytes=0)
    made.record("kernel", device=1, stream=2, name=1)
    made.record("kernel", device=3, stream=0, name=1)  # one that said nothing of itself
    made.transform()
    devices = made.rows('SELECT "index", type, vendor, name, memory_bytes FROM device ORDER BY "index"')
    assert [tuple(row.values()) for row in devices] == [
        (1, "ral", "sim", 'Simulated "Chip"', 1 << 30),
        (3, "ral", None, None, None),
    ]
    streams = made.rows("SELECT number, pipeline, priority FROM stream ORDER BY id")
    assert [tuple(row.values()) for row in streams] == [(2, "compute", 0), (0, None, None)]
    assert [row["kind"] for row in made.rows("FROM event")] == ["kernel", "kernel"]


def test_memory_from_before_the_recording_is_no_event(made: Made) -> None:
    before = FLAGS["BEFORE_TRACE"]
    made.record(_native.KIND_DEVICE, device=0, name=7, bytes=1 << 20)
    made.record("region", device=0, bytes=4096, arg0=1 << 16, arg1=5, flags=before)
    made.record("alloc", device=0, bytes=512, arg0=1 << 16, arg1=500, flags=before)
    made.record("alloc", device=0, bytes=1024, arg0=(1 << 16) + 512, arg1=1000, name=1)
    made.record("free", device=0, bytes=512, arg0=1 << 16, arg1=3)
    made.transform()
    assert [row["kind"] for row in made.rows("FROM event ORDER BY id")] == ["alloc", "free"]
    changes = made.rows("FROM memory_change ORDER BY event")
    assert [(row["action"], row["before_trace"]) for row in changes] == [
        ("open", True),
        ("alloc", True),
        ("alloc", False),
        ("free", False),
    ]
    assert [row["requested_bytes"] for row in changes] == [None, 500, 1000, None]
    assert [row["uses"] for row in changes] == [None, None, None, 3]
    assert changes[0]["handle"] == 5


def test_two_processes_keep_their_names_apart(made: Made) -> None:
    made.builder.add("process", source=0, pid=78)
    made.record("op", name=1)
    made.record("op", name=1, process=1)
    live.transform(
        made.builder, [live.ProcessNames(0, [(1, "one")], []), live.ProcessNames(1, [(1, "two")], [(TID, "other")])]
    )
    assert [row["name"] for row in made.rows("FROM event ORDER BY id")] == ["one", "two"]
    assert [row["name"] for row in made.rows("FROM thread ORDER BY id")] == [None, "other"]


UNSIGNED = [0, 1, 4, 9, 2**31, 2**63 - 1, 2**63, 2**64 - 1]
LARGE = [-1, 0, 1, 2**31, 2**62, 2**63 - 1]


@pytest.mark.parametrize("kind", [*KINDS, _native.KIND_DEVICE, _native.KIND_STREAM])
def test_no_sound_record_stops_a_trace(made: Made, kind: str | int) -> None:
    """The reader lets through whatever fits the columns: one odd program must not cost the others their trace."""
    random = Random(str(kind))
    # As the reader's `fits` has it.
    most = 3 if kind == "transfer" else 2**63 - 1 if kind in ("alloc", "free", "region") else 2**64 - 1
    most_bytes = 2**31 - 1 if kind == _native.KIND_STREAM else 2**63 - 1
    names = [0, 7] if kind == _native.KIND_DEVICE else [0, 1, 7, 9, 10, 65535]
    for _ in range(40):
        made.record(
            kind,
            arg0=random.choice(UNSIGNED),
            arg1=min(random.choice(UNSIGNED), most),
            bytes=min(random.choice(LARGE), most_bytes),
            correlation=abs(random.choice(LARGE)),
            name=random.choice(names),
            device=random.randrange(-1, 3),
            flags=random.randrange(256),
        )
    made.transform()
    made.builder.finish()
