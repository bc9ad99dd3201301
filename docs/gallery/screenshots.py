"""Pictures of a report for the documentation, in a real browser.

    python docs/gallery/screenshots.py docs/gallery/smollm2-and-minilm.html docs/images/report

Needs playwright, chromium (LAYERSCOPE_CHROMIUM or in the path) and pillow.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from pathlib import Path
from typing import Any

TO = """(selector) => {
    const bar = document.querySelector(".controls").offsetHeight + 20;
    const top = document.querySelector(selector).getBoundingClientRect().top + scrollY - bar;
    scrollTo({ top, behavior: "instant" });
}"""

_SEEN = 24  # of 255: a visible change of color


def save(page: Any, path: Path, **options: Any) -> None:
    """A well-packed PNG."""
    from PIL import Image, ImageChops

    page.wait_for_timeout(500)  # what was scrolled to is painted in parts
    image = Image.open(io.BytesIO(page.screenshot(**options))).convert("RGB")
    fewer = image.quantize(256, dither=Image.Dither.NONE)
    # a palette takes a third of the space, but may turn a thin line's green into blue
    changed = ImageChops.difference(image, fewer.convert("RGB")).convert("L").histogram()
    image = fewer if sum(changed[_SEEN:]) == 0 else image
    image.save(path, optimize=True)
    print(path, f"{path.stat().st_size / 1000:.0f} kB")


def point(page: Any, selector: str, across: float, down: float) -> None:
    """Put the pointer at a share of an element's width and height."""
    box = page.locator(selector).first.bounding_box()
    page.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    page.wait_for_timeout(150)


def main(source: Path, prefix: str) -> None:
    """Every view of one report."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("LAYERSCOPE_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])

        def window(width: int, height: int, scheme: str = "light") -> Any:
            page = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            ).new_page()
            page.goto(source.resolve().as_uri())
            page.wait_for_selector("html[data-ready]")
            page.wait_for_timeout(1200)  # the charts out of view are drawn too
            return page

        if "questions" in source.name:  # of this one, the map
            for name, width, height, scheme in (
                ("map", 1280, 1020, "light"),
                ("map-dark", 1280, 1020, "dark"),
                ("map-phone", 390, 860, "light"),
            ):
                page = window(width, height, scheme)
                page.evaluate(
                    "() => document.querySelector('#map').scrollIntoView({ behavior: 'instant' })"
                )
                page.locator("#map .items button").first.click()
                page.evaluate(
                    "() => document.querySelector('#map .mapped').scrollIntoView({ behavior: 'instant' })"
                )
                page.wait_for_timeout(600)
                save(page, Path(f"{prefix}-{name}.png"))
            browser.close()
            return
        page = window(1280, 860)
        save(page, Path(f"{prefix}-top.png"))
        if page.locator("#curves").is_visible():
            page.evaluate(TO, "#curves")
            point(page, "#grid svg.chart", 0.45, 0.4)
            save(page, Path(f"{prefix}-curves.png"))
        if page.locator("#scores").is_visible():
            page.evaluate(TO, "#scores")
            point(page, "#heat rect.cell:nth-of-type(6)", 0.5, 0.5)
            page.evaluate(TO, "#scores")
            save(page, Path(f"{prefix}-scores.png"))
            page.evaluate(TO, "#heat-title")
            save(page, Path(f"{prefix}-heat.png"))
        if page.locator("#relation").is_visible():
            page.mouse.move(2, 2)
            page.evaluate(TO, "#relation")
            save(page, Path(f"{prefix}-relation.png"))
        page.mouse.move(2, 2)
        page.evaluate(TO, "#tables")
        save(page, Path(f"{prefix}-tables.png"))
        dark = window(1280, 860, "dark")
        dark.evaluate(TO, "#curves")
        save(dark, Path(f"{prefix}-dark.png"))
        phone = window(390, 860)
        phone.evaluate(TO, "#curves")
        save(phone, Path(f"{prefix}-phone.png"))
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
