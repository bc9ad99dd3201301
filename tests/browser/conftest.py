"""One real browser for all tests of the page. Without playwright or chromium they are skipped, and say why."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from layerscope.report import write_report
from tests.report.synthetic import READOUTS, synthetic_evaluation, synthetic_run

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium() -> str | None:
    given = os.environ.get("LAYERSCOPE_CHROMIUM")
    if given:
        return given
    found = [path for name in NAMES if (path := shutil.which(name))]
    return found[0] if found else "/usr/bin/chromium" if Path("/usr/bin/chromium").exists() else None


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
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
        page.on("console", lambda message: self.errors.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def go(self, path: Path) -> Opened:
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-ready]")
        return self

    def settle(self) -> None:
        """Let observers run: charts are drawn when they come into view."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_inner_texts()]


Open = Callable[..., Opened]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens a file in a window of its own. A tall window has every chart in view."""
    contexts = []

    def start(path: Path, width: int = 1280, height: int = 5200, scheme: str = "light") -> Opened:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True)
        context.set_default_timeout(30_000)
        contexts.append(context)
        opened = Opened(context.new_page()).go(path)
        opened.settle()
        return opened

    yield start
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
