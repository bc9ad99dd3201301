"""A run of one's own beside the atlas: only where the conventions agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.tiny import tiny_model

from layerscope.core.readout import Readout
from layerscope.data import Corpus
from layerscope.errors import RunFolderError
from layerscope.evaluation.run import Evaluation
from layerscope.profiling import Profile, profile
from layerscope.report.charts import plot_charts
from layerscope_paper.atlas.overlay import (
    Overlay,
    by_label,
    load_overlay,
    metric_differences,
    overlay_metrics,
    overlay_scores,
)
from layerscope_paper.atlas.summary import charts, compare, show
from layerscope_paper.presets import PRESETS

METRICS = ["prompt_entropy", "curvature", "dataset_entropy"]


@pytest.fixture(scope="module")
def released(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overlay") / "released"
    profile(
        tiny_model("gpt_neox"),
        Corpus.of(texts, name="lee"),
        out=folder,
        **PRESETS["released"],
        metrics=METRICS,
        max_length=24,
    )
    return folder


@pytest.fixture(scope="module")
def default(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("overlay") / "default"
    profile(tiny_model("gpt_neox"), Corpus.of(texts), out=folder, metrics=METRICS, max_length=24)
    return folder


def test_the_released_preset_shares_the_axes(released: Path) -> None:
    overlay = load_overlay(released)
    assert set(overlay.metrics["metric"]) == {"entropy_prompt", "curvature", "entropy_dataset"}
    assert overlay.differs == {}
    mine = Profile.load(released).curve("curvature")
    theirs = overlay.metrics[overlay.metrics["metric"] == "curvature"]
    assert theirs["value"].tolist() == mine["value"].tolist()
    assert theirs["depth"].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert "prompts of lee" in overlay.notes[0]


def test_the_default_profile_does_not_compare_and_gives_reasons(default: Path) -> None:
    overlay = load_overlay(default)
    assert overlay.is_empty
    assert "final_norm is applied, the published metrics are hf" in overlay.differs["curvature"]
    assert (
        "curvature_absolute is False, the published code has True" in overlay.differs["curvature"]
    )
    assert "clamp_gram is False, the published code has True" in overlay.differs["entropy_prompt"]


def test_views_must_be_made_the_same_way(released: Path) -> None:
    conventions = {
        **Profile.load(released).manifest["conventions"],
        "views": 4,
        "augmenter": "builtin",
    }
    assert metric_differences("infonce", conventions) == [
        "views are made by builtin, the published ones by nlpaug"
    ]
    assert metric_differences("lidar", conventions)[-1] == "4 views, the published LiDAR has 16"
    without_norm = {**conventions, "final_norm": "raw", "final_norm_module": None}
    assert metric_differences("curvature", without_norm) == []


def evaluation(tmp_path: Path, scores: list[dict[str, Any]], **conventions: Any) -> Evaluation:
    place = {**Readout().columns, "split": "test"}
    table = pd.DataFrame(
        [{**place, "subset": "default", "depth": row["layer"] / 6, **row} for row in scores]
    )
    manifest = {
        "model": {"name": "mine"},
        "conventions": {"unit_length": False, "max_length": 256, **conventions},
        "tasks": {
            "STS12": {"exact": True},
            "STS13": {"exact": False, "exact_reason": "a part: limit 50"},
        },
    }
    return Evaluation(table, pd.DataFrame(), manifest, tmp_path)


def rows(task: str, **more: Any) -> list[dict[str, Any]]:
    return [{"task": task, "layer": k, "score": 0.4 + k / 20, **more} for k in range(7)]


def test_scores_only_of_the_same_tasks_and_readout(tmp_path: Path) -> None:
    given = [
        *rows("STS12"),
        *rows("STS13"),
        *rows("Mine"),
        *rows("STS17", subset="es-en"),
        *rows("STS14", final_norm="raw"),
    ]
    overlay = overlay_scores(evaluation(tmp_path, [*given, *rows("SICK-R", split="dev")]))
    assert set(overlay.scores["task"]) == {"STS12"}
    assert overlay.differs["STS13"] == ["not MTEB's data (a part: limit 50)"]
    assert overlay.differs["Mine"] == ["not one of the paper's 32 tasks"]
    assert overlay.differs["STS17"] == ["subsets es-en; the english convention has en-en"]
    assert "test" in overlay.differs["SICK-R"][0]
    assert "256 tokens" in overlay.notes[0]


def test_a_task_without_the_published_readout_is_left_out(tmp_path: Path) -> None:
    overlay = overlay_scores(
        evaluation(tmp_path, [*rows("STS12"), *rows("STS14", final_norm="raw")])
    )
    assert overlay.differs["STS14"] == [
        "no scores under the published readout plain/mean/applied/keep/none"
    ]
    everything = overlay_scores(evaluation(tmp_path, rows("STS12", pooling="last")))
    assert everything.is_empty
    scaled = overlay_scores(evaluation(tmp_path, rows("STS12"), unit_length=True))
    assert "length 1" in scaled.differs["STS12"][0]


def test_subsets_of_a_task_are_averaged_as_published(tmp_path: Path) -> None:
    name = "AmazonCounterfactualClassification"
    both = [
        *rows(name, subset="en"),
        *[{**row, "subset": "en-ext", "score": row["score"] + 0.2} for row in rows(name)],
    ]
    overlay = overlay_scores(evaluation(tmp_path, both))
    assert overlay.scores["score"].tolist() == pytest.approx([0.5 + k / 20 for k in range(7)])


def test_compared_on_the_tasks_all_share(tmp_path: Path, released: Path) -> None:
    scored = overlay_scores(evaluation(tmp_path, rows("STS12")))
    table = compare(["Pythia-410m", "bert-base", "Llama3-8B"], overlays=[scored])
    assert [row["tasks"] for row in table] == [1, 1, None, 1]
    assert table[3]["model"] == "your run: mine"
    assert (table[3]["layer"], table[3]["gain"]) == (6, 0.0)
    assert table[0]["valley"] == pytest.approx(1.105, abs=0.001)
    profiled = overlay_metrics(Profile.load(released))
    drawn = charts(["Pythia-410m"], overlays=[profiled, scored])
    assert drawn[0].title == "mean MTEB score, 1 tasks (english)"
    labels = {chart.title.split(" (")[0]: [line.name for line in chart.lines] for chart in drawn}
    assert labels["curvature"] == ["Pythia-410m", "your run: tiny-gpt_neox"]
    assert labels["LiDAR"] == ["Pythia-410m"]
    figure = plot_charts(drawn, "a $title$")
    assert len(figure.to_dict()["concat"]) == len(drawn)


def test_a_profile_and_an_evaluation_of_one_model_are_one_line(
    tmp_path: Path, released: Path, default: Path
) -> None:
    profiled, scored = load_overlay(released), overlay_scores(evaluation(tmp_path, rows("STS12")))
    scored.name = profiled.name
    table = compare(["Pythia-410m"], overlays=[scored, profiled, load_overlay(default)])
    assert [row["model"] for row in table] == ["Pythia-410m", "your run: tiny-gpt_neox"]
    assert table[1]["tasks"] == 1
    assert table[1]["valley"] is not None
    twice = by_label([profiled, load_overlay(released)])
    assert list(twice) == ["your run: tiny-gpt_neox", f"your run: tiny-gpt_neox in {released}"]


def test_show_reports_missing_results() -> None:
    found = show("Llama3-8B")
    assert found["scores"] is None
    assert found["metrics"]["dataset"] == "wikitext"
    mine = show("Pythia-410m", "authors")["scores"]
    assert mine["mean"][17] == pytest.approx(51.96, abs=0.0051)
    assert show("vit-large")["metrics"]["dataset"] == "imagenet"
    assert show("aimv2-large")["metrics"] is None


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no run"):
        load_overlay(tmp_path)


def test_an_empty_overlay_is_plain_values() -> None:
    empty = Overlay(
        "x", pd.DataFrame(columns=["metric"]), pd.DataFrame(columns=["task"]), {"a": ["b"]}
    )
    assert empty.as_dict() == {
        "run": "x",
        "metrics": [],
        "tasks": [],
        "left_out": {"a": ["b"]},
        "notes": [],
        "cells": [],
    }
