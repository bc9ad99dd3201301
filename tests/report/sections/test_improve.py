"""Improvements on the page."""

from __future__ import annotations

from pathlib import Path

import layerscope
from layerscope.report.sections.improve import from_improvement, neighbors_side_by_side
from tests.improving.test_improve import some_texts
from tests.tiny import tiny_model


def test_the_page_shows_the_choice_and_the_neighbors(tmp_path: Path) -> None:
    texts = some_texts(40)
    run = layerscope.improve(tiny_model("llama"), texts, judge="none", templates=["one-word"], max_length=96, progress=False)
    wide = neighbors_side_by_side(run.neighbors)
    assert len(wide) == 15
    assert list(wide.columns) == ["text", "rank", "nearest today", "nearest now"]
    block = from_improvement(run)
    assert block.words[0].startswith("tiny-llama")
    page = layerscope.write_report([run], tmp_path / "report.html")
    assert run.model in page.read_text(encoding="utf-8")
