"""The collector's socket: requests of any kind, clients that stop in the middle, and nobody waits for them."""

import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ral_trace.tracer import control
from ral_trace.tracer.control import ControlServer, Message, Work, ask
from ral_trace.tracer.errors import RalTraceError


def prepare(asked: Message) -> Work:
    match asked:
        case {"do": "echo", "what": what}:
            return lambda: {"said": what}
        case {"do": "fail"}:
            raise RalTraceError("not in the mood")
        case {"do": "fail later"}:
            return fail
        case {"do": "much"}:
            return lambda: {"much": "x" * (4 << 20)}
    raise RalTraceError("the collector does not know that")


def fail() -> Message:
    raise RalTraceError("not today")


@contextmanager
def serving(folder: Path) -> Iterator[ControlServer]:
    """A collector that does nothing else."""
    server = ControlServer(folder, prepare)
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            server.serve()
            time.sleep(0.001)
        server.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield server
    finally:
        ended.set()
        thread.join(timeout=30)
        assert not thread.is_alive(), "somebody keeps the collector waiting"


def refuse_one(listener: socket.socket) -> None:
    listener.accept()[0].close()


def connected(folder: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    connection.connect(str(folder / control.SOCKET))
    return connection


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ral-test-", dir="/dev/shm") as made:
        yield Path(made)


def test_answers_and_refusals(folder: Path) -> None:
    with serving(folder):
        assert (folder / control.SOCKET).stat().st_mode & 0o777 == 0o600
        assert ask(folder, do="echo", what=[1, None, "ü\n"]) == {"said": [1, None, "ü\n"]}
        for asked, words in [({"do": "fail"}, "mood"), ({"do": "fail later"}, "today"), ({"what": 1}, "know")]:
            with pytest.raises(RalTraceError, match=words):
                ask(folder, **asked)
        assert len(ask(folder, do="much")["much"]) == 4 << 20


@pytest.mark.parametrize("line", [b"\n", b"nonsense\n", b"[1]\n", b"17\n", b"\xff\xfe\n", b"[" * 5000 + b"\n"])
def test_what_is_no_request_gets_an_error(folder: Path, line: bytes) -> None:
    with serving(folder), connected(folder) as connection:
        connection.sendall(line)
        with connection.makefile("rb") as stream:
            assert "error" in json.loads(stream.readline())
        assert ask(folder, do="echo", what=1) == {"said": 1}


def test_clients_that_stop_in_the_middle_hold_nobody_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "REQUEST_S", 0.3)
    monkeypatch.setattr(control, "ANSWER_S", 0.3)
    with serving(folder):
        silent = connected(folder)
        gone = connected(folder)
        gone.sendall(b'{"do": "ec')
        gone.close()
        deaf = connected(folder)  # asks for more than the socket takes, and never reads it
        deaf.sendall(b'{"do": "much"}\n')
        endless = connected(folder)
        assert ask(folder, do="echo", what=1) == {"said": 1}
        with pytest.raises(OSError, match=r"pipe|reset"):
            endless.sendall(b"x" * (1 << 27))
        assert silent.recv(1) == b""
    # And at its end it waits for none of them.
    for connection in (silent, deaf, endless):
        connection.close()


def test_many_at_once(folder: Path) -> None:
    with serving(folder):
        answers: list[Message] = []
        threads = [
            threading.Thread(target=lambda n=n: answers.append(ask(folder, timeout_s=30, do="echo", what=n)))
            for n in range(40)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(answer["said"] for answer in answers) == list(range(40))


def test_a_collector_that_is_not_there_is_said(folder: Path) -> None:
    with pytest.raises(RalTraceError, match="does not answer"):
        ask(folder, do="echo", what=1)
    with pytest.raises(RalTraceError, match="does not answer"):
        ask(folder / "nowhere", do="echo", what=1)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / control.SOCKET))
    listener.listen(1)
    thread = threading.Thread(target=refuse_one, args=(listener,))
    thread.start()
    with pytest.raises(RalTraceError, match=r"ended before|does not answer"):
        ask(folder, timeout_s=10, do="echo", what=1)
    thread.join()
    listener.close()


def test_a_folder_may_have_a_long_name(folder: Path) -> None:
    """Longer than the 107 bytes of a socket's path."""
    deep = folder / ("d" * 150)
    deep.mkdir()
    with serving(deep):
        assert ask(deep, do="echo", what="far") == {"said": "far"}
    assert [path.name for path in deep.iterdir()] == [control.SOCKET]
