"""The pages, one a file. To add one: write it with a `PAGE`, and put it into this list."""

from ral_trace.dashboard.pages import hotspots, memory, overview
from ral_trace.dashboard.pages.base import Page

PAGES: list[Page] = [overview.PAGE, hotspots.PAGE, memory.PAGE]
