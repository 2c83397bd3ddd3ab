"""The router's decisions as rows, and the warning that much of a program falls back."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from ral_trace.backend.errors import BackendError


def record_of(op: str, device: str, dtypes: str = "Float") -> dict[str, Any]:
    (row,) = [
        row
        for row in torch.ral.dispatch_records()
        if row["op"] == op and row["device"] == device and row["dtypes"] == dtypes and row["rank"] == 3
    ]
    return row


def test_a_row_says_who_ran_and_how_often(device: str) -> None:
    x = torch.rand(2, 3, 5, device=device)
    torch.special.expit(x)
    before = record_of("aten::sigmoid", device)["launches"]
    for _ in range(4):
        torch.special.expit(x)
    row = record_of("aten::sigmoid", device)
    assert row["route"] == "native"
    assert row["vendor"] == {"ral:0": "host", "ral:1": "sim"}[device]
    assert row["kernel"] == {"ral:0": "aten", "ral:1": "ral_sim_sigmoid"}[device]
    assert row["launches"] == before + 4
    assert (row["fallbacks"], row["bytes_copied"], row["syncs_forced"], row["reasons"]) == (0, 0, 0, "")


def test_a_row_of_a_fallback_says_why_and_what_it_cost() -> None:
    x = torch.rand(2, 3, 5, device="ral:1")
    for _ in range(3):
        torch.erfinv(x)
    row = record_of("aten::erfinv", "ral:1")
    assert (row["route"], row["kernel"]) == ("cpu", None)
    assert row["reasons"] == "native: no entry; reference: the memory is not the host's"
    assert (row["launches"], row["fallbacks"], row["syncs_forced"]) == (3, 3, 3)
    assert row["bytes_copied"] == 3 * 2 * 2 * 3 * 5 * 4
    assert row["fallback_ns"] > 0


def test_a_kernel_that_declines_is_counted_with_its_reason() -> None:
    x = torch.rand(2, 3, 5, device="ral:1")
    torch.div(x, x, rounding_mode="floor")
    row = record_of("aten::div.Tensor_mode", "ral:1")
    assert row["route"] == "native"
    assert row["fallbacks"] == 1
    assert row["reasons"].startswith("native: kernel declined")


def test_a_kernel_may_decline_a_value_that_it_did_not_see_first() -> None:
    """By then nobody waits for it: its result must be right all the same, and it is counted."""
    x = torch.rand(2, 3, 5, device="ral:1")
    assert torch.allclose(torch.clamp(x, 0.2, 0.8).cpu(), x.cpu().clamp(0.2, 0.8))
    before = record_of("aten::clamp", "ral:1")["fallbacks"]
    for low, high in ((0.9, 0.1), (0.3, 0.7), (0.8, 0.2)):  # limits in the wrong order are declined
        assert torch.allclose(torch.clamp(x, low, high).cpu(), x.cpu().clamp(low, high))
    assert record_of("aten::clamp", "ral:1")["fallbacks"] == before + 2


def test_export_is_json(tmp_path: Path) -> None:
    torch.rand(2, 3, device="ral:0").exp()
    torch.ral.export_dispatch_records(tmp_path / "records.json")
    rows = json.loads((tmp_path / "records.json").read_text())
    assert {row["op"] for row in rows} >= {"aten::exp"}
    assert [path.name for path in tmp_path.iterdir()] == ["records.json"]
    with pytest.raises(BackendError, match="cannot be written"):
        torch.ral.export_dispatch_records(tmp_path / "nowhere" / "records.json")


STORM = """
    import sys, warnings
    import torch
    import ral_trace.backend as backend
    backend.enable("sim:1")
    share = float(sys.argv[1])
    x = torch.rand(8, 8, device="ral:0")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for i in range(3000):
            torch.erfinv(x) if i % 100 < share else torch.exp(x)
    print([str(warning.message) for warning in said])
"""


@pytest.mark.parametrize(
    ("share", "environment", "expected"),
    [
        ("5", None, []),
        ("15", None, ["fallbacks on ral:0 (sim)"]),
        ("60", None, ["FALLBACK STORM on ral:0 (sim)"]),
        ("60", "2,2", []),
        ("5", "0.01,0.9", ["fallbacks on ral:0 (sim)"]),
    ],
)
def test_a_storm_is_said_once(share: str, environment: str | None, expected: list[str]) -> None:
    variables = dict(os.environ) | ({"RAL_FALLBACK_WARN": environment} if environment else {})
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STORM), share],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=variables,
    )
    said = eval(done.stdout.splitlines()[-1])
    assert [text.partition(":")[0] + ":" + text.split(":")[1] for text in said] == expected
    assert all("aten::erfinv" in text.partition("implement first: ")[2] for text in said)


def test_thresholds_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="thresholds"):
        torch.ral.set_fallback_thresholds(0.5, 0.1)
    done = subprocess.run(
        [sys.executable, "-c", "import ral_trace.backend as b\nb.enable()"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"RAL_FALLBACK_WARN": "much"},
    )
    assert "RAL_FALLBACK_WARN" in done.stderr
    assert done.returncode != 0
