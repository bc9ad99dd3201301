"""The map on the page: how large, how soon, how many frames per second while it plays; and how soon
a question is answered.

    python benchmarks/map_page.py --out benchmarks/results/map_page.md

Needs playwright and chromium. Texts are drawn around five topics that come apart over 31 layers,
under two readings, as on a page of `improve`. The question is read by `smollm2-135m` at all 31
layers, plainly and with the one-word prompt, and compared with 1,000 vectors a layer; those are
drawn at random, which takes as long as any.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.browser.conftest import find_chromium
from tests.report.synthetic import synthetic_improvement, synthetic_map

from layerscope.capture import expand_sites
from layerscope.core.readout import Readout
from layerscope.core.templates import get_template
from layerscope.evaluation.encode import TextEncoder
from layerscope.models import load
from layerscope.report.asking import _Side
from layerscope.report.write import write_report

BLOCKS = 30
# Frames while playing: how many come in three seconds, and how long the page works on one.
PLAY = """async () => {
    document.querySelector('#map .play').click();
    const start = performance.now(), gaps = [];
    let last = start;
    await new Promise((done) => requestAnimationFrame(function next(now) {
        gaps.push(now - last);
        last = now;
        if (now - start < 3000) requestAnimationFrame(next); else done();
    }));
    gaps.sort((a, b) => a - b);
    return [gaps.length / 3, 1000 / gaps[Math.floor(gaps.length / 2)]];
}"""


def page_rows() -> list[str]:
    """Size, opening and playing for 1,000 and 2,000 texts."""
    from playwright.sync_api import sync_playwright

    rows = [
        "| texts × layers × readings | page, MB | map ready after, ms | frames per second | by the median frame |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        for n in (1000, 2000):
            run = synthetic_improvement("small", BLOCKS, 20)
            run._map = synthetic_map(n, BLOCKS)
            path = write_report([run], Path(folder) / f"{n}.html")
            ready = []
            for _ in range(5):
                page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
                page.goto(path.as_uri())
                page.wait_for_selector("#map[data-ready]")
                ready.append(
                    page.evaluate(
                        "() => performance.getEntriesByName('layerscope-map')[0].startTime"
                    )
                )
                if len(ready) < 5:
                    page.context.close()
            mean, median = page.evaluate(PLAY)
            size = path.stat().st_size / 1e6
            rows.append(
                f"| {n:,} × {BLOCKS + 1} × 2 | {size:.2f} | {statistics.median(ready):.0f} | {mean:.0f} | {median:.0f} |"
            )
        browser.close()
    return rows


def ask_row(texts: int = 1000) -> str:
    """Seconds from a sentence to its neighbors at every layer under two readings."""
    model = load("smollm2-135m")
    sites = expand_sites(None, model.anatomy)
    sides = []
    for readout in (Readout(), Readout("one-word", "last", "raw", "keep", "corpus")):
        encoder = TextEncoder(model, get_template(readout.template), sites, readout.kinds, 256)
        kind = readout.kinds[0]

        def encode(text: str, encoder: TextEncoder = encoder, kind: str = kind) -> np.ndarray:
            return encoder.run(encoder.read([text]), lambda n: None)[0][kind][:, 0]

        vectors = (
            np.random.default_rng(0)
            .normal(size=(len(sites), texts, model.width))
            .astype(np.float32)
        )
        sides.append(_Side.of(range(len(sites)), vectors, encode, readout.centering == "corpus"))
    taken = []
    for i in range(8):
        start, worked = time.perf_counter(), time.process_time()
        for side in sides:
            side.nearest(f"How do I reset the card that I lost {i} days ago?")
        taken.append((time.perf_counter() - start, time.process_time() - worked))
    seconds, worked = (statistics.median(column) for column in zip(*taken[1:], strict=True))
    told = (
        f"{seconds:.2f} s, of which {worked:.2f} s of computing on one or two cores (medians of 7)"
    )
    return f"A question: {told}, `smollm2-135m`, {texts:,} texts, {len(sites)} layers, 2 readings."


def main() -> None:
    """Print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    head = [
        "# The map on the page",
        "",
        f"`python benchmarks/map_page.py`, 2 cores, chromium without a GPU, load {os.getloadavg()[0]:.1f}.",
        "",
    ]
    text = "\n".join([*head, *page_rows(), "", ask_row()]) + "\n"
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
