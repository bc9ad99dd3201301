"""The shipped tables, their names and their tidy views."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tests.shared import shared_folder

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope_paper import atlas
from layerscope_paper.atlas.tables import DATA


def test_counts_and_columns_of_the_published_tables() -> None:
    # rows as the source's README states them
    assert len(atlas.scores()) == 17_082
    assert len(atlas.metrics()) == 267_107
    assert len(atlas.vision()) == 4_704
    assert len(atlas.tasks()) == 32
    assert len(atlas.problems()) == 99
    assert atlas.metrics()["value"].dtype == np.float64
    assert int(atlas.metrics()["value"].isna().sum()) == 356
    assert {"family", "size", "revision", "layer", "task", "subset_position", "main_score"} <= set(
        atlas.scores().columns
    )


def test_the_data_are_small_and_name_their_source() -> None:
    assert sum(file.stat().st_size for file in DATA.iterdir()) < 3_000_000
    source = (DATA / "SOURCE.md").read_text(encoding="utf-8")
    assert "dde387a70254e21c95a6fdda2ab7db93fb5c2a00" in source
    assert "no license file" in source


def test_callers_get_copies() -> None:
    first = atlas.tasks()
    first.loc[:, "task"] = "changed"
    assert "changed" not in set(atlas.tasks()["task"])


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("mteb_layer_scores.parquet", "scores"),
        ("vision_probe.parquet", "vision"),
        ("task_dataset.csv", "tasks"),
    ],
)
def test_nothing_was_lost_in_packing(file: str, name: str) -> None:
    path = shared_folder("published") / file
    given = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    pd.testing.assert_frame_equal(given, getattr(atlas, name)())


@pytest.mark.parametrize("name", ["Pythia-410m", "pythia-410M", "Pythia/410m", "Pythia-410m@main"])
def test_names_are_found_in_any_spelling(name: str) -> None:
    assert atlas.find_model(name).name == "Pythia-410m"


def test_a_family_of_one_size_needs_no_size() -> None:
    assert atlas.find_model("LLM2Vec-mntp-unsup-simcse-8B").name == "LLM2Vec-mntp-unsup-simcse"
    assert atlas.find_model("llama3").name == "Llama3-8B"
    with pytest.raises(UnknownNameError):
        atlas.find_model("Pythia")


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'Pythia-410m'") as told:
        atlas.find_model("Pythia-411m")
    assert told.value.nearest == "Pythia-410m"


def test_coverage() -> None:
    table = atlas.models().set_index("model")
    assert len(table) == 43
    assert table.loc[
        "Pythia-410m", ["layers", "tasks", "tasks_everywhere", "mteb_datasets"]
    ].tolist() == [25, 32, 32, 29]
    assert table.loc["bert-base", "tasks_everywhere"] == 25
    assert table.loc["Llama3-8B", ["tasks", "wikitext"]].tolist() == [0, 6]
    assert table.loc["vit-large", "probe_layers"] == 24
    assert pd.isna(table.loc["aimv2-large", "layers"])


def test_conventions_choose_the_subsets() -> None:
    authors = atlas.select_scores("Pythia-410m", "authors").set_index(["task", "layer"])["score"]
    english = atlas.select_scores("Pythia-410m", "english").set_index(["task", "layer"])["score"]
    raw = atlas.scores().query(
        "family == 'Pythia' and size == '410m' and revision == 'main' and split == 'test' and layer == 24"
    )
    sts = raw[raw["task"] == "STS17"].set_index("subset")["main_score"]
    assert english["STS17", 24] == sts["en-en"]
    assert authors["STS17", 24] == sts["en-de"]  # the first one listed at that layer
    both = raw[raw["task"] == "AmazonCounterfactualClassification"].set_index("subset")[
        "main_score"
    ]
    assert english["AmazonCounterfactualClassification", 24] == pytest.approx(
        (both["en"] + both["en-ext"]) / 2, abs=1e-15
    )
    assert len(english) == len(authors) == 32 * 25
    with pytest.raises(UnknownNameError, match="authors, english"):
        atlas.select_scores("Pythia-410m", "english-only")


def test_undefined_values_are_counted_not_averaged() -> None:
    scores = atlas.select_scores("bert_CLS-base")
    assert scores.attrs["undefined"] == 1
    assert scores["score"].notna().all()
    values = atlas.metric_values("mamba-130m", "wikitext")
    assert values.attrs["undefined"] > 0
    assert values["value"].notna().all()


@pytest.mark.parametrize(
    ("model", "dataset", "split"),
    [("Pythia-410m", "wikitext", "train"), ("mamba-130m", "wikitext", "train(unrecorded)"), ("bert-large", "wikitext", "test"),
     ("LLM2Vec-mntp-unsup-simcse", "mteb", "test"), ("vit-large", "imagenet", "val")],
)  # fmt: skip
def test_the_split_is_the_papers(model: str, dataset: str, split: str) -> None:
    values = atlas.metric_values(model, dataset)
    assert set(values["split"]) == {split}
    assert not values.duplicated(["dataset", "metric", "layer"]).any()


def test_metrics_by_task_name_and_depth() -> None:
    by_task = atlas.metric_values("Pythia-410m", "Banking77Classification", "dime")
    assert set(by_task["dataset"]) == {"mteb/banking77"}
    assert by_task["depth"].tolist() == pytest.approx([k / 24 for k in range(25)])
    # the lists of aim start after block 1
    assert atlas.metric_values("aim-huge", "imagenet", "lidar")["depth"].iloc[[0, -1]].tolist() == [
        1 / 24,
        1.0,
    ]


def test_missing_results_are_refused_with_a_reason() -> None:
    with pytest.raises(LayerscopeError, match="no scores of Llama3-8B"):
        atlas.select_scores("Llama3-8B")
    with pytest.raises(LayerscopeError, match="no metrics of aimv2-large"):
        atlas.metric_values("aimv2-large")
    with pytest.raises(UnknownNameError, match="metric of Pythia-410m 'entropy'"):
        atlas.metric_values("Pythia-410m", metric="entropy")
    with pytest.raises(LayerscopeError, match="on the MTEB datasets"):
        atlas.metric_values("Llama3-8B", "mteb")
