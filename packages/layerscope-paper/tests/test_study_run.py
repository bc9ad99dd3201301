"""Running a study: its folder, its options, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.tiny import tiny_model

import layerscope_paper.studies as package
from layerscope.errors import LayerscopeError, RunFolderError, UnknownNameError
from layerscope_paper.studies import STUDIES, Option
from layerscope_paper.studies.run import StudyRun, study


def test_a_study_is_a_folder_that_is_returned_at_once(
    model_folder: Path, texts: list[str], tmp_path: Path
) -> None:
    settings = {"data": texts[:3], "levels": [0, 1], "lengths": [8], "out": tmp_path / "run"}
    run = study("extreme", str(model_folder), **settings)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"study.parquet", "study.csv", "figure.png", "figure.svg", "manifest.json"} <= names
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["kind"], manifest["study"], manifest["status"]) == (
        "study",
        "extreme",
        "complete",
    )
    assert manifest["verdict"] == run.verdict
    assert manifest["conventions"]["models"]["tiny-llama"]["weights_sha256"]
    stamp = (tmp_path / "run" / "manifest.json").stat().st_mtime_ns
    again = study("extreme", str(model_folder), **settings)
    assert (tmp_path / "run" / "manifest.json").stat().st_mtime_ns == stamp
    assert again.table.equals(StudyRun.load(tmp_path / "run").table)
    with pytest.raises(RunFolderError, match=r"differs in options.levels"):
        study("extreme", str(model_folder), **{**settings, "levels": [0, 0.5]})


@pytest.mark.usefixtures("no_figure")
def test_a_study_without_matplotlib_and_one_that_replaces_it(
    texts: list[str], tmp_path: Path
) -> None:
    settings = {"data": texts[:3], "conditions": "repetition", "out": tmp_path / "run"}
    run = study("extreme", tiny_model("llama"), levels=[0, 1], **settings)
    assert not list((tmp_path / "run").glob("figure.*"))
    assert run.manifest["warnings"][-1] == "no figure was drawn: that needs the extra `report`"
    other = study("extreme", tiny_model("llama"), levels=[0, 0.5], **settings, overwrite=True)
    assert set(other.table["level"]) == {0.0, 0.5}
    assert set(StudyRun.load(tmp_path / "run").table["level"]) == {0.0, 0.5}


def test_without_a_folder_nothing_is_left(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run = study(
        "extreme", tiny_model("llama"), data=texts[:2], levels=[0, 1], conditions="repetition"
    )
    assert run.path is None
    assert not list(tmp_path.glob("layerscope-study-*"))


@pytest.mark.usefixtures("no_figure")
def test_models_and_engine_take_the_options_of_every_command(
    model_folder: Path, texts: list[str], tmp_path: Path
) -> None:
    settings = {"data": texts[:3], "metrics": "prompt_entropy", "out": tmp_path / "run"}
    models = [str(model_folder), f"{model_folder}?dtype=float32&label=own"]
    run = study("compare", *models, dtype="bfloat16", batch_size=1, **settings)
    held = run.manifest["conventions"]["models"]
    assert (held["tiny-llama"]["dtype"], held["own"]["dtype"]) == ("bfloat16", "float32")
    same = {"dtype": "bfloat16", "batch_size": 1}
    stamp = (tmp_path / "run" / "manifest.json").stat().st_mtime_ns
    assert study("compare", *models, **same, **settings).verdict == run.verdict
    assert (tmp_path / "run" / "manifest.json").stat().st_mtime_ns == stamp
    with pytest.raises(LayerscopeError, match="at least 1, not 0"):
        study("compare", *models, batch_size=0, **settings)
    with pytest.raises(LayerscopeError, match=r"workers.* is for work on a cluster"):
        study("compare", *models, workers=2, **settings)


def test_invalid_arguments_are_refused(texts: list[str], tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown study 'extrem'. Did you mean 'extreme'"):
        study("extrem", tiny_model("llama"), data=texts)
    with pytest.raises(LayerscopeError, match="the study extreme takes 1 model, and was given 0"):
        study("extreme", data=texts)
    with pytest.raises(
        LayerscopeError, match="the study compare takes 2 or more models, and was given 1"
    ):
        study("compare", tiny_model("llama"), data=texts)
    with pytest.raises(
        UnknownNameError, match=r"option of the study extreme 'level'. Did you mean 'levels'"
    ):
        study("extreme", tiny_model("llama"), data=texts, level=1)
    with pytest.raises(UnknownNameError, match="unknown final_norm 'row'"):
        study("extreme", tiny_model("llama"), data=texts, final_norm="row")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty"):
        study("extreme", tiny_model("llama"), data=texts, out=tmp_path / "x")
    with pytest.raises(RunFolderError, match="holds no run"):
        StudyRun.load(tmp_path / "x")


def test_every_study_describes_itself() -> None:
    assert {"checkpoints", "compare", "extreme", "scale", "sublayers"} <= set(STUDIES)
    for name, held in STUDIES.all().items():
        assert STUDIES.get(name) is held
        assert held.title
        assert all(option.help for option in held.options)
        assert held.fill({}) == {option.name: option.default for option in held.options}
    assert not hasattr(package, "study")  # that name is the function's


@pytest.mark.parametrize(
    ("default", "given", "expected"),
    [([0.0], "0,0.5", [0.0, 0.5]), ([1], 3, [3]),
     ([], "a, b", ["a", "b"]), (True, "no", False), (2, "3", 3), ("x", 5, "5"), (1.0, "inf", float("inf"))],
)  # fmt: skip
def test_options_read_text(default: object, given: object, expected: object) -> None:
    assert Option("o", default, "h").parse(given) == expected
    assert Option("o", default, "h").parse(None) == default


@pytest.mark.parametrize(
    ("default", "given"), [(1, "x"), (1, 1.5), (True, "maybe"), ([0.0], "a,b"), (1.0, [])]
)
def test_options_refuse_what_they_cannot_read(default: object, given: object) -> None:
    with pytest.raises(LayerscopeError, match="option o takes"):
        Option("o", default, "h").parse(given)
