"""Runs mypy on the package under the names that users import.

An editable install maps those names with an import hook, which mypy does not follow; a folder of links gives it the
same names.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Checks the packages named on the command line; mypy's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ral_trace").mkdir()
        for package in sys.argv[1:]:
            name = package.rpartition(".")[2]
            (Path(folder) / "ral_trace" / name).symlink_to(ROOT / name)
        packages = [word for package in sys.argv[1:] for word in ("-p", package)]
        command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), *packages]
        return subprocess.run(command, cwd=folder, env={**os.environ, "MYPYPATH": folder}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
