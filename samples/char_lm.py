"""A small transformer language model over characters, its layers split over two devices.

It trains on text that every machine has: the source files of Python's standard library. Run it plain, or under
`ral-trace`:

    ral-trace --duration 10s -- python -m ral_trace.samples.char_lm
    python -m ral_trace.samples.char_lm --device cpu       # the same losses, for comparison
"""

import argparse
import math
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from ral_trace.tracer import step


@dataclass(frozen=True)
class Shape:
    """Sizes of the model and of a batch."""

    context: int = 64
    width: int = 64
    heads: int = 4
    layers: int = 4
    batch: int = 16


class Block(nn.Module):
    """One transformer layer: causal self-attention, then two linear layers, each around a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_attention = nn.LayerNorm(shape.width)
        self.query_key_value = nn.Linear(shape.width, 3 * shape.width)
        self.projection = nn.Linear(shape.width, shape.width)
        self.norm_mlp = nn.LayerNorm(shape.width)
        self.expand = nn.Linear(shape.width, 4 * shape.width)
        self.contract = nn.Linear(4 * shape.width, shape.width)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        hidden = hidden + self.attend(self.norm_attention(hidden), mask)
        return hidden + self.contract(functional.gelu(self.expand(self.norm_mlp(hidden))))

    def attend(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Scaled dot-product attention (Vaswani et al., 2017), written out so that each product is an op of its own."""
        batch, length, width = hidden.shape
        heads = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.query_key_value(hidden).split(width, dim=2)
        )
        query, key, value = heads
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        weights = functional.softmax(scores.masked_fill(mask, -1e9), dim=-1)
        return self.projection((weights @ value).transpose(1, 2).reshape(batch, length, width))


class CharLM(nn.Module):
    """Characters in, logits of the next character out.

    The first half of the layers lives on `first`, the rest on `second`.
    """

    def __init__(self, vocabulary: int, shape: Shape, first: torch.device, second: torch.device) -> None:
        super().__init__()
        self.first, self.second = first, second
        half = shape.layers // 2
        self.characters = nn.Embedding(vocabulary, shape.width).to(first)
        self.positions = nn.Embedding(shape.context, shape.width).to(first)
        self.lower = nn.ModuleList(Block(shape) for _ in range(half)).to(first)
        self.upper = nn.ModuleList(Block(shape) for _ in range(shape.layers - half)).to(second)
        self.norm = nn.LayerNorm(shape.width).to(second)
        self.head = nn.Linear(shape.width, vocabulary).to(second)
        # Made on the host: the first devices of a new chip rarely have triu.
        mask = torch.ones(shape.context, shape.context, dtype=torch.bool).triu(1)
        self.masks = [mask.to(first), mask.to(second)]
        self.places = torch.arange(shape.context).to(first)

    def forward(self, text: Tensor) -> Tensor:
        hidden = self.characters(text.to(self.first)) + self.positions(self.places)
        for block in self.lower:
            hidden = block(hidden, self.masks[0])
        hidden = hidden.to(self.second)
        for block in self.upper:
            hidden = block(hidden, self.masks[1])
        return self.head(self.norm(hidden))


def standard_library_text(files: int = 40) -> str:
    """The source of the first `files` modules of the standard library, by name: the same text wherever the Python
    is the same.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    return "".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob("*.py"))[:files])


def encode(text: str) -> tuple[Tensor, int]:
    """Characters as small integers (rare ones share the last), and how many there are."""
    known = sorted({character for character in text if character.isascii()})
    index = {character: number for number, character in enumerate(known)}
    return torch.tensor([index.get(character, len(known)) for character in text]), len(known) + 1


def batches(data: Tensor, shape: Shape, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A random batch of texts, and the same texts one character on."""
    starts = torch.randint(len(data) - shape.context - 1, (shape.batch,), generator=generator)
    window = starts[:, None] + torch.arange(shape.context + 1)
    text = data[window]
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def train(
    devices: tuple[torch.device, torch.device],
    steps: int,
    seconds: float | None,
    seed: int,
    shape: Shape,
    checkpoint: Path | None,
    report_every: int,
) -> list[float]:
    """Trains until `steps` steps are done or `seconds` are over; returns the loss of each step.

    After 10 steps the model goes through the file `checkpoint`.
    """
    torch.manual_seed(seed)
    data, vocabulary = encode(standard_library_text())
    model = CharLM(vocabulary, shape, *devices)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    begun = time.monotonic()
    while len(losses) < steps and (seconds is None or time.monotonic() - begun < seconds):
        text, target = batches(data, shape, generator)
        logits = model(text)
        loss = functional.cross_entropy(logits.flatten(0, 1), target.to(devices[1]).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if checkpoint is not None and len(losses) == 10:
            save_and_load(model, checkpoint)
        if len(losses) % report_every == 0 or len(losses) == 1:
            print(f"step {len(losses):5d}  loss {losses[-1]:.4f}", flush=True)
        step()
    for device in {device for device in devices if device.type != "cpu"}:
        torch.accelerator.synchronize(device)  # the last step is done when its optimiser is, on both devices
    return losses


def save_and_load(model: nn.Module, path: Path) -> None:
    """Writes the model to a file and takes its weights back from it: a checkpoint that cannot be read is none."""
    torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path, weights_only=True))


def chosen_devices(text: str) -> tuple[torch.device, torch.device]:
    """`ral:0,ral:1`, or one device for both halves. Names of `ral` claim the backend."""
    names = text.split(",")
    if any(name.startswith("ral") for name in names):
        from ral_trace.backend import enable

        enable()
    return torch.device(names[0]), torch.device(names[-1])


def main() -> None:
    """Trains, and says how the loss went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--device", default="ral:0,ral:1", help="one device, or two separated by a comma (default: ral:0,ral:1)"
    )
    parser.add_argument("--steps", type=int, default=200, help="steps to train (default: 200)")
    parser.add_argument("--seconds", type=float, help="stop after this time, whatever the steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="save the model here after 10 steps, and load it again")
    arguments = parser.parse_args()
    losses = train(
        chosen_devices(arguments.device),
        arguments.steps,
        arguments.seconds,
        arguments.seed,
        Shape(),
        arguments.checkpoint,
        report_every=20,
    )
    print(f"{len(losses)} steps, loss {losses[0]:.4f} -> {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
