"""Nobody but the holder of the token, on this machine, sees anything; and what a browser may do with it is bounded."""

from html import unescape

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from ral_trace.dashboard.gate import Gate

BASE = "http://127.0.0.1:8050"


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def client(gate: Gate) -> FlaskClient:
    server = Flask("behind the gate")

    @server.route("/", defaults={"path": ""}, methods=["GET", "POST"])
    @server.route("/<path:path>", methods=["GET", "POST"])
    def secret(path: str) -> str:
        return "the trace"

    gate.guard(server, ["'sha256-abc'"])
    return server.test_client()


def admitted(client: FlaskClient, gate: Gate) -> TestResponse:
    return client.get(f"/?token={gate.token}", base_url=BASE)


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%ff%00é"])
@pytest.mark.parametrize("path", ["/", "/memory", "/_dash-layout", "/_dash-update-component", "/assets/style.css"])
def test_without_the_token_nothing_is_served(client: FlaskClient, path: str, query: str) -> None:
    answer = client.get(path + query, base_url=BASE)
    assert answer.status_code == 403
    assert "the trace" not in answer.text
    assert "Set-Cookie" not in answer.headers


def test_the_token_gives_a_cookie_and_leaves_the_url(client: FlaskClient, gate: Gate) -> None:
    answer = client.get(f"/memory?device=ral:1&token={gate.token}&by=a%26b", base_url=BASE)
    assert answer.status_code == 200
    assert gate.token not in answer.text
    assert 'content="0; url=/memory?device=ral:1&by=a%26b"' in unescape(answer.text)
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith("ral_trace_8050=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert client.get("/memory", base_url=BASE).text == "the trace"


def test_the_token_leads_to_this_server_only(client: FlaskClient, gate: Gate) -> None:
    answer = client.get(f"//evil.example/%22%3E%3Cscript%3E?token={gate.token}", base_url=BASE)
    assert "url=/" in answer.text
    assert "url=//" not in answer.text
    assert "<script" not in answer.text


def test_a_wrong_token_is_refused_even_with_the_cookie(client: FlaskClient, gate: Gate) -> None:
    admitted(client, gate)
    assert client.get("/?token=wrong", base_url=BASE).status_code == 403
    assert client.get("/", base_url=BASE).status_code == 200


def test_a_cookie_of_another_run_is_refused(client: FlaskClient) -> None:
    client.set_cookie("ral_trace_8050", Gate().token, domain="127.0.0.1")
    assert client.get("/", base_url=BASE).status_code == 403


def test_a_single_use_token_opens_once(client: FlaskClient, gate: Gate) -> None:
    token = gate.single_use()
    assert client.get(f"/?token={token}", base_url=BASE).status_code == 200
    assert client.get(f"/?token={token}", base_url=BASE).status_code == 403
    assert admitted(client, gate).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8050",
        "127.0.0.1.evil.example",
        "localhost.evil.example:8050",
        "evil.example#localhost",
        "127.0.0.2",
        "0.0.0.0:8050",
        "[::1]:8050",
        "localhost:8050:1",
        "localhost:",
        "",
        "127.0.0.1:8050\n",
    ],
)
def test_another_host_is_refused(client: FlaskClient, gate: Gate, host: str) -> None:
    answer = client.get(f"/?token={gate.token}", base_url=BASE, environ_overrides={"HTTP_HOST": host})
    assert answer.status_code == 403
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:1", "localhost", "localhost:65535"])
def test_this_host_is_served_whatever_port_was_forwarded(client: FlaskClient, gate: Gate, host: str) -> None:
    assert client.get(f"/?token={gate.token}", base_url=f"http://{host}").status_code == 200
    assert client.get("/", base_url=f"http://{host}").text == "the trace"


@pytest.mark.parametrize(
    ("origin", "status"),
    [(BASE, 200), ("http://127.0.0.1:9999", 403), ("https://evil.example", 403), ("null", 403)],
)
def test_another_site_cannot_send_requests(client: FlaskClient, gate: Gate, origin: str, status: int) -> None:
    admitted(client, gate)
    assert client.post("/", base_url=BASE, headers={"Origin": origin}).status_code == status


def test_every_answer_carries_the_headers(client: FlaskClient, gate: Gate) -> None:
    for answer in [client.get("/", base_url=BASE), admitted(client, gate), client.get("/", base_url=BASE)]:
        policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'self' 'sha256-abc'"
        assert policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in answer.headers
