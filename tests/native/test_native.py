"""The C++ tests of the record path and of the backend's core: plain, and under the address, undefined-behaviour and
thread sanitizers.

Both need neither Python nor torch, and are compiled here without them.
"""

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.native import toolchain

HERE = Path(__file__).parent
BUILDS = {
    "plain": ["-O1"],
    "address": ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    # The fences order us against the kernel's copies, which this sanitizer does not see in the first place.
    "thread": ["-O1", "-g1", "-fsanitize=thread", "-Wno-tsan"],
}
UNSUITED = {
    "thread": {
        "a_forked_child_has_rings_and_names_of_its_own",
        "collectors_that_are_killed_anywhere_neither_lose_nor_repeat",
    }
}
"""ThreadSanitizer does not follow a child of a program with threads in which new threads start; the other builds
run it.
"""


@pytest.fixture(scope="module", params=BUILDS)
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name: str = request.param
    program = tmp_path_factory.mktemp(name) / "tests"
    units = {
        "tracer": toolchain.record_path_sources(),
        "allocator": toolchain.allocator_sources(),
        "streams": toolchain.stream_sources(),
        "cases": sorted(HERE.glob("*.cpp")),
    }
    return name, toolchain.build(program, units, BUILDS[name])


def test_all_cases_pass(build: tuple[str, Path]) -> None:
    name, program = build
    cases = [
        line.partition("TEST(")[2].partition(")")[0]
        for source in sorted(HERE.glob("test_*.cpp"))
        for line in source.read_text().splitlines()
        if line.startswith("TEST(")
    ]
    assert len(cases) > 20
    wanted = [case for case in cases if case not in UNSUITED.get(name, set())]
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as folder:
        place = Path(folder) / "rendezvous"
        place.mkdir(0o700)
        done = subprocess.run(
            [program, *wanted],
            env={**os.environ, "RAL_TRACE_DIR": str(place)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.split()) == sorted(wanted)
        assert not [path for path in place.iterdir() if path.name.startswith("session-")]
