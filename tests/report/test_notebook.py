"""A run in a notebook: all text is escaped."""

from __future__ import annotations

import re

from layerscope.profiling import Run


def test_nothing_from_outside_is_markup(run: Run) -> None:
    run.manifest["warnings"].append("<b onclick=evil()>warning</b>")
    html = run._repr_html_()
    tags = set(re.findall(r"</?([a-z]+)", html))
    assert tags == {"b", "br", "p", "i", "table", "tr", "th", "td", "code"}
    assert "<script" not in html
    assert "<img" not in html
    assert "onclick" not in re.sub(r"&lt;.*?&gt;", "", html)
    assert "&lt;script&gt;" in html
    assert "&lt;img src=x&gt;" in html


def test_says_what_it_shows(run: Run) -> None:
    html = run._repr_html_()
    assert "valley at layer 2 (block.1)" in html
    assert "final_norm <b>raw</b>" in html
    assert html.count("<tr>") == run.table["metric"].nunique() + 1
