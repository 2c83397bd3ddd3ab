"""Asking a collector while it records: a socket in its session's folder, which only its user may enter.

A request is one line of JSON, the answer another; then the connection ends. Work that takes long happens in a thread,
so that nobody's question makes the collector miss events.
"""

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ral_trace.tracer.errors import RalTraceError

SOCKET = "control"
MOST_REQUEST_BYTES = 1 << 20
REQUEST_S = 2.0
"""For a client to finish its line."""
ANSWER_S = 10.0
"""For a client to take a piece of the answer."""

Message = dict[str, Any]
Work = Callable[[], Message]


class ControlServer:
    """Answers requests. `prepare` runs in the collector's own thread and gives the rest of the work, which runs in
    another one and returns the answer. Both may raise RalTraceError: its words are the answer then.
    """

    def __init__(self, folder: Path, prepare: Callable[[Message], Work]) -> None:
        self._prepare = prepare
        self._working: list[threading.Thread] = []
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        with _short_path(folder) as short:
            self._listener.bind(f"{short}/{SOCKET}")
        (folder / SOCKET).chmod(0o600)
        self._listener.listen(128)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def serve(self) -> None:
        """Takes what requests have come. Never waits."""
        for key, _ in self._selector.select(0):
            if key.data is None:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._selector.register(connection, selectors.EVENT_READ, _Request(connection))
            else:
                self._go_on(key.data)
        waiting = [key.data for key in self._selector.get_map().values() if key.data is not None]
        for request in waiting:
            if time.monotonic() > request.until:
                self._forget(request)
        self._working = [thread for thread in self._working if thread.is_alive()]

    def close(self) -> None:
        """Waits for the answers that are under way."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                self._forget(key.data)
        self._selector.close()
        self._listener.close()
        for thread in self._working:
            thread.join()

    def _go_on(self, request: "_Request") -> None:
        try:
            piece = request.connection.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            piece = b""
        request.text += piece
        if b"\n" in request.text:
            self._selector.unregister(request.connection)
            request.connection.settimeout(ANSWER_S)
            self._answer(request)
        elif not piece or len(request.text) > MOST_REQUEST_BYTES:
            self._forget(request)

    def _forget(self, request: "_Request") -> None:
        self._selector.unregister(request.connection)
        request.connection.close()

    def _answer(self, request: "_Request") -> None:
        try:
            asked = json.loads(request.text.partition(b"\n")[0])
            if not isinstance(asked, dict):
                raise RalTraceError("a request is a JSON object")
            work = self._prepare(asked)
        except (ValueError, RecursionError, RalTraceError) as error:
            work = _saying(error)
        thread = threading.Thread(target=_converse, args=(request.connection, work), daemon=True)
        self._working.append(thread)
        thread.start()


class _Request:
    """A client that has not finished its line."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.text = b""
        self.until = time.monotonic() + REQUEST_S


def _saying(error: Exception) -> Work:
    return lambda: {"error": str(error)}


def _converse(connection: socket.socket, work: Work) -> None:
    with connection, contextlib.suppress(OSError):  # the client may be gone
        try:
            answer = work()
        except RalTraceError as error:
            answer = {"error": str(error)}
        connection.sendall(json.dumps(answer, default=str).encode() + b"\n")


def ask(folder: Path, timeout_s: float | None = None, **request: object) -> Message:
    """Sends a request to the collector of a session's folder and returns its answer.

    Raises RalTraceError with the collector's own words, or where it does not answer.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, _short_path(folder) as short:
            connection.settimeout(timeout_s)
            connection.connect(f"{short}/{SOCKET}")
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
    except OSError as error:
        raise RalTraceError(f"the collector does not answer ({error}); is it still recording?") from error
    if not line:
        raise RalTraceError("the collector ended before it answered")
    answer: Message = json.loads(line)
    if "error" in answer:
        raise RalTraceError(str(answer["error"]))
    return answer


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Another path of a folder: that of a socket may have 107 bytes."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
