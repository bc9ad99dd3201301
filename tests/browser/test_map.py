"""The map of texts in a real browser: slider, keys, pointer, search, colors, readings, sizes and
hostile texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerscope.report.page import write_report
from tests.browser.conftest import Open, Opened
from tests.report.synthetic import synthetic_improvement, synthetic_map, synthetic_run

pytestmark = pytest.mark.browser

EVIL = "<script>window.hacked=1</script><img src=x onerror='window.hacked=2'>\u202e\x1b[31m\x00\u2028${7*7}"
# How much ink is on the canvas, and where its middle is.
INK = """() => {
    const canvas = document.querySelector('#map canvas'), pen = canvas.getContext('2d');
    const { data, width } = pen.getImageData(0, 0, canvas.width, canvas.height);
    let n = 0, sum = 0;
    for (let i = 0; i < data.length / 4; i++) if (data[4 * i + 3]) {
        n++;
        sum += data[4 * i] * 7 + data[4 * i + 2] + (i % width) * Math.floor(i / width);
    }
    return [n, sum];
}"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = synthetic_improvement()
    run._map = synthetic_map()
    return write_report([run, synthetic_run()], tmp_path_factory.mktemp("map") / "report.html")


def start(open_page: Open, path: Path, *given: int, **more: str) -> Opened:
    opened = open_page(path, *given, **more)
    opened.page.wait_for_selector("#map[data-ready]")
    opened.page.emulate_media(color_scheme=more.get("scheme", "light"), reduced_motion="reduce")
    opened.settle()
    return opened


def layer(opened: Opened) -> str:
    return str(opened.page.locator("#map output").inner_text())


def test_a_map_shows_all_of_it_without_errors_or_requests(open_page: Open, page_file: Path) -> None:
    opened = start(open_page, page_file)
    assert opened.errors == []
    assert opened.requests == [page_file.as_uri()]
    assert opened.texts("#map h2") == ["Every text as a point"]
    assert "60 of 180 texts, drawn at random" in opened.texts("#map .lede")[0]
    assert layer(opened) == "layer 4 of 6, chosen"
    assert opened.page.evaluate(INK)[0] > 50
    assert "Trustworthiness of this picture: 0.99" in opened.texts("#map .trust")[0]
    assert "below 0.9: layer 0." in opened.texts("#map .trust")[0]
    top = "() => document.querySelector('#%s').getBoundingClientRect().top"
    assert opened.page.evaluate(top % "map") < opened.page.evaluate(top % "chosen")


def test_the_slider_moves_by_keys_drag_and_play(open_page: Open, page_file: Path) -> None:
    opened = start(open_page, page_file)
    page, slider = opened.page, opened.page.locator("#map input[type=range]")
    seen = [page.evaluate(INK)]
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert layer(opened) == "layer 3 of 6"
    assert slider.get_attribute("aria-valuetext") == "layer 3 of 6"
    opened.settle()
    seen.append(page.evaluate(INK))
    page.keyboard.press("Home")
    assert layer(opened) == "layer 1 of 6"
    opened.settle()
    seen.append(page.evaluate(INK))
    assert len({tuple(one) for one in seen}) == 3
    box = slider.bounding_box()
    page.mouse.move(box["x"] + 9, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.up()
    assert layer(opened) == "layer 3 of 6"
    play = page.locator("#map .play")
    play.click()
    assert "Pause" in play.inner_text()
    page.wait_for_function(
        "() => document.querySelector('#map output').textContent.startsWith('layer 6 of 6')"
    )
    page.wait_for_function(
        "() => document.querySelector('#map .play').textContent.includes('Play')"
    )
    play.click()  # again from the start, and stopped
    play.click()
    assert "Play" in play.inner_text()


def test_hover_and_click_tell_the_text_and_its_true_neighbors(
    open_page: Open, page_file: Path
) -> None:
    made = synthetic_map()
    opened = start(open_page, page_file)
    page, canvas = opened.page, opened.page.locator("#map canvas")
    box = canvas.bounding_box()
    # walk over the canvas until a point answers
    for step in range(400):
        page.mouse.move(
            box["x"] + box["width"] * (0.1 + 0.8 * (step % 20) / 20),
            box["y"] + box["height"] * (0.1 + 0.8 * step / 400),
        )
        if page.locator("#map .tip").is_visible():
            break
    told = page.locator("#map .tip .said").inner_text()
    assert made.texts is not None
    number = made.texts.index(told)
    page.mouse.down()
    page.mouse.up()
    assert page.locator("#map .picked").inner_text() == told
    near = made.readings[1].near
    assert opened.texts("#map ol.items .said") == [made.texts[j] for j in near[4, number]]
    page.locator("#map input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    assert opened.texts("#map ol.items .said") == [made.texts[j] for j in near[5, number]]
    assert page.locator("#map figure rect.cell").count() == 10 * 6  # which neighbors stay
    strip = page.locator("#map figure svg[role=img]").first
    at = strip.bounding_box()
    page.mouse.click(at["x"] + at["width"] - 8, at["y"] + 30)
    assert layer(opened) == "layer 6 of 6"
    page.locator("#map ol.items button").nth(1).click()
    assert page.locator("#map .picked").inner_text() != told
    page.get_by_text("Let go").click()
    assert page.locator("#map .picked").count() == 0


def test_the_keyboard_alone_reaches_everything(open_page: Open, page_file: Path) -> None:
    opened = start(open_page, page_file)
    page = opened.page
    canvas = page.locator("#map canvas")
    assert "Map of 60 texts at layer 4" in str(canvas.get_attribute("aria-label"))
    canvas.focus()
    page.keyboard.press("ArrowRight")
    told = [page.locator("#map .tip .said").inner_text()]
    for key in ("ArrowLeft", "ArrowUp", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
        told.append(page.locator("#map .tip .said").inner_text())
    assert len(set(told)) > 1
    shown = told[-1]
    page.wait_for_function(
        "(text) => document.getElementById('said').textContent === text", arg=shown
    )
    page.keyboard.press("Enter")
    assert page.locator("#map .picked").inner_text() == shown
    page.keyboard.press("Escape")
    assert page.locator("#map .picked").count() == 0
    names = page.evaluate("""() => [...document.querySelectorAll('#map input, #map select, #map button, #map canvas')]
        .filter((n) => n.offsetParent && n.tabIndex >= 0)
        .map((n) => n.getAttribute('aria-label') || n.textContent.trim() || (n.labels && n.labels[0].textContent) || '')""")
    assert len(names) > 8
    assert all(names)


def test_a_map_that_cannot_be_trusted_is_left_out(open_page: Open, tmp_path: Path) -> None:
    made = synthetic_map()
    readings = [replace(r, trust=np.full_like(r.trust, 0.85)) for r in made.readings]
    opened = start(open_page, replace(made, readings=readings).save(tmp_path / "map.html"))
    assert opened.errors == []
    assert "the trustworthiness of its picture is 0.85" in opened.texts("#map .lede")[0]
    assert opened.page.locator("#map canvas").count() == 0


def test_on_paper_the_map_says_its_layer_and_reading(open_page: Open, page_file: Path) -> None:
    opened = start(open_page, page_file)
    opened.page.emulate_media(media="print")
    told = opened.page.locator("#map output")
    assert told.is_visible()
    assert told.evaluate("(e) => getComputedStyle(e, '::before').content") == '"better, "'
    assert not opened.page.locator("#map .play, #map input[type=range]").first.is_visible()
    assert opened.page.locator("#map canvas").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_printed_page_has_the_map_and_is_white(
    open_page: Open, page_file: Path, scheme: str
) -> None:
    """Chromium's own PDF: pages of A4, the map as a picture among them, and dark ink on white
    whatever the screen shows."""
    opened = start(open_page, page_file, 1280, 900, scheme=scheme)
    opened.page.evaluate("""() => addEventListener('beforeprint', () => {
        window.printed = getComputedStyle(document.documentElement).getPropertyValue('--panel').trim();
    })""")
    paper = opened.page.pdf(format="A4", print_background=True)
    assert opened.page.evaluate("() => window.printed") in ("#fff", "#ffffff", "white")
    assert paper.startswith(b"%PDF")
    assert 2 <= paper.count(b"/Type /Page\n") <= 30
    assert paper.count(b"/Subtype /Image") >= 1


def test_search_ignores_accents_and_ways_to_write_them(open_page: Open, tmp_path: Path) -> None:
    texts = [f"{word} {i}" for i in range(30) for word in ("Gro\u0308ße", "klein")]
    opened = start(open_page, synthetic_map(texts=texts).save(tmp_path / "map.html"))
    for query in ("größe", "GROSSE".replace("SS", "ß"), "große"):
        opened.page.locator("#map-search").fill(query)
        assert opened.texts("#map .side h3")[0].startswith("30 texts")


def test_search_and_legend_point_out(open_page: Open, page_file: Path) -> None:
    opened = start(open_page, page_file)
    page = opened.page
    whole = page.evaluate(INK)
    page.locator("#map-search").fill("Money")
    opened.settle()
    count = sum("money" in text for text in synthetic_map().texts or ())
    assert count
    assert opened.texts("#map .side h3") == [f"{count} texts with “money”"]
    assert page.evaluate(INK) != whole
    assert all("money" in text for text in opened.texts("#map .items .said"))
    page.locator("#map-search").fill("")
    opened.settle()
    assert page.evaluate(INK) == whole
    page.locator("#map .inks button").first.click()
    opened.settle()
    assert page.locator("#map .inks button").first.get_attribute("aria-pressed") == "true"
    assert page.evaluate(INK) != whole


def test_colors_and_readings_change(open_page: Open, page_file: Path) -> None:
    opened = start(open_page, page_file)
    page = opened.page
    colors = page.locator("#map [data-switch=coloring] select")
    assert opened.texts("#map [data-switch=coloring] option") == [
        "topic",
        "stars",
        "cluster",
        "none",
    ]
    assert len(opened.texts("#map .inks button")) == 5
    seen = [page.evaluate(INK)[1]]
    for name in ("stars", "cluster", ""):
        colors.select_option(name)
        opened.settle()
        seen.append(page.evaluate(INK)[1])
    assert len(set(seen)) == 4
    page.locator("#map [data-switch=reading] label", has_text="baseline").click()
    assert layer(opened) == "layer 6 of 6, used before"
    page.locator("#map input[type=range]").focus()
    page.keyboard.press("Home")
    page.locator("#map [data-switch=reading] label", has_text="better").click()
    assert layer(opened) == "layer 1 of 6"


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "dark")])
def test_it_fits_a_phone_and_the_dark(
    open_page: Open, page_file: Path, width: int, scheme: str
) -> None:
    opened = start(open_page, page_file, width, scheme=scheme)
    page = opened.page
    page.locator("#map .items button").first.click()
    assert opened.errors == []
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    assert page.evaluate(INK)[0] > 50
    assert page.locator("#map .picked").bounding_box()["height"] > 15


def test_hostile_texts_and_names_are_shown_as_text(open_page: Open, tmp_path: Path) -> None:
    texts = [f"{EVIL} {i}" for i in range(59)] + ["x" * 1_000_000]
    run = synthetic_run()
    run._map = synthetic_map(
        texts=texts, columns={EVIL: [EVIL if i % 2 else "b" for i in range(60)]}
    )
    opened = start(open_page, write_report([run], tmp_path / "report.html"))
    page = opened.page
    assert opened.errors == []
    page.locator("#map [data-switch=coloring] select").select_option(index=2)
    page.locator("#map-search").fill("<script>")
    assert len(opened.texts("#map .items .said")) == 12
    page.locator("#map .items button").first.click()
    assert (
        page.locator("#map .picked").inner_text().startswith("<script>window.hacked=1</script><img")
    )
    assert any("<script>" in text for text in opened.texts("#map .inks button"))
    assert page.evaluate("() => window.hacked") is None
    assert page.locator("#map img").count() == 0
    for sign in "\u202e\x1b\x00":
        assert sign not in page.locator("#map .picked").inner_text()


def test_without_texts_the_page_holds_none(open_page: Open, tmp_path: Path) -> None:
    run = synthetic_improvement()
    run._map = synthetic_map()
    path = write_report([run], tmp_path / "report.html", texts=False)
    written = path.read_text(encoding="utf-8")
    assert "text 0 about" not in written
    assert "after 0.1" not in written  # the table of neighbors
    opened = start(open_page, path)
    assert opened.errors == []
    assert opened.page.locator("#map-search").count() == 0
    opened.page.locator("#map .items button").first.click()
    assert opened.texts("#map .picked")[0].startswith("text ")


def test_a_map_alone_is_a_page_and_a_notebook_shows_it(open_page: Open, tmp_path: Path) -> None:
    made = synthetic_map(readings=("baseline",))
    opened = start(open_page, made.save(tmp_path / "map.html"))
    assert opened.errors == []
    assert opened.texts("h1") == ["60 texts at the layers of small"]
    assert opened.page.locator("[data-switch=reading]").count() == 0
    frame = made._repr_html_()
    assert frame.startswith("<iframe")
    assert "<script" not in frame
    host = tmp_path / "notebook.html"
    host.write_text(
        f"<!doctype html><html data-ready=yes><body>{frame}</body></html>", encoding="utf-8"
    )
    opened.go(host)
    opened.page.frame_locator("iframe").locator("#map[data-ready]").wait_for()


def test_a_hundred_layers_fit(open_page: Open, tmp_path: Path) -> None:
    made = synthetic_map(60, 100, ("baseline",))
    opened = start(open_page, made.save(tmp_path / "map.html"), 390)
    opened.page.locator("#map .items button").first.click()
    assert opened.page.locator("#map figure rect.cell").count() in (70, 80)
    assert opened.page.evaluate("() => document.documentElement.scrollWidth") == 390
    assert layer(opened) == "layer 100 of 100"
