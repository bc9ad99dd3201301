"""Probes have a section of their own."""

from __future__ import annotations

import pytest

from layerscope.errors import LayerscopeError
from layerscope.report.contents import gather
from tests.report.synthetic import synthetic_evaluation, synthetic_probe, synthetic_run


def test_probes_are_not_taken_for_scores() -> None:
    report = gather([synthetic_probe()])
    (part,) = report.sections
    assert part.kind == "probe"
    assert [chart.title for chart in part.charts] == ["top-1 accuracy"]
    first = part.charts[0].lines[0]
    assert (first.name, list(first.layers), first.note) == (
        "attention probe",
        list(range(7)),
        (2, "chosen: layer 2"),
    )
    assert first.values[2] == pytest.approx(60.0)
    assert report.headline[0].startswith(
        "Attention probe: highest at layer 2 (60.0); the validation items choose layer 2"
    )
    assert "better than the last layer's 52.0" in report.headline[0]
    assert any("few items" in notice.text for notice in report.notices)


def test_several_kinds_in_one_report() -> None:
    report = gather([synthetic_run(), synthetic_evaluation(), synthetic_probe()])
    assert report.headline[0].endswith(", on STSBenchmark.")
    assert report.headline[-1].startswith("Probes of small on digits: Attention probe: highest")


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(LayerscopeError, match="a report cannot show a dict"):
        gather([{}])
