"""Builds the native parts with ninja. Metadata lives in pyproject.toml.

Two kinds of native code: the torch-free parts (C++17) are always built; the parts that include torch (C++20) only
where torch is importable at
build time, which is why the README installs torch first and then the package with --no-build-isolation.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
TORCH_VERSION = "2.13"
PLUGIN_HEADER = ROOT / "backend/include"
"""ral_plugin.h, all that a vendor needs."""
GLUE = ("/module.cpp", "_bindings.cpp")
"""Bindings to Python: called seldom, slow to optimise. Not with a prefix header, which wants the same flags."""
CFLAGS = ["-O2", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
# The folders are subpackages of one namespace: `backend` or `dashboard` at the top of a user's sys.path would collide
# with the user's own.
FOLDERS = ["analysis", "backend", "dashboard", "samples", "testing", "tracer"]
PACKAGES = {
    "ral_trace." + ".".join(init.parent.relative_to(ROOT).parts): str(init.parent.relative_to(ROOT))
    for folder in FOLDERS
    for init in sorted((ROOT / folder).rglob("__init__.py"))
}


@dataclass
class Library:
    """One shared object: a Python extension module, or (`plain`) a lib*.so that is opened with dlopen and has no
    Python in its name.
    """

    name: str
    sources: list[str]
    flags: list[str] = field(default_factory=list)
    link_flags: list[str] = field(default_factory=list)
    plain: bool = False
    # A header that is compiled once and put before the sources beside it: torch's headers take 6 s, most of a file's
    # time.
    prefix: str = ""


def glob(*patterns: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


def torch_free() -> list[Library]:
    python = ["-std=c++17", f"-I{PLUGIN_HEADER}"]
    python += ["-isystem", pybind11.get_include(), "-isystem", sysconfig.get_path("include")]
    return [
        Library("ral_trace.tracer._native", glob("tracer/native/*.cpp"), ["-O3", *python]),
        Library("ral_trace.backend._core", glob("backend/native/core/*.cpp"), python),
        Library(
            "ral_trace.backend.vendors.sim.libral_sim",
            glob("backend/vendors/sim/*.cpp"),
            ["-O3", "-fno-math-errno", "-fno-trapping-math", "-std=c++17", f"-I{PLUGIN_HEADER}"],
            plain=True,
        ),
    ]


def with_torch() -> list[Library]:
    # Without this `import torch` would load the extensions that are about to be built.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch
    from torch.utils import cpp_extension

    if not torch.__version__.startswith(f"{TORCH_VERSION}."):
        sys.exit(
            f"ral-trace is built against torch {TORCH_VERSION}, but torch {torch.__version__} is installed: "
            f"pip install 'torch=={TORCH_VERSION}.*'"
        )
    # -isystem: torch's own headers warn under -Wall -Wextra, and warnings are errors here.
    flags = [
        "-std=c++20",
        f"-I{ROOT}/tracer/native",
        f"-I{ROOT}/backend/native/core",
        f"-I{PLUGIN_HEADER}",
        f'-DRAL_TORCH_VERSION=\\"{TORCH_VERSION}\\"',
        # torch is built so, and without it some of its classes have members that torch's own do not have.
        "-DNDEBUG",
    ]
    flags += [flag for path in cpp_extension.include_paths() for flag in ("-isystem", path)]
    flags += ["-isystem", sysconfig.get_path("include")]
    torch_lib = Path(torch.__file__).parent / "lib"
    link = [f"-L{torch_lib}", f"-Wl,-rpath,{torch_lib}", "-lc10", "-ltorch_cpu"]
    # The core is linked into the adapter; its Python bindings are an extension of their own.
    core = [path for path in glob("backend/native/core/*.cpp") if not path.endswith(GLUE)]
    return [
        Library(
            "ral_trace.tracer.libral_torch_hooks",
            glob("tracer/native/torch_hooks/*.cpp"),
            flags,
            link,
            plain=True,
        ),
        Library(
            "ral_trace.backend._adapter",
            core + glob("backend/native/adapter/*.cpp"),
            flags,
            [*link, "-ltorch", "-ltorch_python"],
            prefix="backend/native/adapter/prefix.h",
        ),
    ]


LIBRARIES = [
    library for library in torch_free() + (with_torch() if importlib.util.find_spec("torch") else []) if library.sources
]


class BuildNative(build_ext):
    """Hands the whole build to ninja: files compile side by side, and again only where a source, a header or a
    flag changed.
    """

    def get_ext_filename(self, fullname: str) -> str:
        if any(library.plain and library.name.endswith(fullname.rpartition(".")[2]) for library in LIBRARIES):
            return fullname.replace(".", "/") + ".so"
        return str(super().get_ext_filename(fullname))

    def build_extensions(self) -> None:
        # An editable build keeps its objects in the checkout, so that the next one is quick.
        objects = ROOT / "build/native" if self.inplace or self.editable_mode else Path(self.build_temp).resolve()
        objects.mkdir(parents=True, exist_ok=True)
        (objects / "build.ninja").write_text("\n".join(self._rules(objects)) + "\n")
        subprocess.run([sys.executable, "-m", "ninja", "--quiet", "-C", objects], check=True, stdout=sys.stderr)
        for library in LIBRARIES:
            output = Path(self.get_ext_fullpath(library.name))
            output.parent.mkdir(parents=True, exist_ok=True)
            # By another name first: a program that has the old one mapped must not see it change.
            fresh = output.with_name(f".{output.name}.new")
            shutil.copy(objects / self.get_ext_filename(library.name), fresh)
            fresh.replace(output)

    def _rules(self, objects: Path) -> "list[str]":
        escaped = {"$": "$$", " ": "$ ", ":": "$:"}
        lines = [
            "rule cxx",
            "  command = c++ -MMD -MF $out.d $flags -c $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
            "rule header",
            "  command = c++ -MMD -MF $out.d $flags -x c++-header $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
            "rule link",
            "  command = c++ -shared -pthread $in $flags -o $out",
        ]
        for library in LIBRARIES:
            compiled = []
            flags = " ".join([*CFLAGS, *library.flags])
            header = f"{library.name}/{Path(library.prefix).name}"
            if library.prefix:
                lines += [f"build {header}.gch: header {str(ROOT / library.prefix).translate(str.maketrans(escaped))}"]
                lines += [f"  flags = {flags}"]
            for source in library.sources:
                target = f"{library.name}/{source}.o"
                prefixed = library.prefix and Path(source).parent == Path(library.prefix).parent
                lines += [
                    f"build {target}: cxx {str(ROOT / source).translate(str.maketrans(escaped))}"
                    + (f" | {header}.gch" if prefixed else ""),
                    f"  flags = {flags}"
                    + (f" -include {header}" if prefixed else "")
                    + (" -O1" if source.endswith(GLUE) and not prefixed else ""),
                ]
                compiled.append(target)
            lines += [
                f"build {self.get_ext_filename(library.name)}: link {' '.join(compiled)}",
                f"  flags = {' '.join(library.link_flags)}",
            ]
        return lines


setup(
    packages=list(PACKAGES),
    package_dir=PACKAGES,
    ext_modules=[Extension(library.name, library.sources) for library in LIBRARIES],
    cmdclass={"build_ext": BuildNative},
)
