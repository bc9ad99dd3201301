"""The study of checkpoints: the numbers of separate profiles, one model at a time, each once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.tiny import build_tiny, tiny_model, tiny_tokenizer

import layerscope
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope_paper.studies.checkpoints import find_steps, step_label, step_number
from layerscope_paper.studies.run import study
from layerscope_paper.studies.shared import models as profiles


def save(folder: Path, seed: int) -> Path:
    build_tiny("llama", seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints of different weights, whose names sort otherwise than their numbers."""
    folder = tmp_path_factory.mktemp("training")
    for seed, number in enumerate((1000, 0, 20)):
        save(folder / f"step{number}", seed)
    (folder / "logs").mkdir()
    return folder


@pytest.mark.usefixtures("figure_files")
def test_the_table_is_that_of_separate_profiles(
    steps: Path, texts: list[str], tmp_path: Path
) -> None:
    run = study("checkpoints", steps, data=texts, out=tmp_path / "run")
    assert run.table.drop_duplicates("step")["step"].tolist() == [0, 20, 1000]
    for number in (0, 1000):
        alone = layerscope.profile(
            steps / f"step{number}", texts, metrics=profiles.CURVES, final_norm="raw"
        ).table
        alone = alone[
            (alone["normalization"] == "raw")
            | ((alone["metric"] == "prompt_entropy") & (alone["normalization"] == "logN"))
        ]
        held = run.table[(run.table["step"] == number) & (run.table["metric"] != "valley_depth")]
        for column in ("site", "layer", "metric", "normalization", "sink", "n"):
            assert held[column].tolist() == alone[column].tolist()
        for column in ("value", "ci_low", "ci_high"):
            np.testing.assert_allclose(held[column], alone[column], rtol=1e-6)
    assert (tmp_path / "run" / "figure.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert sorted(p.name for p in (tmp_path / "run" / "parts").iterdir() if p.is_dir()) == [
        "step0",
        "step1000",
        "step20",
    ]


@pytest.mark.usefixtures("no_figure")
def test_an_interrupted_study_goes_on_and_loads_each_once(
    steps: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    own = profiles.profile

    def counted(
        model: layerscope.models.LoadedModel, *args: object, **kwargs: object
    ) -> layerscope.Profile:  # type: ignore[name-defined]
        begun.append(model.name)
        if begun.count("step20") == 1 and model.name == "step20":
            raise KeyboardInterrupt
        return own(model, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(profiles, "profile", counted)
    settings = {"data": texts[:4], "out": tmp_path / "run", "metrics": "prompt_entropy"}
    with pytest.raises(KeyboardInterrupt):
        study("checkpoints", steps, **settings)
    run = study("checkpoints", steps, **settings)
    assert begun == ["step0", "step20", "step20", "step1000"]
    again = study("checkpoints", steps, **settings)
    assert len(begun) == 4
    np.testing.assert_array_equal(again.table["value"], run.table["value"])


@pytest.mark.usefixtures("no_figure")
def test_hub_revisions_are_measured_and_cleaned_up(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = tmp_path / "hub" / "models--org--name"
    (repo / "refs").mkdir(parents=True)
    for seed, name in enumerate(("step1", "step64", "step128")):
        commit = str(seed) * 40
        save(repo / "snapshots" / commit, seed % 2)
        (repo / "refs" / name).write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    settings = {
        "data": texts[:4],
        "metrics": ["prompt_entropy"],
        "steps": "128,step1,64",
        "clean": True,
    }
    run = study("checkpoints", "org/name", out=tmp_path / "run", **settings)
    assert run.table.drop_duplicates("step")["step"].tolist() == [1, 64, 128]
    assert run.manifest["conventions"]["models"]["step64"]["revision"] == "1" * 40
    assert "steps 1 and 128 hold the same weights" in run.manifest["warnings"][0]
    assert not list((repo / "snapshots").iterdir()) if (repo / "snapshots").exists() else True
    again = study(
        "checkpoints", "org/name", out=tmp_path / "run", **settings
    )  # nothing is left to load, and nothing needs it
    assert again.verdict == run.verdict


def test_without_clean_downloads_stay(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = tmp_path / "hub" / "models--org--name"
    (repo / "refs").mkdir(parents=True)
    for seed, name in enumerate(("step1", "step2")):
        save(repo / "snapshots" / (str(seed) * 40), seed)
        (repo / "refs" / name).write_text(str(seed) * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    study(
        "checkpoints",
        "org/name",
        data=texts[:3],
        metrics=["prompt_entropy"],
        steps=["step1", "step2"],
    )
    assert len(list((repo / "snapshots").iterdir())) == 2


def test_which_steps_are_meant(steps: Path) -> None:
    assert [step_label(step.label) for step in find_steps([steps], ["1000", "step0"])] == [
        "0",
        "1000",
    ]
    assert [step.label for step in find_steps([steps / "step20", steps / "step0"], [])] == [
        "step0",
        "step20",
    ]
    with pytest.raises(UnknownNameError, match=r"step in .* 'step7'"):
        find_steps([steps], ["step7", "step0"])
    with pytest.raises(LayerscopeError, match="is one model"):
        find_steps([steps / "step0"], [])
    with pytest.raises(LayerscopeError, match="name its revisions"):
        find_steps(["org/name"], [])
    with pytest.raises(LayerscopeError, match="given twice"):
        find_steps(["org/name"], ["step1", "1"])
    with pytest.raises(LayerscopeError, match="is not a model and holds no models"):
        find_steps([steps / "logs"], [])
    assert step_number("org/pythia-410m@step3000") == 3000
    assert step_number("main") == float("inf")
    assert step_number("run2-step500-v3") == 500


def test_models_that_are_no_checkpoints_of_one_training_are_told(texts: list[str]) -> None:
    run = study(
        "checkpoints",
        tiny_model("llama"),
        tiny_model("bert"),
        data=texts[:4],
        metrics=["prompt_entropy"],
    )
    assert run.manifest["warnings"][0].startswith("these are not checkpoints of one training")
    assert "tiny-llama: llama, 3 blocks of width 32" in run.manifest["warnings"][0]


def test_checkpoints_of_one_training_are_not(steps: Path, texts: list[str]) -> None:
    run = study("checkpoints", steps, data=texts[:4], metrics=["prompt_entropy"])
    assert not any("not checkpoints of one training" in line for line in run.manifest["warnings"])
    assert run.verdict[0].startswith("In short: ")
