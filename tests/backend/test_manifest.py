"""kernel_manifest.json: which entries are refused, and why; a change while the program runs."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ral_trace.backend import BadManifest, PluginRefused, manifest, plugins

GOOD: dict[str, Any] = {
    "op_name": "aten::add",
    "backend": "sim",
    "supported_dtypes": ["float32"],
    "min_shape_rank": 0,
    "max_shape_rank": 8,
    "requires_contiguous": False,
    "kernel_path": "aten",
}


def write(folder: Path, *entries: object, vendor: str = "sim") -> Path:
    file = folder / manifest.FILE_NAME
    file.write_text(json.dumps({"vendor": vendor, "kernels": entries}))
    return file


@pytest.fixture
def sim() -> Iterator[Callable[..., None]]:
    """Puts other entries in the place of sim's; those that come with the package are back afterwards."""
    own = manifest.load(plugins.VENDORS / "sim" / manifest.FILE_NAME)

    def install(file: Path) -> None:
        manifest.install("sim", manifest.load(file))

    yield install
    manifest.install("sim", own)


REFUSED = [
    ("no object", "text", "not an object"),
    ("no op_name", {"op_name": None}, "op_name must be a str"),
    ("a rank that is no number", {"min_shape_rank": "0"}, "min_shape_rank must be a int"),
    ("a rank that is a bool", {"max_shape_rank": True}, "max_shape_rank must be a int"),
    ("ranks in disorder", {"min_shape_rank": 3, "max_shape_rank": 2}, "min_shape_rank <= max_shape_rank"),
    ("another backend", {"backend": "mychip"}, "for backend 'mychip', the file is for 'sim'"),
    ("an unknown operator", {"op_name": "aten::frobnicate"}, "no such operator"),
    ("an unknown overload", {"op_name": "aten::add.Nonsense"}, "no such operator"),
    ("no namespace", {"op_name": "add"}, "no such operator"),
    ("an unknown dtype", {"supported_dtypes": ["float33"]}, "'float33' is no dtype"),
    ("a dtype that is a function", {"supported_dtypes": ["add"]}, "'add' is no dtype"),
    ("no dtype", {"supported_dtypes": []}, "supported_dtypes is empty"),
    ("no library", {"kernel_path": "libnone.so:f"}, "there is no library"),
    ("no function", {"kernel_path": "libral_sim.so"}, "must be LIBRARY:FUNCTION"),
    ("a composite operator", {"op_name": "aten::matmul"}, "write aten::mm"),
    ("another composite operator", {"op_name": "aten::layer_norm"}, "write aten::native_layer_norm"),
    ("one that is not in the table", {"op_name": "aten::cosine_similarity"}, "torch composes aten::cosine_similarity"),
]


@pytest.mark.parametrize(("change", "reason"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_bad_entry_is_refused_alone(tmp_path: Path, change: Any, reason: str) -> None:
    bad = GOOD | change if isinstance(change, dict) else change
    loaded = manifest.load(write(tmp_path, GOOD, bad, GOOD | {"op_name": "aten::mul"}))
    assert [entry["op_name"] for entry in loaded.entries] == ["aten::add", "aten::mul"]
    (refusal,) = loaded.refusals
    assert reason in refusal.reason
    assert str(tmp_path) in str(refusal)
    assert str(refusal.entry) in str(refusal)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"vendor": "sim"}', '{"vendor": 1, "kernels": []}', "\xff"])
def test_a_file_that_is_no_manifest(tmp_path: Path, text: str) -> None:
    file = tmp_path / manifest.FILE_NAME
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadManifest, match=manifest.FILE_NAME):
        manifest.load(file)


def test_a_file_that_others_may_write(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD)
    file.chmod(0o666)
    with pytest.raises(PluginRefused, match="written by others"):
        manifest.load(file)
    file.chmod(0o644)
    tmp_path.chmod(0o777)
    with pytest.raises(PluginRefused, match="written by others"):
        manifest.load(file)
    tmp_path.chmod(0o700)
    with pytest.raises(BadManifest, match="cannot be read"):
        manifest.load(tmp_path / "none.json")


def test_an_op_name_without_overload_covers_all_variants() -> None:
    names = manifest.overloads_of("aten::add")
    assert {"aten::add.Tensor", "aten::add_.Tensor", "aten::add.out"} <= set(names)
    assert manifest.overloads_of("aten::add.out") == ["aten::add.out"]
    assert "aten::zero_" in manifest.overloads_of("aten::zero_")


def test_plugin_path_replaces_a_vendors_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAL_PLUGIN_PATH", str(tmp_path))
    write(tmp_path, GOOD)
    assert len(manifest.load_all().manifests["sim"].entries) == 1
    (tmp_path / "inner").mkdir()
    override = write(tmp_path / "inner", GOOD, GOOD)
    assert len(manifest.load_all([override]).manifests["sim"].entries) == 2
    assert manifest.load_all().manifests["host"].entries[0]["op_name"] == "*"


def test_a_bad_manifest_on_the_path_keeps_no_other_from_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAL_PLUGIN_PATH", str(tmp_path))
    bad = tmp_path / manifest.FILE_NAME
    bad.write_text("{")
    loaded = manifest.load_all()
    assert list(loaded.problems) == [bad]
    assert {"host", "sim"} <= set(loaded.manifests)
    with pytest.raises(BadManifest, match=manifest.FILE_NAME):
        manifest.load_all([bad])


def test_entries_change_while_the_program_runs(tmp_path: Path, sim: Callable[[Path], None]) -> None:
    """The same call before, without and with the entry again; and by ATen's kernels in place, as on host."""
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    expected = a @ b
    for entries in ((), (GOOD | {"op_name": "aten::mm"},), (GOOD | {"op_name": "*", "supported_dtypes": ["*"]},)):
        sim(write(tmp_path, *entries))
        torch.testing.assert_close((a.to("ral:1") @ b.to("ral:1")).cpu(), expected)


def test_a_library_without_the_function_says_so(tmp_path: Path, sim: Callable[[Path], None]) -> None:
    library = plugins.VENDORS / "sim" / "libral_sim.so"
    sim(write(tmp_path, GOOD | {"kernel_path": f"{library}:ral_sim_nothing"}))
    with pytest.raises(RuntimeError, match="no kernel named ral_sim_nothing"):
        torch.ones(2, device="ral:1") + 1
