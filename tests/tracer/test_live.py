"""Hand-made records through `live.LiveRows`: which rows of the trace they become."""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ral_trace.tracer import _native, derive
from ral_trace.tracer.live import LiveRows, ProcessNames
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
    11: "12\tstep\t/home/me/train.py",
    12: "40\t<module>\t/home/me/with\ttab.py",
    13: json.dumps({"shapes": [[4, 4], []], "dtypes": ["float32", "Scalar"]}),
    14: "Linear",
}
NODES = [(1, 0, 12), (2, 1, 11)]
"""(id, caller, frame): node 2 is `step`, called from the module."""
COLUMNS = "process tid kind ts_ns dur_ns correlation bytes arg0 arg1 name stack device stream flags".split()  # noqa: SIM905


class Made:
    """A trace that grows from hand-made records."""

    def __init__(self, folder: Path) -> None:
        self.builder = TraceBuilder(folder / "made.duckdb")
        self.live = LiveRows(self.builder)
        source = self.builder.add("source", format="live")
        self.builder.add("process", source=source, pid=77)

    def record(self, kind: str | int, **values: int) -> None:
        number = KINDS.index(kind) if isinstance(kind, str) else kind
        row = {"process": 0, "tid": TID, "kind": number, "ts_ns": 1000, "dur_ns": 50, "correlation": 0, "bytes": -1}
        row |= {"arg0": 0, "arg1": 0, "name": 0, "stack": 0, "device": NO_DEVICE, "stream": 0, "flags": 0} | values
        self.builder.connection.execute(
            f"INSERT INTO record VALUES ({', '.join('?' * len(COLUMNS))})", [row[column] for column in COLUMNS]
        )

    def transform(self, names: dict[int, str] = NAMES) -> None:
        self.live.add_names(ProcessNames(0, list(names.items()), NODES))
        self.live.add_staged()
        self.live.finish({(0, TID): "python"})

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
    made.live.add_names(ProcessNames(0, [(1, "one")]))
    made.live.add_names(ProcessNames(1, [(1, "two")]))
    made.live.add_staged()
    made.live.finish({(1, TID): "other"})
    assert [row["name"] for row in made.rows("FROM event ORDER BY id")] == ["one", "two"]
    assert [row["name"] for row in made.rows("FROM thread ORDER BY id")] == [None, "other"]


def test_a_stack_has_its_lines_from_the_innermost_outwards(made: Made) -> None:
    made.record("sync", name=1, stack=2)
    made.record("sync", name=1, stack=1)
    made.record("sync", name=1, stack=2)
    made.transform()
    innermost = {"file": "/home/me/train.py", "line": 12, "function": "step"}
    outermost = {"file": "/home/me/with\ttab.py", "line": 40, "function": "<module>"}
    frames = {row["id"]: row["frames"] for row in made.rows("FROM stack")}
    found = [frames[row["stack"]] for row in made.rows("SELECT stack FROM event ORDER BY id")]
    assert found == [[innermost, outermost], [outermost], [innermost, outermost]]
    assert len(frames) == 2


def test_a_fallback_has_the_stack_of_its_launch(made: Made) -> None:
    made.record("fallback", name=1, arg0=2, arg1=6, device=1, correlation=5)
    made.record("launch", name=1, arg0=2, arg1=3, device=1, correlation=5, stack=2)
    made.transform()
    assert len({row["stack"] for row in made.rows("FROM event")} - {None}) == 1
    assert len(made.rows("FROM event WHERE stack IS NOT NULL")) == 2


def test_an_op_has_the_shapes_of_its_inputs(made: Made) -> None:
    made.record("op", name=1, arg1=13)
    made.record("op", name=1, arg1=10)  # no JSON: it is left out
    made.transform()
    first, second = made.rows("FROM event ORDER BY id")
    assert json.loads(first["args"]) == {"shapes": [[4, 4], []], "dtypes": ["float32", "Scalar"]}
    assert second["args"] is None


def test_a_module_is_an_annotation_with_its_class(made: Made) -> None:
    for sort in range(3):
        made.record("annotation", name=1, arg0=sort, arg1=14 if sort == 1 else 0)
    made.transform()
    rows = made.rows("FROM event ORDER BY id")
    assert [row["category"] for row in rows] == [None, "module", "resumed"]
    assert [row["args"] and json.loads(row["args"]) for row in rows] == [None, {"class": "Linear"}, None]


def test_a_garbage_collection(made: Made) -> None:
    made.record("python", name=1, arg0=2, arg1=7)
    made.transform()
    assert json.loads(made.event()["args"]) == {"generation": 2, "collected": 7}


def test_the_hosts_memory_is_a_device_of_its_own(made: Made) -> None:
    made.record("alloc", device=_native.HOST_MEMORY, arg0=4096, arg1=100, bytes=128, name=1)
    made.record("free", device=_native.HOST_MEMORY, arg0=4096, bytes=128, ts_ns=2000)
    made.record("alloc", device=0, arg0=4096, arg1=100, bytes=128, name=1)  # another device's address
    made.transform()
    assert [tuple(row.values()) for row in made.rows('SELECT type, "index" FROM device ORDER BY id')] == [
        ("cpu", 0),
        ("ral", 0),
    ]
    assert made.rows("FROM stream") == []
    derive.derive(made.builder.connection)
    lives = made.rows("SELECT d.type, a.free_ns, a.uses FROM allocation a JOIN device d ON d.id = a.device ORDER BY 1")
    assert [tuple(row.values()) for row in lives] == [("cpu", 2000, None), ("ral", None, None)]


def test_an_access_names_the_block_that_was_there_then(made: Made) -> None:
    def block(kind: str, at: int) -> None:
        made.record(kind, device=0, arg0=4096, arg1=0, bytes=128, ts_ns=at, dur_ns=0)

    def use(at: int, correlation: int, mode: int) -> None:
        made.record(_native.KIND_ACCESS, device=0, arg0=4096, arg1=mode, ts_ns=at, dur_ns=0, correlation=correlation)

    block("alloc", 1000)
    use(1100, 7, 1)
    block("free", 1200)
    block("alloc", 1300)
    use(1400, 7, 3)
    use(1250, 7, 2)  # of nobody's memory
    use(1500, 8, 2)  # of an op that was never seen
    made.record("op", name=1, correlation=7, ts_ns=1050, dur_ns=400)
    made.transform()
    derive.derive(made.builder.connection)
    found = made.rows("""SELECT e.kind, e.correlation, a.alloc_ns, x.mode FROM access x JOIN event e ON e.id = x.event
                         JOIN allocation a ON a.id = x.allocation ORDER BY a.alloc_ns""")
    assert [tuple(row.values()) for row in found] == [("op", None, 1000, "read"), ("op", None, 1300, "read_write")]


def test_a_backward_node_is_tied_to_the_op_that_made_it(made: Made) -> None:
    """The number is the next node's: three ops began with it, and the last of them made the node."""
    key, other_thread = 5 | 1 << _native.AUTOGRAD_BITS, 5 | 2 << _native.AUTOGRAD_BITS
    for position, (begin, arg0) in enumerate([(1000, key), (1100, key), (1200, key), (1300, other_thread)]):
        made.record("op", ts_ns=begin, dur_ns=500 - position, name=1, arg0=arg0)
    made.record("op", ts_ns=3000, name=1, arg0=key, flags=FLAGS["BACKWARD"])
    made.record("op", ts_ns=4000, name=1, arg0=0, flags=FLAGS["BACKWARD"])  # no number: of no op
    made.record("op", ts_ns=4100, name=1, arg0=0)
    made.transform()
    flows = made.rows("""SELECT f.kind, a.ts_ns AS maker, b.ts_ns AS node FROM flow f
                         JOIN event a ON a.id = f.from_event JOIN event b ON b.id = f.to_event""")
    assert flows == [{"kind": "autograd", "maker": 1200, "node": 3000}]


PARTS = [list(NAMES.items())[begin:end] for begin, end in ((0, 8), (8, 9), (9, None))]


def test_batch_by_batch_is_the_same_as_at_once(made: Made) -> None:
    """Threads, devices, streams and stacks keep their ids; an op's uses of blocks may come in the batch before it."""
    for batch in range(3):
        made.record("alloc", device=0, arg0=4096 * (1 + batch), bytes=64, ts_ns=100 + batch, dur_ns=0)
        made.record(_native.KIND_ACCESS, device=0, arg0=4096 * (1 + batch), arg1=1, correlation=5, ts_ns=200)
        made.record("kernel", device=batch % 2, stream=batch, name=1, correlation=9)
        made.record("sync", name=1, stack=1 + batch % 2)
        if batch < 2:
            made.live.add_names(ProcessNames(0, PARTS[batch], NODES[batch : batch + 1]))
            made.live.add_staged()
    made.record("op", name=1, correlation=5, tid=TID + 1)
    made.live.add_names(ProcessNames(0, PARTS[2]))
    made.live.add_staged()
    made.live.finish({(0, TID): "python"})
    derive.derive(made.builder.connection)
    assert [row["id"] for row in made.rows("FROM event ORDER BY id")] == list(range(10))
    assert len(made.rows("FROM thread")) == len(made.rows("FROM device")) == len(made.rows("FROM stack")) == 2
    assert len(made.rows("FROM stream")) == 3
    assert len(made.rows("FROM access")) == 3
    kernels = made.rows("""SELECT d."index", s.number FROM event e JOIN device d ON d.id = e.device
                           JOIN stream s ON s.id = e.stream WHERE kind = 'kernel' ORDER BY e.id""")
    assert [tuple(row.values()) for row in kernels] == [(0, 0), (1, 1), (0, 2)]
    syncs = made.rows("SELECT len(frames) AS n FROM event e JOIN stack k ON k.id = e.stack ORDER BY e.id")
    assert [row["n"] for row in syncs] == [1, 2, 1]


UNSIGNED = [0, 1, 4, 9, 2**31, 2**63 - 1, 2**63, 2**64 - 1]
LARGE = [-1, 0, 1, 2**31, 2**62, 2**63 - 1]


@pytest.mark.parametrize("kind", [*KINDS, _native.KIND_DEVICE, _native.KIND_STREAM, _native.KIND_ACCESS])
def test_no_sound_record_stops_a_trace(made: Made, kind: str | int) -> None:
    """The reader lets through whatever fits the columns: one odd program must not cost the others their trace."""
    random = Random(str(kind))
    # As the reader's `fits` has it.
    most = 3 if kind == "transfer" else 2**63 - 1 if kind in ("alloc", "free", "region") else 2**64 - 1
    if kind in ("annotation", _native.KIND_ACCESS):
        most = 3
    most_bytes = 2**31 - 1 if kind == _native.KIND_STREAM else 2**63 - 1
    names = [0, 7] if kind == _native.KIND_DEVICE else [0, 1, 7, 9, 10, 65535]
    for _ in range(40):
        made.record(
            kind,
            arg0=random.randrange(3) if kind == "annotation" else random.choice(UNSIGNED),
            stack=random.choice([0, 1, 2, 65535]),
            arg1=min(random.choice(UNSIGNED), most),
            bytes=min(random.choice(LARGE), most_bytes),
            correlation=abs(random.choice(LARGE)),
            name=random.choice(names),
            device=random.randrange(-2, 3),
            flags=random.randrange(256),
        )
    made.transform()
    made.builder.finish()
