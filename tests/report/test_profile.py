"""A profile in the terminal and in a notebook: fits the width, says what the valley is, and takes
names as they are."""

from __future__ import annotations

import io
import math
import re

import numpy as np
import pytest
from rich.console import Console

from layerscope.profiling import Profile
from layerscope.report.profile import print_run
from layerscope.report.words import number, sparkline
from tests.report.conftest import NAME


def printed(run: Profile, width: int) -> str:
    stream = io.StringIO()
    print_run(run, Console(file=stream, width=width))
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_fits_the_width_and_tells_the_valley(run: Profile, width: int) -> None:
    text = printed(run, width)
    assert max(len(line) for line in text.splitlines()) <= width
    words = " ".join(text.split())
    assert (
        "Prompt entropy has a valley at layer 2 (block.1): 1.25 nats, 1.75 below its shoulders."
        in words
    )
    assert "It is the sink" in words
    assert "without that token it is 3.20." in words
    assert "note curvature is undefined for up to 1 of 11 prompts" in words


@pytest.mark.parametrize("width", [80, 200])
def test_every_layer_has_a_line(run: Profile, width: int) -> None:
    lines = printed(run, width).splitlines()
    entropy = {
        line.split()[0]: line for line in lines if line.split() and line.split()[0] in "0123"
    }
    assert list(entropy) == ["0", "1", "2", "3"]
    assert "1.25" in entropy["2"]


def test_names_are_printed_as_they_are(run: Profile) -> None:
    text = " ".join(printed(run, 200).split())
    assert NAME in text
    assert "<img src=x> [red]data[/]" in text
    assert "final_norm raw" in text


def test_without_a_valley(plain_run: object, run: Profile) -> None:
    rows = run.table["metric"] == "prompt_entropy"
    run.table.loc[rows, "value"] = 2.0
    assert "Prompt entropy has no valley" in printed(run, 80)
    run.table = run.table[~rows]
    assert "valley" not in printed(run, 80)


def test_undefined_curves_are_told(run: Profile) -> None:
    run.table.loc[run.table["metric"] == "dime", ["value", "ci_low", "ci_high"]] = math.nan
    text = printed(run, 120)
    assert "undefined at every layer" in text
    assert "nan" not in text.lower()


def test_sparkline() -> None:
    assert sparkline([0, 1, 2, 3]) == "▁▃▆█"
    assert sparkline([3, 0]) == "█▁"
    assert sparkline([1, math.nan, 2]) == "▁ █"
    assert sparkline([math.nan, math.inf]) == "  "
    assert len(set(sparkline([5, 5, 5]))) == 1
    assert sparkline([]) == ""


def test_deep_models_keep_their_ends() -> None:
    values = np.zeros(200)
    values[[0, -1]] = 1, 2
    drawn = sparkline(values, 28)
    assert len(drawn) == 28
    assert drawn[-1] == "█"
    assert drawn[0] > drawn[1]
    assert len(sparkline(np.arange(27.0), 28)) == 27


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.00"),
        (0.123, "0.12"),
        (12.34, "12.3"),
        (1234.5, "1234"),
        (0.0123, "0.012"),
        (1e-5, "1.0e-05"),
        (math.nan, "–"),
    ],
)
def test_number(value: float, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.usefixtures("no_figure_files")
def test_in_a_notebook_nothing_from_outside_is_markup(run: Profile) -> None:
    run.manifest["warnings"].append("<b onclick=evil()>warning</b>")
    html = run._repr_html_()
    tags = set(re.findall(r"</?([a-z]+)", html))
    assert tags == {"b", "div", "p", "i", "table", "tr", "th", "td", "img"}
    assert "<script" not in html
    assert html.count("<img") == 1  # the curves
    assert "onclick" not in re.sub(r"&lt;.*?&gt;", "", html)
    assert "&lt;script&gt;" in html
    assert "&lt;img src=x&gt;" in html


@pytest.mark.usefixtures("no_figure_files")
def test_a_notebook_says_what_it_shows(run: Profile) -> None:
    html = run._repr_html_()
    assert "valley at layer 2 (block.1)" in html
    assert "final_norm raw" in html
    assert html.count("<tr>") == len(run.table[["metric", "sink"]].drop_duplicates()) + 1
