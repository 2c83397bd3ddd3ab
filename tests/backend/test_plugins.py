"""Plugins in C: which are loaded, which are refused and why; always in a process of their own."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from ral_trace.backend import plugin_probe, plugins
from ral_trace.backend.errors import PluginRefused
from tests.backend import plugin_kit as kit


def status(folder: Path, seconds: float = 60.0) -> plugins.Status:
    return plugin_probe.status(plugins.read(folder), seconds)


def built(folder: Path, *flags: str, **fields: object) -> Path:
    kit.write_plugin(folder, **fields)
    kit.build(folder, *flags)
    return folder


def test_the_header_is_plain_c_and_cpp(tmp_path: Path) -> None:
    for compiler, standard, suffix in (("gcc", "c11", "c"), ("g++", "c++17", "cpp")):
        source = tmp_path / f"only.{suffix}"
        source.write_text('#include "ral_plugin.h"\n')
        words = [compiler, f"-std={standard}", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]
        subprocess.run([*words, f"-I{plugins.INCLUDE}", str(source)], check=True)


def test_a_plugin_in_c_is_loaded(tmp_path: Path) -> None:
    found = status(built(tmp_path / "mychip"))
    assert (found.status, found.reason, found.version) == ("LOADED", "", "2.5")


def test_one_built_against_an_older_header_is_loaded(tmp_path: Path) -> None:
    folder = kit.write_plugin(tmp_path / "mychip")
    header = tmp_path / "header"
    header.mkdir()
    kit.build(folder, header=kit.older_header(header))
    assert status(folder).status == "LOADED"


def test_a_newer_minor_version_is_loaded(tmp_path: Path) -> None:
    flags = ["-DTABLE_VERSION=(RAL_PLUGIN_ABI_VERSION+7)", "-DTABLE_SIZE=(sizeof(ral_plugin)+64)"]
    assert status(built(tmp_path / "mychip", *flags)).status == "LOADED"


REFUSED = [
    ("a newer ABI", ["-DTABLE_VERSION=(2u<<16)"], "BAD_ABI", "version 2 of the plugin ABI"),
    ("an ABI before the first", ["-DTABLE_VERSION=7"], "BAD_ABI", "version 0 of the plugin ABI"),
    ("a short table", ["-DTABLE_SIZE=64"], "BAD_ABI", "its table has 64 bytes"),
    ("no entry", ["-DENTRY=other_entry"], "NO_SYMBOL", "exports no function ral_plugin_entry()"),
    ("an error in init", ['-DINIT=strcpy(error,"no chip");return RAL_FAILED;'], "INIT_FAILED", "no chip"),
    ("an error without words", ["-DINIT=return 99;"], "INIT_FAILED", "init() answers 99"),
    ("too many devices", ["-DDEVICES=17"], "BAD_DESCRIPTOR", "from 0 to 16"),
    ("fewer than none", ["-DDEVICES=(-1)"], "BAD_DESCRIPTOR", "device_count() says -1"),
    ("a segfault", ["-DINIT=*(volatile int*)8=1;return RAL_OK;"], "CRASHED", "SIGSEGV"),
    ("an exit", ["-Dthe_exit=1", "-DINIT=extern void exit(int);exit(3);"], "CRASHED", "exit code 3"),
]


@pytest.mark.parametrize(("flags", "code", "reason"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_plugin_that_is_refused(tmp_path: Path, flags: list[str], code: str, reason: str) -> None:
    found = status(built(tmp_path / "mychip", *flags))
    assert found.status == code, found.reason
    assert reason in found.reason


FORGED = [
    ("alignment = 100", "alignment is 100"),
    ("alignment = 0", "alignment is 0"),
    ("alignment = UINT64_C(1) << 40", "a power of two up to"),
    ("memory_bytes = 0", "memory_bytes is 0"),
    ("memory_bytes = UINT64_MAX", "memory_bytes is 18446744073709551615"),
    ("domains = 0", "domains is 0"),
    ("domains = 4000", "domains is 4000"),
    ("domains = 2; d.stripe_bytes = 100", "stripe_bytes is 100"),
    ("domains = 2; d.stripe_bytes = d.memory_bytes", "stripe_bytes is"),
    ("max_handles_vf = 17", "handles must be"),
    ("max_handles_vf = 0", "handles must be"),
    ("dtypes = 0", "dtypes must hold"),
    ("dtypes = UINT64_C(1) << 60", "dtypes must hold"),
    ("flags = 64", "flags has unknown bits"),
    ("pipelines = 0", "pipelines must hold"),
    ("preferred_layout = 9", "preferred_layout is no ral_layout"),
    ("reserved = 1", "reserved must be 0"),
    ("struct_size = 40", "its descriptor has 40 bytes"),
    ("name[0] = 0", "name must be printable ASCII"),
    ("name[2] = 7", "name must be printable ASCII"),
    ("name[0] = 1; memset(d.name, 65, sizeof d.name)", "name must be printable ASCII"),
]


@pytest.mark.parametrize(("change", "reason"), FORGED)
def test_a_forged_descriptor_is_refused(tmp_path: Path, change: str, reason: str) -> None:
    found = status(built(tmp_path / "mychip", f"-DDESCRIBE=d.{change};"))
    assert found.status == "BAD_DESCRIPTOR", found.reason
    assert reason in found.reason


def test_a_plugin_that_hangs_is_stopped(tmp_path: Path) -> None:
    found = status(built(tmp_path / "mychip", "-DINIT=for(;;){} return RAL_OK;"), seconds=3)
    assert found.status == "TIMEOUT"


def test_a_cpp_exception_is_contained(tmp_path: Path) -> None:
    folder = kit.write_plugin(tmp_path / "mychip")
    (folder / "plugin.c").write_text("#include <stdexcept>\n" + (folder / "plugin.c").read_text())
    words = ["g++", "-x", "c++", "-shared", "-fPIC", '-DINIT=throw std::runtime_error("lost the chip");']
    words += [f"-I{plugins.INCLUDE}", str(folder / "plugin.c"), "-o", str(folder / "libmychip.so")]
    text = (folder / "plugin.c").read_text()
    (folder / "plugin.c").write_text(text.replace("RAL_PLUGIN_EXPORT const", 'extern "C" RAL_PLUGIN_EXPORT const'))
    subprocess.run(words, check=True)
    found = status(folder)
    assert found.status == "INIT_FAILED"
    assert "lost the chip" in found.reason


def test_missing_dependencies_are_named(tmp_path: Path) -> None:
    said = status(built(tmp_path / "a", dependencies=["libnosuchthing.so.1", "json", "no_such_package"]))
    assert said.status == "MISSING_DEPS"
    assert said.missing == ("libnosuchthing.so.1", "no_such_package")
    # Not said, but the linker knows.
    helper = tmp_path / "libhelper.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "/dev/null", "-o", str(helper)], check=True)
    folder = kit.write_plugin(tmp_path / "b")
    kit.build(folder, "-Wl,--no-as-needed", f"-L{tmp_path}", "-lhelper")
    helper.unlink()
    found = status(folder)
    assert found.status == "MISSING_DEPS"
    assert "libhelper.so" in found.reason


def test_what_others_could_write_is_not_loaded(tmp_path: Path) -> None:
    folder = built(tmp_path / "mychip")
    library = folder / "libmychip.so"
    library.chmod(0o777)
    assert status(folder).status == "UNSAFE_OWNER"
    library.chmod(0o755)
    for path in (folder, folder / "plugin.json"):
        mode = path.stat().st_mode
        path.chmod(0o777)
        with pytest.raises(PluginRefused, match="chmod go-w") as error:
            plugins.read(folder)
        assert error.value.status == "UNSAFE_OWNER"
        path.chmod(mode)
    assert status(folder).status == "LOADED"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_belongs_to_another_user_is_not_loaded(tmp_path: Path) -> None:
    folder = built(tmp_path / "mychip")
    os.chown(folder / "plugin.json", 12345, 12345)
    with pytest.raises(PluginRefused, match="belongs to another user"):
        plugins.read(folder)


BAD_FILES = [
    ("[]", "must be an object"),
    ("{", "cannot be read as JSON"),
    ('{"name": "x", "version": "1"}', "a library or a python class"),
    ('{"name": "x", "library": "a.so"}', "must have a version"),
    ('{"name": "No Name", "version": "1", "library": "a.so"}', "name must be"),
    ('{"name": "host", "version": "1", "library": "a.so"}', "not 'host'"),
    ('{"name": "x", "version": 1, "library": "a.so"}', "version must be a text"),
    ('{"name": "x", "version": "1", "libary": "a.so"}', "knows no 'libary'"),
    ('{"name": "x", "version": "1", "library": "../a.so"}', "lies outside"),
    ('{"name": "x", "version": "1", "library": "a.so", "build": "make"}', "build must be a list"),
]


@pytest.mark.parametrize(("text", "reason"), BAD_FILES)
def test_a_plugin_file_that_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "plugin.json").write_text(text)
    with pytest.raises(PluginRefused, match=reason) as error:
        plugins.read(tmp_path)
    assert error.value.status == "BAD_MANIFEST"
    assert "plugin.json" in str(error.value)


def test_a_manifest_of_another_vendor_is_refused(tmp_path: Path) -> None:
    folder = built(tmp_path / "mychip")
    kit.write_manifest(folder, "otherchip")
    assert status(folder).status == "BAD_MANIFEST"


# --- through the command, and in programs ---


def test_one_bad_plugin_keeps_no_other_from_loading(tmp_path: Path) -> None:
    built(tmp_path / "plugins" / "good", name="mychip")
    built(tmp_path / "plugins" / "crashes", "-DINIT=*(volatile int*)8=1;return RAL_OK;")
    (tmp_path / "plugins" / "crashes" / "plugin.json").write_text(
        '{"name": "crashes", "version": "1", "library": "libmychip.so"}'
    )
    (tmp_path / "plugins" / "broken").mkdir()
    (tmp_path / "plugins" / "broken" / "plugin.json").write_text("{")
    environment = kit.clean_environment(tmp_path, RAL_PLUGIN_PATH=str(tmp_path / "plugins"))
    shown = kit.ralctl(["plugin-status", "--json"], environment)
    assert shown.returncode == 0, shown.stderr
    rows = {row["plugin_name"]: row for row in json.loads(shown.stdout)}
    assert {name: row["status"] for name, row in rows.items()} == {
        "host": "LOADED",
        "sim": "LOADED",
        "mychip": "LOADED",
        "crashes": "BAD_DESCRIPTOR",
        "broken": "BAD_MANIFEST",
    }
    assert rows["mychip"]["version"] == "2.5"
    assert (rows["host"]["kernels"], rows["host"]["refused"], rows["mychip"]["kernels"]) == (1, [], None)
    table = kit.ralctl(["plugin-status"], environment).stdout
    assert table.splitlines()[0].split() == ["PLUGIN", "NAME", "VERSION", "STATUS", "DEPENDENCIES"]
    assert "broken: " in table
    done = kit.python(
        "import warnings; warnings.simplefilter('always'); import torch, ral_trace.backend as b\n"
        "b.enable('mychip:1,host:1')\n"
        "print((torch.ones(3, device='ral:0') + 1).sum().item(), torch.ral.get_device_name(0))",
        environment,
    )
    assert done.stdout.strip() == "6.0 My Chip 1000", done.stderr
    assert "plugin refused: BAD_MANIFEST" in done.stderr


def test_a_named_vendor_that_cannot_be_loaded_is_an_error(tmp_path: Path) -> None:
    built(tmp_path / "mychip", '-DINIT=strcpy(error,"no chip in this machine");return RAL_FAILED;')
    environment = kit.clean_environment(tmp_path, RAL_PLUGIN_PATH=str(tmp_path / "mychip"), RAL_DEVICES="mychip:1")
    done = kit.python(
        "import ral_trace.backend as b\n"
        "try: b.enable()\n"
        "except b.BackendError as error: print(error)\n"
        "import torch; assert torch.accelerator.current_accelerator() is None",
        environment,
    )
    assert "vendor 'mychip': INIT_FAILED: " in done.stdout, done.stderr
    assert "no chip in this machine" in done.stdout
    listed = kit.ralctl(["list-devices"], environment)
    assert listed.returncode == 1
    assert "no chip in this machine" in listed.stderr


def test_nothing_is_loaded_for_a_program_that_does_not_name_it(tmp_path: Path) -> None:
    built(tmp_path / "mychip", "-DINIT=*(volatile int*)8=1;return RAL_OK;")
    environment = kit.clean_environment(tmp_path, RAL_PLUGIN_PATH=str(tmp_path / "mychip"))
    done = kit.python(
        "import torch, ral_trace.backend as b; b.enable('host:1'); print(torch.ral.device_count())", environment
    )
    assert done.stdout.strip() == "1", done.stderr


def test_list_devices_shows_a_plugins_devices(tmp_path: Path) -> None:
    built(tmp_path / "mychip", "-DDEVICES=2")
    environment = kit.clean_environment(tmp_path, RAL_PLUGIN_PATH=str(tmp_path), RAL_DEVICES="host:1,mychip:2")
    rows = json.loads(kit.ralctl(["list-devices", "--json"], environment).stdout)
    assert [(row["device_id"], row["vendor"]) for row in rows] == [
        ("ral:0", "host"),
        ("ral:1", "mychip"),
        ("ral:2", "mychip"),
    ]
    refused = kit.ralctl(["list-devices"], environment | {"RAL_DEVICES": "mychip:3"})
    assert "asks for more devices than it has: 2" in refused.stderr


# --- sim ---


def sim_device(tmp_path: Path, text: str) -> "subprocess.CompletedProcess[str]":
    return kit.ralctl(["list-devices", "--json"], kit.clean_environment(tmp_path, RAL_DEVICES="sim:1", RAL_SIM=text))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("copy_gb=12", '"copy_gb=12" is no setting; there are clock, memory_mb'),
        ("memory_mb=lots", '"memory_mb=lots" must be a number from 1 to'),
        ("memory_mb=0", "must be a number from 1 to"),
        ("launch_us=-1", "must be a number from 0 to"),
        ("clock=sundial", "must be clock=real or clock=virtual"),
        ("domains=3,stripe_kb=3", "stripe_bytes is 3072"),
    ],
)
def test_a_bad_model_of_sim_is_refused_in_words(tmp_path: Path, text: str, reason: str) -> None:
    shown = sim_device(tmp_path, text)
    assert shown.returncode == 1
    assert reason in shown.stderr


def test_sim_is_what_its_model_says(tmp_path: Path) -> None:
    done = kit.python(
        "import torch, ral_trace.backend as b; b.enable(); p = torch.ral.get_device_properties(0)\n"
        "print(p['memory_bytes'], p['domains'], p['alignment'], p['host_addressable'])",
        kit.clean_environment(
            tmp_path,
            RAL_DEVICES="sim:1",
            RAL_SIM="memory_mb=64,copy_gb_per_s=12,copy_latency_us=5,launch_us=1,clock=virtual,domains=2,stripe_kb=64",
        ),
    )
    assert done.stdout.split() == [str(64 << 20), "2", "128", "False"], done.stderr
