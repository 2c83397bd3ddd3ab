"""A training loop that leaks: it keeps each step's prediction "for a plot later", on the device and with its graph.

ral-trace -- python -m ral_trace.samples.leaky
ral-trace --report          # the memory section names what grows from step to step
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional

from ral_trace.backend import enable
from ral_trace.tracer import step


def train(steps: int, device: str = "ral:1", width: int = 64, batch: int = 32) -> tuple[list[float], list[Tensor]]:
    """Trains `steps` steps; returns the loss of each, and the predictions, which nobody needs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses, predictions = [], []
    for _ in range(steps):
        data = torch.randn(batch, width).to(device)
        prediction = model(data)
        loss = functional.mse_loss(prediction, data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        # The leak. `prediction.detach().cpu()` would not hold device memory.
        predictions.append(prediction)
        step()
    return losses, predictions


def main() -> None:
    """Trains, and says how much memory is held at the end; an honest loop would hold the same after every step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    enable()
    losses, predictions = train(parser.parse_args().steps)
    held = torch.accelerator.memory_allocated("ral:1")
    print(f"loss {losses[-1]:.4f}; {len(predictions)} predictions; {held:,} bytes are still allocated on ral:1")


if __name__ == "__main__":
    main()
