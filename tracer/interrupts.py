"""Ctrl-C ends what DuckDB does, at once.

Python runs the handler of a signal in its main thread, between two bytecodes: not as long as DuckDB computes there.
But the interpreter tells of a signal at once, through a descriptor
(https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd). A thread that waits at its other end interrupts
the connections that are in use; what they did ends with an exception, and Python's handler runs.
"""

import os
import select
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

AGAIN_S = 0.02
"""DuckDB forgets an interruption when the next query begins, so that once would not do."""
END = 0
"""No signal has this number."""

_in_use: weakref.WeakSet[duckdb.DuckDBPyConnection] = weakref.WeakSet()
_changing = threading.Lock()
"""Held while connections are interrupted: none of them may be closed meanwhile."""


@contextmanager
def interruptible(connection: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
    """Gives the connection, which Ctrl-C interrupts, and closes it at the end."""
    with _changing:
        _in_use.add(connection)
    try:
        yield connection
    finally:
        with _changing:
            _in_use.remove(connection)
        connection.close()


@contextmanager
def ending_queries() -> Iterator[None]:
    """While it is open, a Ctrl-C that raises KeyboardInterrupt ends what the `interruptible` connections do, too.

    Only in the main thread. A Ctrl-C that has another handler, as in a recording, ends no query.
    """
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    before = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    waiting = threading.Thread(target=_wait, args=(told,), name="Ctrl-C", daemon=True)
    # It inherits the mask: a signal that the main thread holds back must not come in through this one.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    waiting.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(tell, bytes([END]))
        waiting.join()
        os.close(tell)
        os.close(told)


def _wait(told: int) -> None:
    pause = None
    while True:
        ready, _, _ = select.select([told], [], [], pause)
        numbers = os.read(told, select.PIPE_BUF) if ready else b""
        if END in numbers:
            return
        if signal.SIGINT in numbers and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            pause = AGAIN_S
        if pause is not None:
            with _changing:
                for connection in _in_use:
                    connection.interrupt()
