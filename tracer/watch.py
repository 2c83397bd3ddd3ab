"""What every `import torch` of the user runs (entry point group `torch.backends`)."""


def autoload() -> None:
    """Placeholder until the watcher lands."""
