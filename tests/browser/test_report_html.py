"""The HTML report in a real browser: nothing out of a trace runs, nothing is requested, and what is shown equals the
analyses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from ral_trace.analysis.report import html
from ral_trace.analysis.report.sections import Report, collect
from ral_trace.tracer.reading import open_trace
from tests.analysis.cases import hostile
from tests.synthetic import training

pytestmark = pytest.mark.browser


class Watched:
    """A page of the report, with all that went wrong and all that was requested."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page, self.trouble, self.requests = page, [], []
        page.on("console", lambda message: self.trouble.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("dialog", lambda dialog: self.trouble.append(dialog.message))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]", timeout=60_000)

    def check(self, path: Path) -> None:
        assert self.trouble == []
        assert [url for url in self.requests if url != path.as_uri() and not url.startswith(("data:", "blob:"))] == []
        assert self.page.evaluate("window.__xss") is None


@pytest.fixture(scope="module")
def untrusted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    return written(tmp_path_factory.mktemp("hostile"), None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("trained")
    return written(folder, training(folder / "train.duckdb", launches=6_000, steps=30))


def written(folder: Path, path: Path | None) -> tuple[Path, Report]:
    with hostile().open(folder) if path is None else open_trace(path) as trace:
        found = collect(trace)
    page = folder / "report.html"
    page.write_text(html.render(found), encoding="utf-8")
    return page, found


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    page = chromium.new_page(viewport={"width": 1360, "height": 1000}, color_scheme="light")
    yield page
    page.close()


HOVER = """async () => {
    const chart = document.getElementById("chart-timeline");
    const texts = [];
    for (const [curveNumber, trace] of chart.data.entries()) {
        for (const pointNumber of trace.x.keys()) {
            Plotly.Fx.hover(chart, [{curveNumber, pointNumber}]);
            await new Promise((resolve) => setTimeout(resolve, 70));  // Plotly answers at most every 50 ms
            texts.push(chart.querySelector(".hoverlayer").textContent);
        }
    }
    return texts;
}"""
"""Shows every hover text of the timeline, one after the other, and returns them."""


def test_names_are_text_and_nothing_else(page: Page, untrusted: tuple[Path, Report]):
    path, found = untrusted
    watched = Watched(page, path)
    page.click("#theme")
    page.wait_for_timeout(300)
    shown = page.locator("[data-analysis=hotspots] td.t").all_inner_texts()
    assert '<b>bold</b><a href="javascript:window.__xss=1">click</a>' in shown
    assert "\\u202egnirts\\u2028" in shown
    assert len(shown) == len(found.rows("hotspots"))
    assert page.locator("main img, main a[href^=javascript], svg a, main b b").count() == 0
    watched.check(path)


def test_markup_in_hover_text_is_shown_as_it_is(page: Page, untrusted: tuple[Path, Report]):
    path, _ = untrusted
    watched = Watched(page, path)
    texts = page.evaluate(HOVER)
    assert any('<img src=x onerror="window.__xss=1">' in text for text in texts)
    assert any("</script><script>window.__xss=1</script>" in text for text in texts)
    watched.check(path)


def test_what_is_shown_equals_the_analyses(page: Page, trained: tuple[Path, Report]):
    path, found = trained
    watched = Watched(page, path)
    for device in ("ral:0", "ral:1"):
        table = page.locator("[data-analysis=hotspots]", has=page.locator(".chip", has_text=device))
        names = table.locator("tbody tr td:first-child").all_inner_texts()
        totals = table.locator("tbody tr td:nth-child(2)").evaluate_all(
            "cells => cells.map(cell => Number(cell.dataset.n))"
        )
        rows = [row for row in found.rows("hotspots") if row["device"] == device]
        assert (names, totals) == ([row["name"] for row in rows], [row["total_ns"] for row in rows])
    drawn = page.evaluate("document.getElementById('chart-timeline').data.map(trace => trace.x.length)")
    lanes = [(row["device"], row["lane"]) for row in found.rows("timeline")]
    assert drawn == [lanes.count(lane) for lane in dict.fromkeys(lanes)]
    peaks = page.evaluate("document.getElementById('chart-memory_curve').data.map(trace => Math.max(...trace.y))")
    assert [round(peak * 1048576) for peak in peaks] == [row["peak_bytes"] for row in found.rows("memory_peak")]
    steps = page.evaluate("document.getElementById('chart-steps').data[0].y")
    assert [round(ms * 1e6) for ms in steps] == [row["dur_ns"] for row in found.rows("steps")]
    watched.check(path)


def test_tables_are_searched_and_sorted(page: Page, trained: tuple[Path, Report]):
    path, _ = trained
    watched = Watched(page, path)
    table = page.locator("[data-analysis=steps]")
    visible = table.locator("tbody tr:not([hidden])")
    assert visible.count() == 30
    table.locator("input").fill("no such row")
    assert visible.count() == 0
    table.locator("input").fill("")
    table.locator("th", has_text="duration").click()
    numbers = table.locator("tbody tr td:nth-child(3)").evaluate_all(
        "cells => cells.map(cell => Number(cell.dataset.n))"
    )
    assert numbers == sorted(numbers, reverse=True)
    watched.check(path)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_and_can_be_switched(chromium: Browser, trained: tuple[Path, Report], scheme: str):
    path, _ = trained
    page = chromium.new_page(color_scheme=scheme)
    watched = Watched(page, path)
    back = "getComputedStyle(document.body).backgroundColor"
    first = page.evaluate(back)
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.click("#theme")
    assert page.evaluate(back) != first
    watched.check(path)
    page.close()


def test_a_narrow_window_does_not_scroll_sideways(chromium: Browser, trained: tuple[Path, Report]):
    path, _ = trained
    page = chromium.new_page(viewport={"width": 420, "height": 800})
    watched = Watched(page, path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    watched.check(path)
    page.close()


def test_one_search_goes_over_all_tables(page: Page, trained: tuple[Path, Report]):
    path, found = trained
    watched = Watched(page, path)
    page.fill("#search", "aten::cumsum")
    visible = page.locator(".question tbody tr:not([hidden])")
    assert visible.count() > 0
    assert all("aten::cumsum" in text for text in visible.all_inner_texts())
    assert page.locator("#question-hotspots").is_visible()
    assert page.locator("#question-steps").is_hidden()
    page.fill("#search", "")
    assert page.locator("#question-steps").is_visible()
    assert page.locator("[data-analysis=steps] tbody tr:not([hidden])").count() == len(found.rows("steps"))
    watched.check(path)


def test_paper_is_light_and_shows_what_was_folded(chromium: Browser, trained: tuple[Path, Report]):
    path, _ = trained
    page = chromium.new_page(color_scheme="dark")
    watched = Watched(page, path)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.pdf()[:5] == b"%PDF-"
    watched.check(path)
    page.close()
