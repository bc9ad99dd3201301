"""What notebooks show of every result: the answer, curves, tables; nothing from outside is
markup."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from typing import Any

import pandas as pd
import pytest

from layerscope.choose.choice import Choice
from layerscope.core.statistics import Interval
from layerscope.report.notebook import charts_html, table_html
from layerscope.report.section import Chart, Line
from tests.report.synthetic import (
    READOUTS,
    synthetic_evaluation,
    synthetic_improvement,
    synthetic_probe,
    synthetic_run,
)

EVIL = "<script>alert(1)</script>"


class Tags(HTMLParser):
    """Opened and closed tags, to see that a fragment is well-formed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs), attrs
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(fragment: str) -> set[str]:
    tags = Tags()
    tags.feed(fragment)
    assert tags.open == []
    assert "script" not in tags.seen
    return tags.seen


def choice(**more: Any) -> Choice:
    facts = {"layers": 6, "model": "small", "reason": "It is the best."}
    return Choice(
        4, READOUTS[3], Interval(5.0, 1.0, 9.0), 0.1, (4, 5), "measured", **{**facts, **more}
    )


@pytest.mark.usefixtures("no_figure_files")
def test_a_profile_shows_its_valley_and_curves() -> None:
    shown = synthetic_run()._repr_html_()
    assert {"img", "table"} <= read(shown)
    assert "valley at layer 3" in shown
    assert "sink dropped" in shown


@pytest.mark.usefixtures("no_figure_files")
def test_an_evaluation_shows_a_line_per_readout_and_the_best_layers() -> None:
    run = synthetic_evaluation("small", "llama", 6, ["STSBenchmark", "Topics"], READOUTS)
    shown = run._repr_html_()
    read(shown)
    assert all(readout in shown for readout in READOUTS)
    assert "Topics" in shown


def test_a_choice_says_what_it_rests_on() -> None:
    shown = choice()._repr_html_()
    read(shown)
    assert "read layer 4 of 6" in shown
    assert "It is the best." in shown


@pytest.mark.usefixtures("no_figure_files")
def test_an_improvement_shows_neighbors_before_and_after() -> None:
    shown = synthetic_improvement()._repr_html_()
    assert "img" in read(shown)
    assert "nearest before" in shown
    assert "after 1.2" in shown


@pytest.mark.usefixtures("no_figure_files")
def test_probes_show_accuracy_by_layer() -> None:
    shown = synthetic_probe()._repr_html_()
    assert "img" in read(shown)
    assert "top-1 accuracy" in shown


@pytest.mark.usefixtures("no_figure_files")
def test_nothing_from_outside_is_markup() -> None:
    run = synthetic_run(EVIL)
    run.manifest["warnings"].append(EVIL)
    scored = synthetic_evaluation(EVIL, "llama", 6, [EVIL], READOUTS[:1])
    improved = synthetic_improvement(EVIL)
    improved.neighbors["neighbor"] = EVIL
    results = [
        run,
        scored,
        improved,
        synthetic_probe(EVIL),
        choice(model=EVIL, reason=EVIL),
    ]
    for result in results:
        shown = result._repr_html_()
        read(shown)
        assert "<script" not in shown
        assert "&lt;script&gt;" in shown


def test_a_curve_with_gaps_and_a_flat_one_are_drawn() -> None:
    gap, flat = (
        Line("a", [0, 1, 2, 3], [1.0, float("nan"), 2.0, 3.0], note=(1, "here")),
        Line("a", [0, 1], [1.0, 1.0]),
    )
    assert "gap: a; flat: a" in charts_html([Chart("gap", [gap]), Chart("flat", [flat])])
    assert charts_html([Chart("none", [Line("a", [0], [float("nan")])])]) == ""


def test_without_altair_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    shown = synthetic_run()._repr_html_()
    assert "table" in read(shown)
    assert "img" not in read(shown)
    assert "[report]" in shown


def test_a_long_table_says_what_is_left_out() -> None:
    shown = table_html(pd.DataFrame({"a": range(30)}), most=12)
    assert shown.count("<tr>") == 13
    assert "18 more rows" in shown


@pytest.mark.parametrize("make", [synthetic_run, synthetic_probe])
def test_fragments_need_nothing_from_elsewhere(make: Any) -> None:
    shown = make()._repr_html_()
    assert "http" not in shown
