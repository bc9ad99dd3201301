"""Items from mteb's predictions give mteb's score back, also where scores tie or another measure
than the cosine wins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta

from layerscope.evaluation.scoring import items_of
from layerscope.evaluation.tasks import resolve_tasks
from tests.evaluation.support import TASKS, write_tasks
from tests.evaluation.tasks.support import WordHashEncoder, write_rows


class Given(AbsEncoder):
    """Vectors from a function of the text."""

    def __init__(self, vector: Callable[[str], list[float]]) -> None:
        self.mteb_model_meta = ModelMeta.create_empty(
            overwrites={"name": "tests/given", "revision": "1"}
        )
        self.vector = vector

    def encode(self, inputs: Any, **_: Any) -> np.ndarray:
        return np.array(
            [self.vector(text) for batch in inputs for text in batch["text"]], dtype=np.float32
        )


def scored(
    name: str, data: Path, folder: Path, model: AbsEncoder
) -> tuple[Any, dict[str, Any], Any]:
    """The items of a task, mteb's scores, and mteb's predictions."""
    import mteb

    task = resolve_tasks(name, data_dir=data)[0].load().task
    options = {"cache": None, "co2_tracker": False, "show_progress_bar": False}
    entry = (
        mteb.evaluate(model, task, prediction_folder=folder, **options)
        .task_results[0]
        .scores["test"][0]
    )
    told = (
        json.loads((folder / task.prediction_file_name).read_text()).get("default", {}).get("test")
    )
    return items_of(task, "test", entry, told), entry, told


@pytest.mark.parametrize("name", TASKS)
def test_items_give_mtebs_score_back(name: str, tmp_path: Path) -> None:
    items, entry, _ = scored(
        name, write_tasks(tmp_path / "data"), tmp_path / "told", WordHashEncoder()
    )
    counts = {"Pairs": 24, "Topics": 12, "Sets": 2, "TwitterSemEval2015": 24, "Ranking": 6}
    assert len(items.values) == counts[name]
    # mteb rounds a mean average precision to five digits
    assert items.score() == pytest.approx(entry["main_score"], abs=1e-5)
    assert abs(items.score()) > 0.01


def test_equal_scores_are_ranked_as_mteb_ranks_them(tmp_path: Path) -> None:
    rows = [
        {"query": f"q {i}", "positive": ["same", f"p{i}"], "negative": ["same", "other", f"n{i}"]}
        for i in range(5)
    ]
    write_rows(tmp_path / "data" / "Ranking" / "test.jsonl", rows)
    model = Given(lambda text: [1.0, 0.1 * (text[0] == "q"), 0.5 * (text[0] == "o")])
    items, entry, told = scored("Ranking", tmp_path / "data", tmp_path / "told", model)
    assert len({score for scores in told.values() for score in scores.values()}) < 4
    assert items.score() == pytest.approx(entry["main_score"], abs=1e-5)


def test_the_best_of_several_measures(tmp_path: Path) -> None:
    """All vectors have one direction; only their lengths say which pairs belong together."""
    pairs = [("x" * (i + 1), "x" * (i + 1 + (i % 3))) for i in range(20)]
    rows = [{"sentence1": a, "sentence2": b, "labels": int(len(a) == len(b))} for a, b in pairs]
    write_rows(tmp_path / "data" / "TwitterSemEval2015" / "test.jsonl", rows)
    model = Given(lambda text: [len(text), 2 * len(text)])
    items, entry, _ = scored("TwitterSemEval2015", tmp_path / "data", tmp_path / "told", model)
    assert entry["cosine_ap"] < 0.9
    assert entry["main_score"] == pytest.approx(1.0)
    assert items.score() == pytest.approx(1.0)


def test_scores_that_are_not_made_of_items_have_none(tmp_path: Path) -> None:
    data = write_tasks(tmp_path)
    task = resolve_tasks("Topics", data_dir=data)[0].load().task
    entry = {"hf_subset": "default", "main_score": 0.5}
    assert items_of(task, "test", entry, None) is None
    sets = resolve_tasks("Sets", data_dir=data)[0].load().task
    assert items_of(sets, "test", {**entry, "v_measures": [0.5]}, None) is None
    levels = items_of(sets, "test", {**entry, "v_measures": {"Level 0": [0.2, 0.4]}}, None)
    assert levels is not None
    assert levels.score() == pytest.approx(0.3)
