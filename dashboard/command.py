"""`ral-trace dashboard`: opens a trace, prints a URL, answers until Ctrl-C."""

import os
import webbrowser
from pathlib import Path

import click

from ral_trace.tracer.reading import newest_trace, open_trace

_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Without one of these a browser would open in the terminal itself, or not at all."""


@click.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path, readable=False))
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1; a free one by default.")
@click.option("--no-browser", is_flag=True, help="Print the URL only.")
def dashboard(trace: Path | None, port: int, no_browser: bool) -> None:
    """Shows a trace in the browser. TRACE is the newest one here when none is named.

    The URL that it prints holds a token; whoever has it can read the trace. Ctrl-C ends it.
    """
    # Imported here: `ral-trace --help` loads every command, and Dash takes half a second.
    from ral_trace.dashboard.answers import Answers
    from ral_trace.dashboard.app import make_app, prefetch
    from ral_trace.dashboard.gate import Gate
    from ral_trace.dashboard.server import ADDRESS, bind, serve

    path = trace or newest_trace(Path.cwd())
    gate = Gate()
    with open_trace(path) as opened, Answers(opened) as answers:
        server = bind(make_app(answers, gate).server, port)

        def announce() -> None:
            url = f"http://{ADDRESS}:{server.port}/?token="
            click.echo(f"{path}: {url}{gate.token}\nCtrl-C ends it.")
            prefetch(answers)
            if not no_browser and any(name in os.environ for name in _SCREENS):
                webbrowser.open(url + gate.single_use())

        serve(server, announce)
