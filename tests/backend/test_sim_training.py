"""Whole training steps on `sim`: the losses of the CPU, and no launch that goes to the CPU."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from ral_trace.tracer import open_trace, trace

STEPS = 12
LOSS_TOLERANCE = 2e-3
"""Relative, of float32 losses after so many steps: kernels on `sim` and ATen's sum in different orders, and optimisers
magnify the last bits.
"""

Optimiser = Callable[[nn.Module], torch.optim.Optimizer]


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


class SmallTransformer(nn.Module):
    """Embedding, one layer of attention and MLP, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.norm = nn.LayerNorm(16)
        self.mix = nn.Linear(16, 48)
        self.layer = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
        self.head = nn.Linear(16, 11)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.embedding(text)
        query, key, value = self.mix(self.norm(hidden)).chunk(3, -1)
        scores = query @ key.mT / 4
        later = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
        hidden = hidden + scores.masked_fill(later, -1e9).softmax(-1) @ value
        logits: Tensor = self.head(hidden + self.layer(hidden))
        return logits.transpose(1, 2)


def images(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.randn(6, 3, 16, 16, generator=generator), torch.randint(5, (6,), generator=generator)


def texts(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    text = torch.randint(11, (6, 10), generator=generator)
    return text[:, :-1], text[:, 1:]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, foreach=True)


def fused_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, fused=True)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)


def fused_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-2, amsgrad=True, foreach=True)


TRAININGS = {
    "cnn, SGD": (small_cnn, images, sgd),
    "cnn, fused SGD": (small_cnn, images, fused_sgd),
    "cnn, Adam": (small_cnn, images, adam),
    "transformer, AdamW": (SmallTransformer, texts, adamw),
    "transformer, fused AdamW": (SmallTransformer, texts, fused_adamw),
}


def train(name: str, device: str, steps: int = STEPS) -> list[float]:
    """The loss of each step; model and data are the same on every device."""
    make_model, make_batch, make_optimiser = TRAININGS[name]
    torch.manual_seed(0)
    model = make_model().to(device)
    optimiser = make_optimiser(model)
    generator = torch.Generator().manual_seed(1)
    batch, target = make_batch(generator)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = functional.cross_entropy(model(batch.to(device)), target.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", TRAININGS)
def test_losses_are_those_of_the_cpu(name: str) -> None:
    on_sim = train(name, "ral:1")
    assert on_sim == pytest.approx(train(name, "cpu"), rel=LOSS_TOLERANCE)
    assert on_sim[-1] < 0.7 * on_sim[0]


@pytest.mark.parametrize("name", TRAININGS)
def test_every_launch_of_a_step_is_native(name: str, tmp_path: Path) -> None:
    with trace(tmp_path / "steps.duckdb"):
        train(name, "ral:1", steps=2)
    with open_trace(tmp_path / "steps.duckdb") as recorded:
        fallbacks = recorded.rows("SELECT args->>'routed' AS op, reason FROM fallbacks")
        launches = recorded.rows("SELECT count(*) AS n FROM launches WHERE route = 'native'")
    assert fallbacks == []
    assert launches[0]["n"] > 50
