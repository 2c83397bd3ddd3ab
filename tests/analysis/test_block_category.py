"""What blocks are for: a training of three steps in small, each category by its rule."""

from pathlib import Path

import pytest

from ral_trace.analysis.block_category import CATEGORIES
from ral_trace.analysis.block_use import find_uses
from ral_trace.tracer.reading import Trace
from tests.analysis.cases import Case

STEP_NS = 1000
STEPS = 4


class Blocks:
    """Allocates blocks at addresses of their own, and knows them by name: their op."""

    def __init__(self, case: Case) -> None:
        self.case, self.address = case, 0

    def live(self, name: str, begin: int, end: int | None, size: int = 64) -> None:
        self.address += 4096
        self.case.alloc(name, begin, size, self.address)
        if end is not None:
            self.case.free(end, size, self.address)


def training(copies: bool = True, annotated: bool = True) -> Case:
    """Steps of 1000 ns: 0-300 forward, 400-600 backward, 700-900 the optimiser, and the zero_grad of the step before at
    310-320.
    """
    case = Case()
    case.process()
    case.device(index=0)
    blocks = Blocks(case)
    blocks.live("weight", -500, None)
    for step in range(STEPS):
        zero = step * STEP_NS
        case.step(step, zero, 990)
        case.event("op", "autograd::engine::evaluate_function: MmBackward0", zero + 400, 200)
        case.event("op", "MmBackward0", zero + 410, 100, category="backward")
        if annotated:
            case.event("annotation", "Optimizer.step#SGD.step", zero + 700, 200)
            case.event("annotation", "Optimizer.zero_grad#SGD.zero_grad", zero + 310, 10)
        blocks.live("batch", zero + 10, zero + STEP_NS + 15, size=128)
        if copies:
            case.event("launch", "aten::copy_", zero + 12, 5, device=0, correlation=step + 1)
            case.event(
                "transfer", "aten::copy_", zero + 14, 5, device=0, correlation=step + 1, bytes=128,
                category="host_to_device",
            )  # fmt: skip
        blocks.live("hidden", zero + 100, zero + 450)
        blocks.live("scratch", zero + 110, zero + 120)
        blocks.live("gradient", zero + 420, zero + STEP_NS + 315)
        blocks.live("bias gradient", zero + 550, zero + STEP_NS + 316)  # in the engine's row, outside of the node's
        blocks.live("gradient of hidden", zero + 430, zero + 590)
        blocks.live("momentum" if step == 0 else "root", zero + 750, None if step == 0 else zero + 760)
        blocks.live("kept", zero + 200, None)  # what a leak is made of
    return case


def categories(trace: Trace) -> dict[str, set[str]]:
    """The categories of the blocks of each op."""
    find_uses(trace)
    found: dict[str, set[str]] = {}
    for op, category in trace.sql(
        "SELECT op, u.category FROM allocation a JOIN block_use u ON u.allocation = a.id"
    ).fetchall():
        found.setdefault(op, set()).add(category)
    return found


def test_a_training(tmp_path: Path):
    with training().open(tmp_path) as trace:
        found = categories(trace)
    assert found["weight"] == {"parameter"}
    assert found["batch"] == {"input"}
    assert found["hidden"] == {"activation"}
    assert found["scratch"] == {"temporary"}
    assert found["gradient"] == found["bias gradient"] == {"gradient"}
    assert found["gradient of hidden"] == {"temporary"}
    assert found["momentum"] == {"optimizer state"}
    assert found["root"] == {"temporary"}
    # What is kept for ever has the evidence of nothing; the last ones still look like activations.
    assert "unknown" in found["kept"]
    assert found["kept"] <= {"unknown", "activation", "parameter"}


def test_without_the_optimisers_annotations_a_gradient_outlives_its_step(tmp_path: Path):
    with training(annotated=False).open(tmp_path) as trace:
        found = categories(trace)
    assert found["gradient"] == {"gradient"}
    assert found["gradient of hidden"] == {"temporary"}
    assert found["weight"] == {"parameter"}


def test_what_no_copy_fills_is_no_input(tmp_path: Path):
    with training(copies=False).open(tmp_path) as trace:
        assert categories(trace)["batch"] == {"activation"}


def test_a_copy_back_from_a_fallback_brings_no_input(tmp_path: Path):
    case = training(copies=False)
    fallback = case.event("fallback", "aten::cumsum", 11, 20, device=0, correlation=99)
    case.event("launch", "aten::cumsum", 12, 5, device=0, correlation=98)
    case.event(
        "transfer", "aten::cumsum", 14, 3, device=0, correlation=98, bytes=128, category="host_to_device",
        parent=fallback,
    )  # fmt: skip
    with case.open(tmp_path) as trace:
        assert categories(trace)["batch"] == {"activation"}


def test_uses_tell_the_optimisers_state_from_parameters(tmp_path: Path):
    """Both were there before the recording; one is used by the optimiser alone."""
    case = training()
    case.alloc("weight from before", 0, 64, 1 << 20, before_trace=True)
    case.alloc("state from before", 0, 64, 2 << 20, before_trace=True)
    forward = case.event("op", "aten::mm", 2050, 10)
    update = case.event("op", "aten::add_", 2710, 10)
    with case.open(tmp_path) as trace:
        [weight, state] = [
            found for (found,) in trace.sql("SELECT id FROM allocation WHERE before_trace ORDER BY address").fetchall()
        ]
        trace.connection.execute(f"""
            CREATE TEMP TABLE access AS SELECT * FROM (VALUES
                ({forward}, {weight}, 'read'), ({update}, {weight}, 'read_write'), ({update}, {state}, 'read_write'))
            AS t(event, allocation, mode)""")
        find_uses(trace)
        found = dict(
            trace.sql(
                "SELECT a.address::BIGINT, u.category FROM allocation a JOIN block_use u ON u.allocation = a.id "
                "WHERE before_trace"
            ).fetchall()
        )
    assert found[2 << 20] == "optimizer state"
    assert found[1 << 20] == "parameter"


def test_inference_without_steps_knows_what_its_row_freed(tmp_path: Path):
    case = Case()
    case.device(index=0)
    case.event("op", "aten::linear", 0, 100)
    blocks = Blocks(case)
    blocks.live("within", 10, 90)
    blocks.live("result", 20, 500)
    with case.open(tmp_path) as trace:
        assert categories(trace) == {"within": {"temporary"}, "result": {"unknown"}}


@pytest.mark.parametrize("kinds", [0, 1])
def test_odd_traces(kinds: int, tmp_path: Path):
    """No blocks at all; a block without a beginning, an end or a thread."""
    case = Case()
    case.device(index=0)
    if kinds:
        case.alloc(None, 0, 64, 0, before_trace=True)
    with case.open(tmp_path) as trace:
        assert categories(trace) == ({None: {"unknown"}} if kinds else {})


def test_a_category_that_the_source_states_stands(tmp_path: Path):
    case = training()
    with case.open(tmp_path) as trace:
        trace.connection.execute(
            "CREATE TEMP TABLE allocation AS SELECT * REPLACE ('gradient' AS category) FROM trace.allocation"
        )
        assert set().union(*categories(trace).values()) == {"gradient"}
    assert "gradient" in CATEGORIES
