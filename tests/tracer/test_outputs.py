"""An output is renamed over its name, so that it must never be renamed over what is no file."""

import os
from pathlib import Path

import pytest

from ral_trace.tracer.errors import UsageError
from ral_trace.tracer.outputs import output_file


def test_links_are_followed_and_files_replaced(tmp_path: Path) -> None:
    (tmp_path / "there.duckdb").touch()
    (tmp_path / "link.duckdb").symlink_to("there.duckdb")
    assert output_file(tmp_path / "link.duckdb") == tmp_path / "there.duckdb"
    assert output_file(tmp_path / "there.duckdb") == tmp_path / "there.duckdb"
    assert output_file(tmp_path / "new.duckdb") == tmp_path / "new.duckdb"


def test_devices_pipes_folders_and_no_name_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.duckdb")
    for path in (Path("/dev/null"), tmp_path / "pipe.duckdb", tmp_path, Path()):
        with pytest.raises(UsageError):
            output_file(path)
