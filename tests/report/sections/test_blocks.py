"""Probes have a section of their own in every format of a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerscope.errors import LayerscopeError
from layerscope.report.contents import gather
from layerscope.report.sections import sections
from layerscope.report.write import write_report
from tests.report.synthetic import (
    synthetic_evaluation,
    synthetic_probe,
    synthetic_run,
)


def test_every_kind_of_run_has_a_section() -> None:
    assert {"profile", "evaluation", "probe", "improve"} <= set(sections)


def test_probes_are_not_taken_for_scores() -> None:
    report = gather([synthetic_probe()])
    assert report.scores == []
    (block,) = report.blocks
    assert block.kind == "probe"
    assert [chart.title for chart in block.charts] == ["top-1 accuracy", "top-5 accuracy"]
    first = block.charts[0].lines[0]
    assert (first.name, list(first.layers), first.note) == (
        "attention probe",
        list(range(7)),
        (2, "chosen: layer 2"),
    )
    assert first.values[2] == pytest.approx(60.0)
    assert report.headline.lead.startswith(
        "Attention probe: highest at layer 2 (60.0); the validation items choose layer 2"
    )
    assert "better than the last layer's 52.0" in report.headline.lead
    assert any("few items" in notice.text for notice in report.notices)


@pytest.mark.slow
def test_all_kinds_in_one_report(tmp_path: Path) -> None:
    runs = [
        synthetic_run(),
        synthetic_evaluation(),
        synthetic_probe(),
    ]
    report = gather(runs)
    assert len(report.runs) == 3
    assert report.headline.lead.startswith("Read layer 2 of 6 (block.1): +10.0 ")
    assert report.headline.lead.endswith(", on STSBenchmark")
    text = write_report(runs, tmp_path / "report.html").read_text(encoding="utf-8")
    for title in (
        "Probes of small on digits",
        "top-1 accuracy",
    ):
        assert title in text


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(LayerscopeError, match="a report cannot show a dict"):
        gather([{"scores": 1}])
