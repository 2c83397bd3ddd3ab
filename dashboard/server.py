"""The web server: 127.0.0.1 only, one thread a request, until Ctrl-C."""

import signal
import socket
from collections.abc import Callable
from types import FrameType

from flask import Flask
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from ral_trace.tracer.errors import RalTraceError

ADDRESS = "127.0.0.1"


class PortTaken(RalTraceError):
    """The port that --port named cannot be bound."""


class _Quiet(WSGIRequestHandler):
    """Logs no requests: their URLs hold tokens, and the terminal is the person's."""

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


def bind(application: Flask, port: int) -> BaseWSGIServer:
    """A server that listens, but does not answer yet; port 0 takes a free one. Raises PortTaken."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with listening:  # werkzeug takes a duplicate; binding itself, it prints and exits where the port is in use
        try:
            listening.bind((ADDRESS, port))
            listening.listen()
        except OSError as error:
            remedy = "give another one with --port, or leave it out for a free one"
            raise PortTaken(f"port {port}: {str(error.strerror).lower()}; {remedy}") from error
        return make_server(ADDRESS, port, application, threaded=True, request_handler=_Quiet, fd=listening.fileno())


def serve(server: BaseWSGIServer, ready: Callable[[], None]) -> None:
    """Calls `ready`, then answers until Ctrl-C, or SIGTERM: the trace must be closed and its spill folder removed.

    SIGINT too has our handler, because a program that a script starts in the background has it ignored.
    """
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ready()
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        server.server_close()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
