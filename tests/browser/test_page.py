"""The report's page in a real browser."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from layerscope.core.readout import Readout
from layerscope.report.write import write_report
from tests.browser.conftest import Open, Opened
from tests.report.synthetic import (
    READOUTS,
    large_pair,
    synthetic_evaluation,
    synthetic_improvement,
    synthetic_probe,
    synthetic_run,
)

pytestmark = pytest.mark.browser

EVERYTHING = """() => ['grid', 'score-chart', 'heat', 'heat-says', 'table']
    .map((id) => document.getElementById(id).innerHTML).join('|')"""
SWITCHES = """() => [...document.querySelectorAll('[data-switch]')].filter((box) => !box.hidden)
    .map((box) => box.parentElement.id + ' ' + box.dataset.switch)"""
TICK_4 = """() => {
    const ticks = [...document.querySelector('#grid svg.chart').querySelectorAll('text')];
    const box = ticks.find((n) => n.textContent === '4' && n.getAttribute('text-anchor') === 'middle').getBoundingClientRect();
    return box.x + box.width / 2;
}"""
EVIL = "<script>window.hacked=1</script><img src=x onerror='window.hacked=2'>&amp;\u2028${7*7}"


def charts(opened: Opened) -> list[str]:
    return opened.texts("#grid figcaption .name")


def body(opened: Opened) -> list[list[str]]:
    return opened.page.evaluate(
        "() => [...document.querySelectorAll('#table tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )


def head(opened: Opened) -> list[str]:
    return opened.texts("#table thead th")


def test_probes_have_a_section(open_page: Open, tmp_path: Path) -> None:
    path = write_report([synthetic_probe()], tmp_path / "report.html")
    opened = open_page(path)
    assert opened.errors == []
    assert opened.requests == [path.as_uri()]
    assert opened.texts("#blocks h2") == ["Probes of small on digits"]
    assert opened.page.locator("[data-kind=probe] path.line").count() == 4
    assert head(opened)[:3] == ["probe", "metric", "layer"]


def test_an_improvement_comes_first_with_its_neighbors(open_page: Open, tmp_path: Path) -> None:
    path = write_report([synthetic_run(), synthetic_improvement()], tmp_path / "report.html")
    opened = open_page(path)
    assert opened.errors == []
    assert opened.requests == [path.as_uri()]
    assert opened.texts("#chosen h2") == ["A better readout: small on reviews.csv"]
    assert opened.texts("#blocks h2") == []
    rows = opened.page.evaluate(
        "() => [...document.querySelectorAll('#chosen tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    assert rows[:2] == [
        ["text 0", "1", "before 0.1", "after 0.1"],
        ["", "2", "before 0.2", "after 0.2"],
    ]
    assert rows[3][0] == "text 1"
    lead = "Reading layer 4 of 6 (one-word prompt, centered, no norm) finds the right neighbors 1.5 × as often as today"
    assert opened.texts("#lead") == [f"{lead}, at 1.40 × today's computation"]
    assert opened.texts("#points li")[0].endswith(
        "of a text's 10 nearest, 2.0 are found today, 3.0 now."
    )
    assert opened.page.evaluate(
        "() => document.querySelector('#chosen').getBoundingClientRect().top"
    ) < opened.page.evaluate("() => document.querySelector('#curves').getBoundingClientRect().top")


SPILLED = """() => [...document.querySelectorAll('.picture svg.chart')].flatMap((chart) => {
    const box = chart.getBoundingClientRect();
    return [...chart.querySelectorAll('rect.cell, text, .mark')].map((node) => [node.getBoundingClientRect(), node.textContent])
        .filter(([at]) => at.left < box.left - 8 || at.right > box.right + 8).map(([at, text]) => text || 'cell');
})"""
OVERLAPPING = """() => [...document.querySelectorAll('.picture svg.chart')].flatMap((chart) => {
    const texts = [...chart.querySelectorAll('text:not(.value)')].map((node) => [node.getBoundingClientRect(), node.textContent]);
    const shared = (a, b, from, to) => Math.min(a[to], b[to]) - Math.max(a[from], b[from]) > 2;
    return texts.flatMap(([a, one], i) => texts.slice(i + 1)
        .filter(([b]) => shared(a, b, 'left', 'right') && shared(a, b, 'top', 'bottom'))
        .map(([, other]) => one + ' | ' + other));
})"""


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_choice_is_a_picture_at_any_size(
    open_page: Open, tmp_path: Path, width: int, scheme: str
) -> None:
    large = synthetic_improvement("large", 100, 70, ("one-word", "step-by-step"))
    opened = open_page(write_report([large], tmp_path / "report.html"), width, scheme=scheme)
    assert opened.errors == []
    page = opened.page
    heat, costs = page.locator(".picture svg.chart").all()
    rows, layers = large.table["readout"].nunique(), 101
    assert rows == 21
    assert heat.locator("rect.cell").count() == rows * layers
    assert costs.locator(".candidate").count() == rows * layers
    assert costs.locator("path.front").count() == 1
    for chart in (heat, costs):
        assert [node.get_attribute("data-mark") for node in chart.locator(".mark").all()] == [
            "today",
            "chosen",
        ]
    tied = int(large.table["tied"].sum())
    assert (heat.locator("rect.tied").count(), costs.locator(".candidate.tied").count()) == (
        tied,
        tied,
    )
    chosen = "chosen: layer 70, one-word prompt, centered, no norm (0.400)"
    assert opened.texts(".picture .keys li").count(chosen) == 2
    assert page.evaluate(SPILLED) == []
    assert page.evaluate(OVERLAPPING) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") == width


def test_a_picture_of_a_choice_is_read_by_keys_and_pointer(open_page: Open, tmp_path: Path) -> None:
    run = synthetic_improvement()
    opened = open_page(write_report([run], tmp_path / "report.html"))
    page, (heat, costs) = opened.page, opened.page.locator(".picture svg.chart").all()
    assert (heat.get_attribute("role"), heat.get_attribute("tabindex")) == ("img", "0")
    assert "Chosen: layer 4 · one-word prompt, centered, no norm · 0.400" in str(
        heat.get_attribute("aria-label")
    )
    heat.focus()
    page.keyboard.press("ArrowRight")
    told = page.locator(".picture .heat-read").first
    assert told.inner_text() == (
        "layer 4 · one-word prompt, centered, no norm · 0.400 [0.380, 0.420] · 1.40 × today's computation · chosen · "
        "not told from the best"
    )
    page.keyboard.press("ArrowRight")
    assert told.inner_text().startswith("layer 5 · one-word prompt, centered, no norm")
    page.keyboard.press("ArrowDown")
    assert told.inner_text().startswith("layer 5 · head on plain text")
    page.wait_for_function(
        "() => document.getElementById('said').textContent.startsWith('layer 5 · head on plain text')"
    )
    costs.focus()
    assert told.inner_text() == ""
    page.keyboard.press("ArrowRight")
    along = page.locator(".picture .heat-read").last
    assert along.inner_text().startswith("layer 0 · ")  # the cheapest of the front
    for _ in range(40):
        page.keyboard.press("ArrowRight")
    assert along.inner_text().startswith("layer 4 · one-word prompt, centered, no norm")  # its best
    box = costs.locator("[data-mark=today]").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "· 1.00 × today's computation · today" in along.inner_text()


def test_what_cannot_be_chosen_is_not_on_the_front(open_page: Open, tmp_path: Path) -> None:
    run = synthetic_improvement()
    run.table["eligible"] = ~run.table["readout"].str.startswith("plain/")
    opened = open_page(write_report([run], tmp_path / "report.html"))
    page = opened.page
    page.locator(".picture svg.chart").last.focus()
    page.keyboard.press("ArrowRight")
    assert "one-word prompt" in page.locator(".picture .heat-read").last.inner_text()
    assert "plain text, mean *" in page.locator(".picture svg.chart text").all_text_contents()
    assert "* cannot be chosen by this judge" in opened.texts(".picture .keys li")


@pytest.mark.parametrize("what", ["profile", "evaluation", "both", "full"])
def test_renders_without_errors_or_requests(
    open_page: Open, full_report: Path, tmp_path: Path, what: str
) -> None:
    run, scores = synthetic_run(), synthetic_evaluation()
    parts = {"profile": [run], "evaluation": [scores], "both": [run, scores]}
    path = full_report if what == "full" else write_report(parts[what], tmp_path / "report.html")
    opened = open_page(path)
    assert opened.errors == []
    assert opened.requests == [path.as_uri()]
    assert opened.page.locator("#curves").is_visible() == (what != "evaluation")
    assert opened.page.locator("#scores").is_visible() == (what != "profile")
    if what != "evaluation":
        assert opened.page.locator("#grid path.line").count() >= 8
        assert "Prompt entropy" in charts(opened)[0]
    if what != "profile":
        assert opened.page.locator("#heat rect.cell").count() > 0
    assert opened.page.locator("h1").inner_text()


def test_the_page_may_fetch_nothing(open_page: Open, full_report: Path) -> None:
    opened = open_page(full_report)
    refused = opened.page.evaluate(
        "() => fetch('http://127.0.0.1:9/').then(() => 'fetched', (error) => 'refused')"
    )
    assert refused == "refused"
    assert any("Content Security Policy" in error for error in opened.errors)


@pytest.mark.parametrize("most", [1, pytest.param(1000, marks=pytest.mark.slow)])
def test_every_switch_changes_what_is_shown(open_page: Open, full_report: Path, most: int) -> None:
    """Quickly: to the last of its other values. `slow`: to each of them."""
    opened = open_page(full_report)
    page = opened.page
    tried = []
    switches = page.evaluate(SWITCHES)
    for switch in switches:
        host, name = switch.split(" ")
        box = page.locator(f"#{host} [data-switch={name}]")
        values = box.locator("option, input").evaluate_all("(nodes) => nodes.map((n) => n.value)")
        before = page.evaluate(EVERYTHING)
        is_select = box.locator("select").count() == 1
        now = (
            box.locator("select").input_value()
            if is_select
            else box.locator("input:checked").input_value()
        )
        for value in [v for v in values if v != now][-most:]:
            if is_select:
                box.locator("select").select_option(value)
            else:
                box.locator(f"input[value={value}]").check(force=True)
            opened.settle()
            after = page.evaluate(EVERYTHING)
            assert after != before, f"{switch} = {value} changes nothing"
            before = after
            tried.append(f"{name}={value}")
        if is_select:
            box.locator("select").select_option(now)
        else:
            box.locator(f"input[value={now}]").check(force=True)
        opened.settle()
    names = {one.split("=")[0] for one in tried}
    assert names >= {
        "set",
        "norm",
        "sink",
        "finalNorm",
        "axis",
        "evaluation",
        "shade",
        "table",
        "readout",
    }
    for wanted in [
        "set=all",
        "sink=drop",
        "finalNorm=raw",
        "axis=layer",
        "evaluation=1",
        "shade=score",
    ]:
        assert wanted in tried
    if most > 1:
        assert {"norm=maxEntropy", "table=best"} <= set(tried)
    assert opened.errors == []


def test_runs_can_be_hidden_and_shown(open_page: Open, full_report: Path) -> None:
    opened = open_page(full_report)
    lines = opened.page.locator("#grid figure").first.locator("path.line")
    assert lines.count() == 6  # three runs, the sink kept and dropped
    button = opened.page.locator(".legend button").nth(2)
    button.click()
    assert lines.count() == 4
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert lines.count() == 6


def test_hover_shows_the_values_of_the_table_in_every_chart(
    open_page: Open, tmp_path: Path
) -> None:
    run = synthetic_run("one", "llama", 6)
    opened = open_page(write_report([run], tmp_path / "report.html"))
    page = opened.page
    assert page.locator("[data-switch=axis] input:checked").input_value() == "layer"
    chart = page.locator("#grid svg.chart").first
    box = chart.bounding_box()
    # the tick of layer 4, wherever the plot's margins are
    tick = page.evaluate(TICK_4)
    page.mouse.move(tick, box["y"] + box["height"] / 2)
    opened.settle()
    row = next(cells for cells in body(opened) if cells[0] == "4")
    by_column = dict(zip(head(opened), row, strict=True))
    assert by_column["site"] == "block.3"
    tip = opened.texts("#grid .tip td.v")
    assert tip == [by_column["Prompt entropy"], by_column["Prompt entropy, sink dropped"]]
    assert by_column["Prompt entropy"] == "3.960"
    shown = {}
    for figure in page.locator("#grid figure").all()[1:]:
        name = figure.locator(".name").evaluate("(n) => n.firstChild.textContent")
        shown[name] = figure.locator("text.value").all_text_contents()
        assert figure.locator(".where").inner_text() == "layer 4"
    assert len(shown) == 7
    for name, values in shown.items():
        wanted = [by_column[name]] + (
            [by_column[f"{name}, sink dropped"]] if f"{name}, sink dropped" in by_column else []
        )
        assert values == wanted
    page.mouse.move(2, 2)
    opened.settle()
    assert page.locator("#grid text.value").count() == 0


def test_heat_map_values_and_marks(open_page: Open, full_report: Path) -> None:
    opened = open_page(full_report)
    page = opened.page
    assert (
        page.locator("#heat rect.cell").count() == 4 * 7
    )  # three tasks and their mean, seven layers
    assert page.locator("#heat rect.tied").count() == 3
    assert page.locator("#heat rect.best").count() == 4
    assert (
        page.locator("#heat rect.mark").count() == 0
    )  # the chosen layer is chosen under another readout
    page.locator("[data-switch=readout] select").first.select_option(READOUTS[-1])
    opened.settle()
    assert page.locator("#heat rect.mark").count() == 1
    page.locator("[data-switch=readout] select").first.select_option(READOUTS[0])
    opened.settle()
    cell = page.locator("#heat rect.cell").nth(7 + 2)  # the first task at layer 2, its best
    cell.hover()
    opened.settle()
    text = page.locator(".heat-read").inner_text()
    assert (
        "STSBenchmark · layer 2 · 30.00 · +10.0 [+9.0, +11.0] over the last layer · tied with the best"
        in text
    )
    page.locator("[data-switch=table] select").select_option("scores")
    opened.settle()
    row = next(cells for cells in body(opened) if cells[0] == "2")
    assert row[1] == page.locator(".heat-read .score").inner_text() == "30.00"
    assert page.locator("#table tr.marked td").first.inner_text() == "2"


def test_the_chosen_layer_is_marked_in_every_view(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report).page
    for figure in page.locator("#grid figure").all():
        assert figure.locator("line.mark").count() == 2  # one per model
    assert page.locator("#score-chart line.mark").count() == 1
    assert page.locator("#table tr.marked").count() == 1


_TEXTS_THAT_COVER_EACH_OTHER = """() => [...document.querySelectorAll("#grid svg, #score-chart svg")].flatMap((chart) => {
  const boxes = [...chart.querySelectorAll("text.tag")].map((node) => [node.textContent, node.getBoundingClientRect()]);
  const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  return boxes.flatMap(([one, a], i) => boxes.slice(i + 1).filter(([, b]) => meet(a, b)).map(([other]) => one + " | " + other));
})"""


def test_marks_of_models_side_by_side_can_be_read(open_page: Open, tmp_path: Path) -> None:
    models = [("small", "llama", 6, 6), ("other", "bert", 4, 4)]  # both best at their last layer
    runs = [
        run
        for name, family, blocks, best in models
        for run in (
            synthetic_run(name, family, blocks, valley=False),
            synthetic_evaluation(
                name, family, blocks, ["STSBenchmark", "Topics"], READOUTS[:1], best=best
            ),
        )
    ]
    opened = open_page(write_report(runs, tmp_path / "report.html"))
    assert opened.page.evaluate(_TEXTS_THAT_COVER_EACH_OTHER) == []
    tag = opened.page.locator("#grid figure text.tag").first
    assert tag.text_content() in ("chosen 6, 4", "chosen 4, 6")


def test_notes_on_valleys_at_the_same_depth_can_be_read(open_page: Open, tmp_path: Path) -> None:
    runs = [
        synthetic_run(name, family, 6)
        for name, family in (("small", "llama"), ("other", "bert"), ("third", "gpt2"))
    ]
    opened = open_page(write_report(runs, tmp_path / "report.html"))
    assert opened.page.locator("#grid text.note").count() == 3
    assert opened.page.evaluate(_TEXTS_THAT_COVER_EACH_OTHER) == []


def test_tables_sort_and_download(open_page: Open, full_report: Path) -> None:
    opened = open_page(full_report)
    page = opened.page
    page.locator("[data-switch=table] select").select_option("metrics")
    opened.settle()
    button = page.locator("#table th button", has_text="Curvature").first
    button.click()
    column = head(opened).index("Curvature")
    values = [float(row[column].replace("−", "-")) for row in body(opened)]
    assert values == sorted(values)
    assert page.locator("#table th[aria-sort=ascending]").count() == 1
    page.locator("#table th button", has_text="Curvature").first.click()
    values = [float(row[column].replace("−", "-")) for row in body(opened)]
    assert values == sorted(values, reverse=True)
    for table in ["metrics", "best", "scores", "intervals"]:
        page.locator("[data-switch=table] select").select_option(table)
        opened.settle()
        more = page.locator("#table > button")
        if more.count():
            more.click()
        with page.expect_download() as waiting:
            page.locator("#csv").click()
        text = Path(waiting.value.path()).read_text(encoding="utf-8")
        assert waiting.value.suggested_filename.endswith(".csv")
        rows = list(csv.reader(io.StringIO(text)))
        assert rows[0] == head(opened)
        shown = body(opened)
        assert len(rows) - 1 == len(shown) > 0
        for given, cells in zip(rows[1:], shown, strict=True):
            for file, seen in zip(given, cells, strict=True):
                assert same(file, seen), (table, file, seen)


def same(file: str, seen: str) -> bool:
    """A cell of the file is the shown one, up to the digits that are shown."""
    if file == "":
        return seen in ("–", "")
    try:
        value, shown = float(file), float(seen.replace("−", "-").replace("+", ""))
    except ValueError:
        return file == seen
    digits = len(seen.split(".")[1]) if "." in seen and "e" not in seen else 0
    return abs(value - shown) <= 0.5001 * 10**-digits


def test_text_stays_text(open_page: Open, tmp_path: Path) -> None:
    run = synthetic_run(EVIL, "llama", 4)
    run.manifest["warnings"] = [EVIL]
    run.manifest["corpus"]["name"] = EVIL
    scores = synthetic_evaluation(
        EVIL, "llama", 4, [EVIL, "b"], [READOUTS[0], f"{EVIL} {{text}}/last/raw/keep/none"]
    )
    path = write_report([run, scores], tmp_path / "report.html")
    opened = open_page(path)
    page = opened.page
    assert page.evaluate("() => window.hacked") is None
    assert page.evaluate("() => document.querySelectorAll('img, main script').length") == 0
    assert opened.errors == []
    assert opened.requests == [path.as_uri()]
    seen = page.evaluate("() => document.body.innerText")
    assert "<script>window.hacked=1</script>" in seen
    assert "49" not in page.locator(".legend").inner_text()
    assert EVIL in page.evaluate("() => document.getElementById('notices').textContent")


def test_keyboard_alone(open_page: Open, full_report: Path) -> None:
    opened = open_page(full_report, height=900)
    page = opened.page
    reached = []
    for _ in range(26):
        page.keyboard.press("Tab")
        tag = page.evaluate(
            "() => { const n = document.activeElement; return n.tagName + '.' + (n.id || n.className.baseVal || n.type || ''); }"
        )
        reached.append(tag)
        if tag == "svg.chart":
            break
    assert reached[0].startswith("A.")
    assert "BUTTON.theme" in reached
    assert any(tag.startswith("SELECT") for tag in reached)
    assert any("radio" in tag for tag in reached)
    assert reached[-1] == "svg.chart"
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "() => document.getElementById('said').textContent.includes('depth 0.17')"
    )  # said a moment later
    assert "Prompt entropy, depth 0.17" in page.locator("#said").inner_text()
    assert page.locator("#grid .tip").count() == 1
    page.keyboard.press("Escape")
    assert page.locator("#grid .tip").count() == 0
    page.locator("#heat").scroll_into_view_if_needed()  # drawn when it is seen
    page.locator("#heat svg.chart").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "STSBenchmark · layer 1" in page.locator(".heat-read").inner_text()


def test_switches_by_keyboard(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report).page
    page.locator("[data-switch=sink] input[value=both]").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("[data-switch=sink] input[value=keep]").is_checked()
    assert page.locator("#grid figure").first.locator("path.line").count() == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_has_no_sideways_scroll(open_page: Open, full_report: Path, scheme: str) -> None:
    opened = open_page(full_report, width=390, height=9000, scheme=scheme)
    page = opened.page
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    assert page.evaluate("() => document.documentElement.dataset.theme") == scheme
    lefts = page.evaluate(
        "() => [...document.querySelectorAll('#grid figure')].map((f) => Math.round(f.getBoundingClientRect().left))"
    )
    assert len(set(lefts)) == 1  # one column
    assert opened.errors == []


def test_the_theme_can_be_chosen(open_page: Open, full_report: Path) -> None:
    opened = open_page(full_report, own=True)
    page = opened.page

    def look() -> tuple[str, str]:
        stroke = page.locator("#grid path.line").first.get_attribute("stroke")
        return page.evaluate("() => getComputedStyle(document.body).backgroundColor"), str(stroke)

    light = look()
    page.locator("#theme").click()
    opened.settle()
    dark = look()
    assert dark[0] != light[0]
    assert dark[1] != light[1]
    for _ in range(
        10
    ):  # a browser writes its store behind: on a busy machine the page may be back sooner
        page.reload()
        opened.settle()
        if look() == dark:
            break
        page.wait_for_timeout(200)
    assert look() == dark


def test_conventions_that_differ_are_said_on_the_page(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report).page
    assert "They differ in final norm" in page.locator("#warnings").inner_text()
    page.locator("#conventions summary").click()
    assert page.locator("#conventions tr.differs td").first.inner_text() == "final norm"


def test_many_warnings_do_not_hide_the_content(
    open_page: Open, full_report: Path, tmp_path: Path
) -> None:
    text = full_report.read_text(encoding="utf-8")
    start = '"notices":['
    assert text.count(start) == 1
    many = ",".join(f'{{"level":"warn","about":"run {k}","text":"mind this"}}' for k in range(9))
    (tmp_path / "many.html").write_text(text.replace(start, f"{start}{many},"), encoding="utf-8")
    page = open_page(tmp_path / "many.html").page
    assert page.locator("#warnings li").count() == 3
    folded = page.locator("#warnings + details")
    assert "more to mind" in folded.inner_text()
    assert "run 8" not in folded.inner_text()
    folded.locator("summary").click()
    assert "run 8" in folded.inner_text()


@pytest.mark.slow  # quickly: `test_a_large_report_stays_small`, and the heat map of the full report
def test_a_large_report_is_small_and_complete(open_page: Open, tmp_path: Path) -> None:
    path = write_report(large_pair(), tmp_path / "report.html")
    assert path.stat().st_size < 3_000_000
    opened = open_page(path, height=900)
    ready = opened.page.evaluate(
        "() => performance.getEntriesByName('layerscope-ready')[0].startTime"
    )
    print(f"{path.stat().st_size / 1e6:.2f} MB, interactive after {ready:.0f} ms")
    opened.page.locator("#heat").scroll_into_view_if_needed()
    opened.page.wait_for_selector("#heat rect.cell")
    assert opened.page.locator("#heat rect.cell").count() == 33 * 49
    assert opened.errors == []


def test_paper_is_white_and_has_the_legend(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, scheme="dark").page
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "light"
    assert page.locator(".legend").is_visible()
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"


def test_there_is_one_tooltip_at_most(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report).page
    charts = page.locator("#grid svg.chart")
    charts.nth(0).focus()
    page.keyboard.press("ArrowRight")
    charts.nth(1).hover()
    assert page.locator(".tip").count() == 1


def test_neighbors_are_read_on_a_phone_without_scrolling_aside(
    open_page: Open, tmp_path: Path
) -> None:
    opened = open_page(write_report([synthetic_improvement()], tmp_path / "report.html"), 390)
    box = opened.page.locator("#chosen .inline").bounding_box()
    last = opened.page.locator("#chosen .inline td", has_text="after 0.1").bounding_box()
    assert box["x"] <= last["x"]
    assert last["x"] + last["width"] <= box["x"] + box["width"] + 1
    told = "(node) => getComputedStyle(node, '::before').content"
    assert (
        opened.page.locator("#chosen .inline td", has_text="after 0.1").evaluate(told)
        == '"nearest now"'
    )


def test_tables_are_there_before_anybody_scrolls(open_page: Open, full_report: Path) -> None:
    opened = open_page(full_report, 1280, 700)
    opened.page.wait_for_function("() => document.querySelectorAll('#table tbody tr').length > 3")
    assert opened.page.evaluate("() => scrollY") == 0


def test_scores_of_a_hundred_layers_and_twenty_readouts_fit(
    open_page: Open, tmp_path: Path
) -> None:
    readouts = [Readout(*READOUTS[0].split("/")[:1], pooling, norm, sink, centering).name
                for pooling in ("mean", "wmean", "last") for norm in ("applied", "raw")
                for sink in ("keep", "drop") for centering in ("none", "corpus")][:20]  # fmt: skip
    path = write_report(
        [synthetic_evaluation("large", "llama", 100, ["STSBenchmark", "Topics"], readouts)],
        tmp_path / "r.html",
    )
    opened = open_page(path)
    for width in (1280, 390):
        opened.page.set_viewport_size({"width": width, "height": 5200})
        opened.settle()
        assert opened.errors == []
        assert opened.page.locator("#score-chart path.line").count() == 20
        assert opened.page.evaluate("() => document.documentElement.scrollWidth") == width
