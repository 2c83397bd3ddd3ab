"""Names that a person gives for outputs. What is written is renamed over them, so that they must be files."""

from collections.abc import Sequence
from pathlib import Path

from ral_trace.tracer.errors import UsageError


def output_file(path: Path) -> Path:
    """Where the file `path` really goes: the target of a link.

    Raises UsageError when there is no name, or a folder, a device or a pipe of that name.
    """
    if not path.name:
        raise UsageError("an output needs a name; give one, such as run.duckdb")
    real = path.resolve() if path.is_symlink() else path
    if real.is_dir():
        raise UsageError(f"{path}: there is a folder of that name; choose another name")
    if real.exists() and not real.is_file():
        raise UsageError(f"{path}: is not a file, and would be replaced by one; choose another name")
    return real


def refuse_input(output: Path, inputs: Sequence[Path]) -> None:
    """Raises UsageError where an output is one of the inputs, which it would replace."""
    try:
        replaced = any(output.samefile(path) for path in inputs if path.exists() and output.exists())
    except OSError:  # of a name that cannot be: whoever opens it says why
        return
    if replaced:
        raise UsageError(f"{output}: is what is read, and would be replaced; choose another name")
