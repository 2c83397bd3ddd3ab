"""One record from a C++ event site, against one read of the clock, in one run.

    python -m tests.benchmarks.bench_record

The sites lie in a library of their own and reach the writer of the installed package through its function table, as the
backend's do. Rings have their default size, and are drained between the measurements.
"""

import ctypes
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ral_trace.tracer import _native
from ral_trace.tracer.recording import DEFAULT_RING_BYTES
from tests.native import toolchain

INSTANT, SPAN = 1.6, 2.6
RECORDS = DEFAULT_RING_BYTES // _native.RECORD_BYTES
EVENTS = RECORDS * 3 // 4
REPEATS = 60
CAPSULE = b"ral_trace.tracer._native._writer_api"


@contextmanager
def recording() -> Iterator[_native.ProcessReader]:
    """This process records into a session of its own; gives what reads its rings."""
    with tempfile.TemporaryDirectory(prefix="ral-bench-", dir="/dev/shm") as folder:
        os.environ["RAL_TRACE_DIR"] = folder
        reason = _native.start("", "")
        assert reason is None, reason
        sessions = _native.Sessions()
        (Path(folder) / "session-1").mkdir(0o700)
        slot = sessions.begin(
            session=1,
            target_pid=os.getpid(),
            ring_records=RECORDS,
            folder="session-1",
            details=_native.DETAILS["ANNOTATIONS"],
            overwrite=False,
        )
        _native.sync()
        identity = f"{os.getpid()}-{_native.process_started(os.getpid())}"
        reader = _native.ProcessReader.open(f"{folder}/session-1/{identity}")
        assert reader is not None
        yield reader
        sessions.release(slot)
        _native.sync()


def writer_api() -> int:
    """The address of the function table."""
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(address(_native._writer_api, CAPSULE))  # type: ignore[attr-defined]


def load_sites(folder: Path) -> ctypes.CDLL:
    """Compiles the event sites as setup.py compiles the package."""
    flags = ["-O3", "-fPIC", "-shared", "-fvisibility=hidden"]
    library = toolchain.build(folder / "sites.so", {"sites": [Path(__file__).with_name("record_sites.cpp")]}, flags)
    sites = ctypes.CDLL(str(library))
    for name in ("clock_read_ns", "instant_ns", "span_ns"):
        getattr(sites, name).restype, getattr(sites, name).argtypes = (
            ctypes.c_double,
            [ctypes.c_void_p, ctypes.c_uint64],
        )
    return sites


def measure(repeats: int = REPEATS) -> dict[str, float]:
    """Median nanoseconds of each site. They take turns, so that all see the same machine."""
    with tempfile.TemporaryDirectory() as folder, recording() as reader:
        sites = load_sites(Path(folder))
        api = writer_api()
        samples: dict[str, list[float]] = {"clock_read_ns": [], "instant_ns": [], "span_ns": []}
        for _ in range(repeats):
            for name, taken in samples.items():
                taken.append(getattr(sites, name)(api, EVENTS))
                spool = Path(folder) / "records"
                assert reader.drain(0, _native.Spool(str(spool)))
                spool.unlink()
        account = reader.account()
        assert account.received == account.written == 2 * repeats * EVENTS, "events were dropped: nothing was measured"
    return {name: statistics.median(taken) for name, taken in samples.items()}


def main() -> int:
    """Prints the comparison. Returns 1 when a budget is missed."""
    taken = measure()
    clock = taken["clock_read_ns"]
    instant, span = taken["instant_ns"] / clock, taken["span_ns"] / clock
    print(f"one clock read {clock:.1f} ns, an instant {taken['instant_ns']:.1f} ns, a span {taken['span_ns']:.1f} ns")
    print(f"an instant is {instant:.2f} clock reads (budget {INSTANT}), a span {span:.2f} (budget {SPAN})")
    return 0 if instant <= INSTANT and span <= SPAN else 1


if __name__ == "__main__":
    sys.exit(main())
