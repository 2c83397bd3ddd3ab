"""Who may import whom. A folder that reaches against the flow makes two folders one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "tracer": set(),
    "analysis": {"tracer"},
    "dashboard": {"analysis", "tracer"},
    "backend": {"tracer"},
    "samples": {"backend", "tracer"},
    "testing": {"analysis", "tracer"},
}
EXCEPTIONS = {("analysis", "ral_trace.backend.core")}
"""The torch-free allocator core, so that a replay runs the real thing."""
WITHOUT_TORCH = {"tracer", "analysis", "dashboard"}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_go_one_way(folder: str) -> None:
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    for path in files:
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] == "ral_trace" and len(parts) > 1 and parts[1] != folder:
                allowed = parts[1] in ALLOWED[folder] or any(
                    (folder, ".".join(parts[:3])) == each for each in EXCEPTIONS
                )
                assert allowed, f"{path.relative_to(ROOT)} imports {name}"
            if folder in WITHOUT_TORCH:
                assert parts[0] != "torch", f"{path.relative_to(ROOT)} imports torch"


def test_native_folders_too() -> None:
    for path in (ROOT / "tracer/native").rglob("*"):
        if path.suffix in (".h", ".cpp"):
            text = path.read_text(encoding="utf-8")
            assert "backend/" not in text, path
            if "torch_hooks" not in path.parts:
                assert "#include <ATen" not in text, path
                assert "#include <c10" not in text, path
    for path in (ROOT / "backend/native/core").rglob("*"):
        if path.suffix in (".h", ".cpp"):
            assert "#include <ATen" not in path.read_text(encoding="utf-8"), path
