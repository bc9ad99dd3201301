"""One real browser for all tests of the page. Without playwright or chromium they are skipped, and
say why."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from layerscope.report.page import write_report
from tests.report.synthetic import READOUTS, synthetic_evaluation, synthetic_run

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    given = os.environ.get("LAYERSCOPE_CHROMIUM")
    if given:
        return given
    found = [path for name in NAMES if (path := shutil.which(name))]
    return (
        found[0] if found else "/usr/bin/chromium" if Path("/usr/bin/chromium").exists() else None
    )


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    path = find_chromium()
    if path is None:
        pytest.skip("no chromium: apt-get install chromium, or set LAYERSCOPE_CHROMIUM to its path")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page with a record of what went wrong and what it asked for."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._heard = {
            "console": lambda message: (
                self.errors.append(message.text) if message.type in ("error", "warning") else None
            ),
            "pageerror": lambda error: self.errors.append(str(error)),
            "request": lambda request: self.requests.append(request.url),
        }
        for event, note in self._heard.items():
            page.on(event, note)

    def leave(self) -> None:
        """Hand the page on: nothing is recorded any more, and nothing of it goes on running."""
        for event, note in self._heard.items():
            self.page.remove_listener(event, note)
        self.page.evaluate("() => { sessionStorage.clear(); localStorage.clear(); }")
        self.page.goto("about:blank")

    def go(self, path: Path) -> Opened:
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]")
        return self

    def settle(self) -> None:
        """Let observers run, and wait for the charts that are in view."""
        self.page.evaluate(
            "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        self.page.wait_for_function(
            """() => [...document.querySelectorAll('.plot[role=group]')].every((plot) =>
                plot.dataset.drawn || plot.getBoundingClientRect().top > innerHeight)"""
        )

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_inner_texts()]


Open = Callable[..., Opened]


def new_page(browser: Any) -> Any:
    # a report has no pixels that a test looks at: drawn at a quarter, they cost a sixteenth
    context = browser.new_context(accept_downloads=True, device_scale_factor=0.25)
    context.set_default_timeout(30_000)
    return context.new_page()


@pytest.fixture(scope="session")
def shared_page(browser: Any) -> Any:
    """The window that most tests open their files in, one after the other: a new one takes a
    process of its own."""
    return new_page(browser)


@pytest.fixture
def open_page(browser: Any, shared_page: Any) -> Iterator[Open]:
    """Opens a file. A tall window has every chart in view. A test of what the browser stores asks
    for a window of its own."""
    opened: list[Opened] = []
    contexts = []

    def start(
        path: Path, width: int = 1280, height: int = 5200, scheme: str = "light", own: bool = False
    ) -> Opened:
        page = new_page(browser) if own else shared_page
        if own:
            contexts.append(page.context)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme, media="screen")
        now = Opened(page)
        opened.append(now)
        now.go(path)
        now.settle()
        return now

    yield start
    for one in opened:
        one.leave()
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def full_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, three profiles, two evaluations: every part of the page is there."""
    runs = [
        synthetic_run("small", "llama", 6),
        synthetic_run("small", "llama", 6, final_norm="raw"),
        synthetic_run("other", "bert", 4, valley=False),
        synthetic_evaluation("small", "llama", 6, ["STSBenchmark", "Topics", "Ranking"], READOUTS),
        synthetic_evaluation("other", "bert", 4, ["STSBenchmark", "Topics"], READOUTS[:1], best=4),
    ]
    return write_report(runs, tmp_path_factory.mktemp("browser") / "report.html")
