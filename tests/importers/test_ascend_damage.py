"""Parts of real Ascend profiles, damaged: one line of refusal, or a trace."""

import gzip
import json
import random
from pathlib import Path

import pytest

from ral_trace.tracer.errors import InputRefused
from tests.importers.reading_back import imported
from tests.shared import TRACES, needs_shared


def mutated(data: bytes, seed: int) -> bytes:
    chance = random.Random(seed)
    content = bytearray(data)
    for _ in range(chance.choice([1, 3, 20])):
        at = chance.randrange(len(content))
        match chance.randrange(3):
            case 0:
                content[at : at + 1] = chance.choice(
                    [b"", b'"', b"}", b"]", b"-", b"1e400", b"null", b"\xff", b",", b"\n"]
                )
            case 1:
                del content[at : at + chance.choice([1, 5, 300])]
            case _:
                content[at] ^= 1 << chance.randrange(8)
    return bytes(content[: chance.randrange(1, len(content))] if chance.random() < 0.2 else content)


def check_mutated(folder: Path, name: str, seed: int) -> None:
    """A part of a real file, damaged: one line of refusal, or a trace."""
    data = (TRACES / "ascend_level1_rank0" / name).read_bytes()
    if name.endswith(".gz"):
        events = json.loads(gzip.decompress(data))
        chance = random.Random(seed)
        at = chance.randrange(len(events) - 400)
        data = json.dumps([e for e in events if e["ph"] == "M"] + events[at : at + 400]).encode()
    else:
        data = data[:20_000]
    path = folder / "given"
    path.write_bytes(mutated(data, seed))
    try:
        with imported(path, folder) as trace:
            trace.sql("SELECT count(*), count(args::VARCHAR) FROM event").fetchall()
    except InputRefused as refused:
        assert "\n" not in str(refused)  # noqa: PT017


FUZZED = ["trace_view.json.gz", "kernel_details.csv", "operator_memory.csv", "memory_record.csv"]


@needs_shared
@pytest.mark.parametrize("name", FUZZED)
def test_damage_is_said_in_words(tmp_path: Path, name: str) -> None:
    for seed in range(12):
        check_mutated(tmp_path, name, seed)


@needs_shared
@pytest.mark.soak
@pytest.mark.parametrize("name", FUZZED)
def test_much_damage_is_said_in_words(tmp_path: Path, name: str) -> None:
    for seed in range(1_000, 6_000):
        check_mutated(tmp_path, name, seed)
