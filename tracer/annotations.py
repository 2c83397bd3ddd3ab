"""What a program says of itself: named spans and steps. Costs one load while nobody records."""

from ral_trace.tracer import _native


def annotate(name: str) -> _native.Annotation:
    """A context manager that gives the time inside it a name: `with annotate("evaluate"):`.

    Ends on exceptions too; may be nested and re-entered.
    """
    return _native.Annotation(name)


def step() -> None:
    """Ends a training step: from the last call (the first time: from the import of torch) to now.

    Call it once at the end of every iteration.
    """
    _native.step()
