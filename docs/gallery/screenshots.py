"""Pictures of a report for the documentation, in a real browser.

    python docs/gallery/screenshots.py docs/gallery/questions.html docs/images/report

Needs playwright, chromium (LAYERSCOPE_CHROMIUM or in the path) and pillow.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path
from typing import Any

_SEEN = 24  # of 255: a visible change of color


def save(page: Any, path: Path) -> None:
    """A well-packed PNG."""
    from PIL import Image, ImageChops

    page.wait_for_timeout(500)  # what was scrolled to is painted in parts
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    fewer = image.quantize(256, dither=Image.Dither.NONE)
    # a palette takes a third of the space, but may turn a thin line's green into blue
    changed = ImageChops.difference(image, fewer.convert("RGB")).convert("L").histogram()
    image = fewer if sum(changed[_SEEN:]) == 0 else image
    image.save(path, optimize=True)


def main(source: Path, prefix: str) -> None:
    """The top of a report, and its map with a text picked."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("LAYERSCOPE_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1280, "height": 1020}).new_page()
        page.goto(source.resolve().as_uri())
        page.wait_for_selector("#map[data-ready]")
        page.wait_for_timeout(1200)
        save(page, Path(f"{prefix}-top.png"))
        page.locator("#map .items button").first.click()
        page.evaluate(
            "() => document.querySelector('#map .mapped').scrollIntoView({ behavior: 'instant' })"
        )
        save(page, Path(f"{prefix}-map.png"))
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
