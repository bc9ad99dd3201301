"""How large the report's page is and how soon it can be used: 32 tasks × 49 layers × 4 readouts, in
a real browser.

    python benchmarks/report_page.py

Needs playwright and chromium. `interactive` is when the page's script has run to its end, on the
page's own clock.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.browser.conftest import find_chromium
from tests.report.synthetic import large_pair

from layerscope.report.write import write_report

LIMIT_MB, LIMIT_MS = 3.0, 2000.0
IDLE = "() => new Promise((done) => requestIdleCallback(() => done(performance.now()), { timeout: 20000 }))"


def main() -> None:
    """Write the page, open it a few times, print what it took."""
    from playwright.sync_api import sync_playwright

    runs = large_pair()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        start = time.perf_counter()
        path = write_report(runs, Path(folder) / "report.html")
        print(f"written in {time.perf_counter() - start:.1f} s")
        size = path.stat().st_size / 1e6
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        for name, width, height in (("desktop", 1280, 900), ("phone", 390, 844)):
            ready, idle = [], []
            for _ in range(5):
                page = browser.new_context(viewport={"width": width, "height": height}).new_page()
                page.goto(path.as_uri())
                page.wait_for_selector("html[data-ready]")
                ready.append(
                    page.evaluate(
                        "() => performance.getEntriesByName('layerscope-ready')[0].startTime"
                    )
                )
                idle.append(page.evaluate(IDLE))
                page.context.close()
            median, quiet = statistics.median(ready), statistics.median(idle)
            verdict = "ok" if size < LIMIT_MB and median < LIMIT_MS else "over the limit"
            times = f"interactive after {median:.0f} ms, idle after {quiet:.0f} ms (limit {LIMIT_MS:.0f})"
            print(f"{name:8} {size:.2f} MB (limit {LIMIT_MB:.0f}), {times}: {verdict}")
        browser.close()


if __name__ == "__main__":
    main()
