"""The dashboard in a real browser, over a million events: all that is shown equals the analyses and stays here."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route

from ral_trace.analysis import Analysis, Rows
from ral_trace.analysis.fallbacks import FALLBACKS
from ral_trace.analysis.hotspots import HOTSPOTS, KERNELS
from ral_trace.analysis.leaks import LEAKS
from ral_trace.analysis.lifetimes import LIFETIMES
from ral_trace.analysis.memory import MEMORY_CURVE, MEMORY_PEAK
from ral_trace.analysis.peak_holders import PEAK_HOLDERS
from ral_trace.analysis.steps import STEPS
from ral_trace.analysis.summary import DEVICES, SUMMARY
from ral_trace.analysis.trust import LEDGER, QUALITY
from ral_trace.analysis.units import human
from ral_trace.dashboard.answers import Answers
from ral_trace.dashboard.app import make_app, prefetch
from ral_trace.dashboard.gate import Gate
from ral_trace.dashboard.server import ADDRESS, bind
from ral_trace.tracer.reading import Trace, open_trace
from tests.analysis.cases import hostile
from tests.synthetic import training

pytestmark = pytest.mark.browser

LAUNCHES = 190_000  # 1,011,532 events
READY = {"/": "#fallbacks .ag-row", "/hotspots": "#hotspots .ag-row", "/memory": "#lifetimes .ag-row"}
DEVICES_GRID = "#panel-devices .grid"


@contextmanager
def served(trace: Trace) -> Iterator[tuple[str, str]]:
    """The dashboard over `trace`: its base URL and its token."""
    gate = Gate()
    with Answers(trace) as answers:
        server = bind(make_app(answers, gate).server, 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        prefetch(answers).join()
        yield f"http://{ADDRESS}:{server.port}", gate.token
        server.shutdown()
        server.server_close()


class Watched:
    """A browser context that holds the cookie, one page of it, and all that went wrong or left this machine."""

    def __init__(self, browser: Browser, base: str, token: str) -> None:
        self.base, self.trouble, self.elsewhere = base, [], []
        self.context: BrowserContext = browser.new_context(
            viewport={"width": 1600, "height": 1000}, color_scheme="light"
        )
        self.page: Page = self.context.new_page()
        self.page.on("console", lambda message: self.trouble.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("dialog", lambda dialog: self.trouble.append(dialog.message))
        self.page.on("request", lambda request: self._requested(request.url))
        self.page.on("websocket", lambda socket: self.trouble.append(socket.url))
        self.page.goto(f"{base}/?token={token}")
        self.page.wait_for_url(f"{base}/")
        self.page.wait_for_selector("#ledger")

    def _requested(self, url: str) -> None:
        if urlsplit(url).scheme not in ("data", "blob") and not url.startswith(self.base + "/"):
            self.elsewhere.append(url)

    def check(self) -> None:
        assert self.trouble == []
        assert self.elsewhere == []
        assert self.page.evaluate("window.__xss") is None

    def open(self, url: str) -> None:
        self.page.goto(self.base + url)
        self.page.wait_for_selector(READY[urlsplit(url).path])

    def until_url(self, url: str) -> None:
        assert self.until(lambda: self.page.url, self.base + url) == self.base + url

    def follow(self, text: str, within: str) -> None:
        """Clicks a link and waits until it is what is shown."""
        link = self.page.locator(f"{within} a").get_by_text(text, exact=True)
        link.click()
        self.page.locator(f"{within} a[aria-current]").get_by_text(text, exact=True).wait_for()

    def choose(self, name: str, text: str) -> None:
        self.follow(text, f".filter:has(> span:text-is('{name}'))")

    def grid(self, selector: str) -> list[dict[str, str]]:
        """The cells that are drawn, a dictionary a row."""
        return self.page.evaluate(
            """selector => [...document.querySelectorAll(selector + ' .ag-center-cols-container .ag-row')]
                .sort((a, b) => a.getAttribute('row-index') - b.getAttribute('row-index'))
                .map(row => [...row.querySelectorAll('.ag-cell')])
                .map(cells => Object.fromEntries(cells.map(cell => [cell.getAttribute('col-id'), cell.innerText])))""",
            selector,
        )

    def until_grid(self, selector: str, expected: list[dict[str, str]]) -> None:
        """Grids draw a frame or two after their rows came."""
        assert self.until(lambda: self.grid(selector), expected) == expected

    def until_series(self, name: str, count: int) -> list[dict[str, Any]]:
        """The series of a figure once it has so many."""
        assert self.until(lambda: len(self.figure(name)), count) == count
        return self.figure(name)

    def until(self, read: Callable[[], Any], expected: Any) -> Any:
        """What is read, once it is as expected. (Playwright's own waiting evaluates text, which the policy forbids.)"""
        deadline = time.monotonic() + 10
        while (found := read()) != expected and time.monotonic() < deadline:
            self.page.wait_for_timeout(30)
        return found

    def table(self, selector: str) -> list[list[str]]:
        return self.page.evaluate(
            """selector => [...document.querySelectorAll(selector + ' tbody tr')]
                .map(row => [...row.cells].map(cell => cell.innerText))""",
            selector,
        )

    def figure(self, name: str) -> list[dict[str, Any]]:
        """The series that Plotly drew."""
        return self.page.evaluate(
            """name => document.querySelector(`#${name} .js-plotly-plot`).data
                .map(({name, x, y, hovertext}) => ({name, x, y, hovertext}))""",
            name,
        )

    def labels(self, name: str) -> list[str]:
        return self.page.evaluate(
            "name => document.querySelector(`#${name} .js-plotly-plot`).layout.yaxis.ticktext", name
        )


def as_shown(analysis: Analysis, rows: Rows, zero_ns: int = 0) -> list[dict[str, str]]:
    """What a grid must show of an analysis' rows: every column that is known in one of them."""
    columns = [column for column in analysis.columns if any(row[column.name] is not None for row in rows)]

    def shown(value: Any, unit: str) -> str:
        return "" if value is None and unit == "text" else human(value, unit, zero_ns=zero_ns)

    return [{column.name: shown(row[column.name], column.unit) for column in columns} for row in rows]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training(tmp_path_factory.mktemp("dashboard") / "million.duckdb", launches=LAUNCHES, steps=40)


@pytest.fixture(scope="module")
def truth(path: Path) -> Iterator[Trace]:
    """The same trace opened anew: what the analyses say of it without the dashboard."""
    with open_trace(path) as trace:
        yield trace


@pytest.fixture(scope="module")
def served_million(path: Path) -> Iterator[tuple[str, str]]:
    with open_trace(path) as trace, served(trace) as address:
        yield address


@pytest.fixture(scope="module")
def million(chromium: Browser, served_million: tuple[str, str]) -> Iterator[Watched]:
    watched = Watched(chromium, *served_million)
    yield watched
    watched.context.close()


def test_the_overview_equals_the_analyses(million: Watched, truth: Trace) -> None:
    million.open("/")
    [about], [ledger] = SUMMARY.run(truth), LEDGER.run(truth)
    assert about["events"] > 1_000_000
    shown = {
        label: value
        for value, label in million.page.evaluate(
            "[...document.querySelectorAll('.fact')].map(fact => [...fact.children].map(part => part.innerText))"
        )
    }
    assert shown["events in the trace"] == f"{about['events']:,}"
    assert shown["from first to last"] == human(about["span_ns"], "ns")
    for name in ("written", "received", "dropped", "lost"):
        assert shown[name] == f"{ledger[name]:,}"
    counts = [f"{ledger[name]:,}" for name in ("written", "received", "dropped", "lost", "shed")]
    assert million.table("#ledger") == [[str(ledger["pid"]), ledger["name"], *counts, ledger["ended_how"]]]
    [known] = QUALITY.run(truth)
    shown = [known["source"], str(known["pid"]), known["what"], str(known["count"]), known["reading"]]
    assert million.table("#quality") == [shown]
    assert million.grid(DEVICES_GRID) == as_shown(DEVICES, DEVICES.run(truth))
    assert million.grid("#fallbacks") == as_shown(FALLBACKS, FALLBACKS.run(truth))
    [steps] = million.figure("step-times")
    found = STEPS.run(truth)
    assert steps["x"] == [row["step"] for row in found]
    assert steps["y"] == pytest.approx([row["dur_ns"] / 1e9 for row in found])
    million.check()


def test_a_click_on_a_device_filters_and_has_a_url(million: Watched, truth: Trace) -> None:
    million.open("/")
    before = million.figure("hottest")
    assert [series["name"] for series in before] == ["ral:0", "ral:1"]
    million.page.evaluate("document.querySelector('#fallbacks .ag-root-wrapper').kept = true")
    million.page.click(f"{DEVICES_GRID} .ag-row[row-id='ral:1'] [col-id=name]")
    million.until_url("/?device=ral:1")
    [bars] = million.until_series("hottest", 1)
    rows = HOTSPOTS.run(truth, device="ral:1")
    assert million.labels("hottest") == [row["name"] for row in rows]
    assert bars["x"] == pytest.approx([row["total_ns"] / 1e9 for row in rows])
    assert million.page.locator(f"{DEVICES_GRID} .ag-row-selected").get_attribute("row-id") == "ral:1"
    assert million.page.evaluate("document.querySelector('#fallbacks .ag-root-wrapper').kept")
    # The filter goes with the person to other pages, and back.
    million.follow("Hotspots", "#tabs")
    million.until_url("/hotspots?device=ral:1")
    million.until_grid("#hotspots", as_shown(HOTSPOTS, rows))
    million.page.go_back()
    million.page.wait_for_selector(f"{DEVICES_GRID} .ag-row-selected[row-id='ral:1']")
    million.page.click(f"{DEVICES_GRID} .ag-row[row-id='ral:1'] [col-id=name]")
    million.until_url("/")
    assert million.until_series("hottest", 2) == before
    million.check()


def test_hotspots_equal_the_analysis_for_every_filter(million: Watched, truth: Trace) -> None:
    million.open("/hotspots")
    million.until_grid("#hotspots", as_shown(HOTSPOTS, HOTSPOTS.run(truth)))
    million.choose("Vendor", "sim")
    million.until_grid("#hotspots", as_shown(HOTSPOTS, HOTSPOTS.run(truth, device="ral:1")))
    million.choose("By", "kernel")
    million.until_grid("#hotspots", as_shown(KERNELS, KERNELS.run(truth, device="ral:1")))
    assert urlsplit(million.page.url).query == "vendor=sim&by=kernel"
    million.choose("Vendor", "all")
    million.choose("Device", "ral:0")
    million.until_grid("#hotspots", as_shown(KERNELS, KERNELS.run(truth, device="ral:0")))
    [bars] = million.until_series("hot-names", 1)
    assert bars["x"] == pytest.approx([row["total_ns"] / 1e9 for row in KERNELS.run(truth, device="ral:0")])
    million.choose("Device", "host (ops)")
    million.until_grid("#hotspots", as_shown(HOTSPOTS, HOTSPOTS.run(truth, device="host")))
    million.check()


def test_memory_equals_the_analyses(million: Watched, truth: Trace) -> None:
    million.open("/memory")
    zero = SUMMARY.run(truth)[0]["started_ns"]
    peaks = MEMORY_PEAK.run(truth)
    for device in ("all", "ral:1"):
        million.choose("Device", device)
        of = {} if device == "all" else {"device": device}
        for name, analysis in (("peak-holders", PEAK_HOLDERS), ("leaks", LEAKS), ("lifetimes", LIFETIMES)):
            million.until_grid(f"#{name}", as_shown(analysis, analysis.run(truth, **of)))
        rows = as_shown(MEMORY_PEAK, MEMORY_PEAK.run(truth, **of), zero)
        expected = [list(row.values()) for row in rows]
        assert million.until(lambda: million.table("#memory-peak"), expected) == expected
    line, peak = million.until_series("memory-curve", 2)
    curve = MEMORY_CURVE.run(truth, device="ral:1")
    assert line["x"] == pytest.approx([(row["ts_ns"] - zero) / 1e9 for row in curve])
    assert line["y"] == pytest.approx([row["allocated_bytes"] / 2**20 for row in curve])
    assert peak["y"] == pytest.approx([peaks[1]["peak_bytes"] / 2**20])
    million.check()


@pytest.mark.parametrize("url", ["/hotspots?device=ral:1&by=kernel", "/memory?vendor=host"])
def test_a_url_restores_its_view(million: Watched, url: str) -> None:
    view = "[...document.querySelectorAll('[aria-current]')].map(link => link.innerText)"
    ready = READY[urlsplit(url).path]
    million.open(url)
    shown, cells = million.page.evaluate(view), million.grid(ready.partition(" ")[0])
    million.open("/")
    assert million.page.evaluate(view) != shown
    million.open(url)
    assert million.page.url == million.base + url
    assert million.page.evaluate(view) == shown
    assert million.grid(ready.partition(" ")[0]) == cells
    million.check()


def test_an_answer_that_is_out_of_date_changes_nothing(million: Watched, truth: Trace) -> None:
    """Two clicks, and the answer to the first comes last."""
    million.open("/memory")
    held: list[Route] = []

    def hold_first(route: Route) -> None:
        if '"search"' in (route.request.post_data or "") and not held:
            held.append(route)
        else:
            route.continue_()

    million.page.route("**/_dash-update-component*", hold_first)
    links = million.page.locator(".filter:has(> span:text-is('Device')) a")
    links.get_by_text("ral:1", exact=True).click()
    million.until_url("/memory?device=ral:1")
    links.get_by_text("ral:0", exact=True).click()
    million.until_grid("#lifetimes", as_shown(LIFETIMES, LIFETIMES.run(truth, device="ral:0")))
    assert len(held) == 1
    held[0].continue_()
    million.page.wait_for_timeout(500)
    for name, analysis in (("peak-holders", PEAK_HOLDERS), ("leaks", LEAKS), ("lifetimes", LIFETIMES)):
        million.until_grid(f"#{name}", as_shown(analysis, analysis.run(truth, device="ral:0")))
    million.page.unroute_all()
    million.check()


def test_no_button_sends_a_figure_away(million: Watched) -> None:
    """Plotly's own choice of buttons has one that uploads the figure to a server of theirs."""
    million.open("/")
    million.page.hover("#hottest .js-plotly-plot")
    buttons = "[...document.querySelectorAll('.modebar-btn')].map(button => button.getAttribute('data-title'))"
    assert set(million.page.evaluate(buttons)) == {"Zoom", "Pan", "Reset axes", "Download plot as a PNG"}
    servers = "[...document.querySelectorAll('.js-plotly-plot')].map(figure => figure._context.plotlyServerURL)"
    assert million.page.evaluate(servers) == ["", ""]
    million.check()


def test_dark_and_light(million: Watched) -> None:
    million.open("/")
    colour = "getComputedStyle(document.querySelector('#fallbacks .ag-root-wrapper')).backgroundColor"
    light = million.page.evaluate(colour)
    million.page.click("button[aria-label='Light or dark']")
    assert million.page.get_attribute("html", "data-mantine-color-scheme") == "dark"
    assert million.page.evaluate(colour) != light
    million.page.reload()
    million.page.wait_for_selector(READY["/"])
    assert million.page.get_attribute("html", "data-mantine-color-scheme") == "dark"
    million.page.click("button[aria-label='Light or dark']")
    million.check()


def test_names_out_of_a_trace_stay_text(chromium: Browser, tmp_path: Path) -> None:
    with hostile().open(tmp_path) as trace, served(trace) as address:
        watched = Watched(chromium, *address)
        for url, ready in READY.items():
            watched.open(url)
            name = f"{ready} [col-id={'op' if url == '/memory' else 'name'}]"
            while not watched.page.locator(".ag-tooltip").is_visible():  # a grid that is still drawn anew forgets it
                watched.page.mouse.move(0, 0)
                watched.page.hover(name)
                watched.page.wait_for_timeout(3_000)
            watched.page.locator(".bars .point path").first.hover(force=True)
            watched.page.wait_for_selector(".hoverlayer .hovertext")
            made = "document.querySelectorAll('#page img, #page script, .ag-tooltip *, .hoverlayer a').length"
            assert watched.page.evaluate(made) == 0
            links = watched.page.evaluate("[...document.querySelectorAll('a')].map(link => String(link.href))")
            assert [link for link in links if not link.startswith(watched.base)] == []
        names = [row["name"] for row in HOTSPOTS.run(trace)]
        watched.open("/hotspots")
        assert [row["name"] for row in watched.grid("#hotspots")] == [human(name, "text") for name in names]
        # A name that is markup filters as any other.
        device = DEVICES.run(trace)[1]["device"]
        watched.open("/")
        watched.page.locator(f"{DEVICES_GRID} .ag-row").nth(1).locator("[col-id=name]").click()
        [bars] = watched.until_series("hottest", 1)
        assert bars["x"] == pytest.approx([row["total_ns"] / 1e9 for row in HOTSPOTS.run(trace, device=device)])
        watched.follow("Hotspots", "#tabs")
        watched.until_grid("#hotspots", as_shown(HOTSPOTS, HOTSPOTS.run(trace, device=device)))
        watched.check()
        watched.context.close()
