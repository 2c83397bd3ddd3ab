"""What a person looks at: the page and its filters. It is all in the URL: opening it gives the same view."""

from dataclasses import dataclass, fields, replace
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode


@dataclass(frozen=True)
class View:
    """A page and its filters. None: no filter, or the page's own choice."""

    path: str = "/"
    device: str | None = None
    vendor: str | None = None
    by: str | None = None

    @classmethod
    def of(cls, path: str | None, query: str | None) -> Self:
        """The view that a URL names, without what is no filter. The query is anybody's text: pages check the values."""
        known = {field.name for field in fields(cls)} - {"path"}
        given = {name: value for name, value in parse_qsl((query or "").removeprefix("?")) if name in known}
        return cls(path=path or "/", **given)

    def url(self) -> str:
        """The URL that gives this view."""
        query = {name: value for name, value in vars(self).items() if name != "path" and value is not None}
        return self.path + ("?" + urlencode(query) if query else "")

    def but(self, **changes: Any) -> Self:
        """This view with other filters, or on another page."""
        return replace(self, **changes)
