"""The report's page in a real browser."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from layerscope.core.readout import Readout
from layerscope.report.page import write_report
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

EVERYTHING = """() => ['grid', 'score-chart', 'table']
    .map((id) => document.getElementById(id).innerHTML).join('|')"""
SWITCHES = """() => [...document.querySelectorAll('[data-switch]')].filter((box) => !box.hidden)
    .map((box) => box.parentElement.id + ' ' + box.dataset.switch)"""
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
    assert opened.page.locator("[data-kind=probe] .mark-line path").count() == 2
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
    lead = "Reading layer 4 of 6 (one-word prompt, centered, no norm) finds 3.0 of each text's 10 nearest neighbors according to minilm-l6 (2.0 before)"
    assert opened.texts("#lead") == [f"{lead}, at 1.40 × the baseline's computation"]
    assert opened.page.evaluate(
        "() => document.querySelector('#chosen').getBoundingClientRect().top"
    ) < opened.page.evaluate("() => document.querySelector('#curves').getBoundingClientRect().top")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_choice_is_a_picture_at_any_size(
    open_page: Open, tmp_path: Path, width: int, scheme: str
) -> None:
    large = synthetic_improvement("large", 100, 70, ("one-word", "step-by-step"))
    opened = open_page(write_report([large], tmp_path / "report.html"), width, scheme=scheme)
    assert opened.errors == []
    page = opened.page
    heat, costs = page.locator("#chosen figure").all()
    rows, layers = large.table["readout"].nunique(), 101
    assert rows == 21
    assert heat.locator(".mark-rect path").count() >= rows * layers
    assert costs.locator(".mark-symbol path").count() >= rows * layers
    assert "baseline" in costs.locator("svg").text_content()
    assert "chosen" in costs.locator("svg").text_content()
    assert page.evaluate("() => document.documentElement.scrollWidth") == width


def test_a_candidate_is_told_where_it_is_pointed_at(open_page: Open, tmp_path: Path) -> None:
    opened = open_page(write_report([synthetic_improvement()], tmp_path / "report.html"))
    page = opened.page
    cell = page.locator("#chosen figure").first.locator("[aria-label*='readout: ']").nth(10)
    cell.hover(force=True)
    page.wait_for_selector("#vg-tooltip-element.visible")
    words = page.locator("#vg-tooltip-element").inner_text()
    for name in ("readout", "layer", "score", "cost"):
        assert name in words
    assert opened.errors == []


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
        assert opened.page.locator("#grid .mark-line path").count() >= 8
        assert "Prompt entropy" in charts(opened)[0]
    if what != "profile":
        assert opened.page.locator("#score-chart .mark-line path").count() > 0
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
                box.locator(f"input[value='{value}']").check(force=True)
            opened.settle()
            after = page.evaluate(EVERYTHING)
            assert after != before, f"{switch} = {value} changes nothing"
            before = after
            tried.append(f"{name}={value}")
        if is_select:
            box.locator("select").select_option(now)
        else:
            box.locator(f"input[value='{now}']").check(force=True)
        opened.settle()
    names = {one.split("=")[0] for one in tried}
    assert names >= {"set", "sink", "norm", "task", "table"}
    for wanted in ["set=all", "sink=drop", "norm=raw"]:
        assert wanted in tried
    if most > 1:
        assert "table=Best layer of each task" in tried
    assert opened.errors == []


def test_runs_can_be_hidden_and_shown(open_page: Open, full_report: Path) -> None:
    opened = open_page(full_report)
    lines = opened.page.locator("#grid figure").first.locator(".mark-line path")
    assert lines.count() == 6  # three runs, the sink kept and dropped
    button = opened.page.locator(".legend button").nth(2)
    button.click()
    opened.settle()
    assert lines.count() == 4
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    opened.settle()
    assert lines.count() == 6


def test_all_charts_show_the_values_of_the_table_at_the_cursor(
    open_page: Open, tmp_path: Path
) -> None:
    run = synthetic_run("one", "llama", 6)
    opened = open_page(write_report([run], tmp_path / "report.html"))
    page = opened.page
    page.locator("#grid .plot").first.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    row = next(cells for cells in body(opened) if cells[0] == "4")
    by_column = dict(zip(head(opened), row, strict=True))
    assert by_column["site"] == "block.3"
    assert by_column["Prompt entropy"] == "3.960"
    for figure in page.locator("#grid figure").all():
        title, read = figure.locator(".name").inner_text(), figure.locator(".read").inner_text()
        assert read.startswith("layer 4: one ")
        assert f"one {by_column[title]} [" in read
    page.keyboard.press("Escape")
    assert set(opened.texts("#grid .read")) == {""}
    box = page.locator("#grid .plot svg").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.97, box["y"] + box["height"] / 2)
    assert page.locator("#grid .read").last.inner_text().startswith("layer 6: ")
    page.mouse.move(2, 2)
    assert set(opened.texts("#grid .read")) == {""}


def test_the_chosen_layer_is_marked_in_every_view(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report).page
    for figure in [*page.locator("#grid figure").all(), page.locator("#score-chart figure")]:
        assert "chosen" in figure.locator("svg").text_content()
    assert page.locator("#table tr.marked").count() == 1


def test_tables_sort_and_download(open_page: Open, full_report: Path) -> None:
    opened = open_page(full_report)
    page = opened.page
    page.locator("[data-switch=table] select").select_option("Metrics by layer")
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
    for table in ["Metrics by layer", "Best layer of each task", "Scores by layer"]:
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
            "() => { const n = document.activeElement; return n.tagName + '.' + (n.id || n.className || n.type || ''); }"
        )
        reached.append(tag)
        if tag == "DIV.plot":
            break
    assert reached[0].startswith("A.")
    assert "BUTTON.theme" in reached
    assert any(tag.startswith("SELECT") for tag in reached)
    assert any("radio" in tag for tag in reached)
    assert reached[-1] == "DIV.plot"
    outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    opened.settle()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "() => document.getElementById('said').textContent.includes('depth 0.17')"
    )  # said a moment later
    assert (
        "Prompt entropy, depth 0.17: small · applied 3.990 [" in page.locator("#said").inner_text()
    )


def test_switches_by_keyboard(open_page: Open, full_report: Path) -> None:
    opened = open_page(full_report)
    page = opened.page
    page.locator("[data-switch=sink] input[value=both]").focus()
    page.keyboard.press("ArrowRight")
    opened.settle()
    assert page.locator("[data-switch=sink] input[value=keep]").is_checked()
    assert page.locator("#grid figure").first.locator(".mark-line path").count() == 3


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
        stroke = page.locator("#grid .mark-line path").first.evaluate(
            "(node) => getComputedStyle(node).stroke"
        )
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


@pytest.mark.slow  # quickly: `test_a_large_report_stays_small`
def test_a_large_report_is_small_and_complete(open_page: Open, tmp_path: Path) -> None:
    path = write_report(large_pair(), tmp_path / "report.html")
    assert path.stat().st_size < 2_000_000
    opened = open_page(path, height=900)
    ready = opened.page.evaluate(
        "() => performance.getEntriesByName('layerscope-ready')[0].startTime"
    )
    print(f"{path.stat().st_size / 1e6:.2f} MB, interactive after {ready:.0f} ms")
    opened.page.locator("#score-chart").scroll_into_view_if_needed()
    opened.page.wait_for_selector("#score-chart .mark-line path")
    assert opened.page.locator("#score-chart .mark-line path").count() >= 4
    assert opened.errors == []


def test_paper_is_white_and_has_the_legend(open_page: Open, full_report: Path) -> None:
    page = open_page(full_report, scheme="dark").page
    page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "light"
    assert page.locator(".legend").is_visible()
    page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"


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
        assert opened.page.locator("#score-chart .mark-line path").count() >= 20
        assert opened.page.evaluate("() => document.documentElement.scrollWidth") == width
