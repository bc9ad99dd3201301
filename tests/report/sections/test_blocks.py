"""Probes, studies and sweeps have a section of their own in every format of a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerscope.errors import LayerscopeError
from layerscope.report.contents import gather
from layerscope.report.page import payload
from layerscope.report.sections import sections
from layerscope.report.write import write_report
from tests.report.synthetic import (
    synthetic_evaluation,
    synthetic_probe,
    synthetic_run,
    synthetic_study,
    synthetic_sweep,
)


@pytest.fixture
def study_folder(tmp_path: Path) -> Path:
    pytest.importorskip("matplotlib")
    from layerscope.report.drawing import new_figure, save_figure

    figure = new_figure(2, 1)
    figure.subplots().plot([0, 1])
    save_figure(figure, tmp_path / "figure.png")
    return tmp_path


def test_every_kind_of_run_has_a_section() -> None:
    assert {"profile", "evaluation", "probe", "study", "sweep"} <= set(sections)


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


def test_a_study_brings_its_verdict_its_figure_and_its_table(study_folder: Path) -> None:
    report = gather([synthetic_study(study_folder)])
    (block,) = report.blocks
    assert block.words[0] == "Repeated tokens lower the entropy of the middle layers."
    assert block.figures[0].startswith(b"\x89PNG")
    assert list(block.tables) == ["Study extreme"]
    shown = payload(report)["blocks"][0]
    assert shown["figures"][0].startswith("data:image/png;base64,iVBOR")
    assert shown["tables"][0]["columns"] == [["a", "b"], [0, 1], ["prompt_entropy"] * 2, [1.5, 2.5]]
    assert report.headline.lead == "Repeated tokens lower the entropy of the middle layers"


def test_a_sweep_says_how_its_jobs_ended() -> None:
    report = gather([synthetic_sweep()])
    (block,) = report.blocks
    assert block.words == ["2 jobs in night: 1 complete, 1 failed."]
    assert [chart.title for chart in block.charts] == [
        "Prompt entropy",
        "Curvature",
        "Dataset entropy",
    ]
    assert block.charts[0].lines[0].name == "small--lee"
    assert any("large--lee failed: no memory" in notice.text for notice in report.notices)
    extremes = block.tables["Lowest and highest of every job"]
    row = extremes[extremes["metric"] == "prompt_entropy"].iloc[0]
    assert (row["at"], row["lowest"]) == (3, pytest.approx(1.47))


@pytest.mark.slow
def test_all_kinds_in_one_report(tmp_path: Path, study_folder: Path) -> None:
    runs = [
        synthetic_run(),
        synthetic_evaluation(),
        synthetic_probe(),
        synthetic_study(study_folder),
        synthetic_sweep(),
    ]
    report = gather(runs)
    assert len(report.runs) == 5
    assert report.headline.lead.startswith("Layer 2 of 6: +10.0 on STSBenchmark")
    assert any(
        point.startswith("Study: Extreme inputs: Repeated tokens")
        for point in report.headline.points
    )
    text = write_report(runs, tmp_path / "report.html").read_text(encoding="utf-8")
    for title in (
        "Probes of small on digits",
        "Study: Extreme inputs",
        "Sweep: night",
        "top-1 accuracy",
    ):
        assert title in text


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(LayerscopeError, match="a report cannot show a dict"):
        gather([{"scores": 1}])
