"""Studies, sweeps, correlations and published results on the page and in notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paper_synthetic import synthetic_study, synthetic_sweep
from tests.evaluation.support import write_tasks
from tests.report.test_notebook import EVIL, read
from tests.tiny import build_tiny, tiny_model, tiny_tokenizer

from layerscope.core.runs import load_run
from layerscope.report.contents import gather
from layerscope.report.page import payload, write_report
from layerscope.store.checked import check_files
from layerscope_paper.studies.run import study


@pytest.fixture
def study_folder(tmp_path: Path) -> Path:
    pytest.importorskip("matplotlib")
    from layerscope_paper.drawing import new_figure

    figure = new_figure(2, 1)
    figure.subplots().plot([0, 1])
    figure.savefig(tmp_path / "figure.png")
    return tmp_path


def test_a_study_brings_its_verdict_its_figure_and_its_table(study_folder: Path) -> None:
    report = gather([synthetic_study(study_folder)])
    (block,) = report.sections
    assert block.words[0] == "Repeated tokens lower the entropy of the middle layers."
    assert block.figures[0].startswith(b"\x89PNG")
    assert list(block.tables) == ["Study extreme"]
    page = payload(report)
    assert page["blocks"][0]["figures"][0].startswith("data:image/png;base64,iVBOR")
    assert page["tables"][0]["columns"] == [["a", "b"], [0, 1], ["prompt_entropy"] * 2, [1.5, 2.5]]
    assert report.headline[0] == "Repeated tokens lower the entropy of the middle layers."


def test_a_sweep_reports_the_outcome_of_its_jobs() -> None:
    report = gather([synthetic_sweep()])
    (block,) = report.sections
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


def test_a_study_shows_its_verdict_and_figure(tmp_path: Path) -> None:
    (tmp_path / "figure.png").write_bytes(b"a picture")
    run = synthetic_study(tmp_path)
    shown = run._repr_html_()
    assert "img" in read(shown)
    assert run.verdict[0].split(":")[-1].strip()[:20] in shown


@pytest.mark.usefixtures("no_figure_files")
def test_a_sweep_shows_its_outcome() -> None:
    shown = synthetic_sweep()._repr_html_()
    read(shown)
    assert "jobs in" in shown


@pytest.mark.usefixtures("no_figure_files")
def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "figure.png").write_bytes(b"a picture")
    run = synthetic_study(tmp_path)
    run.manifest["verdict"] = [EVIL]
    shown = run._repr_html_()
    read(shown)
    assert "<script" not in shown
    assert "&lt;script&gt;" in shown


REST = (
    *("alpha", "attention", "checkpoints", "compare", "extreme"),
    *("factorial", "reasoning", "scale", "theory"),
)  # the others train or take many texts: their own tests write and read their runs


def settings_of(name: str, texts: list[str], folder: Path) -> tuple[list[Any], dict[str, Any]]:
    """The models and the smallest settings with which a study runs."""
    model = tiny_model("llama")
    if name == "checkpoints":
        for seed, step in enumerate((0, 20)):
            build_tiny("llama", seed).save_pretrained(folder / "training" / f"step{step}")
            tiny_tokenizer().save_pretrained(folder / "training" / f"step{step}")
        return [folder / "training"], {"data": texts[:4], "metrics": "prompt_entropy"}
    if name == "factorial":
        tasks = write_tasks(folder / "tasks", pairs=300, texts=600)
        given = {
            "tasks": "Pairs,TwitterSemEval2015",
            "data_dir": str(tasks),
            "items": 20,
            "fit": 200,
        }
        return [model], {**given, "max_length": 64}
    found: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "alpha": ([model], {"data": texts[:4]}),
        "attention": ([model], {"data": texts[:4]}),
        "compare": ([model, tiny_model("bert")], {"data": texts[:4], "metrics": "prompt_entropy"}),
        "extreme": ([model], {"data": texts[:3], "levels": [0, 1], "conditions": ["repetition"]}),
        "reasoning": ([model], {"data": texts[:4], "stride": 4}),
        "scale": (
            [model, tiny_model("llama", seed=1)],
            {"data": texts[:4], "metrics": "prompt_entropy"},
        ),
        "sublayers": ([model], {"data": texts[:4]}),
        "theory": ([], {"matrices": 20, "starts": 0}),
    }
    return found[name]


@pytest.mark.parametrize(
    "name", ["sublayers", *(pytest.param(name, marks=pytest.mark.slow) for name in REST)]
)
def test_every_study_on_the_page(name: str, texts: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    models, settings = settings_of(name, texts, tmp_path)
    study(name, *models, out=tmp_path / "run", progress=False, **settings)
    written = write_report([tmp_path / "run"], tmp_path / "page.html").read_bytes()
    assert b"<NA>" not in written
    assert load_run(tmp_path / "run").kind == "study"
    assert not any(problem for _, problem in check_files(tmp_path / "run"))
