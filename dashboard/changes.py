"""What differs between two views of a page, so that the browser changes only that.

Grids keep their sorting and scrolling, figures are not drawn anew, and a filter answers several times as fast.
"""

from collections.abc import Callable
from typing import Any

from dash.development.base_component import Component

Changes = list[tuple[Any, dict[str, Any]]]
"""Id of a component, and the properties that it gets."""


def changes(old: Any, new: Any) -> Changes | None:
    """What turns the components `old` into `new`. None: they differ where nothing has an id, and must be replaced."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        parts = [changes(before, after) for before, after in zip(old, new, strict=True)]
        return None if any(part is None for part in parts) else [change for part in parts for change in part or []]
    if isinstance(old, Component) and isinstance(new, Component):
        return _of_component(old, new)
    return [] if old == new else None


def _of_component(old: Component, new: Component) -> Changes | None:
    before, after = _properties(old), _properties(new)
    if type(old) is not type(new) or before.get("id") != after.get("id"):
        return None
    inside = changes(before.pop("children", None), children := after.pop("children", None))
    own = {name: after.get(name) for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    if inside is None:
        own["children"] = children
    if not own:
        return inside
    if "id" not in after:
        return None
    return [(after["id"], own), *(inside or [])]


def _properties(component: Component) -> dict[str, Any]:
    to_json: Callable[[], dict[str, Any]] = component.to_plotly_json
    return dict(to_json()["props"])
