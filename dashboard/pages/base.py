"""What a page is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ral_trace.dashboard.answers import Answers
from ral_trace.dashboard.view import View


@dataclass(frozen=True)
class Page:
    """One page. `render` gives its components, which depend on the answers and the view alone."""

    path: str
    title: str
    render: Callable[[Answers, View], list[Any]]
    ahead: tuple[View, ...] = ()
    """Views that ask the trace more than the page without filters does: asked ahead, too."""
