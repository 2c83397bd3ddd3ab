"""Who may talk to the dashboard: its Host check, its token, and the headers that every answer carries.

The server listens on 127.0.0.1, and that is not enough: any web page the person visits can send requests there (by a
DNS name that it rebinds to 127.0.0.1, or blindly), and so can every other user of the machine.
"""

import hmac
import re
import secrets
from collections.abc import Sequence
from html import escape

from flask import Flask, Request, Response, request

_HOST = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?")
"""Any port: the person may have forwarded another one with ssh -L."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

# A page that moves on by itself, instead of a redirect: browsers withhold a SameSite=Strict cookie from a redirect that
# began on another site, and a link in a web-based terminal does.
_MOVE_ON = (
    '<!DOCTYPE html><html><head><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={url}">'
    "<title>ral-trace</title></head><body></body></html>"
)


class Gate:
    """Refuses every request that does not come from somebody who was given the token."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(32)
        self._single_use: set[str] = set()

    def single_use(self) -> str:
        """A token that opens once. A browser is started with a URL as its argument, and others can read arguments."""
        token = secrets.token_urlsafe(32)
        self._single_use.add(token)
        return token

    def guard(self, server: Flask, script_hashes: Sequence[str]) -> None:
        """Puts checks before, and headers after, every request of `server`; `script_hashes` are its inline scripts."""
        policy = _content_security_policy(script_hashes)

        def check() -> Response | None:
            return self._check(request)

        def add_headers(response: Response) -> Response:
            response.headers.update(HEADERS)
            response.headers["Content-Security-Policy"] = policy
            if not request.path.startswith("/_dash-component-suites/"):  # those are versioned, and big
                response.headers["Cache-Control"] = "no-store"
            return response

        server.before_request(check)
        server.after_request(add_headers)

    def _check(self, asked: Request) -> Response | None:
        """None lets the request pass."""
        host = asked.headers.get("Host", "")
        if not _HOST.fullmatch(host):
            return _refused("the dashboard answers to 127.0.0.1 and localhost only")
        origin = asked.headers.get("Origin")
        if origin is not None and origin != f"http://{host}":
            return _refused("the request comes from another site")
        if "token" in asked.args:
            return self._admit(asked) if self._valid(asked.args["token"]) else _refused("the token is wrong")
        if not _same(asked.cookies.get(_cookie(host), ""), self.token):
            return _refused("open the URL that ral-trace dashboard printed: it holds the token")
        return None

    def _valid(self, token: str) -> bool:
        if token in self._single_use:
            self._single_use.discard(token)
            return True
        return _same(token, self.token)

    def _admit(self, asked: Request) -> Response:
        """Sets the cookie and moves on to the same view, whose URL no longer holds the token."""
        pairs = asked.query_string.decode("latin-1").split("&")
        query = "&".join(pair for pair in pairs if not pair.startswith("token="))
        url = "/" + asked.path.lstrip("/\\") + ("?" + query if query else "")
        response = Response(_MOVE_ON.format(url=escape(url)), mimetype="text/html")
        response.set_cookie(_cookie(asked.headers["Host"]), self.token, httponly=True, samesite="Strict", path="/")
        return response


def _cookie(host: str) -> str:
    """The cookie's name: browsers share cookies among all ports of a host, and several dashboards may be open."""
    return "ral_trace_" + (host.rpartition(":")[2] if ":" in host else "80")


def _content_security_policy(script_hashes: Sequence[str]) -> str:
    scripts = " ".join(["'self'", *script_hashes])
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {scripts}",
            "style-src 'self' 'unsafe-inline'",  # Mantine, AG Grid and Plotly write style elements
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())


def _refused(why: str) -> Response:
    return Response(f"403: {why}\n", status=403, mimetype="text/plain")
