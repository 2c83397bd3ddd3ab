"""Compiles C++ of the tests and benchmarks against the torch-free and Python-free sources of the record path and of
the backend's core.
"""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "tracer" / "native"
CORE = ROOT / "backend" / "native" / "core"


def record_path_sources() -> list[Path]:
    """The sources that need neither Python nor torch: all but bindings, the torch hooks' folder, and the
    exporter's encoder.
    """
    sources = [path for path in sorted(NATIVE.glob("*.cpp")) if not path.stem.startswith("perfetto")]
    return [path for path in sources if not any(word in path.read_text() for word in ("pybind11", "Python.h"))]


def allocator_sources() -> list[Path]:
    """The allocator, without its bindings."""
    sources = [*sorted(CORE.glob("allocator*.cpp")), CORE / "free_blocks.cpp", CORE / "regions.cpp"]
    return [path for path in sources if "pybind11" not in path.read_text()]


def stream_sources() -> list[Path]:
    """The rest of the backend's core."""
    sources = [path for path in sorted(CORE.glob("*.cpp")) if path not in allocator_sources()]
    return [path for path in sources if "pybind11" not in path.read_text()]


def build(output: Path, units: Mapping[str, Sequence[Path]], flags: Sequence[str]) -> Path:
    """Compiles each unit, which is several sources in one go because most of the time is spent in headers, side by
    side, and links them.
    """
    compilers = []
    for name, sources in units.items():
        unit = output.with_name(f"{name}.cpp")
        unit.write_text("".join(f'#include "{source}"\n' for source in sources))
        warnings = ["-Wall", "-Wextra", "-Werror"]
        command = [
            "g++",
            "-std=c++17",
            "-pthread",
            *warnings,
            f"-I{NATIVE}",
            f"-I{CORE}",
            f"-I{ROOT / 'backend/include'}",
            *flags,
            "-c",
            str(unit),
            "-o",
            f"{unit}.o",
        ]
        compilers.append(subprocess.Popen(command))
    failed = [compiler.args for compiler in compilers if compiler.wait() != 0]
    assert not failed, failed
    objects = [str(output.with_name(f"{name}.cpp.o")) for name in units]
    subprocess.run(["g++", "-pthread", *flags, *objects, "-ldl", "-o", str(output)], check=True)
    return output
