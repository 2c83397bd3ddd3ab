"""A training loop that leaks: it keeps each step's prediction "for a plot later", on the device and with its graph.

ral-trace -- python -m ral_trace.samples.leaky
ral-trace --report          # the memory section names what grows from step to step
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

from ral_trace.backend import enable
from ral_trace.tracer import step


def train(steps: int, width: int = 64, batch: int = 32) -> int:
    """Trains `steps` steps and returns how many bytes `ral:1` holds at the end; an honest loop would hold the same
    after every step.
    """
    enable()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to("ral:1")
    optimizer = torch.optim.AdamW(model.parameters())
    predictions = []
    for _ in range(steps):
        data = torch.randn(batch, width).to("ral:1")
        prediction = model(data)
        loss = functional.mse_loss(prediction, data)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # The leak. `prediction.detach().cpu()` would not hold device memory.
        predictions.append(prediction)
        step()
    return torch.accelerator.memory_allocated("ral:1")


def main() -> None:
    """Trains, and says how much memory is still held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    print(f"{train(parser.parse_args().steps):,} bytes are still allocated on ral:1")


if __name__ == "__main__":
    main()
