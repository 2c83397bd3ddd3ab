"""What a person looks at: the page and its filters. It is all in the URL: opening it gives the same view."""

import re
from dataclasses import dataclass, fields, replace
from typing import Any, Self
from urllib.parse import parse_qsl


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
        given = {name: _read(value) for name, value in parse_qsl((query or "").removeprefix("?")) if name in known}
        return cls(path=path or "/", **given)

    def url(self) -> str:
        """The URL that gives this view."""
        filters = {name: value for name, value in vars(self).items() if name != "path" and value is not None}
        query = "&".join(f"{name}={_written(value)}" for name, value in filters.items())
        return self.path + ("?" + query if query else "")

    def but(self, **changes: Any) -> Self:
        """This view with other filters, or on another page."""
        return replace(self, **changes)


def _written(value: str) -> str:
    """A value in a query, as ral:1 or a~26b. Not percent-encoded: Dash decodes that in links, `&` too."""
    return re.sub("[^A-Za-z0-9_.:-]", lambda found: "".join(f"~{byte:02x}" for byte in found[0].encode()), value)


def _read(value: str) -> str:
    return re.sub(
        "(~[0-9a-f]{2})+", lambda found: bytes.fromhex(found[0].replace("~", "")).decode(errors="replace"), value
    )
